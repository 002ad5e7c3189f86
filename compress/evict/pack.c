// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: full pages of a layer that is final become pages of its packed layout; the last partial page stays as it is.
 *          Only after the layer's last eviction, because packed pages cannot be compacted.
 */
#include <string.h>

#include "compress/evict/internal.h"

struct layer_task {
    struct sl_compressor *compressor;
    const struct sl_layer *layer;
};

static void pack_heads(void *arg, int64_t begin, int64_t end, int member) {
    const struct layer_task *task = arg;
    const struct sl_layer *l = task->layer;
    for (int64_t h = begin; h < end; h++) {
        void *page = task->compressor->new_pages[h];
        if (page != NULL) {
            void *from = l->heads[h].pages[l->heads[h].n_packed];
            task->compressor->ops->quantize(&l->work, from, &l->packed, page);
            sl_estimate_page(task->compressor, l, h, from, page, member);
        }
    }
}

static bool has_page_to_pack(const struct sl_head *head) {
    return ((int64_t)head->n_packed + 1) * SL_PAGE_SLOTS <= head->n_slots;
}

// A packed page for every head that has a page to pack, or none at all.
static enum sl_status take_new_pages(struct sl_compressor *c, struct sl_session *session, int layer, int *n_pages_out,
                                     struct sl_error *err) {
    const struct sl_layer *l = &session->layers[layer];
    int n_heads = session->geometry.n_kv_heads, n_pages = 0;
    memset(c->new_pages, 0, (size_t)n_heads * sizeof *c->new_pages);
    for (int h = 0; h < n_heads; h++) {
        if (!has_page_to_pack(&l->heads[h])) {
            continue;
        }
        c->new_pages[h] = sl_arena_alloc(session->arena, l->packed.bytes);
        if (c->new_pages[h] == NULL) {
            while (h-- > 0) {
                sl_arena_free(session->arena, c->new_pages[h]);
            }
            return sl_fail(err, SL_ERR_EXHAUSTED, "compressor: no arena memory for quantized pages of layer %d", layer);
        }
        n_pages++;
    }
    *n_pages_out = n_pages;
    return SL_OK;
}

// Round by round, one page of every head: never more than one packed page per head beside the page that it replaces.
// If memory ends between rounds, the layer is valid as it is and packing can go on later.
enum sl_status sl_pack_layer(struct sl_compressor *c, struct sl_session *session, int layer, struct sl_error *err) {
    const struct sl_layer *l = &session->layers[layer];
    if (!sl_kv_format_is_quantized(l->packed.format)) {
        return SL_OK;
    }
    for (;;) {
        int n_pages = 0;
        enum sl_status status = take_new_pages(c, session, layer, &n_pages, err);
        if (status != SL_OK || n_pages == 0) {
            return status;
        }
        struct layer_task task = {c, l};
        sl_team_run(c->team, session->geometry.n_kv_heads, 1, pack_heads, &task);
        sl_estimate_pages(c, layer);
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            if (c->new_pages[h] != NULL) {
                sl_session_pack_page(session, layer, h, c->new_pages[h]);
            }
        }
        c->stats.pages_quantized += n_pages;
    }
}
