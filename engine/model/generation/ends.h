// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tokens that end an answer: every one that a document of the model names, and known turn ends.
 *
 * Design: documents disagree. A base model's config.json ends a text with <|endoftext|>, while the tokenizer of the
 *         chat model made from it ends a turn with <|im_end|>. A model that runs past either one invents the user's
 *         next turn.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#define SL_MAX_LISTED_EOS 8  // per document
#define SL_MAX_EOS        32 // in total

struct sl_model_ends {
    int32_t ids[SL_MAX_EOS];
    int n;
};

// Adds an id that is not in the list yet. Documents name at most 8 each, so there is room for all; further ids are
// dropped.
void sl_model_ends_add(struct sl_model_ends *ends, int64_t id);

/*
 * Adds the tokenizer's ends to those that config.json and generation_config.json name: its own end of a text (eos_id,
 * -1: none), and known turn ends that are special tokens (an object of content -> id;
 * engine/model/gguf/special_tokens.h). Skips ids from n_vocab on, which the model cannot write.
 */
void sl_model_ends_complete(struct sl_model_ends *ends, int64_t eos_id, const json_t *special_tokens, int64_t n_vocab);
