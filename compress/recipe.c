// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what recipes mean apart from their grammar: presets, defaults, which axes fit each other, fingerprints.
 */
#include "compress/recipe.h"

#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "compress/recipe_internal.h"
#include "compress/score.h"

// To add one: a row. `text` is the canonical text of the axes that the preset is about; compress/recipe_text.c reads it
// like any other. A preset that is not built keeps its text: it says which values are missing.
static const struct sl_preset presets[] = {
    {"full", "score=none", "keep everything, in f16", true},
    {"streamingllm", "score=recency,scope=sinks:4,budget=1024,when=chunk,positions=slot",
     "attention sinks and the newest slots, positions within the cache", true},
    {"h2o", "score=aas,scope=recent:0.5,budget=0.2,when=chunk",
     "heavy hitters by accumulated attention, half the budget for the newest", true},
    {"scissorhands", "score=aqas,scope=recent:0.5,budget=0.2,when=chunk", "how often attention was above the mean",
     false},
    {"tova", "score=ltas,budget=0.2,when=chunk", "attention of the last token", false},
    {"snapkv", "score=snapkv,scope=recent:32,budget=1024,when=end", "attention of a window at the end of the prompt",
     false},
    {"roco", "score=mas,scope=sinks:4+recent:10+std:0.5,budget=0.2,when=chunk",
     "mean attention, spared where attention varies most", false},
    {"h2o+caote", "score=aas,value=caote,budget=1024,when=chunk", "h2o weighted by the change of the attention output",
     false},
    {"tova+caote", "score=ltas,value=caote,budget=1024,when=chunk",
     "tova weighted by the change of the attention output", false},
    {"snapkv+caote", "score=snapkv,value=caote,scope=recent:32,budget=1024,when=end",
     "snapkv weighted by the change of the attention output", false},
    {"d2o", "score=aas,scope=sinks:4+recent:0.25,budget=0.2,layers=d2o,when=end+step,evicted=merge",
     "budgets by layer variance, evicted slots merged into their nearest", false},
    {"locret", "score=cis,scope=stabilizers:2500+tail:100,budget=6000,when=chunk,positions=slot,chunk=3072",
     "retaining heads trained to predict what will matter", false},
    {"tailorkv", "place=offload/1-,retrieve=near,format=f16/0-0:int2",
     "dense layers quantized, sparse layers offloaded and searched where they lie", false},
    {NULL, NULL, NULL, false},
};

const struct sl_preset *sl_recipe_presets(void) {
    return presets;
}

struct sl_recipe sl_recipe_defaults(void) {
    return (struct sl_recipe){
        .score = SL_SCORE_NONE,
        .format = SL_KV_F16,
        .positions = SL_POSITION_ORIGINAL,
        .chunk_tokens = SL_RECIPE_DEFAULT_CHUNK,
    };
}

int64_t sl_recipe_recent_slots(const struct sl_recipe *recipe, int64_t budget_slots) {
    return recipe->recent.slots > 0 ? recipe->recent.slots : (int64_t)(recipe->recent.ratio * (double)budget_slots);
}

static bool amount_is_sane(const struct sl_amount *amount) {
    if (amount->slots != 0) {
        return amount->slots > 0 && amount->slots <= SL_RECIPE_MAX_SLOTS && amount->ratio == 0;
    }
    return amount->ratio >= 0 && amount->ratio < 1; // false for NaN
}

