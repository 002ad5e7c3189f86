// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one measured cell (lab/bench/rig/cell.h) under a recipe: a prompt that the workers' own reader reads and
 *          compresses, or steps of sessions whose pages the recipe has packed. Also code shared with bench_decode.c.
 *
 * Design: decode's sessions are generated, not read: random rows in every slot that the recipe keeps, then packed by
 *         its compressor. bench_decode.c handles layers that a recipe offloads.
 */
#pragma once

#include "lab/bench/rig/cell.h"
#include "engine/runner/reader.h"
#include "engine/runner/writer.h"

// Makes the plan of a recipe's text for a model and a prompt. Returns the statuses of sl_job_recipe() and
// sl_plan_make().
enum sl_status sl_recipe_cell_plan(const struct sl_model_config *model, const char *recipe, int64_t n_tokens,
                                   struct sl_plan *plan_out, struct sl_error *err);

// Reads the whole prompt of a reader's configuration. `signals` may be NULL; one that has come ends the reading. The
// caller destroys *reader_out, after failures, too.
enum sl_status sl_recipe_cell_read(const struct sl_reader_config *config, struct sl_signals *signals,
                                   struct sl_reader **reader_out, struct sl_error *err);

// Writes the number of tokens that a recipe reads at once to *tokens_out: the rig's engine must accept as many.
// SL_ERR_INVALID: not a recipe.
enum sl_status sl_recipe_chunk(const char *recipe, int64_t *tokens_out, struct sl_error *err);
// Returns true for a recipe that repeats the prompt, for which the rig needs a tokenizer.
bool sl_recipe_cell_repeats(const char *recipe);

// Returns the bytes that one layer of the plan's session takes before it is packed.
size_t sl_recipe_cell_unpacked_bytes(const struct sl_plan *plan);

// Makes an empty session of the plan in rig->arena with random rows in the resident layers, packed according to the
// recipe.
enum sl_status sl_recipe_cell_fill(struct sl_rig *rig, const struct sl_plan *plan, int64_t n_new,
                                   struct sl_session **session_out, struct sl_error *err);

/*
 * Runs the cell under the recipe `n_runs` times, after some runs that are not counted. seconds_out[n_runs]: each run
 * read the prompt or wrote rig->config.n_steps tokens of every session. rig->cell is the cell; its arena must be
 * closed, and is closed afterwards. SL_ERR_EXHAUSTED: the device has no room for it.
 */
enum sl_status sl_recipe_cell_run(struct sl_rig *rig, const char *recipe, const struct sl_cell *cell, int64_t n_runs,
                                  double *seconds_out, struct sl_error *err);
