// SPDX-License-Identifier: Apache-2.0
// Purpose: which recipe to take for a share of the bytes, when the question is in the prompt, and when it comes later.
#include <stdio.h>
#include <string.h>

#include "engine/compress/recipe/recipe.h"

#define HELD 5.0 // points that a recipe may lose at a length that it holds at

// Shares and order are from docs/quality.md. SnapKV pools over the length of a fact and chooses once for a layer. It
// looks at the prompt's last rows, so the question must be there.
#define WIDE "snapkv,pool=max:31,heads=layer,format=int4,budget="

static const struct sl_recommendation recommendations[] = {
    {1, "full", false},
    {0.55, "full,format=int8", false},
    {0.30, "full,format=int4", false},
    {0.16, WIDE "0.5", false},
    {0.07, WIDE "0.2", false},
    {0.05, WIDE "0.1", false},
    {0.03, "locret,budget=0.05,scope=stabilizers:64+tail:32,chunk=128,format=int4", true},
    {0, NULL, false},
};

// For questions that come later.
static const struct sl_recommendation for_later[] = {
    {1, "full", false},
    {0.55, "full,format=int8", false},
    {0.30, "full,format=int4", false},
    {0.17, "kvzip,heads=pages,budget=0.56,format=int4", false},
    {0.10, "kvzip,heads=pages,budget=0.33,format=int4", false},
    {0.07, "kvzip,heads=pages,budget=0.2,format=int4", false},
    {0, NULL, false},
};

// Losses of the largest model that was asked at each length; `tools/quality.py --later` prints these lines. Lengths
// ascend.
static const struct sl_loss losses[] = {
    {"full", 0, "", 0, 0, 0},
    {"full,format=int8", 1024, "SmolLM2-135M", 3.3, 0.0, 7.2},
    {"full,format=int4", 1024, "SmolLM2-135M", 4.0, 0.6, 8.0},
    {"full,format=int4", 2048, "Qwen2.5-Coder-1.5B", 1.1, -1.1, 3.3},
    {"full,format=int4", 8192, "Qwen2.5-Coder-1.5B", 2.0, -1.3, 6.0},
    {"kvzip,heads=pages,budget=0.56,format=int4", 1024, "SmolLM2-135M", 3.9, -0.7, 8.7},
    {"kvzip,heads=pages,budget=0.56,format=int4", 2048, "Qwen2.5-Coder-1.5B", 1.7, -1.0, 4.3},
    {"kvzip,heads=pages,budget=0.56,format=int4", 8192, "Qwen2.5-Coder-1.5B", 3.4, -0.1, 7.8},
    {"kvzip,heads=pages,budget=0.33,format=int4", 1024, "SmolLM2-135M", 7.0, 1.1, 13.6},
    {"kvzip,heads=pages,budget=0.33,format=int4", 2048, "Qwen2.5-Coder-1.5B", 4.1, 0.4, 8.3},
    {"kvzip,heads=pages,budget=0.33,format=int4", 8192, "Qwen2.5-Coder-1.5B", 16.7, 9.0, 24.8},
    {"kvzip,heads=pages,budget=0.2,format=int4", 1024, "SmolLM2-135M", 8.7, 3.0, 14.6},
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

// Returns the row of for_later that is this recipe; NULL if there is none.
static const struct sl_recommendation *find_row(const char *recipe) {
    struct sl_recipe wanted, row;
    bool is_known = sl_recipe_parse(recipe, &wanted, NULL) == SL_OK;
    for (const struct sl_recommendation *r = for_later; is_known && r->recipe; r++) {
        if (sl_recipe_parse(r->recipe, &row, NULL) == SL_OK &&
            sl_recipe_fingerprint(&row) == sl_recipe_fingerprint(&wanted)) {
            return r;
        }
    }
    return NULL;
}

static const struct sl_loss *loss_of(const struct sl_recommendation *row, int64_t n_tokens) {
    const struct sl_loss *found = NULL;
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        if (strcmp(losses[i].recipe, row->recipe) == 0 && (!found || found->tokens < n_tokens)) {
            found = &losses[i];
        }
    }
    return found;
}

