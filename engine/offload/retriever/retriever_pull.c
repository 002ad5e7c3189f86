// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: retrieve=pull, TailorKV's own method (section 4.2): keys come here and are ranked here.
 *
 *     ahead (in layer l - 1)   per KV head the channels c with the largest |mean over the group of the predicted
 *                              query|_c * absmax_c; their keys, of all prompt tokens, are requested
 *     in layer l               the true query scores them as the remote KV would (ops->scan over the same bytes, on the
 *                              device that computes the model), and the topk are selected; the rows that the hot cache
 *                              lacks are requested, KV head by KV head
 *
 * Design: channels of at most two layers are pending or here, this one's and the next one's. This side decides which
 *         token is in which place: a remote KV that only sends rows need not know.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/offload/retriever/retriever_internal.h"

// One KV head of the current layer.
struct pulled {
    const uint8_t *indexes; // of its channels, segment by segment; NULL: they did not come
    uint32_t n_segments;
    const uint32_t *n_slots;                   // [n_segments]
    uint32_t *tokens, *places, *fresh, *lacks; // [topk] each; lacks: the tokens of fresh
    uint32_t n_fresh;
    struct sl_retriever_pending rows;
};

struct sl_retriever_pull {
    float *absmax;                        // [offloaded heads][d]
    uint16_t *channels;                   // [offloaded heads][n_channels] of the pending question, ascending
    struct sl_hot_cache *offloaded_heads; // [offloaded heads]
    struct pulled *heads;                 // [n_heads]
    float *floats;                        // one allocation for absmax and by_size
    uint32_t *numbers;                    // the allocation of the heads' arrays, except their tokens, and of `largest`
    float *by_size;                       // [d] of one offloaded head; the largest channels are selected by it
    uint32_t *largest;                    // [n_channels]
    void *shared;                         // memory that the device writes and reads; holds chosen and tokens
    float *chosen;                        // [n_heads][n_channels] of the true query
    struct sl_lists tokens;               // [n_heads][topk], counted from the first candidate
    struct sl_vectors scores;             // [n_heads][last - first] in device memory
    uint32_t *counts;                     // [n_heads] how many are selected
    struct sl_kv *kv;                     // [n_heads] how many candidates there are
    struct sl_scan_piece *pieces;         // [n_heads][n_pieces]
    size_t pieces_cap;
    uint32_t n_pieces;
};

// --- creation --------------------------------------------------------------------------------------------------------

static bool allocate_host(struct sl_retriever *r, struct sl_retriever_pull *pull) {
    size_t n_offloaded_heads = (size_t)sl_offloaded_heads_count(&r->offloaded_heads), n_heads = (size_t)r->n_heads,
           d = (size_t)r->head_dim;
    size_t n_channels = (size_t)r->n_channels;
    pull->floats = calloc(n_offloaded_heads * d + d, sizeof *pull->floats);
    pull->numbers = calloc(n_heads * 3 * r->topk + n_channels + n_heads, sizeof *pull->numbers);
    pull->channels = calloc(n_offloaded_heads * n_channels, sizeof *pull->channels);
    pull->offloaded_heads = calloc(n_offloaded_heads, sizeof *pull->offloaded_heads);
    pull->heads = calloc(n_heads, sizeof *pull->heads);
    pull->kv = calloc(n_heads, sizeof *pull->kv);
    if (pull->floats == NULL || pull->numbers == NULL || pull->channels == NULL || pull->offloaded_heads == NULL ||
        pull->heads == NULL || pull->kv == NULL) {
        return false;
    }
    pull->absmax = pull->floats;
    pull->by_size = pull->floats + n_offloaded_heads * d;
    pull->largest = pull->numbers + n_heads * 3 * r->topk;
    pull->counts = pull->largest + n_channels;
    return true;
}

static bool allocate(struct sl_retriever *r, struct sl_retriever_pull *pull) {
    struct sl_device *device = r->config.stream->device;
    size_t n_heads = (size_t)r->n_heads, chosen = n_heads * (size_t)r->n_channels * sizeof *pull->chosen;
    pull->scores.stride = (size_t)(sl_retriever_last_choice(r) - r->sinks);
    pull->tokens.stride = r->topk;
    if (!allocate_host(r, pull)) {
        return false;
    }
    pull->shared = sl_device_alloc(device, SL_MEMORY_SHARED, chosen + n_heads * r->topk * sizeof *pull->tokens.at);
    pull->scores.at = sl_device_alloc(device, SL_MEMORY_DEVICE, n_heads * pull->scores.stride * sizeof(float));
    if (pull->shared == NULL || pull->scores.at == NULL) {
        return false;
    }
    pull->chosen = pull->shared;
    pull->tokens.at = (uint32_t *)((char *)pull->shared + chosen);
    for (size_t h = 0; h < n_heads; h++) {
        struct pulled *head = &pull->heads[h];
        head->tokens = pull->tokens.at + h * r->topk;
        head->places = pull->numbers + h * 3 * r->topk;
        head->fresh = head->places + r->topk;
        head->lacks = head->fresh + r->topk;
    }
    return true;
}

