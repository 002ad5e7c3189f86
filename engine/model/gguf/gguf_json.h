// SPDX-License-Identifier: Apache-2.0
// Purpose: helpers for documents that are made from metadata.
#pragma once

#include <jansson.h>

#include "engine/model/gguf/gguf.h"

// Sets object[key] and takes ownership of the value; *ok becomes false if memory runs out, or value is NULL.
void sl_json_put(json_t *object, const char *key, json_t *value, bool *ok);
// Returns NULL if the text is not UTF-8, or memory runs out.
json_t *sl_gguf_json_text(struct sl_gguf_text text);
