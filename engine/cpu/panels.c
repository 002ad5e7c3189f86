// SPDX-License-Identifier: Apache-2.0
// Purpose: the memory of packed panels, and their quantized rows. See panels.h.
#include "engine/cpu/panels.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/cpu/weights.h"

#define HUGE_PAGE (2u << 20)

enum sl_status sl_panels_allocate(struct sl_matrix *w, size_t bytes, struct sl_error *err) {
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
    void *packed = aligned_alloc(align, (bytes + align - 1) / align * align);
    if (packed == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for %zu bytes of packed weights", bytes);
    }
    if (align == HUGE_PAGE) {
        (void)madvise(packed, bytes, MADV_HUGEPAGE); // advice: with small pages it is only slower
    }
    w->packed = packed;
    w->packed_bytes = bytes;
    return SL_OK;
}

void sl_panels_free(struct sl_matrix *w) {
    free(w->packed);
    w->packed = NULL;
    w->packed_bytes = 0;
}

uint16_t sl_panel_quantize(const struct sl_matrix *w, int64_t p, int c, int64_t g, int8_t *codes_out) {
    int64_t row = sl_panel_row(w, p, c);
    uint16_t scale = 0;
    int n = row >= 0 ? sl_weight_quantize_group(w, row, g, codes_out, &scale) : 0;
    memset(codes_out + n, 0, (size_t)(SL_WEIGHT_GROUP - n));
    return scale;
}
