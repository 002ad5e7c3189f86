// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one measured cell (lab/bench/rig/cell.h) under a recipe: a prompt that the workers' own reader reads and compresses, or steps of
 *          sessions whose pages the recipe has packed. And what bench_decode.c shares with it.
 *
 * Design: decode's sessions are made, not read: random rows in every slot that the recipe keeps, then packed by its compressor. Layers that a
 *         recipe offloads are bench_decode.c's.
 */
#pragma once

#include "lab/bench/rig/cell.h"
#include "engine/runner/writer.h"

// Makes the plan of a recipe's text for the rig's model and a prompt. Statuses of sl_job_recipe() and sl_plan_make().
enum sl_status sl_recipe_cell_plan(const struct sl_rig *rig, const char *recipe, int64_t n_tokens,
                                   struct sl_plan *plan_out, struct sl_error *err);

// Returns the tokens that a recipe reads at once, in *tokens_out: what the rig's engine must take. SL_ERR_INVALID: no recipe.
enum sl_status sl_recipe_chunk(const char *recipe, int64_t *tokens_out, struct sl_error *err);

// Returns the bytes that one layer of the plan's session takes before it is packed.
size_t sl_recipe_cell_unpacked_bytes(const struct sl_plan *plan);

// Makes an empty session of the plan in rig->arena with random rows in the layers that stay here, packed as the recipe says.
enum sl_status sl_recipe_cell_fill(struct sl_rig *rig, const struct sl_plan *plan, int64_t n_new,
                                   struct sl_session **session_out, struct sl_error *err);

/*
 * Runs the cell under the recipe `n_runs` times, after some that are not counted: seconds_out[n_runs], of which each read the prompt or wrote
 * rig->config.n_steps tokens of every session. rig->cell is the cell and its arena was closed, as it is afterwards.
 * SL_ERR_EXHAUSTED: the device has no room for it.
 */
enum sl_status sl_recipe_cell_run(struct sl_rig *rig, const char *recipe, const struct sl_cell *cell, int64_t n_runs,
                                  double *seconds_out, struct sl_error *err);
