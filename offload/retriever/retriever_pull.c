// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: retrieve=pull, the way of TailorKV (section 4.2): keys come here and are ranked here.
 *
 *     ahead (in layer l - 1)   per KV head the channels c with the largest |mean over the group of the predicted query|_c
 *                              * absmax_c; their keys, of all prompt tokens, are asked for
 *     in layer l               the true query scores them as the annex would (ops->host.scan over the same bytes); the rows of
 *                              the topk that the hot cache lacks are asked for, KV head by KV head
 *
 * Design: the channels of at most two layers are under way or here, this one's and the next one's. Which token lies in
 *         which place is decided here: an annex that only gives rows need not know.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/retriever/retriever_internal.h"

// One KV head of the layer at hand.
struct pulled {
    const uint8_t *indexes; // of its channels, segment by segment; NULL: they did not come
    uint32_t n_segments;
    const uint32_t *n_slots;                   // [n_segments]
    uint32_t *tokens, *places, *fresh, *lacks; // [topk] each; lacks: the tokens of fresh
    uint32_t n_fresh;
    float *chosen_q; // [n_channels]
    float *scores;   // [last - first]
    struct sl_retriever_pending rows;
};

struct sl_retriever_pull {
    float *absmax;              // [lanes][d]
    uint16_t *channels;         // [lanes][n_channels] of the question under way, ascending
    struct sl_hot_cache *lanes; // [lanes]
    struct pulled *heads;       // [n_heads]
    int *all_channels;          // [n_channels] 0, 1, ...: what an index of the channels alone has
    float *floats;              // one allocation behind absmax and the heads' floats
    uint32_t *numbers;          // behind the heads' numbers
};

// --- creation --------------------------------------------------------------------------------------------------------

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static bool allocate(struct sl_retriever *r, struct sl_retriever_pull *pull) {
    size_t n_lanes = (size_t)sl_lanes_count(&r->lanes), n_heads = (size_t)r->n_heads, d = (size_t)r->head_dim;
    size_t n_channels = (size_t)r->n_channels, n_scores = larger((size_t)(sl_retriever_last_choice(r) - r->sinks), d);
    size_t n_numbers = larger(r->topk, n_channels); // channels are ranked in the same scratch
    pull->floats = calloc(n_lanes * d + n_heads * (n_channels + n_scores), sizeof *pull->floats);
    pull->numbers = calloc(n_heads * 4 * n_numbers, sizeof *pull->numbers);
    pull->channels = calloc(n_lanes * n_channels, sizeof *pull->channels);
    pull->lanes = calloc(n_lanes, sizeof *pull->lanes);
    pull->heads = calloc(n_heads, sizeof *pull->heads);
    pull->all_channels = calloc(n_channels, sizeof *pull->all_channels);
    if (pull->floats == NULL || pull->numbers == NULL || pull->channels == NULL || pull->lanes == NULL ||
        pull->heads == NULL || pull->all_channels == NULL) {
        return false;
    }
    pull->absmax = pull->floats;
    for (size_t h = 0; h < n_heads; h++) {
        struct pulled *head = &pull->heads[h];
        head->chosen_q = pull->absmax + n_lanes * d + h * (n_channels + n_scores);
        head->scores = head->chosen_q + n_channels;
        head->tokens = pull->numbers + h * 4 * n_numbers;
        head->places = head->tokens + n_numbers;
        head->fresh = head->places + n_numbers;
        head->lacks = head->fresh + n_numbers;
    }
    for (size_t i = 0; i < n_channels; i++) {
        pull->all_channels[i] = (int)i;
    }
    return true;
}

static enum sl_status create(struct sl_retriever *r, struct sl_error *err) {
    r->pull = calloc(1, sizeof *r->pull);
    if (r->pull == NULL || !allocate(r, r->pull)) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "retrieval: out of memory to rank %lld tokens",
                       (long long)r->config.n_prompt);
    }
    enum sl_status status = SL_OK;
    for (int i = 0; status == SL_OK && i < sl_lanes_count(&r->lanes); i++) {
        status = sl_hot_cache_init(&r->pull->lanes[i], r->n_places, err);
    }
    return status == SL_OK ? sl_retriever_fetch_absmax(r, r->pull->absmax, err) : status;
}

