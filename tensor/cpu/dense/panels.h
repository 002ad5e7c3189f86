// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: panels, the unit in which the AVX-512 tiers and tier amx keep and multiply a matrix: 32 rows of W, of which a tile
 *          of y takes two registers' worth.
 *
 * Design: panel p of a plain matrix has rows 32 p .. 32 p + 31 of W, and gives the same columns of y. A panel of a gated
 *         matrix has 16 rows of G and the 16 rows of U that belong to them, and gives 16 columns of y: whoever computed
 *         a panel can apply the gate without another pass over memory.
 */
#ifndef SL_TENSOR_CPU_DENSE_PANELS_H
#define SL_TENSOR_CPU_DENSE_PANELS_H

#include "tensor/ops.h"

#define SL_PANEL      32 // rows of W
#define SL_PANEL_HALF 16 // the floats of a register

#define SL_ALONE_WORK (1 << 16) // multiply-adds, or elements, below which waking a team costs more than it brings

static inline int64_t sl_div_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static inline int64_t sl_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// Columns of y that a panel gives.
static inline int64_t sl_panel_outputs(const struct sl_matrix *w) {
    return w->gated ? SL_PANEL_HALF : SL_PANEL;
}

// Panels that give the first `outputs` columns of y.
static inline int64_t sl_panel_count(const struct sl_matrix *w, int64_t outputs) {
    return sl_div_up(outputs, sl_panel_outputs(w));
}

// The row of W that is row c of panel p, or -1 where the last panel is padded.
static inline int64_t sl_panel_row(const struct sl_matrix *w, int64_t p, int c) {
    if (!w->gated) {
        return p * SL_PANEL + c < w->n ? p * SL_PANEL + c : -1;
    }
    int64_t output = p * SL_PANEL_HALF + c % SL_PANEL_HALF;
    return output >= w->n / 2 ? -1 : c < SL_PANEL_HALF ? output : w->n / 2 + output;
}

// Write row c of panel p (zeros where it is padded) into the panel's memory, which is zero.
typedef void (*sl_pack_row_fn)(const struct sl_matrix *w, int64_t p, int c, char *panel);

// Make w->packed, panels of panel_bytes, aligned to 64 and in huge pages where that is worth it. SL_ERR_EXHAUSTED.
enum sl_status sl_panels_pack(struct sl_team *team, struct sl_matrix *w, size_t panel_bytes, sl_pack_row_fn pack_row,
                              struct sl_error *err);
// The same without anything in it, for panels of another width (narrow.h).
enum sl_status sl_panels_allocate(struct sl_matrix *w, size_t bytes, struct sl_error *err);
void sl_panels_free(struct sl_matrix *w);

/*
 * Group g of row c of panel p, quantized: codes_out[SL_WEIGHT_GROUP], zeros where the row or the panel is padded. Returns
 * the scale (f16).
 */
uint16_t sl_panel_quantize(const struct sl_matrix *w, int64_t p, int c, int64_t g, int8_t *codes_out);

#endif
