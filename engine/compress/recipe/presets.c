// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the presets: every method of the papers as a point of the recipe space, in the configuration of its paper
 *          if it names one.
 */
#include "engine/compress/recipe/recipe.h"

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
    {"keydiff", "score=keydiff,budget=0.5,when=chunk", "keys unlike the mean of keys, no attention is read"},
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
