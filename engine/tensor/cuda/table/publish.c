// SPDX-License-Identifier: Apache-2.0
// Purpose: see publish.h. One copy sends an array of heads, and after it the page list of each.
#include "engine/tensor/cuda/table/publish.h"

#include <assert.h>
#include <string.h>

// Returns how many pages a head has; 0 for heads without pages, which have only a number of slots.
static uint32_t n_pages(const struct sl_kv *kv) {
    return kv->pages != NULL ? sl_pages_for(kv->n_slots) : 0;
}

enum sl_status sl_gpu_publish(struct sl_stream *stream, struct sl_kv_heads *heads_inout, struct sl_error *err) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    size_t bytes = (size_t)heads_inout->n * sizeof(struct gpu_head);
    for (int h = 0; h < heads_inout->n; h++) {
        bytes += n_pages(&heads_inout->kv[h]) * sizeof(void *);
    }
    void *here;
    char *there = sl_gpu_describe_begin(s, bytes, &here);
    if (there == NULL) {
        return sl_stream_wait(stream, err);
    }
    struct gpu_head *head = here;
    size_t used = (size_t)heads_inout->n * sizeof *head;
    struct gpu_published now = {.heads = (const struct gpu_head *)there,
                                .packed_format = heads_inout->kv[0].work->format};
    for (int h = 0; h < heads_inout->n; h++) {
        const struct sl_kv *kv = &heads_inout->kv[h];
        size_t list_bytes = n_pages(kv) * sizeof(void *);
        head[h] = (struct gpu_head){(void *const *)(there + used), kv->n_packed, kv->n_slots, *kv->work, *kv->packed};
        if (list_bytes > 0) {
            memcpy((char *)here + used, kv->pages, list_bytes);
        }
        used += list_bytes;
        now.has_packed |= kv->n_packed > 0;
        now.packed_format = kv->n_packed > 0 ? kv->packed->format : now.packed_format;
    }
    sl_gpu_describe_end(s, there, bytes);
    struct gpu_published *published = &s->published[s->n_published++ % GPU_PUBLISHED];
    now.at = s->described;
    *published = now;
    heads_inout->published = published;
    heads_inout->first = 0;
    return SL_OK;
}

const struct gpu_head *sl_gpu_heads(const struct gpu_stream *s, const struct sl_kv_heads *heads) {
    const struct gpu_published *published = heads->published;
    assert(published != NULL && s->described - published->at < s->driver->ring_bytes);
    (void)s;
    return published->heads + heads->first;
}

uint32_t sl_gpu_most_slots(const struct sl_kv_heads *heads) {
    uint32_t most = 0;
    for (int h = 0; h < heads->n; h++) {
        most = heads->kv[h].n_slots > most ? heads->kv[h].n_slots : most;
    }
    return most;
}
