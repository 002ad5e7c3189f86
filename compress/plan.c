// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: recipe + model + prompt length -> layouts, budgets and bytes. All sizes that admission believes come from
 *          here.
 *
 * Design: a head's memory during prefill is whole pages of arena units:
 *
 *     when=chunk   every layer holds at most `budget` slots between chunks; the layer at work holds a chunk more
 *     otherwise    every layer grows to n_prompt slots
 *
 *         and while a layer is being quantized there is one packed page per head beside the page that it replaces.
 */
#include <inttypes.h>

#include "base/arena.h"
#include "compress/compress.h"
#include "compress/recipe_internal.h"
#include "compress/score.h"

// What one block of this size takes in an arena.
static size_t in_units(size_t bytes) {
    return (bytes + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT;
}

static enum sl_kv_format layer_format(const struct sl_recipe *recipe, int layer) {
    enum sl_kv_format format = recipe->format;
    for (int i = 0; i < recipe->n_ranges; i++) { // later ranges override earlier ones
        if (layer >= recipe->ranges[i].from && (recipe->ranges[i].to < 0 || layer <= recipe->ranges[i].to)) {
            format = recipe->ranges[i].format;
        }
    }
    return format;
}

static enum sl_status check_model(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry,
                                  int64_t n_prompt, struct sl_error *err) {
    if (geometry->n_layers < 1 || geometry->n_layers > SL_MAX_LAYERS || geometry->n_kv_heads < 1 ||
        geometry->n_kv_heads > SL_MAX_HEADS) {
        return sl_fail(err, SL_ERR_INVALID,
                       "plan: %d layers of %d KV heads; at most %d layers of %d heads are possible", geometry->n_layers,
                       geometry->n_kv_heads, SL_MAX_LAYERS, SL_MAX_HEADS);
    }
    if (n_prompt < 1 || n_prompt > SL_RECIPE_MAX_SLOTS) {
        return sl_fail(err, SL_ERR_INVALID, "plan: a prompt of %" PRId64 " tokens; 1 to %lld are possible", n_prompt,
                       (long long)SL_RECIPE_MAX_SLOTS);
    }
    for (int i = 0; i < recipe->n_ranges; i++) {
        int last = recipe->ranges[i].to < 0 ? recipe->ranges[i].from : recipe->ranges[i].to;
        if (last >= geometry->n_layers) {
            return sl_fail(err, SL_ERR_INVALID, "recipe: format names layer %d, but the model has layers 0 to %d", last,
                           geometry->n_layers - 1);
        }
    }
    return SL_OK;
}

// Where a layer is quantized, tokens are read in f16 and packed once the prompt has been read.
static enum sl_status make_layouts(struct sl_plan *plan, struct sl_error *err) {
    bool evicts = sl_recipe_evicts(&plan->recipe);
    int n_states = sl_score_method(plan->recipe.score)->n_states;
    int d = plan->geometry.head_dim;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        enum sl_kv_format format = layer_format(&plan->recipe, l);
        bool quantized = sl_kv_format_is_quantized(format);
        enum sl_status status =
            sl_page_layout_init(&plan->work[l], quantized ? SL_KV_F16 : format, d, n_states, evicts);
        if (status == SL_OK) {
            // Packed slots are not evicted any more, so they carry no score.
            status = quantized ? sl_page_layout_init(&plan->packed[l], format, d, 0, evicts) : SL_OK;
        }
        if (status != SL_OK) {
            return sl_fail(err, status, "recipe: format=%s cannot hold head_dim %d (a multiple of 8%s is needed)",
                           sl_kv_format_name(format), d, quantized ? ", and of 64 when above it," : "");
        }
        if (!quantized) {
            plan->packed[l] = plan->work[l];
        }
    }
    return SL_OK;
}

// The smallest budget up to n_prompt that leaves one slot to choose beside what scope protects.
static int64_t least_budget(const struct sl_recipe *recipe, int64_t n_prompt) {
    if (recipe->recent.slots > 0) {
        return recipe->sinks + recipe->recent.slots + 1;
    }
    double share = (double)(recipe->sinks + 1) / (1 - recipe->recent.ratio); // budget - ratio * budget = sinks + 1
    if (share >= (double)n_prompt) {
        return n_prompt;
    }
    int64_t least = (int64_t)share;
    while (least > 1 && least - 1 - sl_recipe_recent_slots(recipe, least - 1) > recipe->sinks) {
        least--;
    }
    while (least < n_prompt && least - sl_recipe_recent_slots(recipe, least) <= recipe->sinks) {
        least++;
    }
    return least;
}