// Every field alone. The grammar can only make such recipes; this is for recipes that a program put together.
static enum sl_status check_fields(const struct sl_recipe *recipe, struct sl_error *err) {
    if (recipe->score < SL_SCORE_NONE || recipe->score > SL_SCORE_AAS || recipe->when > (SL_WHEN_CHUNK | SL_WHEN_END) ||
        recipe->format < 0 || recipe->format >= SL_KV_N_FORMATS || recipe->n_ranges < 0 ||
        recipe->n_ranges > SL_MAX_FORMAT_RANGES ||
        (recipe->positions != SL_POSITION_ORIGINAL && recipe->positions != SL_POSITION_SLOT)) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: a field holds a value that no recipe text can mean");
    }
    if (!amount_is_sane(&recipe->budget) || !amount_is_sane(&recipe->recent) || recipe->sinks < 0 ||
        recipe->sinks > SL_RECIPE_MAX_SLOTS) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: budget, sinks and recent are up to %lld slots, or ratios above 0 and below 1",
                       (long long)SL_RECIPE_MAX_SLOTS);
    }
    if (recipe->chunk_tokens < SL_PAGE_SLOTS || recipe->chunk_tokens > SL_RECIPE_MAX_CHUNK ||
        recipe->chunk_tokens % SL_PAGE_SLOTS != 0) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: chunk=%d is not a multiple of %d up to %d", recipe->chunk_tokens,
                       SL_PAGE_SLOTS, SL_RECIPE_MAX_CHUNK);
    }
    for (int i = 0; i < recipe->n_ranges; i++) {
        int from = recipe->ranges[i].from, to = recipe->ranges[i].to;
        if (from < 0 || from >= SL_MAX_LAYERS || to >= SL_MAX_LAYERS || (to >= 0 && to < from) ||
            recipe->ranges[i].format < 0 || recipe->ranges[i].format >= SL_KV_N_FORMATS) {
            return sl_fail(err, SL_ERR_INVALID, "recipe: format range %d (layers %d to %d) is malformed", i, from, to);
        }
    }
    return SL_OK;
}

enum sl_status sl_recipe_check(const struct sl_recipe *recipe, struct sl_error *err) {
    enum sl_status status = check_fields(recipe, err);
    if (status != SL_OK) {
        return status;
    }
    const char *score = sl_score_method(recipe->score)->name;
    if (!sl_recipe_evicts(recipe)) {
        if (recipe->when != 0) {
            return sl_fail(err, SL_ERR_INVALID, "recipe: when=%s has nothing to evict without a budget; add budget=...",
                           recipe->when & SL_WHEN_CHUNK ? "chunk" : "end");
        }
        if (recipe->score != SL_SCORE_NONE) {
            return sl_fail(err, SL_ERR_INVALID, "recipe: score=%s evicts nothing without a budget; add budget=...",
                           score);
        }
        if (recipe->sinks > 0 || recipe->recent.slots > 0 || recipe->recent.ratio > 0) {
            return sl_fail(err, SL_ERR_INVALID,
                           "recipe: scope protects from nothing without a budget; add budget=... or remove scope");
        }
        return SL_OK;
    }
    if (recipe->when == 0) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: budget does not say when to evict; add when=chunk or when=end");
    }
    if (sl_score_method(recipe->score)->read == NULL) {
        return sl_fail(
            err, SL_ERR_INVALID,
            "recipe: budget needs a score to choose by, and score=%s is none; add score=aas or score=recency", score);
    }
    if (recipe->budget.slots > 0) {
        int64_t recent = sl_recipe_recent_slots(recipe, recipe->budget.slots);
        if (recipe->budget.slots <= recipe->sinks + recent) {
            return sl_fail(err, SL_ERR_INVALID,
                           "recipe: budget=%" PRId64 " is not above what scope protects (%" PRId64 " sinks + %" PRId64
                           " recent = %" PRId64 " slots)",
                           recipe->budget.slots, recipe->sinks, recent, recipe->sinks + recent);
        }
    }
    return SL_OK;
}

uint64_t sl_recipe_fingerprint(const struct sl_recipe *recipe) {
    struct sl_recipe cached = *recipe;
    if (!sl_recipe_evicts(recipe)) {
        cached.chunk_tokens = SL_RECIPE_DEFAULT_CHUNK; // without eviction the cache is the same for every chunk size
    }
    // All axes are written out, so that a new default can never make an old fingerprint mean something else. The seed
    // is the version of what recipes mean: raise it when the same text starts to give another cache.
    char text[SL_RECIPE_TEXT_BYTES];
    sl_recipe_write(&cached, true, text, sizeof text);
    return sl_hash(text, strlen(text), 1);
}
