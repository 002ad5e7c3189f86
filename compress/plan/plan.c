// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: recipe + model + prompt length -> layouts, budgets and bytes. All sizes that admission believes come from
 *          here.
 *
 * Design: a head's memory is whole pages of arena units. During prefill
 *
 *     when=chunk   every layer holds at most its budget (and later the tail) between chunks; the layer at work holds a
 *                  chunk more
 *     otherwise    every layer grows to n_prompt slots
 *
 *         and while a layer is being quantized there is one packed page per head beside the page that it replaces.
 *         Of an offloaded layer prefill holds no more than the newest slots (offload/prefill/offload.h), and two tiles of one
 *         layer that come back for its attention.
 *
 *         Where attention decides who gets which slots (layers=d2o, heads=adaptive) only sums are known. Their bound:
 *         every head has a partly filled page, and what remains of the sum fills pages of the largest kind.
 */
#include "compress/plan/budget.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "compress/plan/plan.h"
#include "compress/recipe/recipe.h"
#include "kvcache/key_index.h"
#include "tensor/ops.h"

// What one block of this size takes in an arena.
static size_t in_units(size_t bytes) {
    return (bytes + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// --- the model ---------------------------------------------------------------------------------------------------

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
    if (recipe->channels > geometry->head_dim) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: channels=%d, but keys of this model have %d; use channels=%d or fewer",
                       recipe->channels, geometry->head_dim, geometry->head_dim);
    }
    return SL_OK;
}

// Where a layer is quantized, tokens are read in f16 and packed once the prompt has been read; by kvstores where it is
// offloaded. Layers that evict nothing need neither scores nor positions.
static enum sl_status make_layouts(struct sl_plan *plan, struct sl_error *err) {
    int n_states = sl_score_get_traits(plan->recipe.score)->n_states;
    int d = plan->geometry.head_dim;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        bool evicts = sl_recipe_layer_evicts(&plan->recipe, l);
        enum sl_kv_format format = sl_recipe_layer_format(&plan->recipe, l);
        bool quantized = sl_kv_format_is_quantized(format);
        enum sl_status status =
            sl_page_layout_init(&plan->work[l], quantized ? SL_KV_F16 : format, d, evicts ? n_states : 0, evicts);
        if (status == SL_OK) {
            // Packed slots are not evicted any more, so they carry no score.
            status = quantized ? sl_page_layout_init(&plan->packed[l], format, d, 0, evicts) : SL_OK;
        }
        if (status != SL_OK) {
            return sl_fail(err, status, "recipe: format=%s cannot hold head_dim %d (a multiple of 8%s is needed)",
                           sl_kv_format_name(format), d, quantized ? ", and of 32 when above 64," : "");
        }
        if (!quantized || sl_plan_is_offloaded(plan, l)) {
            plan->packed[l] = plan->work[l];
        }
    }
    return SL_OK;
}

// --- budgets -----------------------------------------------------------------------------------------------------

/*
 * The smallest budget such that it and every larger one leave a slot to choose beside what scope protects; at most
 * `most`. Above `enough` that is certain: all ratios together protect no more than their share of it.
 */
static int64_t least_budget(const struct sl_recipe *recipe, int64_t most) {
    double ratio = (recipe->recent.slots > 0 ? 0 : recipe->recent.ratio) + recipe->std;
    double enough = (double)(recipe->sinks + larger(recipe->recent.slots, recipe->stabilizers) + 1) / (1 - ratio);
    if (enough >= (double)most) {
        enough = (double)most;
    }
    int64_t least = (int64_t)enough;
    while (least > 1 && least - 1 > sl_recipe_protected_slots(recipe, least - 1)) {
        least--;
    }
    while (least < most && least <= sl_recipe_protected_slots(recipe, least)) {
        least++;
    }
    return least;
}

int64_t sl_plan_body_tokens(const struct sl_plan *plan) {
    return plan->n_prompt - plan->tail_slots;
}

