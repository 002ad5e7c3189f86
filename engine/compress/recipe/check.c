// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: checks which axes fit together. Every rejection names the axis, the reason and the remedy.
 *
 * Design: the first broken rule is reported. Rules on what an axis needs from others (a budget, a score) come before
 *         rules on how axes fit together, so the first message is about what is missing.
 */
#include <inttypes.h>
#include <stdio.h>

#include "engine/compress/recipe/internal.h"

#define TEXT_OF(number)  #number
#define DIGITS_OF(macro) TEXT_OF(macro)

// --- rules ---------------------------------------------------------------------------------------------------------

/*
 * The text of a rejection; it may contain:
 *     {axis}        the axis' value up to its first word
 *     {axis:word}   the argument of one of its words; 0 if it has none
 *     {?trait}      scores that have a trait: "aas, mas or cis"
 */
struct rule {
    bool broken;
    const char *why;
};

static bool sums_attention(const struct sl_score_traits *traits) {
    return traits->sums_attention;
}

static bool sums_squares(const struct sl_score_traits *traits) {
    return traits->sums_squares;
}

static bool is_lasting(const struct sl_score_traits *traits) {
    return traits->is_lasting && !traits->is_seeded; // random scores are a baseline
}

static const struct {
    const char *name;
    bool (*has)(const struct sl_score_traits *traits);
} lists[] = {{"attention", sl_score_is_attention},
             {"of-rows", sl_score_is_of_rows},
             {"sums", sums_attention},
             {"squares", sums_squares},
             {"seeded", sl_score_is_seeded},
             {"lasting", is_lasting}};

// Writes what a name in braces stands for.
static void put_name(const struct sl_recipe *recipe, char *name, struct sl_text_buffer *out) {
    char text[SL_RECIPE_TEXT_BYTES] = "";
    struct sl_text_buffer value = {text, sizeof text, 0};
    char *axis_name = strsep(&name, ":");
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        if (*axis_name == '?' && strcmp(lists[i].name, axis_name + 1) == 0) {
            sl_text_buffer_put(out, "%s", sl_scores_list(lists[i].has, text, sizeof text));
            return;
        }
    }
    const struct sl_axis *axis = sl_axis_find(axis_name);
    if (name == NULL) {
        sl_axis_text(axis, recipe, text, sizeof text);
        sl_text_buffer_put(out, "%.*s", (int)strcspn(text, ":+"), text);
        return;
    }
    const struct sl_word *word = axis->field.words;
    while (strcmp(word->name, name) != 0) {
        word++;
    }
    word->argument.kind->put(&word->argument, recipe, &value);
    sl_text_buffer_put(out, "%s", *text != '\0' ? text : "0");
}

static enum sl_status check_rules(const struct sl_recipe *recipe, const struct rule *rules, size_t n,
                                  struct sl_error *err) {
    while (n > 0 && !rules->broken) {
        rules++;
        n--;
    }
    if (n == 0) {
        return SL_OK;
    }
    char text[512], name[32];
    struct sl_text_buffer out = {text, sizeof text, 0};
    for (const char *why = rules->why; *why != '\0';) {
        size_t plain = strcspn(why, "{"), length = strcspn(why + plain, "}");
        sl_text_buffer_put(&out, "%.*s", (int)plain, why);
        why += plain;
        if (*why != '\0') {
            snprintf(name, sizeof name, "%.*s", (int)length - 1, why + 1);
            put_name(recipe, name, &out);
            why += length + 1;
        }
    }
    return sl_fail(err, SL_ERR_INVALID, "recipe: %s", text);
}

#define CHECK_RULES(recipe, rules, err) check_rules(recipe, rules, sizeof(rules) / sizeof((rules)[0]), err)

// --- what is missing -----------------------------------------------------------------------------------------------

