// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures the grids of a table of times (lab/simulate/costs.h): passes of a prompt over tokens and contexts, whole
 *          prompts and steps of decode under each recipe.
 *
 * Design: after every fourth cell of a grid, a point between two of its lines is measured, too, which is held out of the
 *         table: a fifth of all measurements.
 */
#pragma once

#include <jansson.h>

#include "lab/bench/rig/recipe_cell.h"
#include "lab/simulate/costs.h"

#define SL_CALIBRATION_MAX_LINES 16
#define SL_CALIBRATION_MAX_HELD  256
#define SL_CALIBRATION_STEPS     8 // of a measurement of decode

enum sl_calibrated { SL_CALIBRATED_PASS, SL_CALIBRATED_PROMPT, SL_CALIBRATED_STEP };

// A measurement that is held out: a pass of x tokens after y, a prompt of x tokens, or a step of x answers after y.
struct sl_held {
    const char *recipe;
    enum sl_calibrated kind;
    double x, y, s;
};

struct sl_calibration {
    struct sl_rig rig; // opened by the caller, and closed
    struct sl_signals *signals;
    const char *const *recipes; // [n_recipes]; passes are measured under none
    int n_recipes;
    int64_t contexts[SL_CALIBRATION_MAX_LINES], batches[SL_CALIBRATION_MAX_LINES];
    int n_contexts, n_batches;
    json_t *table; // gets the lists; the caller's
    struct sl_held held[SL_CALIBRATION_MAX_HELD];
    int n_held, n_cells;
};

enum sl_status sl_calibrate(struct sl_calibration *c, struct sl_error *err);

// Returns what a table says of a measurement that was held out, in seconds. Changes costs->reading.
double sl_calibration_predict(const struct sl_calibration *c, struct sl_costs *costs, const struct sl_held *held);