static enum sl_status create(struct sl_retriever *r, struct sl_error *err) {
    r->pull = calloc(1, sizeof *r->pull);
    SL_FAIL_IF(r->pull == NULL || !allocate(r, r->pull), err, SL_ERR_EXHAUSTED,
               "retrieval: out of memory to rank %lld tokens", (long long)r->config.n_prompt);
    for (int i = 0; i < sl_offloaded_heads_count(&r->offloaded_heads); i++) {
        SL_TRY(sl_hot_cache_init(&r->pull->offloaded_heads[i], r->n_places, err));
    }
    return sl_retriever_fetch_absmax(r, r->pull->absmax, err);
}

static void destroy(struct sl_retriever *r) {
    struct sl_retriever_pull *pull = r->pull;
    if (pull == NULL) {
        return;
    }
    for (int h = 0; pull->heads != NULL && h < r->n_heads; h++) {
        sl_retriever_give_up(r, &pull->heads[h].rows);
    }
    for (int i = 0; pull->offloaded_heads != NULL && i < sl_offloaded_heads_count(&r->offloaded_heads); i++) {
        sl_hot_cache_cleanup(&pull->offloaded_heads[i]);
    }
    free(pull->floats);
    free(pull->numbers);
    free(pull->channels);
    free(pull->offloaded_heads);
    free(pull->heads);
    free(pull->kv);
    free(pull->pieces);
    sl_device_free(r->config.stream->device, SL_MEMORY_SHARED, pull->shared);
    sl_device_free(r->config.stream->device, SL_MEMORY_DEVICE, pull->scores.at);
    free(pull);
    r->pull = NULL;
}

// --- channels --------------------------------------------------------------------------------------------------------

// Selects the channels of one offloaded head in which |mean query| * absmax is largest.
static void choose_channels(struct sl_retriever *r, int offloaded_head, const float *mean) {
    struct sl_retriever_pull *pull = r->pull;
    size_t d = (size_t)r->head_dim, n = (size_t)r->n_channels;
    const float *absmax = pull->absmax + (size_t)offloaded_head * d;
    for (size_t c = 0; c < d; c++) {
        pull->by_size[c] = fabsf(mean[c]) * absmax[c];
    }
    r->config.ops->host.select(pull->by_size, (uint32_t)d, (uint32_t)n, pull->largest);
    for (size_t i = 0; i < n; i++) {
        pull->channels[(size_t)offloaded_head * n + i] = (uint16_t)pull->largest[i];
    }
}

static enum sl_status send_channels(struct sl_retriever *r, struct sl_retriever_layer *l,
                                    const struct sl_attend *attend, const float *q, struct sl_error *err) {
    size_t n = (size_t)r->n_channels, d = (size_t)r->head_dim;
    SL_TRY(sl_retriever_take_means(r, attend, q, err));
    for (int p = 0; p < l->n_parts; p++) {
        struct sl_retriever_part *part = &l->parts[p];
        struct sl_near_request head = sl_retriever_part_request(part, SL_NEAR_CHANNELS);
        size_t bytes = (size_t)part->n_offloaded_heads * n * sizeof *r->pull->channels;
        head.n_channels = (uint32_t)n;
        head.last = r->config.n_prompt;
        for (int i = 0; i < part->n_offloaded_heads; i++) {
            choose_channels(r, part->first_offloaded_head + i, r->means + (size_t)(part->first_head + i) * d);
        }
        memcpy(sl_retriever_request_body(r), r->pull->channels + (size_t)part->first_offloaded_head * n, bytes);
        SL_TRY(sl_retriever_send(r, &head, bytes, &part->main, err));
    }
    return SL_OK;
}

static enum sl_status ahead(struct sl_retriever *r, struct sl_retriever_layer *l, const struct sl_attend *attend,
                            struct sl_error *err) {
    return send_channels(r, l, attend, attend->next_q, err);
}

static enum sl_status ask(struct sl_retriever *r, struct sl_retriever_layer *l, const struct sl_attend *attend,
                          struct sl_error *err) {
    return l->parts[0].main.asked == NULL ? send_channels(r, l, attend, attend->q, err) : SL_OK;
}

