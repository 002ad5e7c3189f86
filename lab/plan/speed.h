// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a worker's speed, as two formulas that are fitted to measurements of `sluice bench cells`.
 *
 *     prefill of tokens i..j    token_s * (j - i) + pair_s * (j^2 - i^2) / 2      matrices; attention to the past
 *     step of a batch           step_s + row_s * batch + byte_s * KV bytes         weights; rows; attention
 *
 * In a step, compressed KV counts with its compressed bytes: decode reads it in that form.
 */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct sl_speed {
    double token_s, pair_s;
    double step_s, row_s, byte_s;
    int n_prefill, n_decode;                        // number of fitted cells
    double worst_prefill_error, worst_decode_error; // relative, over these cells
};

/*
 * Fits the lines that `sluice bench cells --json` printed for prefill:N and decode:DEPTHxBATCH (ignores others);
 * full_bytes: a token's keys and values in f16. SL_ERR_INVALID: the file, or a line of it; or there are fewer than
 * two prompt lengths, or fewer than three cells of decode that differ in depth and in batch.
 */
enum sl_status sl_speed_load(const char *path, int64_t full_bytes, struct sl_speed *speed_out, struct sl_error *err);

static inline double sl_speed_prefill_s(const struct sl_speed *speed, int64_t from, int64_t to) {
    double n = (double)(to - from);
    return speed->token_s * n + speed->pair_s * n * (double)(to + from) / 2;
}

static inline double sl_speed_step_s(const struct sl_speed *speed, double batch, double kv_bytes) {
    return speed->step_s + speed->row_s * batch + speed->byte_s * kv_bytes;
}
