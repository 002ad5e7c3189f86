// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tiles of a tier for every type of codes and every number of rows (code_matmul.h). Each tier's file
 *          includes it once, after it has defined
 *
 *     CODE_TILE_ROWS                                     the most rows of a tile: 8 or 12
 *     tile(form, rows, half, x, ldx, n_groups, sums)     as sl_code_tile_fn; form and rows are constants
 *
 * It defines tiles[], for struct sl_code_kernels.
 */
#pragma once

#include "engine/tensor/cpu/dense/code_matmul.h"

#define TILE(name, rows, ...)                                                                                          \
    static void name##_##rows(const char *half, const struct sl_code_x *x, int64_t ldx, int64_t n_groups,              \
                              float *sums) {                                                                           \
        tile((struct sl_code_form){__VA_ARGS__}, rows, half, x, ldx, n_groups, sums);                                  \
    }
#if CODE_TILE_ROWS == 12
#define MORE_TILES(name, ...)                                                                                          \
    TILE(name, 9, __VA_ARGS__)                                                                                         \
    TILE(name, 10, __VA_ARGS__)                                                                                        \
    TILE(name, 11, __VA_ARGS__)                                                                                        \
    TILE(name, 12, __VA_ARGS__)
#define MORE_ENTRIES(name) , name##_9, name##_10, name##_11, name##_12
#else
#define MORE_TILES(name, ...)
#define MORE_ENTRIES(name)
#endif
#define TILES(name, ...)                                                                                               \
    TILE(name, 1, __VA_ARGS__)                                                                                         \
    TILE(name, 2, __VA_ARGS__)                                                                                         \
    TILE(name, 3, __VA_ARGS__)                                                                                         \
    TILE(name, 4, __VA_ARGS__)                                                                                         \
    TILE(name, 5, __VA_ARGS__)                                                                                         \
    TILE(name, 6, __VA_ARGS__)                                                                                         \
    TILE(name, 7, __VA_ARGS__)                                                                                         \
    TILE(name, 8, __VA_ARGS__)                                                                                         \
    MORE_TILES(name, __VA_ARGS__)                                                                                      \
    static const sl_code_tile_fn name[CODE_TILE_ROWS] = {name##_1, name##_2, name##_3, name##_4,                       \
                                                         name##_5, name##_6, name##_7, name##_8 MORE_ENTRIES(name)};
SL_CODE_FORMS(TILES)

#define ENTRY(name, ...) [SL_##name] = name,
static const sl_code_tile_fn *const tiles[] = {SL_CODE_FORMS(ENTRY)};
