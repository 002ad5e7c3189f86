// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how slots are ranked. One function per method; the table at the end says which recipe value means which.
 * Not here: what is protected whatever its score (compress/compressor.c), how many stay (compress/plan.c).
 */
#include "compress/score.h"

#include <assert.h>

// Recency: score_j = j. The newest stay; StreamingLLM is this with protected sinks and slot positions.
static void read_recency(const struct sl_ops *ops, const struct sl_kv *kv, float *scores) {
    (void)ops;
    for (uint32_t j = 0; j < kv->n_slots; j++) {
        scores[j] = (float)j; // exact: prompts are shorter than 2^24 tokens
    }
}

// Accumulated attention (H2O): score_j = sum over all rows i so far of mean_g A[g][i][j], over the cache as it was.
static void accumulate_aas(const struct sl_ops *ops, struct sl_team *team, const struct sl_attend *attend) {
    ops->fold(team, attend, 0, &(struct sl_fold){.sum = 0, .square = -1, .above = -1});
}

static void read_aas(const struct sl_ops *ops, const struct sl_kv *kv, float *scores) {
    ops->read_state(kv, 0, scores);
}

// To add one: a value of enum sl_score, its functions above, a row here, and `built` in compress/recipe_text.c's
// scores.
static const struct sl_score_method methods[] = {
    [SL_SCORE_NONE] = {"none", false, 0, NULL, NULL},
    [SL_SCORE_RECENCY] = {"recency", false, 0, NULL, read_recency},
    [SL_SCORE_RANDOM] = {"random", false, 0, NULL, NULL},
    [SL_SCORE_AAS] = {"aas", true, 1, accumulate_aas, read_aas},
    [SL_SCORE_AQAS] = {"aqas", false, 0, NULL, NULL},
    [SL_SCORE_LTAS] = {"ltas", false, 0, NULL, NULL},
    [SL_SCORE_MAS] = {"mas", false, 0, NULL, NULL},
    [SL_SCORE_SNAPKV] = {"snapkv", false, 0, NULL, NULL},
    [SL_SCORE_CIS] = {"cis", false, 0, NULL, NULL},
};

const struct sl_score_method *sl_score_method(enum sl_score score) {
    assert((size_t)score < sizeof methods / sizeof methods[0]);
    return &methods[score];
}
