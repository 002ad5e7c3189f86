// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the bytes of a plan: of a capsule, during prefill, in kvstores, at decode. Admission takes all its sizes
 *          from here.
 *
 * Design: a head's memory is whole pages of arena units. During prefill
 *
 *     when=chunk   between chunks every layer holds at most its budget (and later the tail); the layer that is being
 *                  computed holds one more chunk
 *     otherwise    every layer grows to n_prompt slots
 *
 *         In addition, a layer that is being quantized has one packed page per head beside the page that it replaces.
 *         Prefill holds only the newest slots of an offloaded layer (net/offload/prefill/offload.h), and two tiles of
 *         one layer that it reads back for attention.
 *
 *         If attention distributes the slots (layers=d2o, heads=adaptive or global), only sums are known. Their bound: every
 *         head has a partly filled page, and the rest of the sum fills pages of the largest kind.
 */
#include <assert.h>

#include "base/arena.h"
#include "base/hash.h"
#include "engine/compress/plan/internal.h"
#include "engine/kvcache/key_index.h"
#include "engine/tensor/ops.h"

// Returns whether budgets of layers depend on attention. If all layers get the most that they can, they are the same.
static bool layers_are_uneven(const struct sl_plan *plan) {
    for (int l = 0; sl_recipe_uneven_layers(&plan->recipe) && l < plan->geometry.n_layers; l++) {
        if (sl_recipe_layer_evicts(&plan->recipe, l)) {
            return plan->total_budget != plan->layer_budget[l] * sl_plan_n_evicting(plan);
        }
    }
    return false;
}

static bool is_uneven(const struct sl_plan *plan, int layer) {
    bool heads = sl_recipe_uneven_heads(&plan->recipe) && plan->layer_budget[layer] < sl_plan_body_tokens(plan);
    return sl_recipe_layer_evicts(&plan->recipe, layer) && (heads || layers_are_uneven(plan));
}

static size_t last_page_bytes(const struct sl_plan *plan, int layer) {
    size_t work = plan->work[layer].bytes, packed = plan->packed[layer].bytes;
    return work > packed ? work : packed;
}

/*
 * Returns the bytes of uneven layers with `sum` slots per head in all: a partly filled page per head, and as many
 * full pages of the largest kind as the rest of the sum fills. A head with n >= 1 slots has floor((n - 1) / 64) pages
 * before its last.
 */