static enum sl_status check_needs(const struct sl_recipe *r, struct sl_error *err) {
    bool keeps = !sl_recipe_evicts(r), offloads = sl_recipe_offloads(r), thins = sl_recipe_thins(r);
    bool protects = r->sinks > 0 || r->recent.slots > 0 || r->recent.ratio > 0;
#define ONLY_AT_CHUNKS(other)                                                                                          \
    "place=offload evicts from what has not been shipped, so with when=chunk alone and not with when=" other           \
    "; use when=chunk"
    const struct rule rules[] = {
        {keeps && r->when != 0, "when={when} has nothing to evict without a budget; add budget=..."},
        {keeps && r->score != SL_SCORE_NONE, "score={score} evicts nothing without a budget; add budget=..."},
        {keeps && protects && !offloads,
         "scope protects from nothing without a budget; add budget=... or remove scope"},
        {offloads && sl_recipe_layer_is_offloaded(r, 0), "place=offload cannot hold layer 0: it attends densely, and "
                                                         "no layer before it predicts its query; offload from "
                                                         "layer 1 on, e.g. place=offload/1-"},
        {offloads && r->recent.ratio > 0,
         "scope=recent:{scope:recent} is a share of a budget, and place=offload holds recent slots apart from it; give "
         "recent in slots"},
        {offloads && r->positions == SL_POSITION_SLOT,
         "positions=slot keeps keys unrotated, and place=offload compares channels of rotated ones; use "
         "positions=original"},
        // Each slot of an offloaded layer is decided once, before it is shipped, with what is known then: its own
        // score, and the number of slots so far.
        {thins && r->budget.slots > 0,
         "budget={budget} of offloaded layers: slots leave while the prompt is read, and how many may stay of those is "
         "known of a share alone; use a ratio, e.g. budget=0.5"},
        {thins && r->score != SL_SCORE_NONE && !sl_score_get_traits(r->score)->is_lasting,
         "score={score} with place=offload and a budget: a slot is chosen before later tokens have looked at it, and "
         "earlier ones are elsewhere; use score={?lasting} (or {?seeded}), or no budget"},
        {thins && r->when & SL_WHEN_STEP, ONLY_AT_CHUNKS("step")},
        {thins && r->when & SL_WHEN_END, ONLY_AT_CHUNKS("end")},
        {offloads && (r->topk == 0 || r->channels == 0 || r->keep < 0),
         "place=offload fetches nothing: topk and channels must be 1 or more, keep 0 or more"},
        {offloads && r->ahead > 0 && r->retrieve != SL_RETRIEVE_NEAR,
         "ahead=1 sends a predicted query to the stores, and retrieve=pull searches here; use retrieve=near, or remove "
         "ahead"},
        {offloads && r->topk + r->keep > SL_RECIPE_MAX_ROWS,
         "topk={topk} and keep={keep} are more than " DIGITS_OF(
             SL_RECIPE_MAX_ROWS) " rows per KV head; lower topk or keep"},
    };
    return CHECK_RULES(r, rules, err);
}

// Rejects an axis, or a word of one, that needs eviction when nothing is evicted, or when all heads of a layer keep
// the same number of slots.
static enum sl_status refuse_named(const struct sl_recipe *recipe, const char *name, const char *value,
                                   struct sl_error *err) {
    SL_FAIL_IF(!sl_recipe_evicts(recipe), err, SL_ERR_INVALID,
               "recipe: %s means nothing without a budget; add budget=... or remove %s", name, name);
    const char *equals = *value != '\0' ? "=" : "";
    return sl_fail(
        err, SL_ERR_INVALID,
        "recipe: %s%s%s with place=offload and a budget: all heads of all offloaded layers keep equally many "
        "slots, chosen once, and nothing but sinks and recent is protected; remove %s%s%s",
        name, equals, value, name, equals, value);
}

// Rejects axes of eviction, of some scores, and of offloaded layers in recipes without these.
static enum sl_status check_belongings(const struct sl_recipe *recipe, struct sl_error *err) {
    const struct sl_score_traits *traits = sl_score_get_traits(recipe->score);
    bool uneven = sl_recipe_evicts(recipe) && !sl_recipe_offloads(recipe);
    char text[SL_RECIPE_TEXT_BYTES], name[40], scores[80];
    for (const struct sl_axis *axis = sl_axes; axis->name != NULL; axis++) {
        for (int i = 0; i < axis->field.n_words; i++) {
            const struct sl_word *word = &axis->field.words[i];
            if (!uneven && word->flags & SL_NEEDS_BUDGET && !sl_field_is_default(&word->argument, recipe)) {
                snprintf(name, sizeof name, "%s=%s", axis->name, word->name);
                return refuse_named(recipe, name, "", err);
            }
        }
        bool belongs = axis->flags & (SL_NEEDS_BUDGET | SL_NEEDS_OFFLOAD) || axis->of_score != NULL;
        if (!belongs || sl_axis_same(axis, recipe, &sl_recipe_default)) {
            continue;
        }
        if (!uneven && axis->flags & SL_NEEDS_BUDGET) {
            return refuse_named(recipe, axis->name, sl_axis_text(axis, recipe, text, sizeof text), err);
        }
        if (axis->of_score != NULL && !axis->of_score(traits)) {
            sl_axis_text(axis, recipe, text, sizeof text);
            return sl_fail(err, SL_ERR_INVALID, "recipe: %s=%.*s is of score=%s, and score=%s has no %s; remove %s",
                           axis->name, (int)strcspn(text, ":"), text,
                           sl_scores_list(axis->of_score, scores, sizeof scores), traits->name, axis->name, axis->name);
        }
        SL_FAIL_IF(axis->flags & SL_NEEDS_OFFLOAD && !sl_recipe_offloads(recipe), err, SL_ERR_INVALID,
                   "recipe: %s is about slots of offloaded layers, and no layer is offloaded; add "
                   "place=offload/... or remove %s",
                   axis->name, axis->name);
    }
    return SL_OK;
}

