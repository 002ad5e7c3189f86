// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the presets: every method of the papers as a point of the recipe space, in the configuration of its paper
 *          if it names one; and the recommended recipes.
 */
#include "engine/compress/recipe/recipe.h"

#include <string.h>

#define H2O       "score=aas"
#define H2O_AT    "scope=recent:0.5,budget=0.2,when=chunk"
#define TOVA      "score=ltas"
#define TOVA_AT   "budget=0.2,heads=layer,when=chunk"
#define SNAPKV    "score=snapkv"
#define SNAPKV_AT "scope=recent:32,budget=1024"
#define ROCO      "score=mas"
#define ROCO_AT   "scope=sinks:4+recent:10+std:0.1,budget=0.2,when=chunk"
#define SPARSE    "place=offload/sparse,scope=sinks:8+recent:56,topk=128,channels=8"
#define TAILORKV  SPARSE ",retrieve=pull,format=f16/dense:"

// X+caote is X with value=caote and nothing else; the baselines of a paper are in its plan (lab/sluice_eval/sluice_eval/papers/). To add
// a preset: add a row. `text` names the axes that the preset sets; engine/compress/recipe/text.c parses it like any
// other text.
static const struct sl_preset presets[] = {
    {"full", "score=none", "keep everything, in f16"},
    {"streamingllm", "score=recency,scope=sinks:4,budget=1024,when=chunk,positions=slot",
     "attention sinks and the newest slots, positions within the cache"},
    {"h2o", H2O "," H2O_AT, "heavy hitters by accumulated attention, half the budget for the newest"},
    {"scissorhands", "score=aqas,scope=recent:0.5,budget=0.2,when=chunk", "how often attention was above the mean"},
    {"tova", TOVA "," TOVA_AT, "attention of the last token, one choice for a layer's heads"},
    {"snapkv", SNAPKV "," SNAPKV_AT ",when=end", "attention of a window at the end of the prompt"},
    {"roco", ROCO "," ROCO_AT, "mean attention, spared where attention varies most"},
    {"random", "score=random,budget=0.2,when=chunk", "chance, to compare with"},
    {"h2o+caote", H2O ",value=caote," H2O_AT, "h2o weighted by the change of the attention output"},
    {"tova+caote", TOVA ",value=caote," TOVA_AT, "tova weighted by the change of the attention output"},
    {"snapkv+caote", SNAPKV ",value=caote," SNAPKV_AT ",when=end",
     "snapkv weighted by the change of the attention output"},
    {"roco+caote", ROCO ",value=caote," ROCO_AT, "roco weighted by the change of the attention output"},
    {"h2o+fastcaote", H2O ",value=fastcaote," H2O_AT, "h2o weighted by the distance to the mean value"},
    {"tova+fastcaote", TOVA ",value=fastcaote," TOVA_AT, "tova weighted by the distance to the mean value"},
    {"snapkv+fastcaote", SNAPKV ",value=fastcaote," SNAPKV_AT ",when=end",
     "snapkv weighted by the distance to the mean value"},
    {"roco+fastcaote", ROCO ",value=fastcaote," ROCO_AT, "roco weighted by the distance to the mean value"},
    {"pyramidkv", SNAPKV "," SNAPKV_AT ",layers=pyramid,when=end", "snapkv with more slots for lower layers"},
    {"adakv", SNAPKV "," SNAPKV_AT ",heads=adaptive,when=end", "snapkv whose heads compete for a layer's slots"},
    {"kvzip", "score=reconstruct,scope=sinks:4,budget=0.3,heads=global,when=end",
     "what repeating the prompt needs of it, for questions that come later; reads the prompt twice"},
    {"d2o", H2O ",scope=sinks:4+recent:0.25,budget=0.2,layers=d2o,when=end+step,evicted=merge",
     "budgets by the layers' variance, evicted slots merged into their nearest"},
    {"locret", "score=cis,scope=stabilizers:2500+tail:100,budget=6000,when=chunk,positions=slot,chunk=3072",
     "retaining heads trained to predict what will matter"},
    {"tailorkv", TAILORKV "int2", "dense layers quantized, of sparse layers a few slots fetched at every step"},
    {"tailorkv-1", TAILORKV "int1", "tailorkv with one bit for the dense layers"},
    {"tailorkv-near", SPARSE ",ahead=1,format=f16/dense:int2",
     "tailorkv whose sparse layers are searched where they are stored"},
    {NULL, NULL, NULL},
};

const struct sl_preset *sl_recipe_presets(void) {
    return presets;
}

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
    {0.30, "full,format=int4", false, "4.7 [1.1, 9.3]"},
    {0.18, "kvzip,budget=0.5,format=int4", false, "4.7 [0.9, 9.6]"},
    {0.12, "kvzip,format=int4", false, "3.8 [-1.8, 9.2]"},
    {0.09, "kvzip,budget=0.2,format=int4", false, "4.8 [-1.3, 10.9]"},
    {0, NULL, false, NULL},
};

const struct sl_recommendation *sl_recipe_recommendations(bool later) {
    return later ? for_later : recommendations;
}

bool sl_recipe_serves_later(const struct sl_recipe *recipe) {
    return !sl_recipe_evicts(recipe) || sl_recipe_repeats(recipe);
}

const char *sl_recommendation_needs(const struct sl_recommendation *recommendation) {
    struct sl_recipe recipe;
    bool later = sl_recipe_parse(recommendation->recipe, &recipe, NULL) == SL_OK && sl_recipe_serves_later(&recipe);
    return recommendation->needs_heads ? "retaining heads" : later ? "" : "the question at the prompt's end";
}

const char *sl_recipe_lost_points(const char *recipe) {
    for (const struct sl_recommendation *r = for_later; r->recipe; r++) {
        if (strcmp(r->recipe, recipe) == 0) {
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
