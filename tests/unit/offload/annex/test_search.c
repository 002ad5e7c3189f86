// SPDX-License-Identifier: Apache-2.0
// Tests of engine/offload/annex/search.c: whatever the formats, cuts, shares and company, the tokens that sorting all scores gives.
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "fixture.h"
#include "tests/one_head.h"

// One query, checked against sorting.
static void check_query(const struct sl_annex *annex, const float *scanned, const struct sl_annex_query *query,
                        struct sl_annex_scratch *scratch) {
    uint32_t *found = calloc(query->topk + 1, sizeof *found), *expected = calloc(query->topk + 1, sizeof *expected);
    assert_true(found != NULL && expected != NULL);
    struct sl_annex_search search = {.annex = annex, .query = *query, .tokens_out = found};
    struct sl_error err = {0};
    if (sl_annex_search(&search, 1, scratch, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(search.n_out, expected_topk(annex, query, scanned, expected));
    assert_memory_equal(found, expected, search.n_out * sizeof *found);
    free(found);
    free(expected);
}

static void check_queries(struct lanes *lanes, const struct make *make) {
    struct sl_annex *annex = make_annex(lanes, make);
    struct sl_annex_scratch *scratch = sl_annex_scratch_create(NULL);
    float *scanned = malloc((size_t)lanes->n_tokens * (size_t)lanes->d * sizeof *scanned), q[512];
    assert_true(scratch != NULL && scanned != NULL);
    int n = (int)lanes->n_tokens, given[4] = {0, 2, 3, lanes->d - 1};
    for (int lane = 0; lane < make->n_lanes; lane++) {
        struct sl_annex_query query = {.lane = FIRST_LANE + make->first_lane + lane, .q = q};
        read_scanned(annex, query.lane, scanned);
        for (int i = 0; i < 12; i++) {
            random_query(lanes, q);
            query.first = random_int(&lanes->seed, 0, i % 3 == 0 ? 0 : n);
            query.last = random_int(&lanes->seed, (int)query.first, n);
            query.last = i % 2 == 0 ? n : query.last;
            query.topk = (uint32_t)random_int(&lanes->seed, 0, i % 4 == 0 ? n + 5 : 40);
            query.n_channels = i % 5 == 0 ? lanes->d : random_int(&lanes->seed, 1, 9 < lanes->d ? 9 : lanes->d);
            query.given = NULL;
            if (i % 6 == 1) {
                query.given = given;
                query.n_channels = 4;
            }
            check_query(annex, scanned, &query, scratch);
        }
    }
    free(scanned);
    sl_annex_scratch_destroy(&scratch);
    sl_annex_destroy(&annex);
}

static void test_search_finds_what_sorting_finds(void **state) {
    (void)state;
    static const enum sl_kv_format formats[] = {SL_KV_F16, SL_KV_BF16, SL_KV_F32};
    static const struct {
        int d;
        uint32_t n_tokens;
    } sizes[] = {{16, 3000}, {64, 700}, {8, 64}, {24, 1}, {40, 6145}};
    for (size_t i = 0; i < 3 * 5; i++) {
        enum sl_kv_format work = formats[i % 3], scans[] = {work, SL_KV_INT8, SL_KV_INT1};
        struct lanes lanes;
        lanes_create(&lanes, work, 2, sizes[i / 3].d, sizes[i / 3].n_tokens, i);
        for (int j = 0; j < 6; j++) {
            struct make make = {0, 2, j % 2 == 0 ? work : SL_KV_INT8, scans[j / 2], j == 3 ? 200 : 0};
            check_queries(&lanes, &make);
        }
        lanes_destroy(&lanes);
    }
}

// Ascending scores make every token a candidate, equal ones none but the first; then what is no number.
static void test_search_of_extremes(void **state) {
    (void)state;
    enum { N = 90000, D = 8 }; // more than a query keeps scores of
    for (int i = 0; i < 5; i++) {
        struct lanes lanes;
        lanes_create(&lanes, SL_KV_F32, 1, D, N, 77);
        for (uint32_t j = 0; j < N; j++) {
            float k[D] = {0}, v[D] = {0};
            struct sl_kv until = lanes.kv[0];
            until.n_slots = j;
            k[1] = i == 0   ? (float)j
                   : i == 1 ? 3.0f
                   : i == 2 ? (j % 3 == 0 ? 1.0f : NAN)
                   : i == 3 ? (j < N - 100 ? NAN : -INFINITY)
                            : (j % 2 == 0 ? 0.0f : -0.0f);
            append_rows(lanes.ops, &until, k, v, D, 1, NULL);
        }
        struct make make = {0, 1, SL_KV_F32, SL_KV_F32, 0};
        struct sl_annex *annex = make_annex(&lanes, &make);
        struct sl_annex_scratch *scratch = sl_annex_scratch_create(NULL);
        float *scanned = malloc(sizeof *scanned * N * D), q[D] = {0, 1};
        const int given[] = {1};
        assert_true(scratch != NULL && scanned != NULL);
        read_scanned(annex, FIRST_LANE, scanned);
        for (uint32_t topk = 1; topk < N; topk = topk * 9 + 3) {
            struct sl_annex_query query = {FIRST_LANE, q, given, 1, 0, N, topk};
            check_query(annex, scanned, &query, scratch);
            query.first = 100;
            query.last = N - 3;
            check_query(annex, scanned, &query, scratch);
        }
        free(scanned);
        sl_annex_scratch_destroy(&scratch);
        sl_annex_destroy(&annex);
        lanes_destroy(&lanes);
    }
}

// Annexes with different lanes together are one with all, many searches at once find what each finds alone, and a team
// what one thread finds.
static void test_search_in_company(void **state) {
    (void)state;
    enum { N = 5000, D = 32, LANES = 4, K = 50, SEARCHES = 11 };
    struct lanes lanes;
    lanes_create(&lanes, SL_KV_F16, LANES, D, N, 5);
    struct make whole = {0, LANES, SL_KV_F16, SL_KV_F16, 0}, low = {0, 1, SL_KV_F16, SL_KV_F16, 0},
                high = {1, LANES - 1, SL_KV_F16, SL_KV_F16, 9};
    struct sl_annex *one = make_annex(&lanes, &whole),
                    *shares[] = {make_annex(&lanes, &low), make_annex(&lanes, &high)};
    struct sl_team *team;
    struct sl_error err;
    assert_int_equal(sl_team_create(3, &team, &err), SL_OK);
    struct sl_annex_scratch *alone = sl_annex_scratch_create(NULL), *helped = sl_annex_scratch_create(team);
    assert_true(alone != NULL && helped != NULL);
    float q[SEARCHES][D];
    uint32_t found[3][SEARCHES][K];
    struct sl_annex_search searches[3][SEARCHES];
    for (int i = 0; i < SEARCHES; i++) {
        int lane = FIRST_LANE + i % LANES;
        random_query(&lanes, q[i]);
        for (int way = 0; way < 3; way++) {
            const struct sl_annex *annex = way == 2 ? shares[lane > FIRST_LANE] : one;
            searches[way][i] = (struct sl_annex_search){
                .annex = annex, .query = {lane, q[i], NULL, 8, i, N - i, K}, .tokens_out = found[way][i]};
        }
        assert_int_equal(sl_annex_search(&searches[0][i], 1, alone, &err), SL_OK);
    }
    assert_int_equal(sl_annex_search(searches[1], SEARCHES, alone, &err), SL_OK);
    assert_int_equal(sl_annex_search(searches[2], SEARCHES, helped, &err), SL_OK);
    assert_memory_equal(found[0], found[1], sizeof found[0]);
    assert_memory_equal(found[0], found[2], sizeof found[0]);
    assert_true(searches[0][0].scanned_bytes >= 8 * 2 * (N - 64) && searches[0][0].scanned_bytes <= 8 * 2 * N);
    sl_annex_scratch_destroy(&alone);
    sl_annex_scratch_destroy(&helped);
    sl_team_destroy(&team);
    sl_annex_destroy(&one);
    sl_annex_destroy(&shares[0]);
    sl_annex_destroy(&shares[1]);
    lanes_destroy(&lanes);
}

// --- while it grows ------------------------------------------------------------------------------------------------

enum { GROW_TOKENS = 40 * SL_PAGE_SLOTS, GROW_D = 16, GROW_K = 30 };

struct grow {
    struct lanes *lanes;
    struct sl_annex *annex;
    const float *q;
    const int *given;
    const float *scanned;
    atomic_int n_failed;
    atomic_bool is_over;
};

// The search is right for any current content of the annex.
static void *search_on(void *arg) {
    struct grow *grow = arg;
    struct sl_annex_scratch *scratch = sl_annex_scratch_create(NULL);
    uint32_t found[GROW_K], expected[GROW_K];
    char row[2 * GROW_D * 2];
    bool is_last = false;
    while (!is_last) {
        is_last = atomic_load(&grow->is_over);
        int64_t n = sl_annex_n_tokens(grow->annex);
        struct sl_annex_search search = {
            .annex = grow->annex, .query = {FIRST_LANE, grow->q, grow->given, 3, 0, n, GROW_K}, .tokens_out = found};
        bool good = sl_annex_search(&search, 1, scratch, NULL) == SL_OK;
        good = good && search.n_out == expected_topk(grow->annex, &search.query, grow->scanned, expected) &&
               memcmp(found, expected, search.n_out * sizeof *found) == 0;
        if (search.n_out > 0) {
            sl_annex_rows(grow->annex, FIRST_LANE, &found[search.n_out - 1], 1, row);
        }
        atomic_fetch_add(&grow->n_failed, !good);
    }
    sl_annex_scratch_destroy(&scratch);
    return NULL;
}

static void test_search_while_annex_grows(void **state) {
    (void)state;
    struct lanes lanes;
    lanes_create(&lanes, SL_KV_F16, 1, GROW_D, GROW_TOKENS, 9);
    struct make make = {0, 1, SL_KV_F16, SL_KV_F16, 1};
    struct sl_annex *annex, *finished = make_annex(&lanes, &make);
    struct sl_error err;
    float q[GROW_D], *scanned = malloc(sizeof *scanned * GROW_TOKENS * GROW_D);
    const int given[] = {0, 5, 9};
    random_query(&lanes, q);
    read_scanned(finished, FIRST_LANE, scanned);
    for (int round = 0; round < 5; round++) {
        assert_int_equal(sl_annex_create(lanes.ops, FIRST_LANE, 1, GROW_D, GROW_TOKENS, &annex, &err), SL_OK);
        struct grow grow = {&lanes, annex, q, given, scanned, 0, false};
        pthread_t threads[3];
        for (int i = 0; i < 3; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, search_on, &grow), 0);
        }
        for (int i = 0; i < 40; i++) {
            struct sl_kv_segment *segment = make_segment(&lanes, &make, (int64_t)i * SL_PAGE_SLOTS, SL_PAGE_SLOTS);
            assert_int_equal(sl_annex_append(annex, segment, &err), SL_OK);
            sl_kv_segment_unref(&segment);
        }
        atomic_store(&grow.is_over, true);
        for (int i = 0; i < 3; i++) {
            pthread_join(threads[i], NULL);
        }
        assert_int_equal(atomic_load(&grow.n_failed), 0);
        sl_annex_destroy(&annex);
    }
    free(scanned);
    sl_annex_destroy(&finished);
    lanes_destroy(&lanes);
}

