// SPDX-License-Identifier: Apache-2.0
// Which token lies in which place, against a model that keeps the whole history.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/offload/remote_kv/row_places.h"

#define N_PLACES 40
#define N_TOKENS 120

// A model of the places without an order: every place knows its token and when it was put last.
struct model {
    bool used[N_PLACES], claimed[N_PLACES];
    uint32_t token[N_PLACES];
    int when[N_PLACES], clock;
};

static int model_find(const struct model *m, uint32_t token) {
    for (int p = 0; p < N_PLACES; p++) {
        if (m->used[p] && m->token[p] == token) {
            return p;
        }
    }
    return -1;
}

// Never used (the lowest), else put last longest ago; never one that is claimed now.
static int model_oldest(const struct model *m) {
    int best = -1;
    for (int p = 0; p < N_PLACES; p++) {
        int age = m->used[p] ? m->when[p] : -1;
        if (!m->claimed[p] && (best < 0 || age < (m->used[best] ? m->when[best] : -1))) {
            best = p;
        }
    }
    return best;
}

static void model_claim(struct model *m, const struct sl_row_claim *claim) {
    uint32_t expected_fresh = 0;
    memset(m->claimed, false, sizeof m->claimed);
    for (uint32_t i = 0; i < claim->n; i++) {
        int place = model_find(m, claim->tokens[i]);
        if (place >= 0) {
            assert_int_equal(claim->places[i], place);
            m->claimed[place] = true;
        }
    }
    for (uint32_t i = 0; i < claim->n; i++) {
        if (model_find(m, claim->tokens[i]) >= 0) {
            continue;
        }
        int place = model_oldest(m);
        assert_int_equal(claim->fresh[expected_fresh++], i);
        assert_int_equal(claim->places[i], place);
        m->claimed[place] = m->used[place] = true;
        m->token[place] = claim->tokens[i];
    }
    assert_int_equal(claim->n_fresh, expected_fresh);
}

static void test_row_places_give_away_what_was_put_last_longest_ago(void **state) {
    (void)state;
    struct sl_row_places row_places;
    struct model m = {0};
    uint32_t tokens[N_PLACES], places[N_PLACES], fresh[N_PLACES];
    srandom(7);
    assert_true(sl_row_places_init(&row_places, N_PLACES));
    assert_true(sl_row_places_bytes(&row_places) >= N_PLACES * sizeof(struct sl_row_place));
    for (int step = 0; step < 4000; step++) {
        uint32_t n = 0, most = (uint32_t)(random() % (N_PLACES + 1));
        if (step % 700 == 699) {
            sl_row_places_forget(&row_places);
            m = (struct model){0};
        }
        for (uint32_t t = 0; t < N_TOKENS && n < most; t++) {
            if (random() % 3 == 0) {
                tokens[n++] = t * 0x01000193u % 0x00ffffffu + t; // ascending no more: the table must not care
            }
        }
        struct sl_row_claim claim = {tokens, n, .places = places, .fresh = fresh};
        sl_row_places_claim(&row_places, &claim);
        model_claim(&m, &claim);
        for (uint32_t i = n; i-- > 0;) { // in any order: here the last one first, or from the middle on
            uint32_t j = step % 2 == 0 ? i : (i + n / 2) % n;
            sl_row_places_put_last(&row_places, places[j]);
            m.when[places[j]] = ++m.clock;
        }
    }
    sl_row_places_cleanup(&row_places);
    assert_int_equal(sl_row_places_bytes(&row_places), 0);
    sl_row_places_cleanup(&row_places);
}

// A single place, and as many tokens as there are places.
static void test_row_places_of_the_smallest_size(void **state) {
    (void)state;
    struct sl_row_places row_places;
    uint32_t place, fresh;
    assert_true(sl_row_places_init(&row_places, 1));
    for (uint32_t token = 0; token < 100; token++) {
        for (int again = 0; again < 2; again++) {
            struct sl_row_claim claim = {&token, 1, .places = &place, .fresh = &fresh};
            sl_row_places_claim(&row_places, &claim);
            sl_row_places_put_last(&row_places, place);
            assert_int_equal(place, 0);
            assert_int_equal(claim.n_fresh, again == 0);
        }
    }
    sl_row_places_cleanup(&row_places);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_places_give_away_what_was_put_last_longest_ago),
        cmocka_unit_test(test_row_places_of_the_smallest_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
