// SPDX-License-Identifier: Apache-2.0
// Purpose: what recipes are apart from their grammar: defaults, bounds of every field, shares of a budget, fingerprints.
#include "compress/recipe/recipe.h"

#include <string.h>

#include "base/hash.h"
#include "compress/recipe/internal.h"

struct sl_recipe sl_recipe_defaults(void) {
    return (struct sl_recipe){
        .score = SL_SCORE_NONE,
        .window = SL_RECIPE_DEFAULT_WINDOW,
        .pool = SL_POOL_MAX,
        .pool_kernel = SL_RECIPE_DEFAULT_POOL,
        .merge_beta = SL_RECIPE_DEFAULT_BETA,
        .format = SL_KV_F16,
        .offload_from = -1,
        .retrieve = SL_RETRIEVE_NEAR,
        .keep = SL_RECIPE_KEEP_TOPK,
        .scan = SL_SCAN_STORED,
        .replicas = 1,
        .positions = SL_POSITION_ORIGINAL,
        .chunk_tokens = SL_RECIPE_DEFAULT_CHUNK,
    };
}

int64_t sl_recipe_recent_slots(const struct sl_recipe *recipe, int64_t budget_slots) {
    return recipe->recent.slots > 0 ? recipe->recent.slots : (int64_t)(recipe->recent.ratio * (double)budget_slots);
}

int64_t sl_recipe_std_slots(const struct sl_recipe *recipe, int64_t budget_slots) {
    return (int64_t)(recipe->std * (double)budget_slots);
}

int64_t sl_recipe_protected_slots(const struct sl_recipe *recipe, int64_t budget_slots) {
    int64_t newest = sl_recipe_recent_slots(recipe, budget_slots);
    newest = newest > recipe->stabilizers ? newest : recipe->stabilizers; // both are the newest slots
    return recipe->sinks + newest + sl_recipe_std_slots(recipe, budget_slots);
}

int sl_recipe_observed_rows(const struct sl_recipe *recipe) {
    return sl_score_get_traits(recipe->score)->rows == SL_ROWS_WINDOW ? recipe->window : 1;
}

void sl_recipe_forget_retrieval(struct sl_recipe *recipe) {
    struct sl_recipe usual = sl_recipe_defaults();
    recipe->topk = usual.topk;
    recipe->channels = usual.channels;
    recipe->retrieve = usual.retrieve;
    recipe->ahead = usual.ahead;
    recipe->keep = usual.keep;
    recipe->scan = usual.scan;
    recipe->replicas = usual.replicas;
}

bool sl_recipe_offloads(const struct sl_recipe *recipe) {
    return recipe->offload_auto || recipe->offload_from >= 0 || sl_layers_any(&recipe->offload);
}

// --- bounds ------------------------------------------------------------------------------------------------------

static bool is_amount(const struct sl_amount *amount) {
    if (amount->slots != 0) {
        return amount->slots > 0 && amount->slots <= SL_RECIPE_MAX_SLOTS && amount->ratio == 0;
    }
    return amount->ratio >= 0 && amount->ratio < 1; // false for NaN
}

static bool is_count(int64_t count, int64_t max) {
    return count >= 0 && count <= max;
}

static bool is_format(enum sl_kv_format format) {
    return sl_kv_format_is_known(format);
}

static bool is_enum(int value, int last) {
    return value >= 0 && value <= last;
}

static bool names_are_sane(const struct sl_recipe *recipe) {
    const unsigned whens[] = {
        0, SL_WHEN_CHUNK, SL_WHEN_END, SL_WHEN_STEP, SL_WHEN_CHUNK | SL_WHEN_STEP, SL_WHEN_END | SL_WHEN_STEP};
    bool when = false;
    for (size_t i = 0; i < sizeof whens / sizeof whens[0]; i++) {
        when = when || recipe->when == whens[i];
    }
    return when && is_enum((int)recipe->score, SL_N_SCORES - 1) &&
           is_enum((int)recipe->value, SL_VALUE_FASTCAOTE_HEADS) && is_enum((int)recipe->pool, SL_POOL_AVG) &&
           is_enum((int)recipe->layers, SL_LAYERS_PYRAMID) && is_enum((int)recipe->heads, SL_HEADS_LAYER) &&
           is_enum((int)recipe->evicted, SL_EVICTED_MERGE) && is_enum((int)recipe->positions, SL_POSITION_SLOT) &&
           is_enum((int)recipe->retrieve, SL_RETRIEVE_NEAR) && is_enum((int)recipe->scan, SL_SCAN_INT1) &&
           is_format(recipe->format) && (recipe->dense_auto ? is_format(recipe->dense_format) : true) &&
           is_count(recipe->n_ranges, SL_MAX_FORMAT_RANGES);
}

