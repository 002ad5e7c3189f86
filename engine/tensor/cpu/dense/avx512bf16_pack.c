// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/cpu/dense/avx512bf16_pack.h"

#include <string.h>

#include "engine/tensor/weights.h"

static void pack_row(const struct sl_matrix *w, int64_t p, int c, char *panel) {
    int64_t j = sl_panel_row(w, p, c);
    const unsigned char *row = j >= 0 ? sl_weight_row(w, j) : NULL;
    for (int64_t i = 0; i < w->k && row != NULL; i += 2) {
        memcpy(panel + i / 2 * SL_PAIR_STEP_BYTES + 4L * c, row + 2 * i, (size_t)sl_min(2, w->k - i) * 2);
    }
}

enum sl_status sl_pairs_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return sl_panels_pack(stream, matrix, (size_t)sl_weight_groups(matrix->k) * SL_PAIR_GROUP_BYTES, pack_row, err);
}
