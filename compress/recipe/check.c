// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: which axes fit each other. Every refusal names the axis, the reason and the remedy.
 *
 * Design: one function per question; the first refusal counts. What an axis needs of others (a budget, a score) comes
 *         before how they fit together, so that the first message is about what is missing.
 */
#include <inttypes.h>
#include <stdio.h>

#include "compress/recipe/internal.h"

static const struct sl_score_traits *traits(const struct sl_recipe *recipe) {
    return sl_score_get_traits(recipe->score);
}

static const char *score_name(const struct sl_recipe *recipe) {
    return traits(recipe)->name;
}

static const char *when_name(unsigned when) {
    return when & SL_WHEN_CHUNK ? "chunk" : when & SL_WHEN_END ? "end" : "step";
}

static bool has_recent(const struct sl_recipe *recipe) {
    return recipe->recent.slots > 0 || recipe->recent.ratio > 0;
}

// "aas or mas": what to use instead, for messages.
struct names {
    char text[128];
};
static struct names scores_that(bool (*has)(const struct sl_score_traits *traits)) {
    struct names names;
    sl_scores_list(has, names.text, sizeof names.text);
    return names;
}

static bool has_window(const struct sl_score_traits *t) {
    return t->rows == SL_ROWS_WINDOW;
}

static bool is_pooled(const struct sl_score_traits *t) {
    return t->is_pooled;
}

static bool is_seeded(const struct sl_score_traits *t) {
    return t->is_seeded;
}

static bool sums_attention(const struct sl_score_traits *t) {
    return t->sums_attention;
}

static bool sums_squares(const struct sl_score_traits *t) {
    return t->sums_squares;
}

static bool is_lasting(const struct sl_score_traits *t) {
    return t->is_lasting && !t->is_seeded; // chance is there to compare with
}

// What means nothing where nothing is evicted.
static enum sl_status check_no_budget(const struct sl_recipe *recipe, struct sl_error *err) {
    const char *name = "";
    if (recipe->when != 0) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: when=%s has nothing to evict without a budget; add budget=...",
                       when_name(recipe->when));
    }
    if (recipe->score != SL_SCORE_NONE) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: score=%s evicts nothing without a budget; add budget=...",
                       score_name(recipe));
    }
    if (recipe->value != SL_VALUE_OFF) {
        name = "value";
    } else if (recipe->layers != SL_LAYERS_UNIFORM) {
        name = "layers";
    } else if (sl_layers_any(&recipe->exempt) || recipe->exempt_last) {
        name = "exempt";
    } else if (recipe->heads != SL_HEADS_UNIFORM) {
        name = "heads";
    } else if (recipe->evicted != SL_EVICTED_DROP) {
        name = "evicted";
    } else if (recipe->tail > 0) {
        name = "scope=tail";
    } else if (recipe->stabilizers > 0) {
        name = "scope=stabilizers";
    } else if (recipe->std > 0) {
        name = "scope=std";
    }
    if (*name != '\0') {
        return sl_fail(err, SL_ERR_INVALID, "recipe: %s means nothing without a budget; add budget=... or remove %s",
                       name, name);
    }
    if ((recipe->sinks > 0 || has_recent(recipe)) && !sl_recipe_offloads(recipe)) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: scope protects from nothing without a budget; add budget=... or remove scope");
    }
    return SL_OK;
}

// Axes that belong to one value of another axis.
static enum sl_status check_belongings(const struct sl_recipe *recipe, struct sl_error *err) {
    struct sl_recipe defaults = sl_recipe_defaults();
    if (!has_window(traits(recipe)) && recipe->window != defaults.window) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: window=%d is of score=%s, and score=%s has no window; remove window", recipe->window,
                       scores_that(has_window).text, score_name(recipe));
    }
    if (!is_pooled(traits(recipe)) && (recipe->pool != defaults.pool || recipe->pool_kernel != defaults.pool_kernel)) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: pool=%s is of score=%s, and score=%s is not pooled; remove pool",
                       sl_axis_value_name(sl_names_pool, (int)recipe->pool), scores_that(is_pooled).text,
                       score_name(recipe));
    }
    if (!is_seeded(traits(recipe)) && recipe->seed != defaults.seed) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: seed=%" PRIu64 " is of score=%s, not of score=%s; remove seed",
                       recipe->seed, scores_that(is_seeded).text, score_name(recipe));
    }
    if (recipe->evicted != SL_EVICTED_MERGE && recipe->merge_beta != defaults.merge_beta) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: a threshold's weight without evicted=merge");
    }
    if (!recipe->dense_auto && recipe->dense_format != defaults.dense_format) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: a format of dense layers without format=.../dense");
    }
    return SL_OK;
}

