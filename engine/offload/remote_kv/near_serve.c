// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: answers a question on the remote KV's side: from a request's bytes to an answer's.
 *
 * Design: one function per kind. Each writes the body into memory whose size depends on the request alone
 *         (sl_near_answer_limit()), so that a remote KV that grows meanwhile cannot overflow it. A failure becomes a
 *         status and a text after the same header.
 */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "engine/offload/remote_kv/near_internal.h"

struct question {
    const struct sl_remote_kv *remote_kv;
    struct sl_near_memory *memory;
    struct sl_remote_kv_scratch *scratch;
    struct sl_near_request head;
    const uint8_t *body;           // of the request, any alignment
    struct sl_near_answer *answer; // its header; the body follows
    enum sl_status status;
    struct sl_error err;
    // TOPK, in the scratch:
    struct sl_remote_kv_search *searches; // [n_offloaded_heads]
    uint32_t *sent;                       // [topk]
};

// Returns the bytes of a row; the remote KV must not be empty, as an empty one has no row format.
static size_t row_bytes(const struct question *q) {
    struct sl_near_shape shape = sl_near_shape_of(q->remote_kv);
    return sl_near_row_bytes(&shape);
}

// --- TOPK ----------------------------------------------------------------------------------------------------------

// Return the scratch that a question needs besides its searches: its queries, its tokens, and the rows to send of one
// offloaded head.
static size_t query_bytes(const struct question *q) {
    return sl_near_padded((size_t)q->head.n_offloaded_heads * (size_t)q->remote_kv->head_dim * sizeof(float), 64);
}

static size_t token_bytes(const struct question *q) {
    return sl_near_padded(((size_t)q->head.n_offloaded_heads + 1) * sl_near_n_rows(&q->head) * sizeof(uint32_t), 64);
}

static void prepare_searches(struct question *q, struct sl_remote_kv_search *searches, char *memory) {
    size_t n_offloaded_heads = q->head.n_offloaded_heads, n_rows = sl_near_n_rows(&q->head),
           d = (size_t)q->remote_kv->head_dim;
    float *queries = (float *)memory;
    uint32_t *tokens = (uint32_t *)(memory + query_bytes(q));
    memcpy(queries, q->body, n_offloaded_heads * d * sizeof(float));
    q->searches = searches;
    q->sent = tokens + n_offloaded_heads * n_rows;
    for (size_t i = 0; i < n_offloaded_heads; i++) {
        searches[i] = (struct sl_remote_kv_search){.remote_kv = q->remote_kv,
                                                   .query = {.offloaded_head = (int)(q->head.first_offloaded_head + i),
                                                             .q = queries + i * d,
                                                             .n_channels = (int)q->head.n_channels,
                                                             .first = q->head.first,
                                                             .last = q->head.last,
                                                             .topk = q->head.topk},
                                                   .tokens_out = tokens + i * n_rows};
    }
}

static bool is_search(const struct question *q) {
    return q->status == SL_OK && q->head.kind == SL_NEAR_TOPK;
}

