// SPDX-License-Identifier: Apache-2.0
// Purpose: which recipe to take for a share of the bytes, when the question is in the prompt, and when it comes later.
#include "engine/compress/recipe/recipe.h"

// Shares and order are from docs/quality.md. SnapKV pools over the length of a fact and chooses once for a layer. It
// looks at the prompt's last rows, so the question must be there.
#define WIDE "snapkv,pool=max:31,heads=layer,format=int4,budget="

static const struct sl_recommendation recommendations[] = {
    {1, "full", false, "0"},
    {0.55, "full,format=int8", false, "0.2 [0.0, 0.5]"},
    {0.30, "full,format=int4", false, "3.2 [0.5, 6.2]"},
    {0.16, WIDE "0.5", false, "9.5 [5.9, 13.1]"},
    {0.07, WIDE "0.2", false, "16.9 [13.2, 20.5]"},
    {0.05, WIDE "0.1", false, "24.7 [21.2, 27.9]"},
    {0.03, "locret,budget=0.05,scope=stabilizers:64+tail:32,chunk=128,format=int4", true, "28.9 [25.5, 32.3]"},
    {0, NULL, false, NULL},
};

// For questions that come later: losses of SmolLM2-135M in docs/quality/later.csv.
static const struct sl_recommendation for_later[] = {
    {1, "full", false, "0"},
    {0.55, "full,format=int8", false, "3.3 [0.0, 7.2]"},
    {0.30, "full,format=int4", false, "4.0 [0.6, 8.0]"},
    {0.17, "kvzip,heads=pages,budget=0.56,format=int4", false, "3.9 [-0.7, 8.7]"},
    {0.10, "kvzip,heads=pages,budget=0.33,format=int4", false, "7.0 [1.1, 13.6]"},
    {0.07, "kvzip,heads=pages,budget=0.2,format=int4", false, "8.7 [3.0, 14.6]"},
    {0, NULL, false, NULL},
};

const struct sl_recommendation *sl_recipe_recommendations(bool later) {
    return later ? for_later : recommendations;
}

bool sl_recipe_serves_later(const struct sl_recipe *recipe) {
    return !sl_recipe_evicts(recipe) || sl_recipe_repeats(recipe) ||
           sl_score_get_traits(recipe->score)->wants_importance;
}

bool sl_recipe_keeps_documents(const struct sl_recipe *recipe) {
    bool packs = sl_kv_format_is_quantized(recipe->format) && !recipe->dense_auto;
    for (int i = 0; i < recipe->n_ranges; i++) {
        packs = packs && sl_kv_format_is_quantized(recipe->ranges[i].format);
    }
    return sl_recipe_serves_later(recipe) && !sl_recipe_thins(recipe) &&
           (!sl_recipe_evicts(recipe) || sl_recipe_repeats(recipe) || packs);
}

const char *sl_recommendation_needs(const struct sl_recommendation *recommendation) {
    struct sl_recipe recipe;
    bool is_valid = sl_recipe_parse(recommendation->recipe, &recipe, NULL) == SL_OK;
    return recommendation->needs_heads                   ? "retaining heads"
           : is_valid && sl_recipe_repeats(&recipe)      ? "a second reading of the text"
           : is_valid && sl_recipe_serves_later(&recipe) ? ""
                                                         : "the question at the prompt's end";
}

const char *sl_recipe_lost_points(const char *recipe) {
    struct sl_recipe wanted, row;
    bool is_known = sl_recipe_parse(recipe, &wanted, NULL) == SL_OK;
    for (const struct sl_recommendation *r = for_later; is_known && r->recipe; r++) {
        if (sl_recipe_parse(r->recipe, &row, NULL) == SL_OK &&
            sl_recipe_fingerprint(&row) == sl_recipe_fingerprint(&wanted)) {
            return r->lost;
        }
    }
    return "";
}

const struct sl_recommendation *sl_recipe_recommend(double share, bool later) {
    for (const struct sl_recommendation *r = sl_recipe_recommendations(later); r->recipe; r++) {
        if (r->share <= share) {
            return r;
        }
    }
    return NULL;
}
