// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: quantizes full pages of a final layer into its packed layout; the last, partial page stays as it is, with its
 *          unused slots cleared. Runs only after the layer's last eviction, because packed pages cannot be compacted.
 *
 * Design: packs in rounds. The first round packs one page of every head; later rounds pack as many as fit into the
 *         memory that earlier rounds have freed. So the layer never holds more than before plus one packed page per
 *         head, and plans count on that. If memory runs out between rounds, the layer stays valid and packing can
 *         continue later.
 */
#include "engine/compress/evict/internal.h"

static uint32_t pages_to_pack(const struct sl_head *head) {
    return head->n_slots / SL_PAGE_SLOTS - head->n_packed;
}

// Allocates up to n packed pages for every head that has as many pages to pack; *n_pages_out is their total. Returns
// false, and allocates nothing, if memory runs out.
static bool take_new_pages(struct sl_compressor *c, struct sl_session *session, int layer, uint32_t n,
                           int64_t *n_pages_out) {
    const struct sl_layer *l = &session->layers[layer];
    *n_pages_out = 0;
    for (int64_t i = 0; i < (int64_t)session->geometry.n_kv_heads * n; i++) {
        bool wanted = i % n < pages_to_pack(&l->heads[i / n]);
        int range = sl_session_range(session, (int)(i / n));
        c->new_pages[i] = wanted ? sl_arena_alloc_near(session->arena, range, l->packed.bytes) : NULL;
        if (wanted && c->new_pages[i] == NULL) {
            while (i-- > 0) {
                sl_arena_free(session->arena, c->new_pages[i]);
            }
            return false;
        }
        *n_pages_out += wanted;
    }
    return true;
}

static void give_back(struct sl_compressor *c, struct sl_session *session, uint32_t n) {
    for (int64_t i = 0; i < (int64_t)session->geometry.n_kv_heads * n; i++) {
        sl_arena_free(session->arena, c->new_pages[i]);
    }
}

static void put_new_pages(struct sl_compressor *c, struct sl_session *session, int layer, uint32_t n) {
    for (int64_t i = 0; i < (int64_t)session->geometry.n_kv_heads * n; i++) {
        if (c->new_pages[i] != NULL) {
            sl_session_pack_page(session, layer, (int)(i / n), c->new_pages[i]);
        }
    }
}

// Returns the pages per head of the next round: one, plus those that fit into the memory that earlier rounds freed.
static uint32_t next_round(const struct sl_layer *l, int n_heads, size_t given_back) {
    size_t n = 1 + given_back / ((size_t)n_heads * sl_arena_rounded(l->packed.bytes));
    return n < SL_PACK_PAGES ? (uint32_t)n : SL_PACK_PAGES;
}

// Clears what no slot uses of each head's last page. Not where the host cannot write pages.
static enum sl_status clear_last_pages(struct sl_compressor *c, struct sl_session *session, int layer,
                                       struct sl_error *err) {
    if (!c->stream->device->ops->one_memory) {
        return SL_OK;
    }
    SL_TRY(sl_stream_wait(c->stream, err));
    sl_session_clear_unused(session, layer);
    return SL_OK;
}

enum sl_status sl_pack_layer(struct sl_compressor *c, struct sl_session *session, int layer, struct sl_error *err) {
    const struct sl_layer *l = &session->layers[layer];
    int n_heads = session->geometry.n_kv_heads;
    size_t given_back = 0;
    SL_TRY(clear_last_pages(c, session, layer, err));
    if (!sl_kv_format_is_quantized(l->packed.format)) {
        return SL_OK;
    }
    for (uint32_t n = 1;; n = next_round(l, n_heads, given_back)) {
        int64_t n_pages;
        if (!take_new_pages(c, session, layer, n, &n_pages)) {
            n = 1; // the freed memory may be in pieces that are too small
            SL_FAIL_IF(!take_new_pages(c, session, layer, n, &n_pages), err, SL_ERR_EXHAUSTED,
                       "compressor: no arena memory for quantized pages of layer %d", layer);
        }
        if (n_pages == 0) {
            return SL_OK;
        }
        struct sl_kv_heads heads;
        enum sl_status status = sl_layer_heads(c, session, layer, &heads, err);
        SL_TRY_OR(status, give_back(c, session, n));
        c->ops->quantize(c->stream, &heads, n, c->new_pages);
        sl_estimate_pages(c, layer, &heads, n);
        put_new_pages(c, session, layer, n);
        c->stats.pages_quantized += n_pages;
        given_back += (size_t)n_pages * (sl_arena_rounded(l->work.bytes) - sl_arena_rounded(l->packed.bytes));
    }
}
