// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: engine/offload/remote_kv/source.h within one process: the caller's thread answers questions in the wire
 *          format, so that one process computes the same as a cluster.
 *
 * Design: a forgotten question is kept for the next one, as each step asks the same kinds again.
 */
#include <stdlib.h>

#include "engine/offload/remote_kv/remote_kv_internal.h"
#include "engine/offload/remote_kv/source.h"

struct sl_asked {
    void *answer; // [capacity], aligned to 64
    size_t bytes, capacity;
    struct sl_asked *next; // in the list of forgotten ones
};

struct local_source {
    struct sl_source source;
    const struct sl_remote_kv *remote_kv;
    struct sl_near_memory *memory;
    struct sl_remote_kv_scratch *scratch;
    struct sl_asked *forgotten;
};

static struct sl_asked *take_asked(struct local_source *local, size_t capacity) {
    const struct sl_source *source = &local->source;
    struct sl_asked *asked = local->forgotten;
    if (asked != NULL) {
        local->forgotten = asked->next;
    } else if ((asked = calloc(1, sizeof *asked)) == NULL) {
        return NULL;
    }
    if (capacity > asked->capacity) {
        sl_source_free(source, asked->answer);
        asked->capacity = (capacity + 63) / 64 * 64;
        asked->answer = sl_source_alloc(source, asked->capacity);
        if (asked->answer == NULL) {
            free(asked);
            return NULL;
        }
    }
    return asked;
}

static void local_forget(struct sl_source *source, struct sl_asked **asked) {
    struct local_source *local = (struct local_source *)source;
    if (*asked != NULL) {
        (*asked)->next = local->forgotten;
        local->forgotten = *asked;
        *asked = NULL;
    }
}

static enum sl_status local_ask(struct sl_source *source, struct sl_near_request *request, size_t request_bytes,
                                size_t answer_capacity, int64_t deadline_ns, struct sl_asked **asked_out,
                                struct sl_error *err) {
    struct local_source *local = (struct local_source *)source;
    size_t limit = sl_near_answer_bytes(local->remote_kv, request, request_bytes);
    (void)deadline_ns; // the answer is ready, so there is nothing to wait for
    request->remote_kv_id = 0;
    struct sl_asked *asked = take_asked(local, limit > SL_NEAR_REFUSAL_BYTES ? limit : SL_NEAR_REFUSAL_BYTES);
    SL_FAIL_IF(asked == NULL, err, SL_ERR_EXHAUSTED, "retrieval: out of memory for an answer of %zu bytes", limit);
    sl_near_serve(local->remote_kv, local->memory, local->scratch, request, request_bytes, asked->answer,
                  &asked->bytes);
    if (asked->bytes > answer_capacity) {
        size_t bytes = asked->bytes;
        local_forget(source, &asked);
        return sl_fail(err, SL_ERR_RANGE, "retrieval: an answer of %zu bytes, there is room for %zu", bytes,
                       answer_capacity);
    }
    source->n_asks++;
    source->bytes_sent += request_bytes;
    source->bytes_received += asked->bytes;
    *asked_out = asked;
    return SL_OK;
}

static enum sl_status local_wait(struct sl_source *source, struct sl_asked *asked, const void **answer_out,
                                 size_t *bytes_out, struct sl_error *err) {
    (void)source;
    (void)err;
    *answer_out = asked->answer;
    *bytes_out = asked->bytes;
    return SL_OK;
}

static bool local_is_there(struct sl_source *source, struct sl_asked *asked) {
    (void)source;
    (void)asked;
    return true;
}

static void local_destroy(struct sl_source **source) {
    struct local_source *local = (struct local_source *)*source;
    if (local == NULL) {
        return;
    }
    for (struct sl_asked *asked = local->forgotten, *next; asked != NULL; asked = next) {
        next = asked->next;
        sl_source_free(*source, asked->answer);
        free(asked);
    }
    sl_remote_kv_scratch_destroy(&local->scratch);
    sl_near_memory_destroy(&local->memory);
    free(local);
    *source = NULL;
}

static const struct sl_source_ops local_ops = {
    .ask = local_ask,
    .wait = local_wait,
    .is_there = local_is_there,
    .forget = local_forget,
    .destroy = local_destroy,
};

enum sl_status sl_local_source_create(const struct sl_remote_kv *remote_kv, struct sl_team *team,
                                      struct sl_source **source_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct local_source, local, err, "retrieval: out of memory for a source");
    struct sl_source *source = &local->source;
    source->ops = &local_ops;
    source->n_shares = 1;
    source->shares[0].first_offloaded_head = remote_kv->first_offloaded_head;
    source->shares[0].n_offloaded_heads = remote_kv->n_offloaded_heads;
    local->remote_kv = remote_kv;
    local->scratch = sl_remote_kv_scratch_create(team);
    SL_TRY_OR(local->scratch != NULL ? sl_near_memory_create(remote_kv, &local->memory, err)
                                     : sl_fail(err, SL_ERR_EXHAUSTED, "retrieval: out of memory"),
              local_destroy(&source));
    *source_out = source;
    return SL_OK;
}