// Returns the longest measured length that a row holds at; 0: none. It holds where a row that ships less does.
static int holds_to(const struct sl_recommendation *row) {
    int longest = 0;
    for (; row->recipe; row++) {
        for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
            bool holds = strcmp(losses[i].recipe, row->recipe) == 0 && losses[i].points <= HELD;
            longest = holds && losses[i].tokens > longest ? losses[i].tokens : longest;
        }
    }
    return longest;
}

const struct sl_loss *sl_recipe_loss(const char *recipe, int64_t n_tokens) {
    const struct sl_recommendation *row = find_row(recipe);
    return row ? loss_of(row, n_tokens) : NULL;
}

void sl_loss_format(const struct sl_loss *loss, char text_out[SL_LOSS_BYTES]) {
    if (loss->tokens == 0) {
        strcpy(text_out, "0");
    } else {
        snprintf(text_out, SL_LOSS_BYTES, "%.1f [%.1f, %.1f]", loss->points, loss->low, loss->high);
    }
}

void sl_recommendation_needs(const struct sl_recommendation *recommendation, char needs_out[SL_CAUTION_BYTES]) {
    struct sl_recipe recipe;
    bool is_valid = sl_recipe_parse(recommendation->recipe, &recipe, NULL) == SL_OK;
    const char *needs = recommendation->needs_heads                   ? "retaining heads"
                        : is_valid && sl_recipe_repeats(&recipe)      ? "a second reading of the text"
                        : is_valid && sl_recipe_serves_later(&recipe) ? ""
                                                                      : "the question at the prompt's end";
    const struct sl_recommendation *row = find_row(recommendation->recipe);
    const struct sl_loss *longest = row ? loss_of(row, INT64_MAX) : NULL;
    int n = snprintf(needs_out, SL_CAUTION_BYTES, "%s", needs);
    if (longest && longest->points > HELD && holds_to(row) > 0) {
        snprintf(needs_out + n, SL_CAUTION_BYTES - (size_t)n, "%sat most %d tokens", n > 0 ? ", " : "", holds_to(row));
    } else if (longest && longest->points > HELD) {
        snprintf(needs_out + n, SL_CAUTION_BYTES - (size_t)n, "%slost %.1f points at %d tokens", n > 0 ? "; " : "",
                 longest->points, longest->tokens);
    }
}

void sl_recipe_caution(const char *recipe, int64_t n_tokens, char caution_out[SL_CAUTION_BYTES]) {
    const struct sl_recommendation *row = find_row(recipe);
    const struct sl_loss *loss = row ? loss_of(row, n_tokens) : NULL;
    caution_out[0] = '\0';
    if (!loss || loss->tokens == 0 || n_tokens <= holds_to(row)) {
        return;
    }
    char measured[80] = "held at no length that was measured", lost[SL_LOSS_BYTES];
    if (loss->points <= HELD) {
        snprintf(measured, sizeof measured, "was measured up to %d tokens", loss->tokens);
    } else if (holds_to(row) > 0) {
        snprintf(measured, sizeof measured, "was measured to hold up to %d tokens", holds_to(row));
    }
    sl_loss_format(loss, lost);
    int n = snprintf(caution_out, SL_CAUTION_BYTES,
                     "for questions that come later, the recipe %s: at %d it lost %s of 100 points (%s)", measured,
                     loss->tokens, lost, loss->model);
    const struct sl_recommendation *careful = row; // the next one that holds, or that was asked about the longest texts
    int64_t least = n_tokens < holds_to(for_later) ? n_tokens : holds_to(for_later);
    while (careful > for_later && holds_to(careful) < least) {
        careful--;
    }
    const struct sl_loss *other = loss_of(careful, loss->tokens);
    if (careful != row && careful > for_later && other && other->tokens == loss->tokens) {
        sl_loss_format(other, lost);
        snprintf(caution_out + n, SL_CAUTION_BYTES - (size_t)n, ", and %s (%.0f%% of the bytes) %s", careful->recipe,
                 100 * careful->share, lost);
    }
}

const struct sl_recommendation *sl_recipe_recommend(double share, bool later) {
    for (const struct sl_recommendation *r = sl_recipe_recommendations(later); r->recipe; r++) {
        if (r->share <= share) {
            return r;
        }
    }
    return NULL;
}
