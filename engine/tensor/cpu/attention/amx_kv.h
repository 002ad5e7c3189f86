// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: declarations that the AMX files about KV pages share: pages and queries in bf16, in the layout of tiles.
 *          Include only from files compiled for AMX (tile, bf16), AVX-512 (F, BW, VL, DQ, BF16), AVX2, FMA and F16C.
 *
 * Vocabulary: tile  16 rows of 64 bytes. C[16][16] += A[16][32] B[32][16]: A is 16 rows of 32 bf16, C of 16 f32, and B
 *                   16 rows (one for two of its own) of 16 pairs: row r, pair x holds B[2r][x], B[2r + 1][x]
 *             step  32 of the numbers that are summed over: a tile of A, a tile of B
 */
#pragma once

#include "engine/tensor/cpu/attention/avx512_kv.h"
#include "engine/tensor/cpu/simd/amx_tile.h"

#define SL_TILE        16        // rows, and columns of C
#define SL_TILE_STEP   32        // bf16 of a row
#define SL_TILE_HALVES (16 * 32) // bf16 of a tile

// Returns true where the tier's own kernels cover the call: no f32 page, and whole steps of channels. Tier avx512
// covers the other calls.
bool sl_amx_covers(const struct sl_attend *args);

// Configures all eight tiles at full size. This thread may then use tiles until sl_amx_end().
void sl_amx_begin(void);
void sl_amx_end(void);

// The working memory of the functions that convert pages to bf16.
struct sl_amx_page_scratch {
    _Alignas(64) float tile[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    _Alignas(64) uint16_t rows[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    struct sl_page_angles of_page;
};

// Returns K of a page as bf16 [SL_PAGE_SLOTS][d], rotated: the page's own memory, or `out`. The contents of rows that
// were never written are undefined. Prefetches K of page `next` meanwhile: see sl_kv_next_page().
// second_out: receives the remainder of the rounding where sl_amx_keys_have_second(); or NULL.
const uint16_t *sl_amx_load_keys(const struct sl_kv *kv, const struct sl_slot_angles *angles, uint32_t page,
                                 const char *next, struct sl_amx_page_scratch *s, uint16_t *out, uint16_t *second_out);

// Returns true for keys in f16, which bf16 rounds. Quantized keys were rounded more than that, so they have no second
// term.
bool sl_amx_keys_have_second(const struct sl_attend *args, const struct sl_slot_angles *angles, int head,
                             uint32_t page);

// Writes out[d / 16][2][16][32] = V^T of a page as tiles of A: tile (i, k) holds channels 16 i .. of slots 32 k ..;
// slots from n on are 0. Prefetches V of page `next` meanwhile.
void sl_amx_load_values(const struct sl_kv *kv, uint32_t page, const char *next, int n, struct sl_amx_page_scratch *s,
                        uint16_t *out);

// Entries of the table (amx_stats.c).
void sl_amx_fold(struct sl_stream *stream, const struct sl_attend *args, int first_row, const struct sl_fold *what);
void sl_amx_window_sums(struct sl_stream *stream, const struct sl_attend *args, int first_row,
                        struct sl_vectors sums_out);

// Transposes rows[16].
void sl_amx_transpose_16x16(__m512 *rows);
