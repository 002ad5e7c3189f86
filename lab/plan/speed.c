// SPDX-License-Identifier: Apache-2.0
// Purpose: see speed.h.
#include "lab/plan/speed.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "lab/bench/rig/cell.h"
#include "lab/plan/json_lines.h"

#define MAX_CELLS    64
#define MAX_UNKNOWNS 3

// A measurement: seconds = sum of unknowns times their factors.
struct sample {
    double factors[MAX_UNKNOWNS], seconds;
};

// --- the fit -------------------------------------------------------------------------------------------------------

// Solves the n equations in place, with pivots. Returns false if they are singular.
static bool solve(double a[MAX_UNKNOWNS][MAX_UNKNOWNS + 1], int n, double *x_out) {
    for (int column = 0; column < n; column++) {
        int best = column;
        for (int row = column + 1; row < n; row++) {
            best = fabs(a[row][column]) > fabs(a[best][column]) ? row : best;
        }
        if (!(fabs(a[best][column]) > 1e-9)) { // columns are scaled to 1
            return false;
        }
        for (int i = 0; i <= n; i++) {
            double other = a[column][i];
            a[column][i] = a[best][i];
            a[best][i] = other;
        }
        for (int row = 0; row < n; row++) {
            double share = row == column ? 0 : a[row][column] / a[column][column];
            for (int i = column; i <= n; i++) {
                a[row][i] -= share * a[column][i];
            }
        }
    }
    for (int i = 0; i < n; i++) {
        x_out[i] = a[i][n] / a[i][i];
    }
    return true;
}

// Computes least squares of relative errors over the unknowns of `mask`; the others are 0. Returns false if there is
// no solution, or one is negative.
static bool fit_some(const struct sample *samples, int n, int n_unknowns, unsigned mask, double *x_out) {
    int which[MAX_UNKNOWNS], n_which = 0;
    double scale[MAX_UNKNOWNS] = {0}, a[MAX_UNKNOWNS][MAX_UNKNOWNS + 1] = {{0}}, x[MAX_UNKNOWNS];
    for (int u = 0; u < n_unknowns; u++) {
        x_out[u] = 0;
        for (int i = 0; i < n && (mask >> u & 1); i++) {
            scale[u] = fmax(scale[u], samples[i].factors[u] / samples[i].seconds);
        }
        if (mask >> u & 1) {
            which[n_which++] = u;
        }
    }
    for (int i = 0; i < n; i++) {
        for (int r = 0; r < n_which; r++) {
            double row = samples[i].factors[which[r]] / samples[i].seconds / scale[which[r]];
            for (int c = 0; c < n_which; c++) {
                a[r][c] += row * samples[i].factors[which[c]] / samples[i].seconds / scale[which[c]];
            }
            a[r][n_which] += row;
        }
    }
    if (!solve(a, n_which, x)) {
        return false;
    }
    for (int r = 0; r < n_which; r++) {
        x_out[which[r]] = x[r] / scale[which[r]];
        if (!(x_out[which[r]] >= 0)) {
            return false;
        }
    }
    return true;
}

static double error_of(const struct sample *sample, int n_unknowns, const double *x) {
    double seconds = 0;
    for (int u = 0; u < n_unknowns; u++) {
        seconds += x[u] * sample->factors[u];
    }
    return seconds / sample->seconds - 1;
}

// Fits nonnegative times: over all subsets of the unknowns, the fit with the least squares. Returns the largest
// relative error; NAN: no fit.
static double fit(const struct sample *samples, int n, int n_unknowns, double *x_out) {
    double least = INFINITY, worst = NAN;
    for (unsigned mask = 1; mask < 1u << n_unknowns; mask++) {
        double x[MAX_UNKNOWNS], squares = 0, worst_here = 0;
        if (!fit_some(samples, n, n_unknowns, mask, x)) {
            continue;
        }
        for (int i = 0; i < n; i++) {
            double error = error_of(&samples[i], n_unknowns, x);
            squares += error * error;
            worst_here = fmax(worst_here, fabs(error));
        }
        if (squares < least) {
            least = squares;
            worst = worst_here;
            memcpy(x_out, x, (size_t)n_unknowns * sizeof *x);
        }
    }
    return worst;
}

