// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what a step attends to in one layer: for every KV head a page table (the pages of its hot cache, followed by
 *          those of the session), and the list of slots in it. retriever.h defines the order.
 */
#include <string.h>

#include "engine/offload/retriever/retriever_internal.h"

void sl_retriever_block_pages(const struct sl_retriever *r, const struct sl_retriever_layer *l, int h,
                              void **pages_out) {
    size_t page_bytes = r->config.session->layers[l->layer].work.bytes;
    for (uint32_t i = 0; i < r->n_block_pages; i++) {
        pages_out[i] = l->blocks[h] + i * page_bytes;
    }
}

static uint32_t add_range(uint32_t *list, uint32_t n, uint32_t begin, uint32_t end) {
    for (uint32_t j = begin; j < end; j++) {
        list[n++] = j;
    }
    return n;
}

// Writes the list of slots that head h attends to, by its table.
static uint32_t list_slots(const struct sl_retriever *r, int h, uint32_t n_session) {
    const struct sl_retriever_brought *brought = &r->brought[h];
    uint32_t *list = r->slots.at + (size_t)h * r->slots.stride, block = r->n_block_pages * SL_PAGE_SLOTS;
    uint32_t sinks = r->config.resident_only ? block : sl_pages_for(r->n_places) * SL_PAGE_SLOTS;
    uint32_t n = add_range(list, 0, sinks, sinks + r->sinks);
    if (!brought->is_missing) {
        memcpy(list + n, brought->view.places, brought->view.n_rows * sizeof *list);
        n += brought->view.n_rows;
    }
    n = add_range(list, n, sinks + r->sinks, sinks + r->sinks + r->recent);
    uint32_t resident = r->config.resident_only ? r->sinks + r->recent : (uint32_t)r->config.n_prompt;
    uint32_t first = r->first_page * SL_PAGE_SLOTS; // in the table
    return add_range(list, n, block + resident - first, block + n_session - first);
}

// Makes, for head h, its page table, the list of fetched rows with their destinations, and the list of slots to attend
// to.
static void list_head(struct sl_retriever *r, const struct sl_retriever_layer *l, const struct sl_kv *in_session,
                      int h) {
    const struct sl_near_offloaded_head_view *view = &r->brought[h].view;
    uint32_t n_pages = sl_pages_for(in_session->n_slots) - r->first_page;
    uint32_t *fresh = r->fresh.at + (size_t)h * r->fresh.stride;
    sl_retriever_block_pages(r, l, h, r->tables[h]);
    memcpy(r->tables[h] + r->n_block_pages, in_session->pages + r->first_page, n_pages * sizeof *r->tables[h]);
    r->kv[h] = (struct sl_kv){.pages = r->tables[h],
                              .n_slots = (r->n_block_pages + n_pages) * SL_PAGE_SLOTS,
                              .work = in_session->work,
                              .packed = in_session->packed};
    r->n_fresh[h] = r->brought[h].is_missing ? 0 : view->n_new;
    r->fresh_rows[h] = view->rows;
    if (r->rows != NULL && r->n_fresh[h] > 0) {
        size_t row_bytes = sl_near_row_bytes(&r->shape);
        void *rows = r->rows + (size_t)h * r->topk * row_bytes;
        r->fresh_rows[h] = memcpy(rows, view->rows, r->n_fresh[h] * row_bytes);
    }
    for (uint32_t i = 0; i < r->n_fresh[h]; i++) {
        fresh[i] = view->places[view->fresh[i]];
    }
    r->n_slots[h] = list_slots(r, h, in_session->n_slots);
}

void sl_retriever_list_slots(struct sl_retriever *r, const struct sl_retriever_layer *l,
                             const struct sl_attend *attend) {
    for (int h = 0; h < r->n_heads; h++) {
        list_head(r, l, &attend->heads.kv[h], h);
    }
}
