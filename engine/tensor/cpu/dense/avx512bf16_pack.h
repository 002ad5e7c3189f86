// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how tier avx512bf16 stores bf16 weights, and what it makes of codes: panels (panels.h) as pairs for
 *          VDPBF16PS.
 *
 * Design: a step is two of k for the 32 weights of a panel: [32][2] bf16; a register holds 16 pairs. A group is the 16
 *         steps of SL_WEIGHT_GROUP of k; the last one is padded with zeros. The tiles of the tile unit have the same
 *         registers, those of 16 rows of W one after the other (amx_pack.h).
 */
#pragma once

#include "engine/tensor/cpu/dense/code_panels.h"
#include "engine/tensor/cpu/dense/panels.h"

#define SL_PAIR_STEPS       (SL_WEIGHT_GROUP / 2) // of a group
#define SL_PAIR_STEP_BYTES  (2 * SL_PANEL * 2L)
#define SL_PAIR_GROUP_BYTES (SL_PAIR_STEPS * SL_PAIR_STEP_BYTES)

// Implements ops->pack for bf16 weights.
enum sl_status sl_pairs_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err);

// Returns true where rows of prompts are multiplied faster by the bf16 of the weights than by their codes: types with
// offsets, or with more than one scale for 32 weights.
bool sl_pairs_pay(const struct sl_matrix *w);

// The places of pairs that are made of codes: bytes from step to step and from group to group; terms of a weight.
// The second term, `second` bytes after the first, is the bf16 of what the first one left.
struct sl_pair_layout {
    int terms;
    size_t step, group, second;
};

// Writes `count` groups of a half panel of codes, from group `first`, the first of a block, on, as half a register of
// every step.
void sl_pairs_of_half(const struct sl_code_half *half, int64_t first, int64_t count,
                      const struct sl_pair_layout *layout, char *out);