static void destroy(struct sl_retriever *r) {
    struct sl_retriever_pull *pull = r->pull;
    if (pull == NULL) {
        return;
    }
    for (int h = 0; pull->heads != NULL && h < r->n_heads; h++) {
        sl_retriever_give_up(r, &pull->heads[h].rows);
    }
    for (int i = 0; pull->lanes != NULL && i < sl_lanes_count(&r->lanes); i++) {
        sl_hot_cache_cleanup(&pull->lanes[i]);
    }
    free(pull->floats);
    free(pull->numbers);
    free(pull->channels);
    free(pull->lanes);
    free(pull->heads);
    free(pull->all_channels);
    free(pull);
    r->pull = NULL;
}

// --- channels --------------------------------------------------------------------------------------------------------

// The channels of one lane in which |mean query| * absmax is largest.
static void choose_channels(struct sl_retriever *r, int lane, const float *mean, struct pulled *scratch) {
    size_t d = (size_t)r->head_dim, n = (size_t)r->n_channels;
    const float *absmax = r->pull->absmax + (size_t)lane * d;
    for (size_t c = 0; c < d; c++) {
        scratch->scores[c] = fabsf(mean[c]) * absmax[c];
    }
    r->config.ops->host.select(scratch->scores, (uint32_t)d, (uint32_t)n, scratch->tokens);
    for (size_t i = 0; i < n; i++) {
        r->pull->channels[(size_t)lane * n + i] = (uint16_t)scratch->tokens[i];
    }
}

static enum sl_status send_channels(struct sl_retriever *r, struct sl_retriever_layer *l,
                                    const struct sl_attend *attend, const float *q, struct sl_error *err) {
    size_t n = (size_t)r->n_channels, d = (size_t)r->head_dim;
    enum sl_status status = sl_retriever_take_means(r, attend, q, err);
    for (int p = 0; status == SL_OK && p < l->n_parts; p++) {
        struct sl_retriever_part *part = &l->parts[p];
        struct sl_near_request head = sl_retriever_part_request(part, SL_NEAR_CHANNELS);
        size_t bytes = (size_t)part->n_lanes * n * sizeof *r->pull->channels;
        head.n_channels = (uint32_t)n;
        head.last = r->config.n_prompt;
        for (int i = 0; i < part->n_lanes; i++) {
            choose_channels(r, part->first_lane + i, r->means + (size_t)(part->first_head + i) * d, &r->pull->heads[0]);
        }
        memcpy(sl_retriever_request_body(r), r->pull->channels + (size_t)part->first_lane * n, bytes);
        status = sl_retriever_send(r, &head, bytes, &part->main, err);
    }
    return status;
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
    if (status == SL_OK) {
        status = sl_near_read_channels(&part->main.request, &r->shape, body, end, &view, err);
    }
    for (int i = 0; i < part->n_lanes; i++) {
        struct pulled *head = &r->pull->heads[part->first_head + i];
        head->indexes = NULL;
        if (status == SL_OK) {
            head->indexes = view.indexes + (size_t)i * view.lane_bytes;
            head->n_segments = view.n_segments;
            head->n_slots = view.n_slots;
        }
    }
    return status == SL_AGAIN ? SL_OK : status;
}

// --- tokens ----------------------------------------------------------------------------------------------------------

struct rank_task {
    struct sl_retriever *r;
    int first_lane;
};

// Scores of tokens [first, last), segment by segment.
static void score(const struct sl_retriever *r, struct pulled *head, uint32_t first, uint32_t last) {
    const uint8_t *index = head->indexes;
    uint32_t begin = 0; // of the segment
    for (uint32_t s = 0; s < head->n_segments; s++) {
        struct sl_key_index_layout layout;
        uint32_t end = begin + head->n_slots[s];
        enum sl_status status = sl_near_channels_layout(&r->shape, r->n_channels, head->n_slots[s], &layout);
        assert(status == SL_OK); // sl_near_read_channels() has checked it
        (void)status;
        uint32_t from = begin > first ? begin : first, to = end < last ? end : last;
        if (from < to) {
            r->config.ops->host.scan(&layout, index, head->chosen_q, r->pull->all_channels, r->n_channels, from - begin,
                                     to - begin, head->scores + (from - first));
        }
        index += layout.bytes;
        begin = end;
    }
}

