// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: random: what every other score is compared with.
 *
 *     score_j = a number in [0, 1) that depends on seed, layer, KV head and original position, and on nothing else:
 *               so no state, and the same slots go whatever the chunks
 */
#include "base/hash.h"
#include "compress/evict/scores/score.h"

static void read_scores(const struct sl_score_input *in, float *scores) {
    for (uint32_t j = 0; j < in->kv->n_slots; j++) {
        uint64_t place = ((uint64_t)in->layer << 54) ^ ((uint64_t)in->head << 40) ^ (uint64_t)in->positions[j];
        uint64_t z = sl_mix(sl_mix(in->recipe->seed * SL_GOLDEN + place * 0xd1342543de82ef95u + 1));
        scores[j] = (float)(z >> 40) * 0x1p-24f;
    }
}

const struct sl_score_method sl_score_random = {.read = read_scores};