static enum sl_status take_channels(struct sl_retriever *r, struct sl_retriever_part *part, struct sl_error *err) {
    const uint8_t *body, *end;
    struct sl_near_channels_view view;
    enum sl_status status = sl_retriever_receive(r, part->share, &part->main, &body, &end, err);
    SL_THEN(status, sl_near_read_channels(&part->main.request, &r->shape, body, end, &view, err));
    for (int i = 0; i < part->n_offloaded_heads; i++) {
        struct pulled *head = &r->pull->heads[part->first_head + i];
        head->indexes = NULL;
        if (status == SL_OK) {
            head->indexes = view.indexes + (size_t)i * view.offloaded_head_bytes;
            head->n_segments = view.n_segments;
            head->n_slots = view.n_slots;
        }
    }
    return status == SL_AGAIN ? SL_OK : status;
}

// --- tokens ----------------------------------------------------------------------------------------------------------

// Makes room for the pieces of every head; only the first steps allocate.
static enum sl_status make_pieces(struct sl_retriever *r, struct sl_error *err) {
    struct sl_retriever_pull *pull = r->pull;
    pull->n_pieces = 0;
    for (int h = 0; h < r->n_heads; h++) {
        const struct pulled *head = &pull->heads[h];
        uint32_t n = head->indexes != NULL ? head->n_segments : 0;
        pull->n_pieces = n > pull->n_pieces ? n : pull->n_pieces;
    }
    size_t n = (size_t)r->n_heads * pull->n_pieces;
    if (n > pull->pieces_cap) {
        free(pull->pieces);
        pull->pieces = malloc(n * sizeof *pull->pieces);
        pull->pieces_cap = pull->pieces != NULL ? n : 0;
    }
    return n <= pull->pieces_cap ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "retrieval: out of memory to rank tokens");
}

// Describes the pieces of head h, segment by segment: those of tokens [first, last).
static void describe(const struct sl_retriever *r, int h, uint32_t first, uint32_t last) {
    const struct pulled *head = &r->pull->heads[h];
    struct sl_scan_piece *pieces = r->pull->pieces + (size_t)h * r->pull->n_pieces;
    const uint8_t *index = head->indexes;
    uint32_t begin = 0; // of the segment
    memset(pieces, 0, r->pull->n_pieces * sizeof *pieces);
    for (uint32_t s = 0; index != NULL && s < head->n_segments; s++) {
        struct sl_scan_piece *piece = &pieces[s];
        uint32_t end = begin + head->n_slots[s];
        enum sl_status status = sl_near_channels_layout(&r->shape, r->n_channels, head->n_slots[s], &piece->layout);
        assert(status == SL_OK); // sl_near_read_channels() has checked it
        (void)status;
        uint32_t from = begin > first ? begin : first, to = end < last ? end : last;
        piece->index = index;
        if (from < to) {
            piece->begin = from - begin;
            piece->end = to - begin;
            piece->at = from - first;
        }
        index += piece->layout.bytes;
        begin = end;
    }
}

// Selects, for every head whose channels came, the topk into pull->tokens. Waits for the device.
static enum sl_status rank_heads(struct sl_retriever *r, const struct sl_attend *attend, size_t first_offloaded_head,
                                 struct sl_error *err) {
    struct sl_retriever_pull *pull = r->pull;
    size_t n_channels = (size_t)r->n_channels;
    uint32_t first = r->sinks, last = (uint32_t)sl_retriever_last_choice(r);
    enum sl_status status = make_pieces(r, err);
    if (status != SL_OK || pull->n_pieces == 0) {
        return status;
    }
    for (int h = 0; h < r->n_heads; h++) {
        const float *mean = r->means + (size_t)h * (size_t)r->head_dim;
        const uint16_t *channels = pull->channels + (first_offloaded_head + (size_t)h) * n_channels;
        bool is_there = pull->heads[h].indexes != NULL;
        for (size_t i = 0; i < n_channels; i++) {
            pull->chosen[(size_t)h * n_channels + i] = mean[channels[i]];
        }
        describe(r, h, first, last);
        pull->counts[h] = is_there ? r->topk : 0;
        pull->kv[h] = (struct sl_kv){.n_slots = is_there ? last - first : 0,
                                     .work = attend->heads.kv[h].work,
                                     .packed = attend->heads.kv[h].packed};
    }
    struct sl_kv_heads heads = {.kv = pull->kv, .n = r->n_heads};
    const struct sl_scan_call scan = {pull->pieces, r->n_heads,    pull->n_pieces,
                                      pull->chosen, r->n_channels, pull->scores};
    SL_TRY(r->config.ops->publish(r->config.stream, &heads, err));
    r->config.ops->scan(r->config.stream, &scan);
    r->config.ops->select(r->config.stream, &heads, pull->scores, (struct sl_vectors){NULL, 0}, false,
                          (struct sl_counts){.host = pull->counts}, pull->tokens);
    return sl_stream_wait(r->config.stream, err);
}

struct want_task {
    struct sl_retriever *r;
    int first_offloaded_head;
};