// How many layers evict.
static int n_evicting(const struct sl_plan *plan) {
    int n = 0;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        n += sl_recipe_layer_evicts(&plan->recipe, l);
    }
    return n;
}

/*
 * The mean budget, and the sum over layers. Steps go on evicting, so that a budget above the prompt still means something
 * to them: one in slots, and what a ratio needs to leave a choice. Without steps nobody can hold more than the prompt
 * without its tail.
 */
static void set_budget(struct sl_plan *plan, int64_t *most_out) {
    const struct sl_recipe *recipe = &plan->recipe;
    int64_t body = sl_plan_body_tokens(plan), n_layers = n_evicting(plan), most = body;
    bool steps = recipe->when & SL_WHEN_STEP;
    if (recipe->budget.slots > 0) {
        most = steps ? larger(body, recipe->budget.slots) : body;
        plan->budget_slots = smaller(recipe->budget.slots, most);
        plan->least_slots = least_budget(recipe, plan->budget_slots);
        plan->total_budget = plan->budget_slots * n_layers;
    } else {
        plan->least_slots = least_budget(recipe, steps ? SL_RECIPE_MAX_SLOTS : body);
        most = larger(body, plan->least_slots);
        double all = recipe->budget.ratio * (double)plan->n_prompt;
        plan->budget_slots = smaller(larger((int64_t)all, plan->least_slots), most);
        bool shared = sl_recipe_splits_by_attention(recipe); // what rounding leaves of every layer goes to some
        plan->total_budget = shared ? (int64_t)(all * (double)n_layers) : plan->budget_slots * n_layers;
        plan->total_budget = larger(plan->total_budget, plan->least_slots * n_layers);
        plan->total_budget = smaller(plan->total_budget, most * n_layers);
    }
    plan->recent_slots = smaller(sl_recipe_recent_slots(recipe, plan->budget_slots), plan->budget_slots);
    bool open = most > body || (steps && recipe->budget.slots > 0);
    *most_out = open ? plan->total_budget - plan->least_slots * (n_layers - 1) : body;
}

// Offloaded layers have the budget, and all of them the same; the others keep everything.
static void set_thinned(struct sl_plan *plan) {
    plan->least_slots = plan->recipe.sinks + plan->recipe.recent.slots + 1;
    plan->budget_slots = sl_plan_offloaded_slots(plan, plan->n_prompt);
    plan->recent_slots = sl_plan_undecided_slots(plan, plan->n_prompt);
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        if (sl_recipe_layer_thins(&plan->recipe, l)) {
            plan->layer_budget[l] = plan->budget_slots;
            plan->total_budget += plan->budget_slots;
        }
    }
}

static void set_budgets(struct sl_plan *plan) {
    const struct sl_recipe *recipe = &plan->recipe;
    int n_layers = plan->geometry.n_layers, n = n_evicting(plan);
    plan->budget_slots = plan->n_prompt;
    for (int l = 0; l < n_layers; l++) {
        plan->layer_budget[l] = plan->n_prompt;
    }
    if (sl_recipe_thins(recipe)) {
        set_thinned(plan);
        return;
    }
    if (!sl_recipe_evicts(recipe)) {
        return;
    }
    int64_t most, shares[SL_MAX_LAYERS];
    if (recipe->tail >= plan->n_prompt) { // no more than a tail: all of it stays
        int64_t asked = recipe->budget.slots > 0 ? recipe->budget.slots : least_budget(recipe, SL_RECIPE_MAX_SLOTS);
        plan->budget_slots = (recipe->when & SL_WHEN_STEP) ? larger(plan->n_prompt, asked) : plan->n_prompt;
        plan->least_slots = plan->budget_slots;
        plan->total_budget = plan->budget_slots * n;
        plan->recent_slots = smaller(sl_recipe_recent_slots(recipe, plan->budget_slots), plan->budget_slots);
        for (int l = 0; l < n_layers; l++) {
            plan->layer_budget[l] = sl_recipe_layer_evicts(recipe, l) ? plan->budget_slots : plan->n_prompt;
        }
        return;
    }
    plan->tail_slots = recipe->tail;
    set_budget(plan, &most);
    for (int l = 0; l < n; l++) {
        shares[l] = plan->budget_slots;
    }
    if (recipe->layers == SL_LAYERS_PYRAMID) {
        sl_budget_pyramid(plan->total_budget, n, plan->least_slots, most, shares);
    } else if (sl_recipe_splits_by_attention(recipe)) {
        for (int l = 0; l < n; l++) {
            shares[l] = smaller(most, plan->total_budget - plan->least_slots * (n - 1));
        }
    }
    for (int l = 0, i = 0; l < n_layers; l++) {
        if (sl_recipe_layer_evicts(recipe, l)) {
            plan->layer_budget[l] = shares[i++];
        }
    }
}