static size_t uneven_bytes(const struct sl_plan *plan, const bool *uneven, int64_t sum) {
    int64_t n_heads = plan->geometry.n_kv_heads;
    // Equal heads fill pages together; with heads=adaptive or global each fills its pages separately.
    int64_t together = sl_recipe_uneven_heads(&plan->recipe) ? 1 : n_heads, apart = n_heads / together;
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

size_t sl_plan_capsule_bytes(const struct sl_plan *plan) {
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

// Returns the bytes of two tiles of the largest offloaded layer: prefill reads one back while it computes on the
// other.
static size_t read_back_bytes(const struct sl_plan *plan) {
    size_t page = 0, tile_pages = (size_t)plan->geometry.n_kv_heads * (SL_ATTEND_SPLIT / SL_PAGE_SLOTS);
    for (int l = 0; l < plan->geometry.n_layers && plan->n_prompt > SL_ATTEND_SPLIT; l++) {
        if (sl_plan_is_offloaded(plan, l) && sl_arena_rounded(plan->work[l].bytes) > page) {
            page = sl_arena_rounded(plan->work[l].bytes);
        }
    }
    return 2 * tile_pages * page;
}

size_t sl_plan_prefill_peak_bytes(const struct sl_plan *plan) {
    size_t n_heads = (size_t)plan->geometry.n_kv_heads, between = 0, at_work = 0;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        const struct sl_page_layout *work = &plan->work[l], *packed = &plan->packed[l];
        size_t pages = sl_pages_for(sl_plan_between_slots(plan, l)), page = sl_arena_rounded(work->bytes);
        between += n_heads * pages * page;
        size_t chunk = n_heads * (sl_pages_for(sl_plan_at_work_slots(plan, l)) - pages) * page;
        size_t packing = sl_kv_format_is_quantized(packed->format) ? n_heads * sl_arena_rounded(packed->bytes) : 0;
        size_t more = chunk > packing ? chunk : packing; // never both: packing begins after the chunk's eviction
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

static size_t n_offloaded_layers(const struct sl_plan *plan) {
    size_t n = 0;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        n += sl_layers_has(&plan->recipe.offload, l);
    }
    return n;
}

enum sl_kv_format sl_plan_row_format(const struct sl_plan *plan) {
    return sl_recipe_layer_format(&plan->recipe, first_offloaded(plan));
}

uint64_t sl_plan_segments_fingerprint(const struct sl_plan *plan, uint64_t model_fingerprint) {
    bool quantizes = sl_recipe_thins(&plan->recipe); // the layers that are thinned count too
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        quantizes |= !sl_plan_is_offloaded(plan, l) && sl_kv_format_is_quantized(plan->packed[l].format);
    }
    uint64_t recipe = sl_recipe_fingerprint(&plan->recipe);
    return quantizes ? sl_hash(&recipe, sizeof recipe, model_fingerprint) : model_fingerprint;
}

int64_t sl_plan_offloaded_unit(const struct sl_plan *plan) {
    return sl_kv_format_is_quantized(sl_plan_row_format(plan)) ? SL_ATTEND_SPLIT : SL_PAGE_SLOTS;
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
    return status == SL_OK ? sl_arena_rounded(layout.bytes) : 0;
}

// Returns the bytes of the key indexes of one offloaded head: those of whole segments, of the full pages after them,
// and of a partial page.
static size_t scan_bytes(const struct sl_plan *plan) {
    int64_t n_slots = sl_plan_offloaded_slots(plan, plan->n_prompt);
    int64_t full = n_slots % SL_KV_SEGMENT_TOKENS / SL_PAGE_SLOTS * SL_PAGE_SLOTS, last = n_slots % SL_PAGE_SLOTS;
    size_t bytes = (size_t)(n_slots / SL_KV_SEGMENT_TOKENS) * key_index_bytes(plan, SL_KV_SEGMENT_TOKENS);
    return bytes + (full > 0 ? key_index_bytes(plan, full) : 0) + (last > 0 ? key_index_bytes(plan, last) : 0);
}

size_t sl_plan_remote_kv_bytes(const struct sl_plan *plan) {
    if (!sl_recipe_offloads(&plan->recipe)) {
        return 0;
    }
    int64_t n_slots = sl_plan_offloaded_slots(plan, plan->n_prompt);
    const struct sl_page_layout *work = &plan->work[first_offloaded(plan)];
    struct sl_page_layout rows = *work;
    size_t in_transit = 0;
    if (sl_kv_format_is_quantized(sl_plan_row_format(plan))) {
        enum sl_status status = sl_page_layout_init(&rows, sl_plan_row_format(plan), plan->geometry.head_dim, 0, false);
        assert(status == SL_OK); // make_layouts() has made one
        (void)status;
        int64_t n_queued = smaller(n_slots, SL_KV_SEGMENTS_QUEUED * SL_KV_SEGMENT_TOKENS);
        in_transit = sl_pages_for(n_queued) * sl_arena_rounded(work->bytes);
    }
    size_t full = (size_t)(n_slots / SL_PAGE_SLOTS), last = n_slots % SL_PAGE_SLOTS != 0;
    size_t offloaded_head =
        full * sl_arena_rounded(rows.bytes) + last * sl_arena_rounded(work->bytes) + scan_bytes(plan) + in_transit;
    return n_offloaded_layers(plan) * (size_t)plan->geometry.n_kv_heads * offloaded_head;
}

size_t sl_plan_travelling_bytes(const struct sl_plan *plan, bool is_stored) {
    if (!sl_recipe_offloads(&plan->recipe)) {
        return 0;
    }
    const struct sl_page_layout *work = &plan->work[first_offloaded(plan)];
    struct sl_page_layout rows;
    enum sl_status status = sl_page_layout_init(&rows, sl_plan_row_format(plan), plan->geometry.head_dim, 0, false);
    assert(status == SL_OK); // make_layouts() has made one
    (void)status;
    size_t n_heads = (size_t)plan->geometry.n_kv_heads;
    size_t segment = n_offloaded_layers(plan) * n_heads * (SL_KV_SEGMENT_TOKENS / SL_PAGE_SLOTS) * work->bytes;
    size_t tile = n_heads * (SL_ATTEND_SPLIT / SL_PAGE_SLOTS) * rows.bytes;
    bool reads_back = is_stored || sl_plan_offloaded_slots(plan, plan->n_prompt) >= SL_ATTEND_SPLIT;
    return SL_KV_SEGMENTS_HELD * segment + (reads_back ? 2 * tile : 0);
}

size_t sl_plan_offloaded_bytes(const struct sl_plan *plan) {
    size_t offloaded_head_pages = sl_pages_for(sl_plan_offloaded_slots(plan, plan->n_prompt)), bytes = 0;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        if (sl_layers_has(&plan->recipe.offload, l)) {
            bytes += offloaded_head_pages * (size_t)plan->geometry.n_kv_heads * plan->work[l].bytes;
        }
    }
    return bytes * (size_t)plan->recipe.replicas;
}