// Runs the searches of all questions in one pass.
static void search_together(struct question *questions, int n, struct sl_remote_kv_scratch *scratch) {
    size_t n_searches = 0, bytes = 0;
    for (int i = 0; i < n; i++) {
        n_searches += is_search(&questions[i]) ? questions[i].head.n_offloaded_heads : 0;
        bytes += is_search(&questions[i]) ? query_bytes(&questions[i]) + token_bytes(&questions[i]) : 0;
    }
    if (n_searches == 0) {
        return;
    }
    size_t at = sl_near_padded(n_searches * sizeof(struct sl_remote_kv_search), 64);
    char *memory = sl_buffer_reserve(&scratch->answer, at + bytes);
    struct sl_remote_kv_search *searches = (struct sl_remote_kv_search *)memory;
    struct sl_error err = {0};
    enum sl_status status = SL_OK;
    if (memory == NULL) {
        status = sl_fail(&err, SL_ERR_EXHAUSTED, "out of memory to search %zu offloaded heads", n_searches);
    }
    for (int i = 0; i < n && status == SL_OK; i++) {
        if (is_search(&questions[i])) {
            prepare_searches(&questions[i], searches, memory + at);
            searches += questions[i].head.n_offloaded_heads;
            at += query_bytes(&questions[i]) + token_bytes(&questions[i]);
        }
    }
    int64_t begin_ns = sl_now_ns();
    SL_THEN(status, sl_remote_kv_search((struct sl_remote_kv_search *)memory, (int)n_searches, scratch, &err));
    int64_t end_ns = sl_now_ns();
    for (int i = 0; i < n; i++) {
        struct question *q = &questions[i];
        if (!is_search(q)) {
            continue;
        }
        q->answer->scan_ns = (uint64_t)(end_ns - begin_ns);
        q->status = status;
        q->err = err;
        if (status != SL_OK && memory != NULL && n > 1) { // an invalid question must not fail the others
            q->err = (struct sl_error){0};
            q->status = sl_remote_kv_search(q->searches, (int)q->head.n_offloaded_heads, scratch, &q->err);
        }
    }
}

// Writes one offloaded head's part of the answer; advances *at.
static enum sl_status put_offloaded_head(struct question *q, const struct sl_remote_kv_search *search, uint32_t *sent,
                                         uint8_t **at, struct sl_error *err) {
    struct sl_near_offloaded_head offloaded_head = {search->n_out, 0};
    uint32_t *places = (uint32_t *)(*at + sizeof offloaded_head), *fresh = places + offloaded_head.n_rows;
    if ((q->head.flags & SL_NEAR_PROBE) != 0) {
        memcpy(places, search->tokens_out, offloaded_head.n_rows * sizeof *places);
    } else {
        struct sl_row_claim claim = {search->tokens_out, offloaded_head.n_rows, .places = places, .fresh = fresh};
        SL_TRY(sl_near_memory_want(q->memory, search->query.offloaded_head, &q->head, &claim, err));
        offloaded_head.n_new = claim.n_fresh;
    }
    memcpy(*at, &offloaded_head, sizeof offloaded_head);
    *at = (uint8_t *)(fresh + offloaded_head.n_new);
    if ((offloaded_head.n_rows + offloaded_head.n_new) % 2 != 0) { // rows are aligned to 8 bytes
        memset(*at, 0, sizeof(uint32_t));
        *at += sizeof(uint32_t);
    }
    for (uint32_t i = 0; i < offloaded_head.n_new; i++) {
        sent[i] = search->tokens_out[fresh[i]];
    }
    sl_remote_kv_rows(q->remote_kv, search->query.offloaded_head, sent, offloaded_head.n_new, *at);
    *at += offloaded_head.n_new * row_bytes(q);
    return SL_OK;
}

static enum sl_status answer_topk(struct question *q, uint8_t **at, struct sl_error *err) {
    for (uint32_t i = 0; i < q->head.n_offloaded_heads; i++) {
        q->answer->scan_bytes += q->searches[i].scanned_bytes;
        SL_TRY(put_offloaded_head(q, &q->searches[i], q->sent, at, err));
    }
    return SL_OK;
}

// --- the other kinds -----------------------------------------------------------------------------------------------

static enum sl_status answer_rows(struct question *q, uint8_t **at, struct sl_error *err) {
    int64_t n_tokens = sl_remote_kv_n_tokens(q->remote_kv);
    uint32_t *tokens = sl_buffer_reserve(&q->scratch->answer, q->head.n_tokens * sizeof *tokens);
    SL_FAIL_IF(tokens == NULL && q->head.n_tokens > 0, err, SL_ERR_EXHAUSTED, "out of memory for a list of %u tokens",
               q->head.n_tokens);
    for (uint32_t i = 0; i < q->head.n_tokens; i++) {
        memcpy(&tokens[i], q->body + i * sizeof *tokens, sizeof *tokens);
        SL_FAIL_IF(tokens[i] >= n_tokens, err, SL_ERR_RANGE, "the row of token %u: the remote KV has %lld tokens",
                   tokens[i], (long long)n_tokens);
    }
    for (uint32_t offloaded_head = 0; offloaded_head < q->head.n_offloaded_heads; offloaded_head++) {
        sl_remote_kv_rows(q->remote_kv, (int)(q->head.first_offloaded_head + offloaded_head), tokens, q->head.n_tokens,
                          *at);
        *at += q->head.n_tokens * row_bytes(q);
    }
    return SL_OK;
}