// --- slots -------------------------------------------------------------------------------------------------------

// The most slots that one head of a layer keeps of the prompt without its tail. heads=adaptive: all that is not kept for
// the layer's other heads.
static int64_t kept_slots(const struct sl_plan *plan, int layer) {
    int64_t body = sl_plan_body_tokens(plan), budget = plan->layer_budget[layer];
    if (!sl_recipe_layer_evicts(&plan->recipe, layer)) {
        return budget; // of a thinned layer; all of the prompt of others
    }
    if (plan->recipe.heads == SL_HEADS_ADAPTIVE) {
        // A fifth is certain to each of them (sl_budget_adaptive()), in which the tail may be counted.
        int64_t others = plan->geometry.n_kv_heads - 1;
        budget += others * (budget - larger((budget + plan->tail_slots) / 5 - plan->tail_slots, 0));
    }
    return smaller(budget, body);
}

static int64_t tail_of(const struct sl_plan *plan, int layer) {
    return sl_recipe_layer_evicts(&plan->recipe, layer) ? plan->tail_slots : 0;
}

int64_t sl_plan_offloaded_slots(const struct sl_plan *plan, int64_t n_tokens) {
    const struct sl_recipe *recipe = &plan->recipe;
    if (!sl_recipe_thins(recipe)) {
        return n_tokens;
    }
    // As everywhere a budget has what scope protects in it, and is a slot above that where a ratio is not.
    int64_t share = (int64_t)ceil(recipe->budget.ratio * (double)n_tokens);
    return smaller(n_tokens, larger(share, recipe->sinks + recipe->recent.slots + 1));
}

int64_t sl_plan_undecided_slots(const struct sl_plan *plan, int64_t n_tokens) {
    return sl_recipe_thins(&plan->recipe) ? smaller(n_tokens, plan->recipe.recent.slots) : 0;
}

int64_t sl_plan_held_slots(const struct sl_plan *plan) {
    int64_t undecided = sl_plan_undecided_slots(plan, plan->n_prompt), chunk = plan->recipe.chunk_tokens;
    return sl_recipe_offloads(&plan->recipe)
               ? smaller(plan->n_prompt,
                         SL_ATTEND_SPLIT + SL_KV_SEGMENTS_QUEUED * SL_KV_SEGMENT_TOKENS + chunk + undecided)
               : 0;
}

int64_t sl_plan_resident_slots(const struct sl_plan *plan) {
    const struct sl_recipe *recipe = &plan->recipe;
    return sl_recipe_offloads(recipe) ? smaller(plan->n_prompt, recipe->sinks + recipe->recent.slots) : 0;
}

int64_t sl_plan_row_places(const struct sl_plan *plan) {
    const struct sl_recipe *recipe = &plan->recipe;
    return sl_recipe_offloads(recipe)
               ? smaller(sl_plan_offloaded_slots(plan, plan->n_prompt), recipe->topk + recipe->keep)
               : 0;
}