// --- the file ------------------------------------------------------------------------------------------------------

struct measured {
    struct sample prefill[MAX_CELLS], decode[MAX_CELLS];
    int n_prefill, n_decode;
    bool two_lengths, two_depths, two_batches;
};

static enum sl_status take_cell(struct measured *measured, const char *name, double tokens_per_s, int64_t full_bytes,
                                struct sl_error *err) {
    struct sl_cell cell;
    enum sl_status status = sl_cell_parse(name, &cell, err);
    if (status != SL_OK) {
        return status;
    }
    if (!(tokens_per_s > 0) || measured->n_prefill == MAX_CELLS || measured->n_decode == MAX_CELLS) {
        return sl_fail(err, SL_ERR_INVALID, "%s: a speed above 0 is expected, and at most %d cells", name, MAX_CELLS);
    }
    double n = (double)cell.n;
    if (cell.prefill) {
        measured->two_lengths |= measured->n_prefill > 0 && measured->prefill[0].factors[0] != n;
        measured->prefill[measured->n_prefill++] = (struct sample){{n, n * n / 2}, n / tokens_per_s};
        return SL_OK;
    }
    double bytes = n * cell.batch * (double)full_bytes;
    if (measured->n_decode > 0) {
        const double *first = measured->decode[0].factors;
        measured->two_batches |= first[1] != cell.batch;
        measured->two_depths |= first[2] / first[1] != bytes / cell.batch;
    }
    measured->decode[measured->n_decode++] = (struct sample){{1, cell.batch, bytes}, cell.batch / tokens_per_s};
    return SL_OK;
}

struct reading {
    struct measured measured;
    int64_t full_bytes;
};

static enum sl_status take_object(void *arg, json_t *object, struct sl_error *err) {
    struct reading *reading = arg;
    const char *bench = json_string_value(json_object_get(object, "bench"));
    const char *name = json_string_value(json_object_get(object, "case"));
    if (!bench || !name || strcmp(bench, "cells") != 0) {
        return SL_OK;
    }
    double tokens_per_s = json_number_value(json_object_get(object, "value"));
    return take_cell(&reading->measured, name, tokens_per_s, reading->full_bytes, err);
}

enum sl_status sl_speed_load(const char *path, int64_t full_bytes, struct sl_speed *speed_out, struct sl_error *err) {
    struct reading reading = {.full_bytes = full_bytes};
    enum sl_status status = sl_json_lines_read(path, take_object, &reading, err);
    if (status != SL_OK) {
        return status;
    }
    const struct measured *measured = &reading.measured;
    if (!measured->two_lengths || !measured->two_depths || !measured->two_batches) {
        return sl_fail(err, SL_ERR_INVALID,
                       "%s: cells of two prompts' lengths, and of decode at two depths and in two batches, are needed",
                       path);
    }
    double prefill[MAX_UNKNOWNS], decode[MAX_UNKNOWNS];
    double worst_prefill = fit(measured->prefill, measured->n_prefill, 2, prefill);
    double worst_decode = fit(measured->decode, measured->n_decode, 3, decode);
    if (isnan(worst_prefill) || isnan(worst_decode)) {
        return sl_fail(err, SL_ERR_INVALID, "%s: no formula fits these cells", path);
    }
    *speed_out = (struct sl_speed){
        .token_s = prefill[0],
        .pair_s = prefill[1],
        .step_s = decode[0],
        .row_s = decode[1],
        .byte_s = decode[2],
        .n_prefill = measured->n_prefill,
        .n_decode = measured->n_decode,
        .worst_prefill_error = worst_prefill,
        .worst_decode_error = worst_decode,
    };
    return SL_OK;
}