// --- what is refused -----------------------------------------------------------------------------------------------

static void test_search_refuses_what_is_not_there(void **state) {
    (void)state;
    struct lanes lanes;
    lanes_create(&lanes, SL_KV_F16, 2, 16, 200, 1);
    struct make make = {0, 2, SL_KV_F16, SL_KV_F16, 0};
    struct sl_annex *annex = make_annex(&lanes, &make);
    struct sl_annex_scratch *scratch = sl_annex_scratch_create(NULL);
    float q[16] = {0};
    uint32_t found[8];
    const int descending[] = {3, 1}, twice[] = {3, 3}, beyond[] = {3, 16}, below[] = {-1, 3};
    const struct sl_annex_query bad[] = {
        {FIRST_LANE - 1, q, NULL, 2, 0, 200, 8}, {FIRST_LANE + 2, q, NULL, 2, 0, 200, 8},
        {FIRST_LANE, q, NULL, 0, 0, 200, 8},     {FIRST_LANE, q, NULL, 17, 0, 200, 8},
        {FIRST_LANE, q, NULL, 2, -1, 200, 8},    {FIRST_LANE, q, NULL, 2, 0, 201, 8},
        {FIRST_LANE, q, NULL, 2, 100, 99, 8},    {FIRST_LANE, q, descending, 2, 0, 200, 8},
        {FIRST_LANE, q, twice, 2, 0, 200, 8},    {FIRST_LANE, q, beyond, 2, 0, 200, 8},
        {FIRST_LANE, q, below, 2, 0, 200, 8},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sl_annex_search search = {.annex = annex, .query = bad[i], .tokens_out = found};
        struct sl_error err = {0};
        assert_int_equal(sl_annex_search(&search, 1, scratch, &err), SL_ERR_INVALID);
        assert_true(err.text[0] != '\0');
    }
    assert_int_equal(sl_annex_search(NULL, 0, scratch, NULL), SL_OK);
    sl_annex_scratch_destroy(&scratch);
    sl_annex_destroy(&annex);
    lanes_destroy(&lanes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search_finds_what_sorting_finds),
        cmocka_unit_test(test_search_of_extremes),
        cmocka_unit_test(test_search_in_company),
        cmocka_unit_test(test_search_while_annex_grows),
        cmocka_unit_test(test_search_refuses_what_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
