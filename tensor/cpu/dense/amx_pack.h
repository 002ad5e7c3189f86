// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how tier amx keeps weights: panels (panels.h) as tiles of TDPBF16PS, or quantized and made into tiles as they
 *          are needed.
 *
 * Design: a step is SL_WEIGHT_GROUP = 32 of k; the last one is padded with zeros. Of a panel, a step is two tiles, each 16
 *         rows of W by 32 of k, bf16: W is the left operand of a tile product, so a tile is W's rows as they are, and a
 *         row of a tile is one group of quantized weights with one scale.
 *           bf16   the two tiles
 *           INT8   32 scales, then the codes [32][32], plus 128
 *           INT4   32 scales, then 8 times the codes of four rows: row i of the four in nibble i of 16-bit word k
 */
#pragma once

#include "tensor/cpu/dense/panels.h"

#define SL_AMX_STEP       SL_WEIGHT_GROUP // of k
#define SL_AMX_TILE_BYTES 1024
#define SL_AMX_STEP_BYTES (2 * SL_AMX_TILE_BYTES) // of a panel, as tiles

static inline int64_t sl_amx_steps(const struct sl_matrix *w) {
    return sl_div_up(w->k, SL_AMX_STEP);
}

// Bytes of a step of a panel as it is kept.
size_t sl_amx_packed_step_bytes(const struct sl_matrix *w);

// ops->pack for bf16 and quantized weights.
enum sl_status sl_amx_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err);

// Tiles of `count` adjacent steps, of which the first lies at `packed`: there, or made in buffer[count * SL_AMX_STEP_BYTES].
const char *sl_amx_tiles(const struct sl_matrix *w, const char *packed, int64_t count, char *buffer);
