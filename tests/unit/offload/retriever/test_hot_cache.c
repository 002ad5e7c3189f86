// SPDX-License-Identifier: Apache-2.0
// Purpose: which token lies in which place, against a model that keeps the whole history.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/offload/retriever/hot_cache.h"

#define N_PLACES 24
#define N_TOKENS 60

// A model of the cache without an order: every place knows its token and when it was last wanted.
struct model {
    bool used[N_PLACES], wanted[N_PLACES];
    uint32_t token[N_PLACES];
    int when[N_PLACES];
};

static int model_find(const struct model *m, uint32_t token) {
    for (int p = 0; p < N_PLACES; p++) {
        if (m->used[p] && m->token[p] == token) {
            return p;
        }
    }
    return -1;
}

static int model_oldest(const struct model *m) {
    int best = -1;
    for (int p = 0; p < N_PLACES; p++) {
        int age = m->used[p] ? m->when[p] : -1;
        if (!m->wanted[p] && (best < 0 || age < (m->used[best] ? m->when[best] : -1))) {
            best = p;
        }
    }
    return best;
}

static void test_hot_cache_gives_away_what_was_wanted_longest_ago(void **state) {
    (void)state;
    struct sl_error err;
    struct sl_hot_cache cache;
    struct model m = {0};
    uint32_t tokens[N_PLACES], places[N_PLACES], fresh[N_PLACES];
    srandom(5);
    assert_int_equal(sl_hot_cache_init(&cache, N_PLACES, &err), SL_OK);
    for (int step = 0; step < 2000; step++) {
        uint32_t n = 0, most = (uint32_t)(random() % (N_PLACES + 1));
        if (step % 500 == 499) {
            sl_hot_cache_forget(&cache);
            m = (struct model){0};
        }
        for (uint32_t t = 0; t < N_TOKENS && n < most; t++) {
            if (random() % 3 == 0) {
                tokens[n++] = t;
            }
        }
        struct sl_row_claim claim = {tokens, n, .places = places, .fresh = fresh};
        sl_hot_cache_want(&cache, &claim);
        uint32_t expected_fresh = 0;
        memset(m.wanted, false, sizeof m.wanted);
        for (uint32_t i = 0; i < n; i++) {
            int place = model_find(&m, tokens[i]);
            if (place >= 0) {
                assert_int_equal(places[i], place);
                m.wanted[place] = true;
            }
        }
        for (uint32_t i = 0; i < n; i++) {
            if (model_find(&m, tokens[i]) >= 0 && m.wanted[model_find(&m, tokens[i])]) {
                continue;
            }
            int place = model_oldest(&m);
            assert_int_equal(fresh[expected_fresh++], i);
            assert_int_equal(places[i], place);
            m.wanted[place] = m.used[place] = true;
            m.token[place] = tokens[i];
        }
        assert_int_equal(claim.n_fresh, expected_fresh);
        for (int p = 0; p < N_PLACES; p++) {
            m.when[p] = m.wanted[p] ? step : m.when[p];
        }
    }
    sl_hot_cache_cleanup(&cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hot_cache_gives_away_what_was_wanted_longest_ago),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
