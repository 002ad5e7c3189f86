// SPDX-License-Identifier: Apache-2.0
// Purpose: what the documents that are made of metadata share.
#pragma once

#include <jansson.h>

#include "engine/model/gguf/gguf.h"

// Set object[key], taking the value over; *ok becomes false where there is no memory for it, or value is NULL.
void sl_json_put(json_t *object, const char *key, json_t *value, bool *ok);
// NULL: not UTF-8, or no memory.
json_t *sl_gguf_json_text(struct sl_gguf_text text);