int64_t sl_plan_layer_slots(const struct sl_plan *plan, int layer, int64_t n_new) {
    if (sl_plan_is_offloaded(plan, layer)) {
        return sl_plan_resident_slots(plan) + n_new;
    }
    int64_t slots = kept_slots(plan, layer) + tail_of(plan, layer) + n_new;
    if (sl_recipe_layer_evicts(&plan->recipe, layer) && (plan->recipe.when & SL_WHEN_STEP)) {
        // The token that is being read is attended to before anything is evicted.
        slots = smaller(slots, plan->layer_budget[layer] + plan->tail_slots + (n_new > 0));
    }
    return slots;
}

// The most slots per head of a layer between two chunks, and while it is at work on one.
static int64_t between_slots(const struct sl_plan *plan, int layer) {
    if (sl_plan_is_offloaded(plan, layer)) {
        return sl_plan_held_slots(plan);
    }
    bool evicts = sl_recipe_layer_evicts(&plan->recipe, layer) || sl_recipe_layer_thins(&plan->recipe, layer);
    bool at_chunks = evicts && (plan->recipe.when & SL_WHEN_CHUNK);
    return at_chunks ? sl_plan_layer_slots(plan, layer, 0) : plan->n_prompt;
}

static int64_t at_work_slots(const struct sl_plan *plan, int layer) {
    int64_t between = between_slots(plan, layer);
    if (between == plan->n_prompt || sl_plan_is_offloaded(plan, layer)) {
        return between;
    }
    int64_t body = smaller(sl_plan_body_tokens(plan), kept_slots(plan, layer) + plan->recipe.chunk_tokens);
    return larger(body, between); // the tail stays whole: nothing of it is on top of a chunk
}

// --- bytes -------------------------------------------------------------------------------------------------------

// Budgets of layers are known only when attention is. Where all get the most that they can, they are the same.
static bool layers_are_uneven(const struct sl_plan *plan) {
    for (int l = 0; sl_recipe_splits_by_attention(&plan->recipe) && l < plan->geometry.n_layers; l++) {
        if (sl_recipe_layer_evicts(&plan->recipe, l)) {
            return plan->total_budget != plan->layer_budget[l] * n_evicting(plan);
        }
    }
    return false;
}

static bool is_uneven(const struct sl_plan *plan, int layer) {
    bool heads = plan->recipe.heads == SL_HEADS_ADAPTIVE && plan->layer_budget[layer] < sl_plan_body_tokens(plan);
    return sl_recipe_layer_evicts(&plan->recipe, layer) && (heads || layers_are_uneven(plan));
}

static size_t last_page_bytes(const struct sl_plan *plan, int layer) {
    size_t work = plan->work[layer].bytes, packed = plan->packed[layer].bytes;
    return work > packed ? work : packed;
}

/*
 * Bytes of uneven layers with `sum` slots per head in all: a partly filled page per head, and as many full pages of the
 * largest kind as the rest of the sum fills. A head with n >= 1 slots has floor((n - 1) / 64) pages before its last.
 */
static size_t uneven_bytes(const struct sl_plan *plan, const bool *uneven, int64_t sum) {
    int64_t n_heads = plan->geometry.n_kv_heads;
    // Equal heads fill pages together; heads=adaptive fills them one by one.
    int64_t together = plan->recipe.heads == SL_HEADS_ADAPTIVE ? 1 : n_heads, apart = n_heads / together;
    bool taken[SL_MAX_LAYERS] = {false};
    size_t bytes = 0;
    int64_t full = sum;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        taken[l] = !uneven[l];
        if (uneven[l]) {
            bytes += (size_t)n_heads * last_page_bytes(plan, l);
            full -= 1;
        }
    }
    for (full = larger(full, 0) * apart / SL_PAGE_SLOTS; full > 0;) {
        int best = -1;
        for (int l = 0; l < plan->geometry.n_layers; l++) {
            if (!taken[l] && (best < 0 || plan->packed[l].bytes > plan->packed[best].bytes)) {
                best = l;
            }
        }
        if (best < 0) {
            break;
        }
        taken[best] = true;
        int64_t room = smaller(plan->layer_budget[best], sl_plan_body_tokens(plan)) + plan->tail_slots - 1;
        int64_t pages = smaller(full, room * apart / SL_PAGE_SLOTS);
        bytes += (size_t)(pages * together) * plan->packed[best].bytes;
        full -= pages;
    }
    return bytes;
}

