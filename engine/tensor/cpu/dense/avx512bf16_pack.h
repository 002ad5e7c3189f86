// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how tier avx512bf16 stores bf16 weights: panels (panels.h) as pairs for VDPBF16PS.
 *
 * Design: a step is two of k for the 32 weights of a panel: [32][2] bf16; a register holds 16 pairs. A group is the 16
 *         steps of SL_WEIGHT_GROUP of k; the last one is padded with zeros.
 */
#pragma once

#include "engine/tensor/cpu/dense/panels.h"

#define SL_PAIR_STEPS       (SL_WEIGHT_GROUP / 2) // of a group
#define SL_PAIR_STEP_BYTES  (2 * SL_PANEL * 2L)
#define SL_PAIR_GROUP_BYTES (SL_PAIR_STEPS * SL_PAIR_STEP_BYTES)

// Implements ops->pack for bf16 weights.
enum sl_status sl_pairs_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err);