static enum sl_status check_offload(const struct sl_recipe *recipe, struct sl_error *err) {
    bool sane = recipe->offload_from >= -1 && recipe->offload_from < SL_MAX_LAYERS &&
                !(recipe->offload_auto && (recipe->offload_from >= 0 || sl_layers_any(&recipe->offload)));
    for (int l = recipe->offload_from; sane && l >= 0 && l < SL_MAX_LAYERS; l++) {
        sane = !sl_layers_has(&recipe->offload, l);
    }
    if (!sane) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: place says twice which layers to offload");
    }
    if (!is_count(recipe->topk, SL_RECIPE_MAX_SLOTS) || !is_count(recipe->channels, SL_RECIPE_MAX_CHANNELS)) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: topk is up to %lld slots, channels up to %d",
                       (long long)SL_RECIPE_MAX_SLOTS, SL_RECIPE_MAX_CHANNELS);
    }
    bool kept = sl_recipe_offloads(recipe) ? is_count(recipe->keep, SL_RECIPE_MAX_SLOTS)
                                           : recipe->keep >= SL_RECIPE_KEEP_TOPK && recipe->keep <= SL_RECIPE_MAX_SLOTS;
    if (!kept || !is_count(recipe->ahead, 1) || recipe->replicas < 1 || recipe->replicas > SL_RECIPE_MAX_REPLICAS) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: keep is up to %lld rows, ahead 0 or 1, replicas 1 to %d",
                       (long long)SL_RECIPE_MAX_SLOTS, SL_RECIPE_MAX_REPLICAS);
    }
    return SL_OK;
}

enum sl_status sl_recipe_check_fields(const struct sl_recipe *recipe, struct sl_error *err) {
    if (!names_are_sane(recipe)) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: a field holds a value that no recipe text can mean");
    }
    if (!is_amount(&recipe->budget) || !is_amount(&recipe->recent) || !is_count(recipe->sinks, SL_RECIPE_MAX_SLOTS) ||
        !is_count(recipe->stabilizers, SL_RECIPE_MAX_SLOTS) || !is_count(recipe->tail, SL_RECIPE_MAX_SLOTS) ||
        !(recipe->std >= 0 && recipe->std < 1)) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: budget and what scope protects are up to %lld slots, or ratios above 0 and below 1",
                       (long long)SL_RECIPE_MAX_SLOTS);
    }
    if (recipe->window < 1 || recipe->window > SL_RECIPE_MAX_CHUNK ||
        (recipe->pool == SL_POOL_NONE
             ? recipe->pool_kernel != 1
             : recipe->pool_kernel < 3 || recipe->pool_kernel > SL_RECIPE_MAX_POOL || recipe->pool_kernel % 2 == 0)) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: window is 1 to %d rows; pool is over an odd number of slots from 3 to %d, or none (1)",
                       SL_RECIPE_MAX_CHUNK, SL_RECIPE_MAX_POOL);
    }
    if (!(recipe->merge_beta > 0 && recipe->merge_beta <= 1)) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: evicted=merge has a weight above 0 and up to 1");
    }
    if (recipe->chunk_tokens < SL_PAGE_SLOTS || recipe->chunk_tokens > SL_RECIPE_MAX_CHUNK ||
        recipe->chunk_tokens % SL_PAGE_SLOTS != 0) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: chunk=%d is not a multiple of %d up to %d", recipe->chunk_tokens,
                       SL_PAGE_SLOTS, SL_RECIPE_MAX_CHUNK);
    }
    for (int i = 0; i < recipe->n_ranges; i++) {
        int from = recipe->ranges[i].from, to = recipe->ranges[i].to;
        if (from < 0 || from >= SL_MAX_LAYERS || to >= SL_MAX_LAYERS || to < -1 || (to >= 0 && to < from) ||
            !is_format(recipe->ranges[i].format)) {
            return sl_fail(err, SL_ERR_INVALID, "recipe: format range %d (layers %d to %d) is malformed", i, from, to);
        }
    }
    return check_offload(recipe, err);
}

// --- fingerprint -------------------------------------------------------------------------------------------------

uint64_t sl_recipe_fingerprint(const struct sl_recipe *recipe) {
    struct sl_recipe cached = *recipe, defaults = sl_recipe_defaults();
    if (!sl_recipe_evicts(recipe)) {
        cached.chunk_tokens = defaults.chunk_tokens; // without eviction the cache is the same for every chunk size
        // Retrieval chooses what decode looks at; what there is to look at is the same.
        sl_recipe_forget_retrieval(&cached);
        cached.sinks = 0;
        cached.recent = (struct sl_amount){0};
    }
    // All axes are written out, so that a new default can never make an old fingerprint mean something else. The seed
    // is the version of what recipes mean: raise it when the same text starts to give another cache.
    char text[SL_RECIPE_TEXT_BYTES];
    sl_recipe_write(&cached, true, text, sizeof text);
    return sl_hash(text, strlen(text), 2);
}
