// SPDX-License-Identifier: Apache-2.0
// Questions that a retriever asks once, at creation. See retriever_internal.h.
#include <string.h>

#include "engine/offload/retriever/retriever_internal.h"

// Receives an answer without retries: no token has been written yet, so a share that does not answer now fails the
// creation.
static enum sl_status receive_once(struct sl_retriever *r, int share, struct sl_retriever_pending *pending,
                                   const uint8_t **body_out, const uint8_t **end_out, struct sl_error *err) {
    enum sl_status status = sl_retriever_receive(r, share, pending, body_out, end_out, err);
    return status == SL_AGAIN ? sl_fail_from(err, SL_ERR_PEER_LOST, &r->why, "offloaded layers: %s", r->why.text)
                              : status;
}

// --- resident slots ------------------------------------------------------------------------------------------------

static enum sl_status ask_rows(struct sl_retriever *r, struct sl_retriever_layer *l, const uint32_t *tokens, uint32_t n,
                               struct sl_error *err) {
    for (int p = 0; p < l->n_parts; p++) {
        struct sl_near_request head = sl_retriever_part_request(&l->parts[p], SL_NEAR_ROWS);
        head.n_tokens = n;
        memcpy(sl_retriever_request_body(r), tokens, n * sizeof *tokens);
        SL_TRY(sl_retriever_send(r, &head, n * sizeof *tokens, &l->parts[p].main, err));
    }
    return SL_OK;
}

// Returns where the rows of head h go: slots 0 .. n - 1 of the session, or pages after the hot cache.
static struct sl_kv resident_kv(const struct sl_retriever *r, const struct sl_retriever_layer *l, int h, uint32_t n) {
    const struct sl_layer *layer = &r->config.session->layers[l->layer];
    uint32_t first = sl_pages_for(r->n_places);
    struct sl_kv kv = {layer->heads[h].pages, 0, n, &layer->work, &layer->packed};
    if (!r->config.resident_only) {
        sl_retriever_block_pages(r, l, h, r->tables[h]);
        kv.pages = r->tables[h] + first;
    }
    return kv;
}

// The arguments of puts, in shared memory: made once for all layers.
struct put {
    uint32_t n;
    uint32_t *slots; // [n] 0 .. n - 1
    char *rows;      // [n_heads][n] staging for a device with its own memory; NULL: rows are put in place
};

// Puts the rows of a part's heads into their slots.
static enum sl_status put_rows(struct sl_retriever *r, const struct sl_retriever_layer *l,
                               const struct sl_retriever_part *part, const struct put *put, const uint8_t *body,
                               struct sl_error *err) {
    size_t bytes = put->n * sl_near_row_bytes(&r->shape);
    enum sl_status status = SL_OK;
    for (int i = 0; status == SL_OK && i < part->n_offloaded_heads; i++) {
        const void *rows = body + (size_t)i * bytes;
        if (put->rows != NULL) {
            rows = memcpy(put->rows + (size_t)(part->first_head + i) * bytes, rows, bytes);
        }
        struct sl_kv kv = resident_kv(r, l, part->first_head + i, put->n);
        struct sl_kv_heads head = {.kv = &kv, .n = 1};
        status = r->config.ops->publish(r->config.stream, &head, err);
        if (status == SL_OK) {
            r->config.ops->put_rows(r->config.stream, &head, (struct sl_lists){put->slots, put->n},
                                    (struct sl_counts){.host = &put->n}, &rows);
        }
        if (status == SL_OK && r->config.resident_only) {
            sl_session_set_slots(r->config.session, l->layer, part->first_head + i, put->n);
        }
    }
    // Waits in any case: the source owns the rows, and the list and its copies are freed after a failure.
    enum sl_status waited = sl_stream_wait(r->config.stream, status == SL_OK ? err : NULL);
    return status == SL_OK ? waited : status;
}

