// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how many tokens an answer may have when its request does not say: what fits, the same in a cluster and in one
 *          process.
 *
 * Design: KV memory is promised for the whole budget before the first token, so a budget that nobody asked for must not
 *         keep others out. The rule, in this order:
 *
 *             wanted    a chat: to the end of the context; a text or tokens: SL_DEFAULT_NEW_TOKENS
 *             context   no more than the positions after the prompt; models with two sets of RoPE frequencies: no further
 *                       than the session's set reaches, or the set that SL_DEFAULT_NEW_TOKENS need
 *             share     a chat takes no more than a part of the arena that its prompt leaves free, but at least
 *                       SL_DEFAULT_NEW_TOKENS
 *             arena     no more than the whole arena holds
 */
#pragma once

#include <stdbool.h>

#include "engine/compress/recipe/recipe.h"
#include "engine/model/model.h"

#define SL_DEFAULT_NEW_TOKENS 128

struct sl_job_budget {
    const struct sl_model_config *model;
    const struct sl_recipe *recipe; // resolved (engine/job/job_recipe.h)
    int64_t n_tokens;               // of the prompt, at least 1; of a conversation: all so far
    const int *rope_set;            // of the session that the prompt goes on from; NULL: there is none
    bool is_chat;
    bool in_one_process; // there are no kvstores: offloaded layers stay in the arena
    int64_t arena_bytes; // the largest that could write the answer; 0: not known, so a chat wants what a text does
    int share;           // a chat takes 1 / share of the arena that its prompt leaves free; 1: all of it
    int64_t known;       // what an earlier attempt got, in place of the first three rules; 0: nothing
};

/*
 * Writes the number of new tokens, at least 1. It may still not fit: where the arena does not even hold the prompt, the
 * caller's own check of the memory says so. SL_ERR_INVALID: the context has no room after the prompt. SL_ERR_EXHAUSTED.
 */
enum sl_status sl_job_budget(const struct sl_job_budget *asked, int64_t *n_new_out, struct sl_error *err);
