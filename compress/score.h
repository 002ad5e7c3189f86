// SPDX-License-Identifier: Apache-2.0
// Purpose: the score axis as a table: what each method accumulates during prefill and how it ranks slots.
#ifndef SL_COMPRESS_SCORE_H
#define SL_COMPRESS_SCORE_H

#include "compress/recipe.h"
#include "engine/ops.h"

struct sl_score_method {
    const char *name;
    bool wants_lse; // accumulate reads attend->lse
    int n_states;   // score planes that a page needs
    // Fold a chunk's attention into the state of every slot; NULL when the score needs none. Called on every chunk.
    void (*accumulate)(const struct sl_ops *ops, struct sl_team *team, const struct sl_attend *attend);
    // scores[kv->n_slots]: the larger, the longer the slot stays. NULL: cannot evict.
    void (*read)(const struct sl_ops *ops, const struct sl_kv *kv, float *scores);
};

// Never NULL for a score that is in the enum.
const struct sl_score_method *sl_score_method(enum sl_score score);

#endif
