// SPDX-License-Identifier: Apache-2.0
// Offloaded layers in one process. See local_retriever.h.
#include "engine/offload/retriever/local_retriever.h"

#include <stdlib.h>

#include "engine/offload/retriever/hot_cache.h"

// A session's pages, as the lanes of an annex.
struct borrowed {
    const struct sl_ops *ops;
    struct sl_team *team;
    struct sl_arena *arena;
    struct sl_kv_segment_config config;
    struct sl_kv *kv;   // [n_lanes] from token 0 on
    struct sl_kv *part; // the same, from the segment's first token on
};

static enum sl_status append(struct borrowed *b, struct sl_annex *annex, int64_t begin, int64_t end,
                             struct sl_error *err) {
    struct sl_kv_segment *segment;
    uint32_t first = (uint32_t)(begin / SL_PAGE_SLOTS);
    for (int lane = 0; lane < b->config.n_lanes; lane++) {
        const struct sl_kv *kv = &b->kv[lane];
        b->part[lane] = *kv;
        b->part[lane].pages += first;
        b->part[lane].n_slots = (uint32_t)(end - begin);
        b->part[lane].n_packed = kv->n_packed > first ? kv->n_packed - first : 0;
    }
    b->config.begin = begin;
    b->config.n_slots = (uint32_t)(end - begin);
    enum sl_status status = sl_kv_segment_borrow(&b->config, b->ops, b->team, b->arena, b->part, &segment, err);
    if (status == SL_OK) {
        status = sl_annex_append(annex, segment, err);
        sl_kv_segment_unref(&segment); // the annex has its own reference
    }
    return status;
}

// Cuts as prefill does (net/offload/prefill/offload.h): the scales of int8 and int1 indexes are those of segments.
static enum sl_status append_all(struct borrowed *b, struct sl_annex *annex, int64_t n_slots, struct sl_error *err) {
    int64_t full = n_slots / SL_PAGE_SLOTS * SL_PAGE_SLOTS;
    enum sl_status status = SL_OK;
    for (int64_t begin = 0, end; status == SL_OK && begin < n_slots; begin = end) {
        end = begin + SL_KV_SEGMENT_TOKENS <= n_slots ? begin + SL_KV_SEGMENT_TOKENS : begin < full ? full : n_slots;
        status = append(b, annex, begin, end, err);
    }
    return status;
}

static enum sl_status make_annex(const struct sl_plan *plan, const struct sl_ops *ops, struct sl_team *team,
                                 const struct sl_session *session, int64_t n_slots, struct sl_annex **annex_out,
                                 struct sl_error *err) {
    struct sl_lanes lanes;
    sl_lanes_init(&lanes, &plan->recipe.offload, &plan->geometry);
    int n_lanes = sl_lanes_count(&lanes);
    struct borrowed b = {.ops = ops,
                         .team = team,
                         .arena = session->arena,
                         .config = {.n_lanes = n_lanes,
                                    .work = plan->work[lanes.layers[0]], // the same for all layers
                                    .rows = sl_plan_row_format(plan),
                                    .scan = sl_plan_scan_format(plan)},
                         .kv = calloc(2 * (size_t)n_lanes, sizeof *b.kv)};
    if (b.kv == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "retrieval: out of memory");
    }
    b.part = b.kv + n_lanes;
    for (int lane = 0; lane < n_lanes; lane++) {
        b.kv[lane] = sl_session_kv(session, lanes.layers[lane / lanes.n_heads], lane % lanes.n_heads);
    }
    enum sl_status status = sl_annex_create(ops, 0, n_lanes, plan->geometry.head_dim, n_slots, annex_out, err);
    status = status == SL_OK ? append_all(&b, *annex_out, n_slots, err) : status;
    free(b.kv);
    return status;
}

enum sl_status sl_retrieval_open_local(const struct sl_plan *plan, const struct sl_ops *ops, struct sl_stream *stream,
                                       struct sl_session *session, const struct sl_session *searched, int64_t n_prompt,
                                       struct sl_retrieval *local_out, struct sl_error *err) {
    struct sl_retrieval local = {0};
    enum sl_status status = SL_OK;
    int64_t n_slots = sl_plan_offloaded_slots(plan, n_prompt);
    if (sl_hot_cache_places(plan, n_slots) > 0) {
        status = make_annex(plan, ops, stream->team, searched, n_slots, &local.annex, err);
        status = status == SL_OK ? sl_local_source_create(local.annex, stream->team, &local.source, err) : status;
    }
    struct sl_retriever_config config = {.plan = plan,
                                         .ops = ops,
                                         .stream = stream,
                                         .arena = session->arena,
                                         .session = session,
                                         .source = local.source,
                                         .n_prompt = n_slots};
    status = status == SL_OK ? sl_retriever_create(&config, &local.retriever, err) : status;
    if (status != SL_OK) {
        sl_retrieval_close(&local);
        return status;
    }
    *local_out = local;
    return SL_OK;
}

void sl_retrieval_close(struct sl_retrieval *local) {
    sl_retriever_destroy(&local->retriever);
    if (local->source != NULL) {
        local->source->ops->destroy(&local->source);
    }
    sl_annex_destroy(&local->annex);
}
