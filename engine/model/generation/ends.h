// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tokens that end an answer: every one that any document of the model names, and the turn ends that we know.
 *
 * Design: documents disagree. A base model's config.json ends a text with <|endoftext|>, while the tokenizer of the chat
 *         model made from it ends a turn with <|im_end|>; a model that runs past either one invents the user's next turn.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#define SL_MAX_LISTED_EOS 8  // of one document
#define SL_MAX_EOS        32 // of all together

struct sl_model_ends {
    int32_t ids[SL_MAX_EOS];
    int n;
};

// Adds an id that is not there yet. Documents name at most 8 each, so there is room for all; what is beyond is left out.
void sl_model_ends_add(struct sl_model_ends *ends, int64_t id);

/*
 * Adds what the tokenizer knows to what config.json and generation_config.json name: its own end of a text (eos_id, -1:
 * none), and known ends of turns that are special tokens (an object of content -> id; engine/model/gguf/special_tokens.h). Ids
 * from n_vocab on, which the model cannot write, are left out.
 */
void sl_model_ends_complete(struct sl_model_ends *ends, int64_t eos_id, const json_t *special_tokens, int64_t n_vocab);
