// SPDX-License-Identifier: Apache-2.0
// Purpose: the parts of a tokenizer.json that names of pre-tokenizers in GGUF files (tokenizer.ggml.pre) stand for.
#pragma once

#include <stdbool.h>

#include "engine/model/gguf/gguf.h"

struct sl_pretokenizer_name {
    const char *names;         // each between two spaces
    const char *normalizer;    // as JSON; NULL: none
    const char *pre_tokenizer; // as JSON
    bool ignores_merges;       // a piece that is a token is that token
    bool adds_begin;           // default if the file does not say
};

// Returns NULL for an unknown or missing name.
const struct sl_pretokenizer_name *sl_pretokenizer_of_name(struct sl_gguf_text name);