// --- decode ------------------------------------------------------------------------------------------------------

// Returns the new pages per head of one layer for n_new more slots: these first fill the current last page.
static size_t new_pages(const struct sl_plan *plan, int layer, int64_t n_new) {
    bool steps = sl_recipe_layer_evicts(&plan->recipe, layer) && (plan->recipe.when & SL_WHEN_STEP);
    if (sl_plan_is_offloaded(plan, layer)) { // the capsule has none of it
        return sl_pages_for(sl_plan_layer_slots(plan, layer, n_new));
    }
    if (!is_uneven(plan, layer)) {
        return sl_pages_for(sl_plan_layer_slots(plan, layer, n_new)) -
               sl_pages_for(sl_plan_layer_slots(plan, layer, 0));
    }
    if (steps) { // the part of a layer's budget beyond the prompt, and the token that is being read
        n_new = smaller(n_new, larger(plan->layer_budget[layer] - sl_plan_body_tokens(plan), 0) + 1);
    }
    return sl_pages_for(n_new); // the last page may be full
}

size_t sl_plan_hot_cache_bytes(const struct sl_plan *plan) {
    size_t pages = sl_pages_for(sl_plan_row_places(plan)), bytes = 0;
    pages += plan->keeps_offloaded ? sl_pages_for(sl_plan_resident_slots(plan)) : 0;
    pages *= (size_t)plan->geometry.n_kv_heads;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        bytes += sl_layers_has(&plan->recipe.offload, l) ? pages * sl_arena_rounded(plan->work[l].bytes) : 0;
    }
    return bytes;
}

size_t sl_plan_turn_bytes(const struct sl_plan *plan, int64_t n_new) {
    // The page that the session ends with may be full, and one is in hand while it is quantized.
    size_t n_pages = (size_t)plan->geometry.n_kv_heads * (sl_pages_for(n_new) + 2), bytes = 0;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        bytes += n_pages * sl_arena_rounded(plan->work[l].bytes);
    }
    return bytes;
}

size_t sl_plan_decode_bytes(const struct sl_plan *plan, int64_t n_new) {
    // One block receives the capsule.
    size_t bytes = sl_arena_rounded(plan->capsule_bytes) + sl_plan_hot_cache_bytes(plan);
    size_t n_heads = (size_t)plan->geometry.n_kv_heads;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        bytes += n_heads * new_pages(plan, l, n_new) * sl_arena_rounded(plan->work[l].bytes);
        if (plan->keeps_offloaded && sl_layers_has(&plan->recipe.offload, l)) { // the key indexes are here as well
            bytes += n_heads * scan_bytes(plan);
        }
    }
    return bytes;
}