// --- what fits -----------------------------------------------------------------------------------------------------

static enum sl_status check_eviction(const struct sl_recipe *r, struct sl_error *err) {
    const struct sl_score_traits *traits = sl_score_get_traits(r->score);
    bool splits = sl_recipe_splits_by_attention(r), at_chunks = r->when & SL_WHEN_CHUNK;
    bool heads = r->value == SL_VALUE_CAOTE_HEADS || r->value == SL_VALUE_FASTCAOTE_HEADS;
    const struct rule rules[] = {
        {r->when == 0, "budget does not say when to evict; add when=chunk or when=end"},
        {r->when == SL_WHEN_STEP,
         "when=step alone leaves the prompt above its budget; add when=chunk+step or when=end+step"},
        {r->score == SL_SCORE_NONE,
         "budget needs a score to choose by, and score=none has none; add score=aas or score=recency"},
        {sl_recipe_observed_rows(r) > r->chunk_tokens,
         "window={window} is longer than chunk={chunk}, whose queries it observes; lower window or raise chunk"},
        {r->value != SL_VALUE_OFF && !sl_score_is_attention(traits),
         "value={value} weighs values by attention, and score={score} is not attention; use score={?attention}, or "
         "value=off"},
        {heads && !sl_score_is_of_rows(traits),
         "value={value} needs the weights of every query head, and score={score} keeps their mean; use "
         "score={?of-rows}, or value={value} without -heads"},
        {splits && at_chunks,
         "layers={layers} is D2O with eviction at chunks: its budgets need the attention of all layers over the whole "
         "prompt; use when=end"},
        {splits && !traits->sums_attention, "layers={layers} needs attention added up over all rows, which "
                                            "score={score} does not keep; use score={?sums}"},
        {r->evicted == SL_EVICTED_MERGE && at_chunks, "evicted=merge is D2O with eviction at chunks: slots would be "
                                                      "merged before the prompt has shown which of them "
                                                      "matter; use when=end, or evicted=drop"},
        {r->heads == SL_HEADS_ADAPTIVE && r->when != SL_WHEN_END,
         "heads=adaptive moves slots between heads, which every further eviction would do again: only when=end holds; "
         "use when=end, or heads=uniform"},
        {sl_score_repeats(traits) && r->when != SL_WHEN_END,
         "score={score} is known when the prompt has been read twice; use when=end alone"},
        {sl_recipe_counts_globally(r) && r->when != SL_WHEN_END,
         "heads={heads} needs the scores of all layers over the whole prompt; use when=end alone"},
        {sl_recipe_counts_globally(r) && r->layers != SL_LAYERS_UNIFORM,
         "heads={heads} divides the budget over layers as well; remove layers={layers}"},
        {sl_recipe_counts_globally(r) && (sl_score_is_of_rows(traits) || heads),
         "heads={heads} evicts when no query is at hand, and score={score} or value={value} looks at queries; use "
         "score=reconstruct, or heads=adaptive"},
        {sl_recipe_counts_globally(r) && r->sinks == 0 && r->recent.slots == 0,
         "heads={heads} could leave a head without a slot; add scope=sinks:4"},
        {r->std > 0 && !traits->sums_squares,
         "scope=std needs deviations of attention, which score={score} does not have; use score={?squares}, or remove "
         "std"},
        {r->stabilizers > 0 && !(r->when & (SL_WHEN_CHUNK | SL_WHEN_STEP)),
         "scope=stabilizers protects at every eviction but the prompt's last, and when=end has no other; use recent, "
         "or "
         "add when=chunk"},
        {traits->rows == SL_ROWS_WINDOW && r->recent.slots < r->window,
         "window={window} reaches beyond the newest slots that scope protects ({scope:recent}): {score} does not rank "
         "its own window; set scope=recent:{window} or more slots, or a smaller window"},
        {r->recent.slots == 0 && r->recent.ratio + r->std >= 1,
         "scope protects the whole budget: recent and std are shares of 1 or more together; keep them below 1"},
    };
    return CHECK_RULES(r, rules, err);
}