// Copies the listed channels of the first n_slots slots of one offloaded head's key index.
static void put_channels(const struct sl_kv_segment *segment, int offloaded_head, const uint8_t *channels,
                         int n_channels, const struct sl_key_index_layout *layout, uint8_t *to) {
    const char *index = segment->indexes + (size_t)offloaded_head * segment->scan.bytes;
    memset(to, 0, layout->codes);
    for (int i = 0; i < n_channels; i++) {
        uint16_t c;
        memcpy(&c, channels + (size_t)i * sizeof c, sizeof c);
        if (layout->codes > 0) {
            memcpy(to + (size_t)i * sizeof(float), index + segment->scan.scale + c * sizeof(float), sizeof(float));
        }
        memcpy(to + layout->codes + (size_t)i * layout->channel_bytes,
               index + segment->scan.codes + c * segment->scan.channel_bytes, layout->channel_bytes);
    }
}

static enum sl_status check_channels(const struct question *q, struct sl_error *err) {
    int64_t n_tokens = sl_remote_kv_n_tokens(q->remote_kv);
    SL_FAIL_IF(q->head.last > n_tokens, err, SL_ERR_RANGE, "channels of %lld tokens: the remote KV has %lld",
               (long long)q->head.last, (long long)n_tokens);
    for (uint32_t i = 0, before = 0; i < q->head.n_offloaded_heads * q->head.n_channels; i++) {
        uint16_t c;
        memcpy(&c, q->body + i * sizeof c, sizeof c);
        SL_FAIL_IF(c >= q->remote_kv->head_dim || (i % q->head.n_channels > 0 && c <= before), err, SL_ERR_INVALID,
                   "channel %u of %d: expected those of an offloaded head ascending", c, q->remote_kv->head_dim);
        before = c;
    }
    return SL_OK;
}

// Returns how many slots of a segment are below `last`.
static uint32_t slots_below(const struct sl_kv_segment *segment, int64_t last) {
    int64_t n = last - segment->config.begin;
    return n < segment->config.n_slots ? (uint32_t)n : segment->config.n_slots;
}

static enum sl_status answer_channels(struct question *q, uint8_t **at, struct sl_error *err) {
    SL_TRY(check_channels(q, err));
    struct sl_near_shape shape = sl_near_shape_of(q->remote_kv);
    uint32_t n_segments = 0, *index = (uint32_t *)*at;
    const struct sl_kv_segment *s;
    for (int i = 0; (s = sl_remote_kv_segment(q->remote_kv, i)) != NULL && s->config.begin < q->head.last; i++) {
        index[++n_segments] = slots_below(s, q->head.last);
    }
    index[0] = n_segments;
    size_t index_bytes = (n_segments + 1) * sizeof *index, padded = sl_near_padded(index_bytes, 64);
    memset(*at + index_bytes, 0, padded - index_bytes);
    *at += padded;
    enum sl_status status = SL_OK;
    for (uint32_t offloaded_head = 0; offloaded_head < q->head.n_offloaded_heads; offloaded_head++) {
        const uint8_t *channels = q->body + (size_t)offloaded_head * q->head.n_channels * sizeof(uint16_t);
        for (uint32_t i = 0; i < n_segments; i++) {
            struct sl_key_index_layout layout;
            s = sl_remote_kv_segment(q->remote_kv, (int)i);
            status = sl_near_channels_layout(&shape, (int)q->head.n_channels, index[i + 1], &layout);
            SL_FAIL_IF(status != SL_OK, err, SL_ERR_INTERNAL, "no layout for channels of %u slots", index[i + 1]);
            put_channels(s,
                         (int)q->head.first_offloaded_head + (int)offloaded_head - q->remote_kv->first_offloaded_head,
                         channels, (int)q->head.n_channels, &layout, *at);
            *at += layout.bytes;
        }
    }
    return SL_OK;
}

