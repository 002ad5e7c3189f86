// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shares the prefix of a prompt between recipes. Recipes that evict at the prompt's end, or not at all,
 *          begin by reading the whole prompt. The first recipe's pages are kept, and the next recipe continues from
 *          them.
 *
 * Design: a shared prefix is the pages of a session between two chunks, before anything depends on where the
 *         prompt ends (sl_reader_shared_tokens()); the chunk after it is read again. A recipe continues from one if
 *         reading under it leaves the same keys and values, and fills no score planes or the same ones: every bit
 *         equals the result of reading. Another question about the same text continues from the chunks before the
 *         first token that differs, unless there are score planes. A new prefix replaces those of other tokens and
 *         those that it can stand for, and the oldest ones when memory runs out.
 * Not here: prompts of a cluster: its kvstore shares prefixes, for one recipe at a time.
 * Threads: one at a time.
 */
#pragma once

#include "engine/compress/plan/plan.h"

struct sl_shared_prefixes;

// Creates the store for at most this many bytes of pages.
enum sl_status sl_shared_prefixes_create(size_t most_bytes, struct sl_shared_prefixes **shared_prefixes_out,
                                         struct sl_error *err);
void sl_shared_prefixes_destroy(struct sl_shared_prefixes **shared_prefixes); // accepts NULL

// Returns whether plan's recipe reads the prompt whole.
bool sl_plan_reads_whole(const struct sl_plan *plan);

// Keeps the tokens that `session` holds of tokens[plan->n_prompt], under a plan that reads whole, if the session is
// whole and fits.
void sl_shared_prefixes_keep(struct sl_shared_prefixes *shared_prefixes, const struct sl_plan *plan,
                             const int32_t *tokens, const struct sl_session *session);

/*
 * Creates a session as sl_plan_create_session() does, with the longest shared prefix of this plan and these tokens
 * [plan->n_prompt]; *session_out is NULL if there is none. SL_ERR_EXHAUSTED: the arena is full.
 */
enum sl_status sl_shared_prefixes_resume(const struct sl_shared_prefixes *shared_prefixes, const struct sl_plan *plan,
                                         const int32_t *tokens, int64_t extra_slots, struct sl_arena *arena,
                                         struct sl_session **session_out, struct sl_error *err);
