// SPDX-License-Identifier: Apache-2.0
// Purpose: rows of logits of every kind, and what may be asked of them, for the checks of pick.
#pragma once

#include "tests/kernels/kv_fixture.h"

#define PICK_ROWS 6

// A number of the row's kind: any; few different ones; special ones; all equal but few; hardly any finite.
static inline float pick_logit(int kind, uint64_t *seed) {
    static const float special[] = {NAN,     -NAN,  INFINITY, -INFINITY, 0.0f,  -0.0f, 1e-42f,
                                    -1e-42f, 3e38f, -3e38f,   1.0f,      -1.0f, 20.0f, 20.0f};
    uint64_t any = next_random(seed);
    switch (kind) {
    case 1:
        return (float)(any % 4) - 2.0f;
    case 2:
        return special[any % 14];
    case 3:
        return any % 50 == 0 ? random_float(seed) : 1.5f;
    case 4:
        return any % 50 == 0 ? random_float(seed) : NAN;
    case 5:
        return -INFINITY;
    default:
        return 6.0f * random_float(seed);
    }
}

// [PICK_ROWS][n_vocab], a kind a row; to be freed.
static inline float *pick_logits(int32_t n_vocab, uint64_t *seed) {
    float *logits = take((size_t)(PICK_ROWS * n_vocab) * sizeof *logits);
    for (int64_t i = 0; i < (int64_t)PICK_ROWS * n_vocab; i++) {
        logits[i] = pick_logit((int)(i / n_vocab), seed);
    }
    return logits;
}

static inline void pick_ask(struct sl_pick asked[PICK_ROWS], uint64_t *seed) {
    static const int32_t most[] = {0, 1, 2, 20, 100, 1000, SL_MAX_CANDIDATES};
    static const float temperatures[] = {0.0f, 0.1f, 0.8f, 1.0f, 5.0f};
    for (int r = 0; r < PICK_ROWS; r++) {
        asked[r] = (struct sl_pick){most[next_random(seed) % 7], temperatures[next_random(seed) % 5]};
    }
}

// Of sums in f64 in any order.
static inline void pick_assert_close(double got, double want, const char *what) {
    if (!(fabs(got - want) <= 1e-12 * (1.0 + fabs(want)))) {
        fail_msg("%s is %.17g, not %.17g", what, got, want);
    }
}
