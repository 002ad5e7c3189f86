// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how tiers amx and amx2 store weights: panels (panels.h) as tiles of TDPBF16PS, or f16 and codes that are
 *          converted to tiles for the rows of a prompt.
 *
 * Design: a step is SL_WEIGHT_GROUP = 32 of k; the last one is padded with zeros. A step of a panel is two tiles, each
 *         32 of k by 16 rows of W. W is the right operand of a tile product, so a tile is 16 rows of pairs, and row i
 *         has k = 2 i and 2 i + 1 of each of W's rows. Weights of bf16 are stored as tiles, those of f16 as tier avx512
 *         stores them, and codes as half panels (code_panels.h): few rows are multiplied without tiles. Of codes, and on
 *         amx2 of f16, two tiles are made, rounded, or on amx2 four: the second two hold the remainders of the first.
 */
#pragma once

#include "engine/tensor/cpu/dense/panels.h"

#define SL_AMX_STEP       SL_WEIGHT_GROUP // of k
#define SL_AMX_TILE_BYTES 1024
#define SL_AMX_STEP_BYTES (2 * SL_AMX_TILE_BYTES) // bytes of a step of a panel, as tiles

static inline int64_t sl_amx_steps(const struct sl_matrix *w) {
    return sl_div_up(w->k, SL_AMX_STEP);
}

// Returns true where packed weights are tiles, false where tiles are made from them.
static inline bool sl_amx_keeps_tiles(const struct sl_matrix *w) {
    return w->format == SL_WEIGHT_STORED && w->dtype == SL_BF16;
}

// Returns the number of terms of a weight: bf16 weights have one.
static inline int sl_amx_terms(const struct sl_matrix *w) {
    return w->in_two_terms && !sl_amx_keeps_tiles(w) ? 2 : 1;
}

// Implements ops->pack for bf16 weights.
enum sl_status sl_amx_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err);

// Returns the tiles of `count` adjacent steps of panel p from step `first` on, for codes the first of a block: the
// packed ones, or tiles made in buffer[count * sl_amx_terms(w) * SL_AMX_STEP_BYTES]. A step's first terms come before
// its second ones.
const char *sl_amx_tiles(const struct sl_matrix *w, int64_t p, int64_t first, int64_t count, char *buffer);
