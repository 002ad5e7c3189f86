// SPDX-License-Identifier: Apache-2.0
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include "shares.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

struct sl_asked {
    void *answer;
    size_t bytes;
    bool is_lost;
    enum sl_status how;
};

static enum sl_status ask(struct sl_source *source, struct sl_near_request *request, size_t request_bytes,
                          size_t answer_capacity, int64_t deadline_ns, struct sl_asked **asked_out,
                          struct sl_error *err) {
    struct shares *s = (struct shares *)source;
    s->patience_ns = deadline_ns - sl_now_ns();
    int i = 0;
    while ((int)request->first_offloaded_head >=
           source->shares[i].first_offloaded_head + source->shares[i].n_offloaded_heads) {
        i++;
    }
    size_t limit = sl_near_answer_bytes(s->remote_kvs[i], request, request_bytes);
    assert_true(limit > 0); // a retriever asks for nothing malformed
    struct sl_asked *asked = calloc(1, sizeof *asked);
    limit = limit > SL_NEAR_REFUSAL_BYTES ? limit : SL_NEAR_REFUSAL_BYTES;
    void *answer = aligned_alloc(64, (limit + 63) / 64 * 64);
    if (asked == NULL || answer == NULL) {
        free(answer);
        free(asked);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a question");
    }
    asked->answer = answer;
    sl_near_serve(s->remote_kvs[i], s->memories[i], s->scratch, request, request_bytes, asked->answer, &asked->bytes);
    assert_true(asked->bytes <= answer_capacity);
    bool is_probe = request->kind == SL_NEAR_TOPK && (request->flags & SL_NEAR_PROBE) != 0;
    s->n_asked[request->kind] += !is_probe;
    s->n_probes += is_probe;
    s->n_resets += (request->flags & SL_NEAR_RESET) != 0;
    s->topk_bytes += request->kind == SL_NEAR_TOPK && !is_probe ? asked->bytes : 0;
    asked->is_lost = s->lose_how != SL_OK && request->kind == s->lose_kind && i == s->lose_share;
    asked->how = s->lose_how;
    source->bytes_sent += request_bytes;
    source->bytes_received += asked->bytes;
    s->n_open++;
    *asked_out = asked;
    return SL_OK;
}

static enum sl_status wait(struct sl_source *source, struct sl_asked *asked, const void **answer_out, size_t *bytes_out,
                           struct sl_error *err) {
    (void)source;
    if (asked->is_lost) {
        sl_fail(err, asked->how, "store made-up: no answer");
        sl_error_blame(err, SL_REASON_STORE, "made-up:1");
        return err->status;
    }
    *answer_out = asked->answer;
    *bytes_out = asked->bytes;
    return SL_OK;
}

static bool is_there(struct sl_source *source, struct sl_asked *asked) {
    (void)source;
    (void)asked;
    return true;
}

static void forget(struct sl_source *source, struct sl_asked **asked) {
    if (*asked != NULL) {
        ((struct shares *)source)->n_open--;
        free((*asked)->answer);
        free(*asked);
        *asked = NULL;
    }
}

static const struct sl_source_ops share_ops = {ask, wait, is_there, forget, NULL};

static void append(struct shares *s, const struct sl_ops *ops, struct sl_arena *arena, const struct sl_kv *kv,
                   int share, uint32_t begin, uint32_t end, enum sl_kv_format scan) {
    struct sl_error err = {0};
    int first = s->base.shares[share].first_offloaded_head, n = s->base.shares[share].n_offloaded_heads;
    struct sl_kv *part = calloc((size_t)n, sizeof *part);
    assert_non_null(part);
    for (int i = 0; i < n; i++) {
        part[i] = kv[first + i];
        part[i].pages += begin / SL_PAGE_SLOTS;
        part[i].n_slots = end - begin;
    }
    struct sl_kv_segment_config config = {
        .begin = begin,
        .n_slots = end - begin,
        .first_offloaded_head = first,
        .n_offloaded_heads = n,
        .work = *kv->work,
        .rows = kv->work->format,
        .scan = scan,
    };
    struct sl_kv_segment *segment;
    assert_int_equal(sl_kv_segment_borrow(&config, ops, NULL, arena, part, &segment, &err), SL_OK);
    assert_int_equal(sl_remote_kv_append(s->remote_kvs[share], segment, &err), SL_OK);
    sl_kv_segment_unref(&segment);
    free(part);
}

struct shares *shares_create(const struct sl_ops *ops, struct sl_arena *arena, const struct sl_kv *kv,
                             int n_offloaded_heads, uint32_t n_slots, enum sl_kv_format scan, int n_shares) {
    struct sl_error err = {0};
    struct shares *s = calloc(1, sizeof *s);
    assert_non_null(s);
    assert_in_range(n_shares, 1, MAX_SHARES_MADE);
    s->base.ops = &share_ops;
    s->base.n_shares = n_shares;
    s->scratch = sl_remote_kv_scratch_create(NULL);
    assert_non_null(s->scratch);
    for (int i = 0; i < n_shares; i++) {
        int first = i * n_offloaded_heads / n_shares, n = (i + 1) * n_offloaded_heads / n_shares - first;
        uint32_t cut = n_slots > SL_PAGE_SLOTS ? SL_PAGE_SLOTS : n_slots;
        s->base.shares[i].first_offloaded_head = first;
        s->base.shares[i].n_offloaded_heads = n;
        assert_int_equal(sl_remote_kv_create(ops, first, n, kv->work->head_dim, n_slots, &s->remote_kvs[i], &err),
                         SL_OK);
        append(s, ops, arena, kv, i, 0, cut, scan);
        if (cut < n_slots) {
            append(s, ops, arena, kv, i, cut, n_slots, scan);
        }
        assert_int_equal(sl_near_memory_create(s->remote_kvs[i], &s->memories[i], &err), SL_OK);
    }
    return s;
}

void shares_destroy(struct shares **shares) {
    struct shares *s = *shares;
    if (s == NULL) {
        return;
    }
    assert_int_equal(s->n_open, 0);
    for (int i = 0; i < s->base.n_shares; i++) {
        sl_near_memory_destroy(&s->memories[i]);
        sl_remote_kv_destroy(&s->remote_kvs[i]);
    }
    sl_remote_kv_scratch_destroy(&s->scratch);
    free(s);
    *shares = NULL;
}