// --- what protects -----------------------------------------------------------------------------------------------

// A ratio of the prompt is raised above what scope protects (compress/plan/plan.c); a number of slots is what was asked for.
static enum sl_status check_protection(const struct sl_recipe *recipe, struct sl_error *err) {
    if (recipe->recent.slots == 0 && recipe->recent.ratio + recipe->std >= 1) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: scope protects the whole budget: recent and std are shares of %g together; keep them "
                       "below 1",
                       recipe->recent.ratio + recipe->std);
    }
    int64_t budget = recipe->budget.slots;
    if (budget == 0) {
        return SL_OK;
    }
    if (recipe->stabilizers >= budget) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: scope=stabilizers:%" PRId64 " is not below budget=%" PRId64
                       ": no older slot could stay; lower stabilizers or raise budget",
                       recipe->stabilizers, budget);
    }
    if (budget > sl_recipe_protected_slots(recipe, budget)) {
        return SL_OK;
    }
    int64_t recent = sl_recipe_recent_slots(recipe, budget), std = sl_recipe_std_slots(recipe, budget);
    bool stable = recipe->stabilizers > recent;
    char more[48] = "";
    if (std > 0) {
        snprintf(more, sizeof more, " + %" PRId64 " std", std);
    }
    return sl_fail(err, SL_ERR_INVALID,
                   "recipe: budget=%" PRId64 " is not above what scope protects (%" PRId64 " sinks + %" PRId64
                   " %s%s = %" PRId64 " slots); raise budget or protect less",
                   budget, recipe->sinks, stable ? recipe->stabilizers : recent, stable ? "stabilizers" : "recent",
                   more, sl_recipe_protected_slots(recipe, budget));
}

static enum sl_status check_scope(const struct sl_recipe *recipe, struct sl_error *err) {
    if (recipe->std > 0 && !sums_squares(traits(recipe))) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: scope=std needs deviations of attention, which score=%s does not have; use score=%s, "
                       "or remove std",
                       score_name(recipe), scores_that(sums_squares).text);
    }
    if (recipe->stabilizers > 0 && !(recipe->when & (SL_WHEN_CHUNK | SL_WHEN_STEP))) {
        return sl_fail(
            err, SL_ERR_INVALID,
            "recipe: scope=stabilizers protects at every eviction but the prompt's last, and when=end has no "
            "other; use recent, or add when=chunk");
    }
    if (has_window(traits(recipe)) && recipe->recent.slots < recipe->window) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: window=%d reaches beyond the newest slots that scope protects (%" PRId64
                       "): %s does not rank its own window; set scope=recent:%d or more slots, or a smaller window",
                       recipe->window, recipe->recent.slots, score_name(recipe), recipe->window);
    }
    return check_protection(recipe, err);
}

// --- what ranks and divides --------------------------------------------------------------------------------------

static enum sl_status check_value(const struct sl_recipe *recipe, struct sl_error *err) {
    const char *value = sl_axis_value_name(sl_names_value, (int)recipe->value);
    if (recipe->value == SL_VALUE_OFF) {
        return SL_OK;
    }
    if (!sl_score_is_attention(traits(recipe))) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: value=%s weighs values by attention, and score=%s is none; use score=%s, or value=off",
                       value, score_name(recipe), scores_that(sl_score_is_attention).text);
    }
    bool heads = recipe->value == SL_VALUE_CAOTE_HEADS || recipe->value == SL_VALUE_FASTCAOTE_HEADS;
    if (heads && !sl_score_is_of_rows(traits(recipe))) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: value=%s needs the weights of every query head, and score=%s keeps their mean; use "
                       "score=%s, or value=%s",
                       value, score_name(recipe), scores_that(sl_score_is_of_rows).text,
                       recipe->value == SL_VALUE_CAOTE_HEADS ? "caote" : "fastcaote");
    }
    return SL_OK;
}

