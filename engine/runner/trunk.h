// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what recipes have in common when they are asked the same: those that evict at the prompt's end, or nothing,
 *          all begin by reading it whole. What one of them has read is kept, and the next goes on from there.
 *
 * Design: a trunk is the pages of a session between two chunks, before anything depends on where the prompt ends
 *         (sl_reader_shared_tokens()): the chunk behind it is read again. Recipes have one in common where their pages
 *         are laid out alike and the same is summed up in them, so that every bit is what reading would have given.
 *         Trunks of other tokens go when a new one is kept, the oldest ones when memory ends.
 * Not here: prompts of a cluster: its kvstore does that, for one recipe at a time.
 * Threads: one at a time.
 */
#pragma once

#include "engine/compress/plan/plan.h"

struct sl_trunks;

// At most so many bytes of pages.
enum sl_status sl_trunks_create(size_t most_bytes, struct sl_trunks **trunks_out, struct sl_error *err);
void sl_trunks_destroy(struct sl_trunks **trunks); // accepts NULL

// Whether plan's recipe reads the prompt whole.
bool sl_plan_reads_whole(const struct sl_plan *plan);

// Keep what `session` holds of tokens[plan->n_prompt] under a plan that reads whole, if it is whole and fits.
void sl_trunks_keep(struct sl_trunks *trunks, const struct sl_plan *plan, const int32_t *tokens,
                    const struct sl_session *session);

/*
 * A session as sl_plan_create_session() makes it that holds the longest trunk of this plan and these tokens
 * [plan->n_prompt]; *session_out is NULL where there is none. SL_ERR_EXHAUSTED: the arena.
 */
enum sl_status sl_trunks_resume(const struct sl_trunks *trunks, const struct sl_plan *plan, const int32_t *tokens,
                                int64_t extra_slots, struct sl_arena *arena, struct sl_session **session_out,
                                struct sl_error *err);
