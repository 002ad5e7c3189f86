// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/demand.h"

#include <assert.h>
#include <stdlib.h>

#include "base/arena.h"
#include "engine/compress/plan/plan.h"
#include "engine/offload/remote_kv/offloaded_heads.h"

enum sl_status sl_demand_make(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry, int64_t n_prompt,
                              int64_t max_new_tokens, struct sl_demand *demand_out, struct sl_error *err) {
    int64_t n_prefill = n_prompt - 1;
    struct sl_plan *plan = malloc(sizeof(*plan)); // tens of kilobytes of page layouts
    SL_FAIL_IF(plan == NULL, err, SL_ERR_EXHAUSTED, "no memory for a plan");
    // Without prefill there is no remote KV: every slot stays with decode. Sizes are the same for every set of
    // frequencies.
    enum sl_status status = n_prefill > 0 ? sl_plan_make(recipe, geometry, n_prefill, 0, plan, err)
                                          : sl_plan_make_local(recipe, geometry, 1, 0, plan, err);
    if (status == SL_OK) {
        *demand_out = (struct sl_demand){
            .n_prefill_tokens = n_prefill,
            .capsule_bytes = n_prefill > 0 ? (int64_t)plan->capsule_bytes : 0,
            .decode_bytes = (int64_t)sl_plan_decode_bytes(plan, max_new_tokens + 1),
            .prefill_bytes = n_prefill > 0 ? (int64_t)plan->prefill_peak_bytes : 0,
        };
        if (n_prefill > 0 && sl_recipe_offloads(&plan->recipe)) {
            struct sl_offloaded_heads offloaded_heads;
            sl_offloaded_heads_init(&offloaded_heads, &plan->recipe.offload, geometry);
            struct sl_route_offloaded_heads *offloaded = &demand_out->offloaded;
            offloaded->n = sl_offloaded_heads_count(&offloaded_heads);
            offloaded->replicas = plan->recipe.replicas;
            demand_out->scan = sl_plan_scan_format(plan);
            demand_out->offloaded_unit = sl_plan_offloaded_unit(plan);
            offloaded->bytes = (int64_t)sl_plan_remote_kv_bytes(plan) / offloaded->n;
            // Stores may have the beginning of any prompt by the time it is read.
            demand_out->travelling_bytes = (int64_t)sl_plan_travelling_bytes(plan, true);
        }
    }
    free(plan);
    return status;
}

enum sl_status sl_demand_family(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry, int64_t n_prompt,
                                uint64_t model_fingerprint, struct sl_kv_family *family_out, struct sl_error *err) {
    assert(sl_recipe_offloads(recipe));
    struct sl_plan *plan = malloc(sizeof(*plan));
    SL_FAIL_IF(plan == NULL, err, SL_ERR_EXHAUSTED, "no memory for a plan");
    enum sl_status status = sl_plan_make(recipe, geometry, n_prompt, 0, plan, err);
    if (status == SL_OK) {
        struct sl_offloaded_heads heads;
        sl_offloaded_heads_init(&heads, &plan->recipe.offload, geometry);
        *family_out = (struct sl_kv_family){.model_fingerprint = sl_plan_segments_fingerprint(plan, model_fingerprint),
                                            .n_offloaded_heads = sl_offloaded_heads_count(&heads),
                                            .head_dim = geometry->head_dim,
                                            .work = (int32_t)plan->work[heads.layers[0]].format,
                                            .rows = (int32_t)sl_plan_row_format(plan),
                                            .scan = (int32_t)sl_plan_scan_format(plan)};
    }
    free(plan);
    return status;
}

enum sl_status sl_demand_make_turn(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry,
                                   int64_t kept_bytes, int64_t n_new, struct sl_demand *demand_out,
                                   struct sl_error *err) {
    struct sl_plan *plan = malloc(sizeof(*plan));
    SL_FAIL_IF(plan == NULL, err, SL_ERR_EXHAUSTED, "no memory for a plan");
    enum sl_status status = sl_plan_make_local(recipe, geometry, n_new > 0 ? n_new : 1, 0, plan, err);
    if (status == SL_OK) {
        int64_t bytes = (int64_t)sl_arena_rounded((size_t)kept_bytes) + (int64_t)sl_plan_turn_bytes(plan, n_new);
        *demand_out = (struct sl_demand){.decode_bytes = bytes};
    }
    free(plan);
    return status;
}
