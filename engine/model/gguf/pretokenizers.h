// SPDX-License-Identifier: Apache-2.0
// Purpose: what the names of pre-tokenizers in GGUF files (tokenizer.ggml.pre) stand for: parts of a tokenizer.json.
#pragma once

#include <stdbool.h>

#include "engine/model/gguf/gguf.h"

struct sl_pretokenizer_name {
    const char *names;         // with a space on either side of each
    const char *normalizer;    // as JSON; NULL: none
    const char *pre_tokenizer; // as JSON
    bool ignores_merges;       // a piece that is a token is that token
    bool adds_begin;           // where the file does not say
};

// NULL: not one of ours, or there is no name.
const struct sl_pretokenizer_name *sl_pretokenizer_of_name(struct sl_gguf_text name);
