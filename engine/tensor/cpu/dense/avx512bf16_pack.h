// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how tier avx512bf16 stores weights: panels (panels.h) as pairs for VDPBF16PS, or quantized and converted to
 *          pairs when they are used.
 *
 * Design: a step is two of k for the 32 weights of a panel: [32][2] bf16; a register holds 16 pairs. A group is the 16
 *         steps of SL_WEIGHT_GROUP of k; the last one is padded with zeros. Codes are integers that bf16 represents
 *         exactly; scales are applied after a group has been added up. A group is stored as
 *           bf16   its steps
 *           INT8   32 scales in f16; for every 16 weights of a step first the codes of one k, then those of the other
 *           INT4   32 scales in f16; two steps at a time, register i of the four in nibble i of 16-bit words
 *         Quantized groups are multiplied as
 *                  32 scales in f32; steps of codes in bf16
 */
#pragma once

#include "engine/tensor/cpu/dense/code_panels.h"
#include "engine/tensor/cpu/dense/panels.h"

#define SL_PAIR_STEPS        (SL_WEIGHT_GROUP / 2) // of a group
#define SL_PAIR_STEP_BYTES   (2 * SL_PANEL * 2L)   // as pairs
#define SL_PAIR_SCALES_BYTES (SL_PANEL * 4L)       // before the steps of a quantized group
// of a quantized group, as pairs
#define SL_PAIR_GROUP_BYTES (SL_PAIR_SCALES_BYTES + SL_PAIR_STEPS * SL_PAIR_STEP_BYTES)

// Returns the bytes of a group of a panel as it is stored.
size_t sl_pairs_packed_bytes(const struct sl_matrix *w);

// Implements ops->pack for bf16 and quantized weights.
enum sl_status sl_pairs_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err);

// Writes the pairs of `count` groups of a half panel of codes, from group `first`, the first of a block, on: half a
// register of every step, 128 bytes apart; bf16 of the weights. out: the first or second half of the panel's pairs.
void sl_pairs_of_half(const struct sl_code_half *half, int64_t first, int64_t count, char *out);

// Writes the pairs of `count` adjacent groups of quantized weights that begin at `packed`. out: [count *
// SL_PAIR_GROUP_BYTES], aligned to 64.
void sl_pairs_of_codes(const struct sl_matrix *w, const char *packed, int64_t count, char *out);