static size_t capsule_bytes(const struct sl_plan *plan) {
    size_t n_heads = (size_t)plan->geometry.n_kv_heads, bytes = 0;
    int64_t body = sl_plan_body_tokens(plan);
    bool together[SL_MAX_LAYERS] = {false}, split = layers_are_uneven(plan);
    int n_together = 0;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        if (is_uneven(plan, l)) {
            bool alone[SL_MAX_LAYERS] = {false};
            (split ? together : alone)[l] = true;
            n_together += split;
            if (!split) {
                bytes += uneven_bytes(plan, alone, plan->layer_budget[l] + plan->tail_slots);
            }
            continue;
        }
        int64_t slots = sl_plan_is_offloaded(plan, l) ? 0 : sl_plan_layer_slots(plan, l, 0);
        size_t full = (size_t)(slots / SL_PAGE_SLOTS), last = slots % SL_PAGE_SLOTS != 0;
        bytes += n_heads * (full * plan->packed[l].bytes + last * plan->work[l].bytes);
    }
    if (n_together > 0) {
        int64_t sum = smaller(plan->total_budget, body * n_together) + plan->tail_slots * n_together;
        bytes += uneven_bytes(plan, together, sum);
    }
    return bytes;
}

// Two tiles of the largest offloaded layer: one is read back while the other is computed on.
static size_t read_back_bytes(const struct sl_plan *plan) {
    size_t page = 0, tile_pages = (size_t)plan->geometry.n_kv_heads * (SL_ATTEND_SPLIT / SL_PAGE_SLOTS);
    for (int l = 0; l < plan->geometry.n_layers && plan->n_prompt > SL_ATTEND_SPLIT; l++) {
        if (sl_plan_is_offloaded(plan, l) && in_units(plan->work[l].bytes) > page) {
            page = in_units(plan->work[l].bytes);
        }
    }
    return 2 * tile_pages * page;
}

static size_t prefill_peak_bytes(const struct sl_plan *plan) {
    size_t n_heads = (size_t)plan->geometry.n_kv_heads, between = 0, at_work = 0;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        const struct sl_page_layout *work = &plan->work[l], *packed = &plan->packed[l];
        size_t pages = sl_pages_for(between_slots(plan, l)), page = in_units(work->bytes);
        between += n_heads * pages * page;
        size_t chunk = n_heads * (sl_pages_for(at_work_slots(plan, l)) - pages) * page;
        size_t packing = sl_kv_format_is_quantized(packed->format) ? n_heads * in_units(packed->bytes) : 0;
        size_t more = chunk > packing ? chunk : packing; // never both: packing begins when the chunk has been evicted
        at_work = more > at_work ? more : at_work;
    }
    return between + at_work + read_back_bytes(plan);
}

// --- in kvstores -------------------------------------------------------------------------------------------------

// All offloaded layers have the formats of the first.
static int first_offloaded(const struct sl_plan *plan) {
    int l = 0;
    while (l < plan->geometry.n_layers && !sl_layers_has(&plan->recipe.offload, l)) {
        l++;
    }
    assert(l < plan->geometry.n_layers);
    return l;
}

enum sl_kv_format sl_plan_row_format(const struct sl_plan *plan) {
    return sl_recipe_layer_format(&plan->recipe, first_offloaded(plan));
}