// Finds, for heads [begin, end), which of the topk the hot cache lacks.
static void want_heads(void *arg, int64_t begin, int64_t end, int member) {
    const struct want_task *task = arg;
    struct sl_retriever *r = task->r;
    (void)member;
    for (int64_t h = begin; h < end; h++) {
        struct pulled *head = &r->pull->heads[h];
        size_t offloaded_head = (size_t)task->first_offloaded_head + (size_t)h;
        head->n_fresh = 0;
        if (head->indexes == NULL) {
            continue;
        }
        for (uint32_t i = 0; i < r->topk; i++) {
            head->tokens[i] += r->sinks;
        }
        if (r->keeps_none) {
            sl_hot_cache_forget(&r->pull->offloaded_heads[offloaded_head]);
        }
        struct sl_row_claim claim = {head->tokens, r->topk, .places = head->places, .fresh = head->fresh};
        sl_hot_cache_want(&r->pull->offloaded_heads[offloaded_head], &claim);
        head->n_fresh = claim.n_fresh;
        for (uint32_t i = 0; i < head->n_fresh; i++) {
            head->lacks[i] = head->tokens[head->fresh[i]];
        }
    }
}

// --- rows ------------------------------------------------------------------------------------------------------------

static enum sl_status send_rows(struct sl_retriever *r, const struct sl_retriever_part *part, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int i = 0; status == SL_OK && i < part->n_offloaded_heads; i++) {
        struct pulled *head = &r->pull->heads[part->first_head + i];
        if (head->n_fresh == 0) {
            continue;
        }
        struct sl_near_request request = sl_retriever_part_request(part, SL_NEAR_ROWS);
        request.first_offloaded_head += (uint32_t)i;
        request.n_offloaded_heads = 1;
        request.n_tokens = head->n_fresh;
        memcpy(sl_retriever_request_body(r), head->lacks, head->n_fresh * sizeof *head->lacks);
        status = sl_retriever_send(r, &request, head->n_fresh * sizeof *head->lacks, &head->rows, err);
    }
    return status;
}

// Takes a head's rows, if any are pending: afterwards the hot cache has what it was told, or it forgets everything.
static enum sl_status take_rows(struct sl_retriever *r, const struct sl_retriever_part *part, int i,
                                struct sl_error *err) {
    struct pulled *head = &r->pull->heads[part->first_head + i];
    struct sl_retriever_brought *brought = &r->brought[part->first_head + i];
    const uint8_t *body = NULL, *end;
    enum sl_status status = SL_OK;
    if (head->rows.asked != NULL) {
        status = sl_retriever_receive(r, part->share, &head->rows, &body, &end, err);
        SL_THEN(status, sl_near_read_rows(&head->rows.request, sl_near_row_bytes(&r->shape), body, end, err));
    }
    brought->is_missing = head->indexes == NULL || status != SL_OK;
    if (status != SL_OK) {
        sl_hot_cache_forget(&r->pull->offloaded_heads[part->first_offloaded_head + i]);
        return status == SL_AGAIN ? SL_OK : status;
    }
    brought->view = (struct sl_near_offloaded_head_view){
        .n_rows = r->topk, .n_new = head->n_fresh, .places = head->places, .fresh = head->fresh, .rows = body};
    return SL_OK;
}

static enum sl_status take(struct sl_retriever *r, struct sl_retriever_layer *l, const struct sl_attend *attend,
                           struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int p = 0; status == SL_OK && p < l->n_parts; p++) {
        status = take_channels(r, &l->parts[p], err);
    }
    SL_THEN(status, sl_retriever_take_means(r, attend, attend->q, err));
    SL_THEN(status, rank_heads(r, attend, (size_t)l->parts[0].first_offloaded_head, err));
    SL_TRY(status);
    struct want_task task = {r, l->parts[0].first_offloaded_head};
    sl_stream_run(r->config.stream, r->n_heads, 1, want_heads, &task);
    for (int p = 0; status == SL_OK && p < l->n_parts; p++) {
        status = send_rows(r, &l->parts[p], err);
    }
    for (int p = 0; status == SL_OK && p < l->n_parts; p++) {
        for (int i = 0; status == SL_OK && i < l->parts[p].n_offloaded_heads; i++) {
            status = take_rows(r, &l->parts[p], i, err);
        }
    }
    return status;
}

static void release(struct sl_retriever *r, struct sl_retriever_layer *l) {
    for (int p = 0; p < l->n_parts; p++) {
        sl_retriever_give_up(r, &l->parts[p].main);
    }
    for (int h = 0; h < r->n_heads; h++) {
        sl_retriever_give_up(r, &r->pull->heads[h].rows);
    }
}

const struct sl_retriever_way sl_retriever_pull_way = {.whole_layers = true,
                                                       .create = create,
                                                       .destroy = destroy,
                                                       .ahead = ahead,
                                                       .ask = ask,
                                                       .take = take,
                                                       .release = release};
