// SPDX-License-Identifier: Apache-2.0
// Purpose: see soft_tiles.h. Uses without a configuration, or beyond it, end the program.
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/cpu/simd/amx_tile.h"
#include "engine/tensor/half.h"

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

static _Thread_local struct sl_tile_config current;
static _Thread_local bool configured;
static _Thread_local uint8_t tiles[TILES][ROWS][ROW_BYTES];

static void require(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "tile unit: %s\n", what);
        abort();
    }
}

// Returns the rows of a tile.
static int rows_of(int tile) {
    require(configured && tile < TILES && current.rows[tile] > 0, "a tile that is not configured");
    return current.rows[tile];
}

void soft_tile_config(const void *config) {
    memcpy(&current, config, sizeof current);
    require(current.palette == 1 && current.start_row == 0, "an unknown configuration");
    for (int t = 0; t < TILES; t++) {
        require(current.rows[t] <= ROWS && current.row_bytes[t] <= ROW_BYTES, "a tile that is too large");
    }
    memset(tiles, 0, sizeof tiles);
    configured = true;
}

void soft_tile_release(void) {
    configured = false;
}

void soft_tile_zero(int tile) {
    rows_of(tile);
    memset(tiles[tile], 0, sizeof tiles[tile]);
}

void soft_tile_load(int tile, const void *from, ptrdiff_t stride) {
    int rows = rows_of(tile);
    memset(tiles[tile], 0, sizeof tiles[tile]);
    for (int r = 0; r < rows; r++) {
        memcpy(tiles[tile][r], (const char *)from + r * stride, current.row_bytes[tile]);
    }
}

void soft_tile_store(int tile, void *to, ptrdiff_t stride) {
    for (int r = 0; r < rows_of(tile); r++) {
        memcpy((char *)to + r * stride, tiles[tile][r], current.row_bytes[tile]);
    }
}

static float bf16_at(const uint8_t *row, int i) {
    uint16_t bits;
    memcpy(&bits, row + 2 * i, sizeof bits);
    return sl_bf16_to_f32(bits);
}

// Adds the products of row m of `left` and column n of `right` to *sum.
static void add_products(const uint8_t *left, const uint8_t (*right)[ROW_BYTES], int pairs, int n, uint8_t *sum) {
    float of[2] = {0.0f, 0.0f}, old;
    for (int k = 0; k < pairs; k++) {
        for (int i = 0; i < 2; i++) {
            of[i] += bf16_at(left, 2 * k + i) * bf16_at(right[k], 2 * n + i);
        }
    }
    memcpy(&old, sum, sizeof old);
    old += of[0] + of[1];
    memcpy(sum, &old, sizeof old);
}

void soft_tile_dpbf16(int sums, int left, int right) {
    int rows = rows_of(sums), pairs = current.row_bytes[left] / 4, columns = current.row_bytes[sums] / 4;
    require(rows_of(left) == rows && rows_of(right) == pairs && current.row_bytes[right] == 4 * columns,
            "tiles of shapes that do not fit");
    for (int m = 0; m < rows; m++) {
        for (int n = 0; n < columns; n++) {
            add_products(tiles[left][m], (const uint8_t(*)[ROW_BYTES])tiles[right], pairs, n, tiles[sums][m] + 4 * n);
        }
    }
}