enum sl_kv_format sl_plan_scan_format(const struct sl_plan *plan) {
    switch (plan->recipe.scan) {
    case SL_SCAN_INT8:
        return SL_KV_INT8;
    case SL_SCAN_INT1:
        return SL_KV_INT1;
    default:
        return plan->work[first_offloaded(plan)].format;
    }
}

static size_t key_index_bytes(const struct sl_plan *plan, int64_t n_slots) {
    struct sl_key_index_layout layout;
    enum sl_status status =
        sl_key_index_layout_init(&layout, sl_plan_scan_format(plan), plan->geometry.head_dim, (uint32_t)n_slots);
    assert(status == SL_OK); // make_layouts() has accepted head_dim
    return status == SL_OK ? in_units(layout.bytes) : 0;
}

// Key indexes of one lane: of whole segments, of what full pages there are behind them, and of a partial page.
static size_t scan_bytes(const struct sl_plan *plan) {
    int64_t n_slots = sl_plan_offloaded_slots(plan, plan->n_prompt);
    int64_t full = n_slots % SL_KV_SEGMENT_TOKENS / SL_PAGE_SLOTS * SL_PAGE_SLOTS, last = n_slots % SL_PAGE_SLOTS;
    size_t bytes = (size_t)(n_slots / SL_KV_SEGMENT_TOKENS) * key_index_bytes(plan, SL_KV_SEGMENT_TOKENS);
    return bytes + (full > 0 ? key_index_bytes(plan, full) : 0) + (last > 0 ? key_index_bytes(plan, last) : 0);
}

size_t sl_plan_annex_bytes(const struct sl_plan *plan) {
    if (!sl_recipe_offloads(&plan->recipe)) {
        return 0;
    }
    int64_t n_slots = sl_plan_offloaded_slots(plan, plan->n_prompt);
    const struct sl_page_layout *work = &plan->work[first_offloaded(plan)];
    struct sl_page_layout rows = *work;
    size_t n_layers = 0, in_transit = 0;
    if (sl_kv_format_is_quantized(sl_plan_row_format(plan))) {
        enum sl_status status = sl_page_layout_init(&rows, sl_plan_row_format(plan), plan->geometry.head_dim, 0, false);
        assert(status == SL_OK); // make_layouts() has made one
        (void)status;
        int64_t n_queued = smaller(n_slots, SL_KV_SEGMENTS_QUEUED * SL_KV_SEGMENT_TOKENS);
        in_transit = sl_pages_for(n_queued) * in_units(work->bytes);
    }
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        n_layers += sl_layers_has(&plan->recipe.offload, l);
    }
    size_t full = (size_t)(n_slots / SL_PAGE_SLOTS), last = n_slots % SL_PAGE_SLOTS != 0;
    size_t lane = full * in_units(rows.bytes) + last * in_units(work->bytes) + scan_bytes(plan) + in_transit;
    return n_layers * (size_t)plan->geometry.n_kv_heads * lane;
}

size_t sl_plan_offloaded_bytes(const struct sl_plan *plan) {
    size_t lane_pages = sl_pages_for(sl_plan_offloaded_slots(plan, plan->n_prompt)), bytes = 0;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        if (sl_layers_has(&plan->recipe.offload, l)) {
            bytes += lane_pages * (size_t)plan->geometry.n_kv_heads * plan->work[l].bytes;
        }
    }
    return bytes * (size_t)plan->recipe.replicas;
}

// --- decode ------------------------------------------------------------------------------------------------------

