// SPDX-License-Identifier: Apache-2.0
// Offloaded layers in one process. See local_retriever.h.
#include "retrieve/local_retriever.h"

#include <stdlib.h>

#include "retrieve/row_cache.h"

static enum sl_status borrow(const struct sl_plan *plan, const struct sl_ops *ops, struct sl_team *team,
                             struct sl_session *session, int64_t n_prompt, const struct sl_lanes *lanes,
                             struct sl_stretch **stretch_out, struct sl_error *err) {
    int n_lanes = sl_lanes_count(lanes);
    struct sl_stretch_config config = {
        .n_slots = (uint32_t)n_prompt,
        .n_lanes = n_lanes,
        .work = plan->work[lanes->layers[0]], // of all
        .rows = sl_plan_row_format(plan),
        .scan = sl_plan_scan_format(plan),
    };
    struct sl_kv *kv = calloc((size_t)n_lanes, sizeof *kv);
    if (kv == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "retrieval: out of memory");
    }
    for (int lane = 0; lane < n_lanes; lane++) {
        const struct sl_layer *layer = &session->layers[lanes->layers[lane / lanes->n_heads]];
        const struct sl_head *head = &layer->heads[lane % lanes->n_heads];
        kv[lane] = (struct sl_kv){head->pages, head->n_packed, head->n_slots, &layer->work, &layer->packed};
    }
    enum sl_status status = sl_stretch_borrow(&config, ops, team, session->arena, kv, stretch_out, err);
    free(kv);
    return status;
}

static enum sl_status make_annex(const struct sl_plan *plan, const struct sl_ops *ops, struct sl_team *team,
                                 struct sl_session *session, int64_t n_prompt, struct sl_annex **annex_out,
                                 struct sl_error *err) {
    struct sl_lanes lanes;
    struct sl_stretch *stretch;
    sl_lanes_init(&lanes, &plan->recipe.offload, &plan->geometry);
    enum sl_status status = borrow(plan, ops, team, session, n_prompt, &lanes, &stretch, err);
    if (status != SL_OK) {
        return status;
    }
    status = sl_annex_create(ops, 0, sl_lanes_count(&lanes), plan->geometry.head_dim, n_prompt, annex_out, err);
    if (status == SL_OK) {
        status = sl_annex_append(*annex_out, stretch, err);
    }
    sl_stretch_unref(&stretch); // the annex has its own reference
    return status;
}

enum sl_status sl_local_retriever_open(const struct sl_plan *plan, const struct sl_ops *ops, struct sl_team *team,
                                       struct sl_session *session, int64_t n_prompt,
                                       struct sl_local_retriever *local_out, struct sl_error *err) {
    struct sl_local_retriever local = {0};
    enum sl_status status = SL_OK;
    if (sl_row_cache_places(plan, n_prompt) > 0) {
        status = make_annex(plan, ops, team, session, n_prompt, &local.annex, err);
        status = status == SL_OK ? sl_local_source_create(local.annex, team, &local.source, err) : status;
    }
    struct sl_retriever_config config = {.plan = plan,
                                         .ops = ops,
                                         .team = team,
                                         .arena = session->arena,
                                         .session = session,
                                         .source = local.source,
                                         .n_prompt = n_prompt};
    status = status == SL_OK ? sl_retriever_create(&config, &local.retriever, err) : status;
    if (status != SL_OK) {
        sl_local_retriever_close(&local);
        return status;
    }
    *local_out = local;
    return SL_OK;
}

void sl_local_retriever_close(struct sl_local_retriever *local) {
    sl_retriever_destroy(&local->retriever);
    if (local->source != NULL) {
        local->source->ops->destroy(&local->source);
    }
    sl_annex_destroy(&local->annex);
}