// A ratio of the prompt is raised above what scope protects (engine/compress/plan/plan.c); a number of slots is taken
// literally.
static enum sl_status check_protection(const struct sl_recipe *recipe, struct sl_error *err) {
    int64_t budget = recipe->budget.slots;
    if (budget == 0) {
        return SL_OK;
    }
    SL_FAIL_IF(recipe->stabilizers >= budget, err, SL_ERR_INVALID,
               "recipe: scope=stabilizers:%" PRId64 " is not below budget=%" PRId64
               ": no older slot could stay; lower stabilizers or raise budget",
               recipe->stabilizers, budget);
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

// --- layer by layer: checks the named layers when a recipe is parsed (the model must have them), all once resolved ---

static int larger(int a, int b) {
    return a > b ? a : b;
}

static int last_in_format(const struct sl_recipe *recipe) {
    int last = -1;
    for (int i = 0; i < recipe->n_ranges; i++) {
        last = larger(last, recipe->ranges[i].to < 0 ? recipe->ranges[i].from : recipe->ranges[i].to);
    }
    return last;
}

static int last_named(const struct sl_recipe *recipe) {
    int last = larger(last_in_format(recipe), sl_layers_last(&recipe->exempt));
    return larger(last, larger(sl_layers_last(&recipe->offload), recipe->offload_from));
}

// Stores keep rows of all offloaded layers in one format. An unresolved recipe does not know its dense layers, so it
// is not checked.
static enum sl_status check_offloaded_formats(const struct sl_recipe *recipe, int n_layers, struct sl_error *err) {
    int first = -1;
    for (int l = 0; l < n_layers && !recipe->dense_auto; l++) {
        if (!sl_recipe_layer_is_offloaded(recipe, l)) {
            continue;
        }
        enum sl_kv_format format = sl_recipe_layer_format(recipe, l);
        SL_FAIL_IF(sl_kv_format_is_quantized(format) && format != SL_KV_INT8, err, SL_ERR_INVALID,
                   "recipe: place=offload keeps no rows in %s, the format of layer %d; keep offloaded layers in "
                   "f16, bf16, f32 or int8",
                   sl_kv_format_name(format), l);
        SL_FAIL_IF(sl_kv_format_is_quantized(format) && sl_recipe_evicts(recipe), err, SL_ERR_INVALID,
                   "recipe: format=%s of layer %d, which place=offload thins to its budget: what comes back while "
                   "the prompt is read would not be what was shipped; use f16, bf16 or f32 there",
                   sl_kv_format_name(format), l);
        first = first < 0 ? l : first;
        SL_FAIL_IF(format != sl_recipe_layer_format(recipe, first), err, SL_ERR_INVALID,
                   "recipe: place=offload keeps all layers in one format, and layer %d is %s, layer %d %s; give "
                   "offloaded layers the same",
                   first, sl_kv_format_name(sl_recipe_layer_format(recipe, first)), l, sl_kv_format_name(format));
    }
    return SL_OK;
}

enum sl_status sl_recipe_check_layers(const struct sl_recipe *recipe, int n_layers, struct sl_error *err) {
    const struct {
        const char *axis;
        int last;
    } named[] = {{"format", last_in_format(recipe)},
                 {"exempt", sl_layers_last(&recipe->exempt)},
                 {"place", larger(sl_layers_last(&recipe->offload), recipe->offload_from)}};
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        SL_FAIL_IF(named[i].last >= n_layers, err, SL_ERR_INVALID,
                   "recipe: %s names layer %d, but the model has layers 0 to %d", named[i].axis, named[i].last,
                   n_layers - 1);
    }
    for (int l = 0; l < n_layers; l++) {
        // In an unresolved recipe the dense layers are not known: only the formats of other layers can be checked.
        enum sl_kv_format format = sl_recipe_layer_format(recipe, l);
        bool quantized = sl_kv_format_is_quantized(format) && !recipe->dense_auto;
        bool exempt = sl_layers_has(&recipe->exempt, l) || (recipe->exempt_last && l == n_layers - 1);
        SL_FAIL_IF(quantized && (recipe->when & SL_WHEN_STEP) && !exempt, err, SL_ERR_INVALID,
                   "recipe: when=step evicts from pages during decode, and layer %d is %s: packed pages cannot "
                   "be compacted; use format=f16 (or bf16, f32), exempt that layer, or drop step",
                   l, sl_kv_format_name(format));
    }
    return check_offloaded_formats(recipe, n_layers, err);
}

// --- all of it -----------------------------------------------------------------------------------------------------

enum sl_status sl_recipe_check(const struct sl_recipe *recipe, struct sl_error *err) {
    enum sl_status status = check_needs(recipe, err);
    SL_THEN(status, check_belongings(recipe, err));
    if (status == SL_OK && sl_recipe_evicts(recipe)) {
        status = check_eviction(recipe, err);
    }
    if (status == SL_OK && sl_recipe_evicts(recipe)) {
        status = check_protection(recipe, err);
    }
    int last = last_named(recipe);
    return status == SL_OK ? sl_recipe_check_layers(recipe, last < 0 ? 1 : last + 1, err) : status;
}