static enum sl_status answer_absmax(struct question *q, uint8_t **at, struct sl_error *err) {
    (void)err;
    for (uint32_t offloaded_head = 0; offloaded_head < q->head.n_offloaded_heads; offloaded_head++) {
        sl_remote_kv_absmax(q->remote_kv, (int)(q->head.first_offloaded_head + offloaded_head), (float *)*at);
        *at += (size_t)q->remote_kv->head_dim * sizeof(float);
    }
    return SL_OK;
}

static enum sl_status answer_map(struct question *q, uint8_t **at, struct sl_error *err) {
    (void)q;
    (void)at;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "a map of this remote KV: its segments lie in no window");
}

// --- any -----------------------------------------------------------------------------------------------------------

static enum sl_status (*const answers[])(struct question *q, uint8_t **at, struct sl_error *err) = {
    [SL_NEAR_TOPK] = answer_topk,     [SL_NEAR_ROWS] = answer_rows, [SL_NEAR_CHANNELS] = answer_channels,
    [SL_NEAR_ABSMAX] = answer_absmax, [SL_NEAR_MAP] = answer_map,
};

static void begin(const struct sl_near_served *served, struct sl_remote_kv_scratch *scratch, struct question *q) {
    *q = (struct question){.remote_kv = served->remote_kv,
                           .memory = served->memory,
                           .scratch = scratch,
                           .body = (const uint8_t *)served->request + sizeof q->head,
                           .answer = served->answer};
    memset(q->answer, 0, sizeof *q->answer);
    q->status = sl_near_read_request(served->remote_kv, served->request, served->request_bytes, &q->head, &q->err);
}

static void finish(struct question *q, struct sl_near_served *served) {
    uint8_t *body = (uint8_t *)(q->answer + 1), *at = body;
    if (q->status == SL_OK) {
        q->status = answers[q->head.kind](q, &at, &q->err);
    }
    if (q->status != SL_OK) {
        at = body + strlen(q->err.text);
        memcpy(body, q->err.text, (size_t)(at - body));
    }
    q->answer->magic = SL_NEAR_MAGIC;
    q->answer->status = (int32_t)q->status;
    q->answer->kind = q->head.kind;
    q->answer->n_offloaded_heads = q->head.n_offloaded_heads;
    q->answer->n_bytes = (uint64_t)(at - body);
    served->n_out = sizeof *q->answer + (size_t)(at - body);
}

void sl_near_serve_together(struct sl_near_served *served, int n, struct sl_remote_kv_scratch *scratch) {
    struct question questions[SL_NEAR_MAX_TOGETHER];
    assert(n >= 1 && n <= SL_NEAR_MAX_TOGETHER);
    for (int i = 0; i < n; i++) {
        begin(&served[i], scratch, &questions[i]);
        assert(n == 1 || questions[i].status != SL_OK || questions[i].head.kind == SL_NEAR_TOPK);
    }
    search_together(questions, n, scratch);
    for (int i = 0; i < n; i++) {
        finish(&questions[i], &served[i]);
    }
}

void sl_near_serve(const struct sl_remote_kv *remote_kv, struct sl_near_memory *memory,
                   struct sl_remote_kv_scratch *scratch, const void *request, size_t request_bytes, void *answer,
                   size_t *n_out) {
    struct sl_near_served served = {remote_kv, memory, request, request_bytes, answer, 0};
    sl_near_serve_together(&served, 1, scratch);
    *n_out = served.n_out;
}