static enum sl_status check_splits(const struct sl_recipe *recipe, struct sl_error *err) {
    bool at_chunks = recipe->when & SL_WHEN_CHUNK;
    if (sl_recipe_splits_by_attention(recipe)) {
        const char *name = sl_axis_value_name(sl_names_layers, (int)recipe->layers);
        if (at_chunks) {
            return sl_fail(err, SL_ERR_INVALID,
                           "recipe: layers=%s is D2O with eviction at chunks: its budgets need the attention of all "
                           "layers over the whole prompt; use when=end",
                           name);
        }
        if (!sums_attention(traits(recipe))) {
            return sl_fail(err, SL_ERR_INVALID,
                           "recipe: layers=%s needs attention added up over all rows, which score=%s does not keep; "
                           "use score=%s",
                           name, score_name(recipe), scores_that(sums_attention).text);
        }
    }
    if (recipe->evicted == SL_EVICTED_MERGE && at_chunks) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: evicted=merge is D2O with eviction at chunks: slots would be merged before the prompt "
                       "has shown which of them matter; use when=end, or evicted=drop");
    }
    if (recipe->heads == SL_HEADS_ADAPTIVE && recipe->when != SL_WHEN_END) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: heads=adaptive moves slots between heads, which every further eviction would do again: "
                       "only when=end holds; use when=end, or heads=uniform");
    }
    return SL_OK;
}

static enum sl_status check_when(const struct sl_recipe *recipe, struct sl_error *err) {
    if (recipe->when == 0) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: budget does not say when to evict; add when=chunk or when=end");
    }
    if (recipe->when == SL_WHEN_STEP) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: when=step alone leaves the prompt above its budget; add when=chunk+step or "
                       "when=end+step");
    }
    if (recipe->score == SL_SCORE_NONE) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: budget needs a score to choose by, and score=none is none; add score=aas or "
                       "score=recency");
    }
    if (sl_recipe_observed_rows(recipe) > recipe->chunk_tokens) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: window=%d is longer than chunk=%d, whose queries it observes; lower window or raise "
                       "chunk",
                       recipe->window, recipe->chunk_tokens);
    }
    return SL_OK;
}

// --- what is offloaded -------------------------------------------------------------------------------------------

// What says how offloaded layers are searched, where none is offloaded.
static enum sl_status check_resident(const struct sl_recipe *recipe, struct sl_error *err) {
    struct sl_recipe usual = sl_recipe_defaults();
    const struct {
        const char *axis;
        bool named;
    } axes[] = {{"topk", recipe->topk != usual.topk},
                {"channels", recipe->channels != usual.channels},
                {"retrieve", recipe->retrieve != usual.retrieve},
                {"ahead", recipe->ahead != usual.ahead},
                {"keep", recipe->keep != usual.keep},
                {"scan", recipe->scan != usual.scan},
                {"replicas", recipe->replicas != usual.replicas}};
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++) {
        if (axes[i].named) {
            return sl_fail(err, SL_ERR_INVALID,
                           "recipe: %s is about slots of offloaded layers, and no layer is offloaded; add "
                           "place=offload/... or remove %s",
                           axes[i].axis, axes[i].axis);
        }
    }
    return SL_OK;
}

static enum sl_status check_retrieval(const struct sl_recipe *recipe, struct sl_error *err) {
    if (recipe->topk == 0 || recipe->channels == 0) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: place=offload fetches nothing: topk and channels must be 1 or more");
    }
    if (recipe->ahead > 0 && recipe->retrieve != SL_RETRIEVE_NEAR) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: ahead=1 sends a predicted query to the stores, and retrieve=pull searches here; use "
                       "retrieve=near, or remove ahead");
    }
    if (recipe->topk + recipe->keep > SL_RECIPE_MAX_ROWS) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: topk=%" PRId64 " and keep=%" PRId64
                       " are more than %lld rows per KV head; lower topk or keep",
                       recipe->topk, recipe->keep, SL_RECIPE_MAX_ROWS);
    }
    return SL_OK;
}

/*
 * A budget of offloaded layers. Every slot is chosen or not once, before it is shipped, with what is known of it then: its
 * own score, and how many slots there are so far.
 */
