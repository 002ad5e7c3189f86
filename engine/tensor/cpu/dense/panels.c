// SPDX-License-Identifier: Apache-2.0
// Purpose: packs panels row by row, allocates their memory, and quantizes rows. See panels.h.
#include "engine/tensor/cpu/dense/panels.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/tensor/shared_weights.h"
#include "engine/tensor/weights.h"

#define HUGE_PAGE (2u << 20)

// Takes shared memory; sets w->shared to NULL where there is none left.
static enum sl_status take_shared(struct sl_matrix *w, size_t bytes, struct sl_error *err) {
    w->packed = sl_shared_weights_take(w->shared, w, bytes);
    w->packed_bytes = w->packed != NULL ? bytes : 0;
    SL_FAIL_IF(w->packed == NULL && sl_shared_weights_are_ready(w->shared), err, SL_ERR_PEER_STALE,
               "shared weights are of other matrices");
    w->shared = w->packed != NULL ? w->shared : NULL;
    return SL_OK;
}

enum sl_status sl_panels_allocate(struct sl_matrix *w, size_t bytes, struct sl_error *err) {
    enum sl_status status = w->shared != NULL ? take_shared(w, bytes, err) : SL_OK;
    if (status != SL_OK || w->shared != NULL) {
        return status;
    }
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
    void *packed = aligned_alloc(align, (bytes + align - 1) / align * align);
    SL_FAIL_IF(packed == NULL, err, SL_ERR_EXHAUSTED, "out of memory for %zu bytes of packed weights", bytes);
    if (align == HUGE_PAGE) {
        (void)madvise(packed, bytes, MADV_HUGEPAGE); // only advice: small pages are slower
    }
    w->packed = packed;
    w->packed_bytes = bytes;
    return SL_OK;
}

struct packing {
    const struct sl_matrix *w;
    size_t panel_bytes;
    sl_pack_row_fn pack_row;
};

static void pack_panels(void *arg, int64_t begin, int64_t end, int) {
    const struct packing *packing = arg;
    for (int64_t p = begin; p < end; p++) {
        char *panel = (char *)packing->w->packed + (size_t)p * packing->panel_bytes;
        memset(panel, 0, packing->panel_bytes);
        for (int c = 0; c < SL_PANEL; c++) {
            packing->pack_row(packing->w, p, c, panel);
        }
    }
    sl_shared_weights_progress_within(packing->w->shared);
}

enum sl_status sl_panels_pack(struct sl_stream *stream, struct sl_matrix *w, size_t panel_bytes,
                              sl_pack_row_fn pack_row, struct sl_error *err) {
    int64_t n_panels = sl_panel_count(w, sl_matrix_outputs(w));
    SL_TRY(sl_panels_allocate(w, (size_t)n_panels * panel_bytes, err));
    if (!sl_panels_are_packed(w)) {
        struct packing packing = {w, panel_bytes, pack_row};
        sl_stream_run(stream, n_panels, 2, pack_panels, &packing);
    }
    return SL_OK;
}

bool sl_panels_are_packed(const struct sl_matrix *w) {
    return sl_shared_weights_are_ready(w->shared);
}

void sl_panels_free(struct sl_matrix *w) {
    if (w->shared == NULL) {
        free(w->packed);
    }
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

struct sl_panel_tasks sl_panel_stream(const struct sl_stream *stream, int64_t m, int64_t n_panels, size_t panel_bytes,
                                      int64_t wide) {
    int64_t members = sl_stream_threads(stream); // 1 without a team
    int64_t panels = sl_min(sl_div_up(65536, (int64_t)panel_bytes), sl_div_up(n_panels, members));
    struct sl_panel_tasks tasks = {.m = m, .n_panels = n_panels, .rows_per_task = m};
    tasks.panels_per_task = sl_div_up(panels, wide) * wide;
    tasks.n = tasks.n_panel_groups = sl_div_up(n_panels, tasks.panels_per_task);
    return tasks;
}

struct sl_panel_tasks sl_panel_blocks(const struct sl_stream *stream, int64_t m, int64_t row_block, int64_t tile_rows,
                                      int64_t n_panels, int64_t panel_group) {
    int64_t least = 4 * sl_stream_threads(stream), n_blocks = sl_div_up(m, row_block);
    struct sl_panel_tasks tasks = {.m = m, .n_panels = n_panels, .panels_per_task = panel_group};
    tasks.rows_per_task = sl_div_up(sl_div_up(m, n_blocks), tile_rows) * tile_rows;
    n_blocks = sl_div_up(m, tasks.rows_per_task);
    while (tasks.panels_per_task > 1 && n_blocks * sl_div_up(n_panels, tasks.panels_per_task) < least) {
        tasks.panels_per_task /= 2;
    }
    tasks.n_panel_groups = sl_div_up(n_panels, tasks.panels_per_task);
    tasks.n = n_blocks * tasks.n_panel_groups;
    return tasks;
}

void sl_panel_sums_start(const struct sl_product *a, int64_t p, int64_t row, int64_t rows, float *sums) {
    int64_t first = p * sl_panel_outputs(a->w), columns = sl_min(SL_PANEL, a->outputs - first);
    memset(sums, 0, (size_t)(rows * SL_PANEL) * sizeof *sums);
    for (int64_t r = row; r < row + rows; r++, sums += SL_PANEL) {
        float *y = a->y + r * a->y_stride + first;
        __builtin_prefetch(y, 1, 2);
        __builtin_prefetch(y + SL_PANEL_HALF, 1, 2);
        if (a->accumulate) {
            memcpy(sums, y, (size_t)columns * sizeof *sums);
        }
    }
}
