// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: W as few_rows.cu and some_rows.cu multiply it: it goes from memory straight to the operand of a tensor core.
 *
 * Design: a unit is 32 along k: a group of codes that shares a scale. A warp has 16 columns of y as rows of operand A,
 *         and rows of x as columns of B. Lane (g, t) = (lane / 4, lane % 4) loads [8 t, 8 t + 8) of a unit from rows g
 *         and g + 8 of W, all at once, and makes four pairs of them. The order of numbers within a sum over k is free
 *         as long as x has the same order. So pairs of codes are those that are 16 bits apart in a word: masks extract
 *         them, and no instruction moves them. Pairs 0 and 1 belong to a unit's first product, 2 and 3 to its second.
 *
 *         For bf16 a piece of k is one chain of products. For codes a unit's two products are summed alone, times their
 *         scale.
 */
#pragma once

#include "engine/tensor/cuda/dense/launch.h"
#include "engine/tensor/cuda/dense/weights.h"

namespace gpu {

constexpr uint32_t UNIT = 32, QUAD = 4; // of units: pieces begin at its multiples

// Returns the first unit of piece i; for i = n_pieces, n_units.
GPU_DEVICE uint32_t begin_of(uint32_t piece, uint32_t n_pieces, uint32_t n_units) {
    return piece * ((n_units + QUAD - 1) / QUAD) / n_pieces * QUAD;
}

// The two of eight numbers that form pair p.
template <int KIND> struct pair_of {
    GPU_HOST_DEVICE_MEMBER static constexpr uint32_t first(uint32_t p) {
        return KIND == GPU_WEIGHT_BF16 ? 2 * p : KIND == GPU_WEIGHT_INT8 ? p / 2 * 4 + p % 2 : p;
    }
    static constexpr uint32_t APART = KIND == GPU_WEIGHT_BF16 ? 1 : KIND == GPU_WEIGHT_INT8 ? 2 : 4;
};

// Returns eight numbers of x as four pairs.
template <int KIND> GPU_DEVICE uint4 pairs_of(const float (&x)[8]) {
    typedef pair_of<KIND> P;
    return {pack_bf16_fast(x[P::first(0)], x[P::first(0) + P::APART]),
            pack_bf16_fast(x[P::first(1)], x[P::first(1) + P::APART]),
            pack_bf16_fast(x[P::first(2)], x[P::first(2) + P::APART]),
            pack_bf16_fast(x[P::first(3)], x[P::first(3) + P::APART])};
}

// A lane's part of a unit: of rows g and g + 8.
template <int KIND> struct unit_of_w {
    static constexpr uint32_t WORDS = KIND == GPU_WEIGHT_BF16 ? 4 : KIND == GPU_WEIGHT_INT8 ? 2 : 1;
    uint32_t word[2][WORDS];
    uint16_t scale[2]; // for codes
};

// The addresses of that part: the lane's words of a unit, 4 bytes each.
template <int KIND> struct rows_of_w {
    const uint32_t *word[2];
    const uint16_t *scale[2];
};

// Returns the addresses of columns [j0, j0 + 16) of W, with the last one repeated, from unit u on.
template <int KIND> GPU_DEVICE rows_of_w<KIND> rows_at(const gpu_matrix &w, int64_t j0, int64_t end, uint32_t u) {
    constexpr uint32_t WORDS = unit_of_w<KIND>::WORDS;
    rows_of_w<KIND> rows;
    GPU_UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        int64_t j = j0 + threadIdx.x % 32 / 4 + 8 * h;
        j = j < end ? j : end - 1;
        rows.word[h] = (const uint32_t *)w.weights + j * (w.pitch / 8 * WORDS) + (4 * u + threadIdx.x % 4) * WORDS;
        rows.scale[h] = w.scales + j * (w.pitch / UNIT) + u;
    }
    return rows;
}

template <int KIND> GPU_DEVICE void advance(rows_of_w<KIND> &rows, uint32_t n_units) {
    GPU_UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        rows.word[h] += n_units * 4 * unit_of_w<KIND>::WORDS;
        if (KIND != GPU_WEIGHT_BF16) {
            rows.scale[h] += n_units;
        }
    }
}

// Fetches the i-th unit from there.
template <int KIND> GPU_DEVICE void fetch_unit(const rows_of_w<KIND> &rows, uint32_t i, unit_of_w<KIND> &out) {
    constexpr uint32_t WORDS = unit_of_w<KIND>::WORDS;
    GPU_UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        read_once(rows.word[h] + i * (4 * WORDS), out.word[h]);
        if (KIND != GPU_WEIGHT_BF16) {
            out.scale[h] = rows.scale[h][i];
        }
    }
}

// Returns pair p of a row.
template <int KIND> GPU_DEVICE uint32_t pair(const uint32_t (&word)[unit_of_w<KIND>::WORDS], uint32_t p) {
    constexpr uint32_t WORDS = unit_of_w<KIND>::WORDS;
    return KIND == GPU_WEIGHT_BF16   ? word[p % WORDS]
           : KIND == GPU_WEIGHT_INT8 ? widen2_int8(word[p / 2 % WORDS] >> 8 * (p % 2))
                                     : widen2_int4(word[0] >> 4 * p);
}

// Makes the operands of a unit's two products.
template <int KIND> GPU_DEVICE void operands(const unit_of_w<KIND> &unit, uint32_t (&a)[2][4]) {
    GPU_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        a[i / 4][i % 4] = pair<KIND>(unit.word[i % 2], i / 2);
    }
}

// Adds a unit to sums: elements 0 and 1 are of column g, 2 and 3 of g + 8, of rows 2 t and 2 t + 1 of x. b: the lane's
// pairs of row g of x.
template <int KIND>
GPU_DEVICE void add_unit(const uint32_t (&a)[2][4], const uint4 &b, const float (&scales)[2], float (&sums)[4]) {
    const uint32_t first[2] = {b.x, b.y}, second[2] = {b.z, b.w};
    if (KIND == GPU_WEIGHT_BF16) {
        mma_bf16(sums, a[0], first);
        mma_bf16(sums, a[1], second);
        return;
    }
    float part[4] = {};
    mma_bf16(part, a[0], first);
    mma_bf16(part, a[1], second);
    GPU_UNROLL
    for (uint32_t e = 0; e < 4; e++) {
        sums[e] = fmaf(scales[e / 2], part[e], sums[e]);
    }
}

template <int KIND> GPU_DEVICE void scales_of(const unit_of_w<KIND> &unit, float (&scales)[2]) {
    if (KIND != GPU_WEIGHT_BF16) {
        scales[0] = f16_to_f32(unit.scale[0]), scales[1] = f16_to_f32(unit.scale[1]);
    }
}

} // namespace gpu