static enum sl_status check_thinning(const struct sl_recipe *recipe, struct sl_error *err) {
    if (recipe->budget.slots > 0) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: budget=%" PRId64
                       " of offloaded layers: slots leave while the prompt is read, and how many "
                       "may stay of those is known of a share alone; use a ratio, e.g. budget=0.5",
                       recipe->budget.slots);
    }
    if (!traits(recipe)->is_lasting && recipe->score != SL_SCORE_NONE) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: score=%s with place=offload and a budget: a slot is chosen before later tokens have "
                       "looked at it, and earlier ones are elsewhere; use score=%s (or %s), or no budget",
                       score_name(recipe), scores_that(is_lasting).text, scores_that(is_seeded).text);
    }
    if (recipe->when != 0 && recipe->when != SL_WHEN_CHUNK) {
        return sl_fail(
            err, SL_ERR_INVALID,
            "recipe: place=offload evicts from what has not been shipped, so with when=chunk alone and not with "
            "when=%s; use when=chunk",
            recipe->when & SL_WHEN_STEP ? "step" : "end");
    }
    const struct {
        const char *what;
        bool named;
    } refused[] = {{"value", recipe->value != SL_VALUE_OFF},
                   {"layers", recipe->layers != SL_LAYERS_UNIFORM},
                   {"exempt", sl_layers_any(&recipe->exempt) || recipe->exempt_last},
                   {"heads", recipe->heads != SL_HEADS_UNIFORM},
                   {"evicted=merge", recipe->evicted != SL_EVICTED_DROP},
                   {"scope=tail", recipe->tail > 0},
                   {"scope=stabilizers", recipe->stabilizers > 0},
                   {"scope=std", recipe->std > 0}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (refused[i].named) {
            return sl_fail(
                err, SL_ERR_INVALID,
                "recipe: %s with place=offload and a budget: all heads of all offloaded layers keep equally many "
                "slots, chosen once, and nothing but sinks and recent is protected; remove %s",
                refused[i].what, refused[i].what);
        }
    }
    return SL_OK;
}

static enum sl_status check_offload(const struct sl_recipe *recipe, struct sl_error *err) {
    if (!sl_recipe_offloads(recipe)) {
        return check_resident(recipe, err);
    }
    if (sl_layers_has(&recipe->offload, 0) || recipe->offload_from == 0) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: place=offload cannot hold layer 0: it attends densely, and no layer before it predicts "
                       "its query; offload from layer 1 on, e.g. place=offload/1-");
    }
    if (recipe->recent.ratio > 0) {
        return sl_fail(
            err, SL_ERR_INVALID,
            "recipe: scope=recent:%g is a share of a budget, and place=offload holds recent slots apart from it; "
            "give recent in slots",
            recipe->recent.ratio);
    }
    if (recipe->positions == SL_POSITION_SLOT) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: positions=slot keeps keys unrotated, and place=offload compares channels of rotated "
                       "ones; use positions=original");
    }
    enum sl_status status = sl_recipe_evicts(recipe) ? check_thinning(recipe, err) : SL_OK;
    return status == SL_OK ? check_retrieval(recipe, err) : status;
}

enum sl_status sl_recipe_check(const struct sl_recipe *recipe, struct sl_error *err) {
    enum sl_status (*const evicting[])(const struct sl_recipe *, struct sl_error *) = {
        check_belongings, check_offload, check_when, check_value, check_splits, check_scope, NULL};
    enum sl_status (*const keeping[])(const struct sl_recipe *, struct sl_error *) = {check_no_budget, check_belongings,
                                                                                      check_offload, NULL};
    enum sl_status status = sl_recipe_check_fields(recipe, err);
    for (size_t i = 0; status == SL_OK; i++) {
        enum sl_status (*check)(const struct sl_recipe *, struct sl_error *) =
            sl_recipe_evicts(recipe) ? evicting[i] : keeping[i];
        if (check == NULL) {
            break;
        }
        status = check(recipe, err);
    }
    if (status == SL_OK) {
        int last = sl_recipe_last_named_layer(recipe);
        status = sl_recipe_check_layers(recipe, last < 0 ? 1 : last + 1, err);
    }
    return status;
}