// New pages per head of one layer for n_new slots more: they first fill the last page that there is.
static size_t new_pages(const struct sl_plan *plan, int layer, int64_t n_new) {
    bool steps = sl_recipe_layer_evicts(&plan->recipe, layer) && (plan->recipe.when & SL_WHEN_STEP);
    if (sl_plan_is_offloaded(plan, layer)) { // the capsule has none of it
        return sl_pages_for(sl_plan_layer_slots(plan, layer, n_new));
    }
    if (!is_uneven(plan, layer)) {
        return sl_pages_for(sl_plan_layer_slots(plan, layer, n_new)) -
               sl_pages_for(sl_plan_layer_slots(plan, layer, 0));
    }
    if (steps) { // what a layer's budget has beyond the prompt, and the token that is being read
        n_new = smaller(n_new, larger(plan->layer_budget[layer] - sl_plan_body_tokens(plan), 0) + 1);
    }
    return sl_pages_for(n_new); // the last page may be full
}

size_t sl_plan_hot_cache_bytes(const struct sl_plan *plan) {
    size_t pages = sl_pages_for(sl_plan_row_places(plan)), bytes = 0;
    pages += plan->keeps_offloaded ? sl_pages_for(sl_plan_resident_slots(plan)) : 0;
    pages *= (size_t)plan->geometry.n_kv_heads;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        bytes += sl_layers_has(&plan->recipe.offload, l) ? pages * in_units(plan->work[l].bytes) : 0;
    }
    return bytes;
}

size_t sl_plan_decode_bytes(const struct sl_plan *plan, int64_t n_new) {
    // The capsule lands in one block.
    size_t bytes = in_units(plan->capsule_bytes) + sl_plan_hot_cache_bytes(plan);
    size_t n_heads = (size_t)plan->geometry.n_kv_heads;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        bytes += n_heads * new_pages(plan, l, n_new) * in_units(plan->work[l].bytes);
        if (plan->keeps_offloaded && sl_layers_has(&plan->recipe.offload, l)) { // what is searched is here as well
            bytes += n_heads * scan_bytes(plan);
        }
    }
    return bytes;
}

// --- the plan ----------------------------------------------------------------------------------------------------

static enum sl_status make(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry, int64_t n_prompt,
                           bool keeps_offloaded, struct sl_plan *plan_out, struct sl_error *err) {
    enum sl_status status = check_model(recipe, geometry, n_prompt, err);
    if (status == SL_OK && (recipe->dense_auto || recipe->offload_auto)) {
        status = sl_fail(err, SL_ERR_PRECONDITION,
                         "plan: the recipe names dense or sparse layers: sl_recipe_resolve() must say which they are");
    }
    struct sl_plan plan = {
        .recipe = *recipe, .geometry = *geometry, .keeps_offloaded = keeps_offloaded, .n_prompt = n_prompt};
    if (status == SL_OK) { // "last" and open ends
        status = sl_recipe_resolve(&plan.recipe, NULL, geometry->n_layers, err);
    }
    if (status == SL_OK) {
        status = make_layouts(&plan, err);
    }
    if (status != SL_OK) {
        return status;
    }
    set_budgets(&plan);
    plan.max_slots = 0;
    for (int l = 0; l < geometry->n_layers; l++) {
        plan.max_slots = larger(plan.max_slots, at_work_slots(&plan, l));
    }
    plan.capsule_bytes = capsule_bytes(&plan);
    plan.prefill_peak_bytes = prefill_peak_bytes(&plan);
    *plan_out = plan;
    return SL_OK;
}

enum sl_status sl_plan_make(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry, int64_t n_prompt,
                            struct sl_plan *plan_out, struct sl_error *err) {
    return make(recipe, geometry, n_prompt, false, plan_out, err);
}

enum sl_status sl_plan_make_local(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry,
                                  int64_t n_prompt, struct sl_plan *plan_out, struct sl_error *err) {
    return make(recipe, geometry, n_prompt, true, plan_out, err);
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
    enum sl_status status = sl_session_create(&config, arena, session_out, err);
    if (status == SL_OK) {
        (*session_out)->rope_set = plan->rope_set;
        for (int l = 0; l < plan->geometry.n_layers; l++) {
            (*session_out)->layers[l].offloaded = sl_plan_is_offloaded(plan, l);
        }
    }
    return status;
}
