// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the inner loops of products with codes (code_matmul.h) in plain C: the reference's, and tier neon's, whose
 *          compiler makes vectors of the loops over the 16 rows of W.
 */
#include <math.h>
#include <string.h>

#include "engine/tensor/cpu/dense/code_matmul.h"
#include "engine/tensor/half.h"
#include "engine/tensor/weights.h"

#define INLINE static inline __attribute__((always_inline))

#define CODE_TILE_ROWS 8

// The codes of a step are read 4 weights of 16 rows at a time.
enum { STEP_WEIGHTS = 4 };

static void split(const float x[SL_CODE_GROUP], struct sl_code_x *out) {
    float most = 0.0f;
    for (int i = 0; i < SL_CODE_GROUP; i++) {
        float magnitude = fabsf(x[i]);
        most = magnitude > most || isnan(magnitude) ? magnitude : most; // no number is larger than NaN
    }
    float inverse = most < SL_CODE_LEAST ? 0.0f : SL_CODE_LARGEST / most;
    out->scale = most < SL_CODE_LEAST ? 0.0f : most / SL_CODE_LARGEST;
    int32_t sums[2] = {0, 0};
    for (int i = 0; i < SL_CODE_GROUP; i++) {
        float whole = rintf(x[i] * inverse);
        int32_t X = fabsf(whole) <= SL_CODE_LARGEST ? (int32_t)whole : 0; // NaN: the scale is NaN, too
        out->bytes[i] = (int8_t)X;
        sums[i / 16] += X;
    }
    sl_code_x_sum(out, sums[0], sums[1]);
}

// Reads step `step` of a group: byte 4 c + i is weight i of row c.
INLINE void load_codes(struct sl_code_form form, const unsigned char *codes, int step,
                       int32_t out[STEP_WEIGHTS * SL_HALF]) {
    const unsigned char *high = codes + sl_code_group_bytes(4);
    for (int b = 0; b < STEP_WEIGHTS * SL_HALF; b++) {
        if (form.bits == 8) {
            out[b] = codes[step * 64 + b];
            continue;
        }
        out[b] = codes[step / 2 * 64 + b] >> (step % 2 * 4) & 15;
        if (form.bits == 5) {
            out[b] |= (high[step * 8 + b / 8] >> (b % 8) & 1) << 4;
        } else if (form.bits == 6) {
            out[b] |= (high[step / 4 * 64 + b] >> (step % 4 * 2) & 3) << 4;
        }
    }
}

// The scales of 16 rows, as a block or a group has them.
struct scales {
    float scale[SL_HALF], offset[SL_HALF];
};

static const unsigned char *load_block_scales(struct sl_code_form form, const unsigned char *block,
                                              struct scales *out) {
    uint16_t halves[2 * SL_HALF] = {0};
    size_t bytes = (form.has_offset ? 2 : 1) * SL_HALF * sizeof *halves;
    memcpy(halves, block, bytes);
    for (int c = 0; c < SL_HALF; c++) {
        out->scale[c] = sl_f16_to_f32(halves[c]);
        out->offset[c] = sl_f16_to_f32(halves[SL_HALF + c]);
    }
    return block + bytes;
}

// Returns the group's codes, after its scales.
static const unsigned char *load_scales(struct sl_code_form form, const struct scales *block,
                                        const unsigned char *group, struct scales out[2]) {
    for (int share = 0; share < SL_CODE_GROUP / form.shared; share++) {
        out[share] = *block;
        if (form.block == 1) {
            continue;
        }
        for (int c = 0; c < SL_HALF; c++) {
            out[share].scale[c] *= (float)(int8_t)group[c];
            out[share].offset[c] *= form.has_offset ? (float)group[SL_HALF + c] : 0.0f;
        }
        group += SL_HALF * (form.has_offset ? 2 : 1);
    }
    return group;
}

// The same group of several rows of x.
struct rows {
    const struct sl_code_x *first;
    int64_t stride; // groups from row to row
};

// Adds the products of the weights of a group that share `scales` to sums[rows][16].
INLINE void add_share(struct sl_code_form form, int rows, const unsigned char *codes, int share,
                      const struct scales *scales, struct rows x, float *sums) {
    const int steps = form.shared / STEP_WEIGHTS, which = form.shared == SL_CODE_GROUP ? 2 : share;
    int32_t products[CODE_TILE_ROWS][SL_HALF] = {{0}}, c[STEP_WEIGHTS * SL_HALF];
    for (int step = share * steps; step < (share + 1) * steps; step++) {
        load_codes(form, codes, step, c);
        for (int r = 0; r < rows; r++) {
            const int8_t *X = x.first[r * x.stride].bytes + STEP_WEIGHTS * step;
            for (int j = 0; j < SL_HALF; j++) {
                products[r][j] += c[4 * j] * X[0] + c[4 * j + 1] * X[1] + c[4 * j + 2] * X[2] + c[4 * j + 3] * X[3];
            }
        }
    }
    for (int r = 0; r < rows; r++, sums += SL_PANEL) {
        const struct sl_code_x *group = &x.first[r * x.stride];
        int32_t start = sl_code_start(form, group, share);
        for (int j = 0; j < SL_HALF; j++) {
            float y = fmaf(scales->scale[j] * group->scale, (float)(products[r][j] + start), sums[j]);
            sums[j] = form.has_offset ? fmaf(scales->offset[j], group->scaled[which], y) : y;
        }
    }
}

INLINE void tile(struct sl_code_form form, int rows, const char *half, const struct sl_code_x *x, int64_t ldx,
                 int64_t n_groups, float *sums) {
    const unsigned char *at = (const unsigned char *)half;
    for (int64_t g = 0; g < n_groups; g += form.block) {
        struct scales block, of[2];
        at = load_block_scales(form, at, &block);
        for (int i = 0; i < form.block; i++, x++) {
            at = load_scales(form, &block, at, of);
            for (int share = 0; share < SL_CODE_GROUP / form.shared; share++) {
                add_share(form, rows, at, share, &of[share], (struct rows){x, ldx}, sums);
            }
            at += sl_code_group_bytes(form.bits);
        }
    }
}

#include "engine/tensor/cpu/dense/code_tiles.h"

static void finish(const struct sl_product *a, int64_t p, int64_t row, int64_t rows, const float *sums) {
    const struct sl_matrix *w = a->w;
    int64_t first = p * sl_panel_outputs(w), columns = sl_min(sl_panel_outputs(w), a->outputs - first);
    for (int64_t r = row; r < row + rows; r++, sums += SL_PANEL) {
        float *y = a->y + r * a->y_stride + first;
        for (int64_t j = 0; j < columns; j++) {
            float up =
                w->gated ? sums[SL_PANEL_HALF + j] + (w->bias != NULL ? w->bias[w->n / 2 + first + j] : 0.0f) : 1.0f;
            y[j] = sl_activate(w->activation, w->bias != NULL ? sums[j] + w->bias[first + j] : sums[j]) * up;
        }
    }
}

const struct sl_code_kernels sl_plain_code_kernels = {CODE_TILE_ROWS, tiles, split, finish};