static enum sl_status take_rows(struct sl_retriever *r, struct sl_retriever_layer *l, const struct put *put,
                                struct sl_error *err) {
    const uint8_t *body, *end;
    enum sl_status status =
        r->config.resident_only ? sl_session_reserve(r->config.session, l->layer, (int)put->n) : SL_OK;
    SL_FAIL_IF(status != SL_OK, err, status, "retrieval: no room in the KV cache for %u slots of layer %d", put->n,
               l->layer);
    for (int p = 0; status == SL_OK && p < l->n_parts; p++) {
        struct sl_retriever_part *part = &l->parts[p];
        status = receive_once(r, part->share, &part->main, &body, &end, err);
        SL_THEN(status, sl_near_read_rows(&part->main.request, sl_near_row_bytes(&r->shape), body, end, err));
        if (status == SL_OK) {
            sl_stream_hold(r->config.stream); // excludes other sequences' steps
            status = put_rows(r, l, part, put, body, err);
            status = sl_stream_release_after(r->config.stream, status, err);
        }
        sl_retriever_give_up(r, &part->main);
    }
    return status;
}

// Fetches the resident rows; the next layer's rows are in transit while this layer's are put.
enum sl_status sl_retriever_fetch_resident(struct sl_retriever *r, struct sl_error *err) {
    int64_t n_prompt = r->config.n_prompt;
    uint32_t n = r->n_places > 0 ? r->sinks + r->recent : (uint32_t)n_prompt;
    if (n == 0) {
        return SL_OK;
    }
    struct sl_device *device = r->config.stream->device;
    size_t rows = device->ops->one_memory ? 0 : (size_t)r->n_heads * n * sl_near_row_bytes(&r->shape);
    char *shared = sl_device_alloc(device, SL_MEMORY_SHARED, rows + 2 * (size_t)n * sizeof(uint32_t));
    SL_FAIL_IF(shared == NULL, err, SL_ERR_EXHAUSTED, "retrieval: out of memory");
    uint32_t *tokens = (uint32_t *)(shared + rows);
    struct put put = {.n = n, .slots = tokens + n, .rows = rows > 0 ? shared : NULL};
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = i < r->sinks ? i : (uint32_t)n_prompt - (n - i);
        put.slots[i] = i;
    }
    enum sl_status status = ask_rows(r, &r->layers[0], tokens, n, err);
    for (int i = 0; status == SL_OK && i < r->offloaded_heads.n_layers; i++) {
        if (i + 1 < r->offloaded_heads.n_layers) {
            status = ask_rows(r, &r->layers[i + 1], tokens, n, err);
        }
        SL_THEN(status, take_rows(r, &r->layers[i], &put, err));
    }
    sl_device_free(device, SL_MEMORY_SHARED, shared);
    return status;
}

// --- absmax ----------------------------------------------------------------------------------------------------------

enum sl_status sl_retriever_fetch_absmax(struct sl_retriever *r, float *absmax_out, struct sl_error *err) {
    const struct sl_source *source = r->config.source;
    size_t offloaded_head_bytes = (size_t)r->head_dim * sizeof *absmax_out;
    enum sl_status status = SL_OK;
    for (int s = 0; status == SL_OK && s < source->n_shares; s++) {
        struct sl_retriever_part share = {.first_offloaded_head = source->shares[s].first_offloaded_head,
                                          .n_offloaded_heads = source->shares[s].n_offloaded_heads};
        struct sl_near_request head = sl_retriever_part_request(&share, SL_NEAR_ABSMAX);
        const uint8_t *body, *end;
        const float *absmax;
        status = sl_retriever_send(r, &head, 0, &share.main, err);
        SL_THEN(status, receive_once(r, s, &share.main, &body, &end, err));
        SL_THEN(status, sl_near_read_absmax(&share.main.request, r->head_dim, body, end, &absmax, err));
        if (status == SL_OK) {
            memcpy(absmax_out + (size_t)share.first_offloaded_head * (size_t)r->head_dim, absmax,
                   (size_t)share.n_offloaded_heads * offloaded_head_bytes);
        }
        sl_retriever_give_up(r, &share.main);
    }
    return status;
}
