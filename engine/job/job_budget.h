// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: chooses how many tokens an answer may have if its request does not say: as many as fit, the same in a
 *          cluster and in one process.
 *
 * Design: KV memory is reserved for the whole budget before the first token, so a default budget must not keep other
 *         jobs out. The rules, in this order:
 *
 *             wanted    a chat gets the rest of the context; a text or tokens get SL_DEFAULT_NEW_TOKENS
 *             context   at most the positions after the prompt; in models with two sets of RoPE frequencies at most
 *                       the reach of the session's set, or of the set that SL_DEFAULT_NEW_TOKENS need
 *             share     a chat takes at most a part of the arena that its prompt leaves free, but at least
 *                       SL_DEFAULT_NEW_TOKENS
 *             arena     at most what the whole arena holds
 */
#pragma once

#include <stdbool.h>

#include "engine/compress/recipe/recipe.h"
#include "engine/model/model.h"

#define SL_DEFAULT_NEW_TOKENS 128

struct sl_job_budget {
    const struct sl_model_config *model;
    const struct sl_recipe *recipe; // resolved (engine/job/job_recipe.h)
    int64_t n_tokens;               // tokens of the prompt, at least 1; in a conversation: all tokens so far
    const int *rope_set;            // set of the session that the prompt continues; NULL: no session
    bool is_chat;
    bool in_one_process; // there are no kvstores: offloaded layers stay in the arena
    int64_t arena_bytes; // the largest arena that could write the answer; 0: unknown, a chat gets a text's default
    int share;           // a chat takes 1 / share of the arena that its prompt leaves free; 1: all of it
    int64_t known;       // budget of an earlier attempt, replaces the first three rules; 0: none
};

/*
 * Writes the number of new tokens, at least 1. The job may still not fit: if the arena does not even hold the prompt,
 * the caller's own check of the memory reports it. SL_ERR_INVALID: the context has no room after the prompt.
 * SL_ERR_EXHAUSTED: no memory.
 */
enum sl_status sl_job_budget(const struct sl_job_budget *asked, int64_t *n_new_out, struct sl_error *err);