// budget_slots and recent_slots. The recipe has been checked: an absolute budget is above what scope protects.
static void set_budget(struct sl_plan *plan) {
    const struct sl_recipe *recipe = &plan->recipe;
    if (!sl_recipe_evicts(recipe)) {
        plan->budget_slots = plan->n_prompt;
        return;
    }
    int64_t budget = recipe->budget.slots;
    if (budget == 0) {
        budget = (int64_t)(recipe->budget.ratio * (double)plan->n_prompt);
        int64_t least = least_budget(recipe, plan->n_prompt);
        budget = budget > least ? budget : least;
    }
    plan->budget_slots = budget < plan->n_prompt ? budget : plan->n_prompt;
    int64_t recent = sl_recipe_recent_slots(recipe, plan->budget_slots);
    plan->recent_slots = recent < plan->budget_slots ? recent : plan->budget_slots;
}

static void set_sizes(struct sl_plan *plan) {
    size_t n_heads = (size_t)plan->geometry.n_kv_heads;
    bool every_chunk = sl_recipe_evicts(&plan->recipe) && (plan->recipe.when & SL_WHEN_CHUNK);
    int64_t between_chunks = every_chunk ? plan->budget_slots : plan->n_prompt;
    size_t capsule = 0, between = 0, at_work = 0;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        const struct sl_page_layout *work = &plan->work[l], *packed = &plan->packed[l];
        bool quantized = sl_kv_format_is_quantized(packed->format);
        size_t full = (size_t)(plan->budget_slots / SL_PAGE_SLOTS);
        size_t tail = plan->budget_slots % SL_PAGE_SLOTS != 0;
        capsule += n_heads * (full * packed->bytes + tail * work->bytes);

        size_t page = in_units(work->bytes);
        between += n_heads * sl_pages_for(between_chunks) * page;
        size_t chunk = n_heads * (sl_pages_for(plan->max_slots) - sl_pages_for(between_chunks)) * page;
        size_t packing = quantized ? n_heads * in_units(packed->bytes) : 0;
        size_t more = chunk > packing ? chunk : packing; // never both: packing begins when the chunk has been evicted
        at_work = more > at_work ? more : at_work;
    }
    plan->capsule_bytes = capsule;
    plan->prefill_peak_bytes = between + at_work;
}

enum sl_status sl_plan_make(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry, int64_t n_prompt,
                            struct sl_plan *plan_out, struct sl_error *err) {
    enum sl_status status = sl_recipe_check(recipe, err);
    if (status == SL_OK) {
        status = check_model(recipe, geometry, n_prompt, err);
    }
    if (status != SL_OK) {
        return status;
    }
    struct sl_plan plan = {.recipe = *recipe, .geometry = *geometry, .n_prompt = n_prompt};
    status = make_layouts(&plan, err);
    if (status != SL_OK) {
        return status;
    }
    set_budget(&plan);
    for (int l = 0; l < geometry->n_layers; l++) {
        plan.layer_budget[l] = plan.budget_slots;
    }
    plan.total_budget = sl_recipe_evicts(recipe) ? plan.budget_slots * geometry->n_layers : 0;
    plan.least_slots = sl_recipe_evicts(recipe) ? least_budget(recipe, n_prompt) : 0;
    plan.max_slots = n_prompt;
    if ((recipe->when & SL_WHEN_CHUNK) && plan.budget_slots + recipe->chunk_tokens < n_prompt) {
        plan.max_slots = plan.budget_slots + recipe->chunk_tokens;
    }
    set_sizes(&plan);
    *plan_out = plan;
    return SL_OK;
}

int64_t sl_plan_body_tokens(const struct sl_plan *plan) {
    return plan->n_prompt - plan->tail_slots;
}

int64_t sl_plan_layer_slots(const struct sl_plan *plan, int layer, int64_t n_new) {
    return plan->layer_budget[layer] + plan->tail_slots + n_new;
}

size_t sl_plan_decode_bytes(const struct sl_plan *plan, int64_t n_new) {
    // The capsule lands in one block; new slots first fill each head's last page.
    size_t new_pages = sl_pages_for(plan->budget_slots + n_new) - sl_pages_for(plan->budget_slots);
    size_t bytes = in_units(plan->capsule_bytes);
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        bytes += (size_t)plan->geometry.n_kv_heads * new_pages * in_units(plan->work[l].bytes);
    }
    return bytes;
}

enum sl_status sl_plan_create_session(const struct sl_plan *plan, int64_t extra_slots, struct sl_arena *arena,
                                      struct sl_session **session_out, struct sl_error *err) {
    struct sl_session_config config = {
        .geometry = plan->geometry,
        .positions = plan->recipe.positions,
        .max_slots = plan->max_slots + extra_slots,
        .work = plan->work,
        .packed = plan->packed,
    };
    return sl_session_create(&config, arena, session_out, err);
}
