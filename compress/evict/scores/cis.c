// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: cis, causal importance: Locret (Huang et al.).
 *
 *     score_j = what the layer's retaining head said about token j when it was read; it never changes
 */
#include "compress/evict/scores/score.h"

static void accumulate(const struct sl_ops *ops, struct sl_team *team, const struct sl_attend *attend) {
    (void)team;
    for (int h = 0; h < attend->heads.n; h++) {
        const struct sl_kv *kv = &attend->heads.kv[h];
        ops->write_state(kv, 0, kv->n_slots - (uint32_t)attend->m, kv->n_slots,
                         attend->importance + (size_t)h * (size_t)attend->m);
    }
}

static void read_scores(const struct sl_score_input *in, float *scores) {
    in->ops->read_state(in->kv, 0, scores);
}

const struct sl_score_method sl_score_cis = {.accumulate = accumulate, .read = read_scores};