// Heads [begin, end): the topk, and which of them are not here.
static void rank_heads(void *arg, int64_t begin, int64_t end, int member) {
    const struct rank_task *task = arg;
    struct sl_retriever *r = task->r;
    uint32_t first = r->sinks, last = (uint32_t)sl_retriever_last_choice(r);
    (void)member;
    for (int64_t h = begin; h < end; h++) {
        struct pulled *head = &r->pull->heads[h];
        size_t lane = (size_t)task->first_lane + (size_t)h;
        head->n_fresh = 0;
        if (head->indexes == NULL) {
            continue;
        }
        const float *mean = r->means + h * r->head_dim;
        for (int i = 0; i < r->n_channels; i++) {
            head->chosen_q[i] = mean[r->pull->channels[lane * (size_t)r->n_channels + (size_t)i]];
        }
        score(r, head, first, last);
        r->config.ops->host.select(head->scores, last - first, r->topk, head->tokens);
        for (uint32_t i = 0; i < r->topk; i++) {
            head->tokens[i] += first;
        }
        if (r->keeps_none) {
            sl_hot_cache_forget(&r->pull->lanes[lane]);
        }
        sl_hot_cache_want(&r->pull->lanes[lane], head->tokens, r->topk, head->places, head->fresh, &head->n_fresh);
        for (uint32_t i = 0; i < head->n_fresh; i++) {
            head->lacks[i] = head->tokens[head->fresh[i]];
        }
    }
}

// --- rows ------------------------------------------------------------------------------------------------------------

static enum sl_status send_rows(struct sl_retriever *r, const struct sl_retriever_part *part, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int i = 0; status == SL_OK && i < part->n_lanes; i++) {
        struct pulled *head = &r->pull->heads[part->first_head + i];
        if (head->n_fresh == 0) {
            continue;
        }
        struct sl_near_request request = sl_retriever_part_request(part, SL_NEAR_ROWS);
        request.first_lane += (uint32_t)i;
        request.n_lanes = 1;
        request.n_tokens = head->n_fresh;
        memcpy(sl_retriever_request_body(r), head->lacks, head->n_fresh * sizeof *head->lacks);
        status = sl_retriever_send(r, &request, head->n_fresh * sizeof *head->lacks, &head->rows, err);
    }
    return status;
}

// A head's rows, if any are on their way: what the hot cache was told is true then, or it forgets everything.
static enum sl_status take_rows(struct sl_retriever *r, const struct sl_retriever_part *part, int i,
                                struct sl_error *err) {
    struct pulled *head = &r->pull->heads[part->first_head + i];
    struct sl_retriever_brought *brought = &r->brought[part->first_head + i];
    const uint8_t *body = NULL, *end;
    enum sl_status status = SL_OK;
    if (head->rows.asked != NULL) {
        status = sl_retriever_receive(r, part->share, &head->rows, &body, &end, err);
        if (status == SL_OK) {
            status = sl_near_read_rows(&head->rows.request, sl_near_row_bytes(&r->shape), body, end, err);
        }
    }
    brought->is_missing = head->indexes == NULL || status != SL_OK;
    if (status != SL_OK) {
        sl_hot_cache_forget(&r->pull->lanes[part->first_lane + i]);
        return status == SL_AGAIN ? SL_OK : status;
    }
    brought->view = (struct sl_near_lane_view){
        .n_rows = r->topk, .n_new = head->n_fresh, .places = head->places, .fresh = head->fresh, .rows = body};
    return SL_OK;
}

static enum sl_status take(struct sl_retriever *r, struct sl_retriever_layer *l, const struct sl_attend *attend,
                           struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int p = 0; status == SL_OK && p < l->n_parts; p++) {
        status = take_channels(r, &l->parts[p], err);
    }
    status = status == SL_OK ? sl_retriever_take_means(r, attend, attend->q, err) : status;
    if (status != SL_OK) {
        return status;
    }
    struct rank_task task = {r, l->parts[0].first_lane};
    sl_stream_run(r->config.stream, r->n_heads, 1, rank_heads, &task);
    for (int p = 0; status == SL_OK && p < l->n_parts; p++) {
        status = send_rows(r, &l->parts[p], err);
    }
    for (int p = 0; status == SL_OK && p < l->n_parts; p++) {
        for (int i = 0; status == SL_OK && i < l->parts[p].n_lanes; i++) {
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
