// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what the files of engine/cpu share: how a tier fills the table of engine/ops.h, and the angles of RoPE.
 *
 * Design: the reference fills every entry; a faster tier starts from a copy of the table and overwrites what it is
 *         better at. One file per instruction set and group of operations; ops.c alone decides which may run.
 *
 * To add a tier: files named as the other tiers' with their compiler flags in CMakeLists.txt, a fill function each
 * here, and a row in the table of ops.c, where a group that the tier leaves as it is may be NULL.
 */
#ifndef SL_ENGINE_CPU_TIER_H
#define SL_ENGINE_CPU_TIER_H

#include <math.h>

#include "engine/ops.h"

#define SL_MAX_HEAD_DIM 512 // the angles of one position, and one head's row, fit on the stack; models are checked

void sl_ref_dense_fill(struct sl_ops *ops);    // pack unpack matmul_scratch matmul embed norm angles rotate
void sl_ref_kv_fill(struct sl_ops *ops);       // append and what the table has after it, but for:
void sl_ref_evict_fill(struct sl_ops *ops);    // value_change nearest merge
void sl_ref_retrieve_fill(struct sl_ops *ops); // attend_slots
void sl_ref_scan_fill(struct sl_ops *ops);     // scan_copy scan copy_rows put_rows

#if defined(__x86_64__)
void sl_avx2_dense_fill(struct sl_ops *ops);
void sl_avx2_kv_fill(struct sl_ops *ops);
void sl_avx2_evict_fill(struct sl_ops *ops);
void sl_avx2_retrieve_fill(struct sl_ops *ops);
void sl_avx2_scan_fill(struct sl_ops *ops); // scan_copy scan select
void sl_avx512_dense_fill(struct sl_ops *ops);
void sl_avx512_kv_fill(struct sl_ops *ops);        // attend attend_before fold window_sums
void sl_avx512_scan_fill(struct sl_ops *ops);      // scan
void sl_avx512bf16_dense_fill(struct sl_ops *ops); // pack matmul_scratch matmul
void sl_amx_dense_fill(struct sl_ops *ops);
void sl_amx_kv_fill(struct sl_ops *ops); // attend attend_before fold window_sums
#elif defined(__aarch64__)
void sl_neon_dense_fill(struct sl_ops *ops); // but for embed and angles
#endif

// cos and sin of every angle of one position, as every tier uses them: computed in f64, rounded to f32 once.
// cos_out and sin_out are [rotary_dim / 2]. A pair (a, b) = (x[i], x[i + rotary_dim/2]) becomes (a cos - b sin, b cos + a sin).
static inline void sl_rope_angles(const struct sl_rope *rope, int64_t position, float *cos_out, float *sin_out) {
    for (int i = 0; i < rope->rotary_dim / 2; i++) {
        double angle = (double)position * rope->inv_freq[i];
        cos_out[i] = (float)(cos(angle) * rope->scale);
        sin_out[i] = (float)(sin(angle) * rope->scale);
    }
}

#endif
