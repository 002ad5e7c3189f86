// SPDX-License-Identifier: Apache-2.0
// Purpose: converts a matrix from the model's files to the bytes that kernels read, in host memory; a caller copies
//         them.
#include "engine/tensor/cuda/table/pack.h"

#include <string.h>

#include "engine/tensor/weights.h"

#define PITCH 32 // weights: a group, and for every kind a whole number of 16 bytes

static enum gpu_weight_kind kind_of(const struct sl_matrix *w) {
    switch (w->format) {
    case SL_WEIGHT_INT8:
        return GPU_WEIGHT_INT8;
    case SL_WEIGHT_INT4:
        return GPU_WEIGHT_INT4;
    case SL_WEIGHT_STORED:
    case SL_WEIGHT_CODES: // of other functions
        break;
    }
    // Matrices of codes are read as numbers only as rows of an embedding.
    return w->dtype == SL_F32 || sl_dtype_is_codes(w->dtype) ? GPU_WEIGHT_F32
           : w->dtype == SL_F16                              ? GPU_WEIGHT_F16
                                                             : GPU_WEIGHT_BF16;
}

static size_t bits_of(enum gpu_weight_kind kind) {
    switch (kind) {
    case GPU_WEIGHT_F32:
        return 32;
    case GPU_WEIGHT_F16:
    case GPU_WEIGHT_BF16:
        return 16;
    case GPU_WEIGHT_INT8:
        return 8;
    case GPU_WEIGHT_INT4:
        break;
    }
    return 4;
}

static bool has_scales(enum gpu_weight_kind kind) {
    return kind == GPU_WEIGHT_INT8 || kind == GPU_WEIGHT_INT4;
}

void sl_gpu_matrix_describe(const struct sl_matrix *matrix, struct gpu_matrix *out) {
    *out = (struct gpu_matrix){.kind = kind_of(matrix),
                               .n = matrix->n,
                               .k = matrix->k,
                               .whole_n = sl_matrix_whole_n(matrix),
                               .pitch = (matrix->k + PITCH - 1) / PITCH * PITCH,
                               .activation = matrix->activation,
                               .gated = matrix->gated};
    size_t n = (size_t)(out->n * out->pitch);
    out->scales_at = n * bits_of(out->kind) / 8;
    out->bytes = out->scales_at + (has_scales(out->kind) ? n / SL_WEIGHT_GROUP * sizeof(uint16_t) : 0);
}

// Writes codes of a group into the row at `to`: INT4's two to a byte, the first in the lower half, 8 added.
static void put_codes(enum gpu_weight_kind kind, const int8_t *codes, int n, unsigned char *to) {
    for (int i = 0; i < n; i++) {
        if (kind == GPU_WEIGHT_INT8) {
            to[i] = (unsigned char)codes[i];
        } else {
            to[i / 2] = (unsigned char)(i % 2 == 0 ? codes[i] + 8 : to[i / 2] | (codes[i] + 8) << 4);
        }
    }
}

void sl_gpu_matrix_pack_row(const struct sl_matrix *matrix, const struct gpu_matrix *as, int64_t j, void *bytes_out) {
    size_t row_bytes = (size_t)as->pitch * bits_of(as->kind) / 8;
    unsigned char *row = (unsigned char *)bytes_out + (size_t)j * row_bytes;
    if (!has_scales(as->kind)) {
        size_t n_bytes = (size_t)as->k * bits_of(as->kind) / 8;
        if (sl_dtype_is_codes(matrix->dtype)) {
            sl_weight_widen_row(matrix, j, (float *)(void *)row);
        } else {
            memcpy(row, sl_weight_row(matrix, j), n_bytes);
        }
        memset(row + n_bytes, 0, row_bytes - n_bytes);
        return;
    }
    uint16_t *scales = (uint16_t *)((unsigned char *)bytes_out + as->scales_at) + j * (as->pitch / SL_WEIGHT_GROUP);
    memset(row, 0, row_bytes);
    for (int64_t g = 0; g < as->pitch / SL_WEIGHT_GROUP; g++) {
        int8_t codes[SL_WEIGHT_GROUP];
        int n = sl_weight_quantize_group(matrix, j, g, codes, &scales[g]);
        put_codes(as->kind, codes, n, row + (size_t)g * SL_WEIGHT_GROUP * bits_of(as->kind) / 8);
    }
}
