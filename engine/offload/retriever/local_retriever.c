// SPDX-License-Identifier: Apache-2.0
#include "engine/offload/retriever/local_retriever.h"

#include <stdlib.h>

#include "engine/offload/retriever/hot_cache.h"

// A session's pages, as the offloaded heads of a remote KV.
struct borrowed {
    const struct sl_ops *ops;
    struct sl_team *team;
    struct sl_arena *arena;
    struct sl_kv_segment_config config;
    struct sl_kv *kv;   // [n_offloaded_heads] from token 0 on
    struct sl_kv *part; // the same, from the segment's first token on
};

static enum sl_status append(struct borrowed *b, struct sl_remote_kv *remote_kv, int64_t begin, int64_t end,
                             struct sl_error *err) {
    struct sl_kv_segment *segment;
    uint32_t first = (uint32_t)(begin / SL_PAGE_SLOTS);
    for (int offloaded_head = 0; offloaded_head < b->config.n_offloaded_heads; offloaded_head++) {
        const struct sl_kv *kv = &b->kv[offloaded_head];
        b->part[offloaded_head] = *kv;
        b->part[offloaded_head].pages += first;
        b->part[offloaded_head].n_slots = (uint32_t)(end - begin);
        b->part[offloaded_head].n_packed = kv->n_packed > first ? kv->n_packed - first : 0;
    }
    b->config.begin = begin;
    b->config.n_slots = (uint32_t)(end - begin);
    SL_TRY(sl_kv_segment_borrow(&b->config, b->ops, b->team, b->arena, b->part, &segment, err));
    enum sl_status status = sl_remote_kv_append(remote_kv, segment, err);
    sl_kv_segment_unref(&segment); // the remote KV has its own reference
    return status;
}

// Cuts as prefill does (net/offload/prefill/offload.h): the scales of int8 and int1 indexes are those of segments.
static enum sl_status append_all(struct borrowed *b, struct sl_remote_kv *remote_kv, int64_t n_slots,
                                 struct sl_error *err) {
    int64_t full = n_slots / SL_PAGE_SLOTS * SL_PAGE_SLOTS;
    for (int64_t begin = 0, end; begin < n_slots; begin = end) {
        end = begin + SL_KV_SEGMENT_TOKENS <= n_slots ? begin + SL_KV_SEGMENT_TOKENS : begin < full ? full : n_slots;
        SL_TRY(append(b, remote_kv, begin, end, err));
    }
    return SL_OK;
}

static enum sl_status make_remote_kv(const struct sl_retriever_config *retriever, const struct sl_session *session,
                                     struct sl_remote_kv **remote_kv_out, struct sl_error *err) {
    const struct sl_plan *plan = retriever->plan;
    int64_t n_slots = retriever->n_prompt;
    struct sl_offloaded_heads offloaded_heads;
    sl_offloaded_heads_init(&offloaded_heads, &plan->recipe.offload, &plan->geometry);
    int n_offloaded_heads = sl_offloaded_heads_count(&offloaded_heads);
    struct borrowed b = {.ops = retriever->ops,
                         .team = retriever->stream->team,
                         .arena = session->arena,
                         .config = {.n_offloaded_heads = n_offloaded_heads,
                                    .work = plan->work[offloaded_heads.layers[0]], // the same for all layers
                                    .rows = sl_plan_row_format(plan),
                                    .scan = sl_plan_scan_format(plan)},
                         .kv = calloc(2 * (size_t)n_offloaded_heads, sizeof *b.kv)};
    SL_FAIL_IF(b.kv == NULL, err, SL_ERR_EXHAUSTED, "retrieval: out of memory");
    b.part = b.kv + n_offloaded_heads;
    for (int offloaded_head = 0; offloaded_head < n_offloaded_heads; offloaded_head++) {
        b.kv[offloaded_head] = sl_session_kv(session, offloaded_heads.layers[offloaded_head / offloaded_heads.n_heads],
                                             offloaded_head % offloaded_heads.n_heads);
    }
    enum sl_status status =
        sl_remote_kv_create(b.ops, 0, n_offloaded_heads, plan->geometry.head_dim, n_slots, remote_kv_out, err);
    SL_THEN(status, append_all(&b, *remote_kv_out, n_slots, err));
    free(b.kv);
    return status;
}

enum sl_status sl_retrieval_open_local(const struct sl_retriever_config *config, const struct sl_session *searched,
                                       struct sl_retrieval *local_out, struct sl_error *err) {
    struct sl_retrieval local = {0};
    struct sl_retriever_config retriever = *config;
    enum sl_status status = SL_OK;
    if (sl_hot_cache_places(config->plan, config->n_prompt) > 0) {
        status = make_remote_kv(config, searched, &local.remote_kv, err);
        SL_THEN(status, sl_local_source_create(local.remote_kv, config->stream->team, &local.source, err));
    }
    retriever.source = local.source;
    SL_THEN(status, sl_retriever_create(&retriever, &local.retriever, err));
    SL_TRY_OR(status, sl_retrieval_close(&local));
    *local_out = local;
    return SL_OK;
}

void sl_retrieval_close(struct sl_retrieval *local) {
    sl_retriever_destroy(&local->retriever);
    if (local->source != NULL) {
        local->source->ops->destroy(&local->source);
    }
    sl_remote_kv_destroy(&local->remote_kv);
}
