// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how long a worker's operations take: the table that `sluice bench calibrate` writes.
 *
 * Design: a JSON object
 *
 *     "machine"  whose times these are, in words
 *     "shape"    of the model, as sl_costs_shape() tells it; without it, of any
 *     "rows"     rows of prompts that keep the device busy in one pass
 *     "prefill"  [[tokens, context, ms], ...]  a pass over this many tokens after this many others
 *     "reading"  {RECIPE: [[tokens, ms], ...]} whole prompts under a recipe; without it, as the passes say
 *     "decode"   {RECIPE: [[batch, context, ms], ...]} a step of this many answers
 *     "ship"     {"bytes_per_s": ..., "latency_ms": ...} between two workers
 *     "store"    {"lookup_ms": ...}
 *     "call_ms"  of a call from the coordinator to a worker
 *
 *         Each list is a whole grid. Between its lines, times are interpolated in both directions; beyond them, the last
 *         two lines are extended.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/model/model.h"

#define SL_COSTS_MAX_LINES 24

// values[i * ny + j] is that of x[i] and y[j]
struct sl_cost_grid {
    int nx, ny;
    double x[SL_COSTS_MAX_LINES], y[SL_COSTS_MAX_LINES], values[SL_COSTS_MAX_LINES * SL_COSTS_MAX_LINES];
};

struct sl_costs {
    char machine[160], shape[96];
    int64_t rows;
    struct sl_cost_grid prefill, reading, decode;
    double ship_bytes_per_s, ship_latency_s, lookup_s, call_s;
};

// Writes what of a model decides how long operations take.
void sl_costs_shape(const struct sl_model_config *model, char shape_out[96]);

// Loads the table, with the lists of one recipe. SL_ERR_NOT_FOUND: no such file. SL_ERR_INVALID names what is wrong, or the
// recipes that the table has.
enum sl_status sl_costs_load(const char *path, const char *recipe, struct sl_costs *costs_out, struct sl_error *err);

// Returns the seconds of a pass over `tokens` of a prompt after `context` others.
double sl_costs_read_s(const struct sl_costs *costs, double tokens, double context);

// Describes how a worker cuts prompts into passes.
struct sl_costs_cut {
    int64_t chunk; // of the recipe
    double half;   // sl_reader_half_position()
    bool freely;   // chunks far into a prompt may be smaller
};
// Returns the tokens of the next pass over a prompt of n.
int64_t sl_costs_next_chunk(const struct sl_costs *costs, const struct sl_costs_cut *cut, int64_t done, int64_t n);
// Makes costs->reading, which has the seconds of whole prompts, a grid of how much longer they take than their passes.
void sl_costs_fit_reading(struct sl_costs *costs, const struct sl_costs_cut *cut);
// Returns the seconds of a whole prompt after sl_costs_fit_reading(), and by how much longer it takes than its passes.
double sl_costs_prompt_s(const struct sl_costs *costs, const struct sl_costs_cut *cut, int64_t n);
double sl_costs_factor(const struct sl_costs *costs, double n);

// Returns the seconds of a step of `batch` answers, each after `context` tokens.
double sl_costs_step_s(const struct sl_costs *costs, double batch, double context);
