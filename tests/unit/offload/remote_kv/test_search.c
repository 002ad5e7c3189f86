// SPDX-License-Identifier: Apache-2.0
// Tests of engine/offload/remote_kv/search.c: whatever the formats, cuts, shares and company, the tokens that sorting
// all scores gives.
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "fixture.h"
#include "tests/one_head.h"

// One query, checked against sorting.
static void check_query(const struct sl_remote_kv *remote_kv, const float *scanned,
                        const struct sl_remote_kv_query *query, struct sl_remote_kv_scratch *scratch) {
    uint32_t *found = calloc(query->topk + 1, sizeof *found), *expected = calloc(query->topk + 1, sizeof *expected);
    assert_true(found != NULL && expected != NULL);
    struct sl_remote_kv_search search = {.remote_kv = remote_kv, .query = *query, .tokens_out = found};
    struct sl_error err = {0};
    if (sl_remote_kv_search(&search, 1, scratch, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(search.n_out, expected_topk(remote_kv, query, scanned, expected));
    assert_memory_equal(found, expected, search.n_out * sizeof *found);
    free(found);
    free(expected);
}

static void check_queries(struct offloaded_heads *offloaded_heads, const struct make *make) {
    struct sl_remote_kv *remote_kv = make_remote_kv(offloaded_heads, make);
    struct sl_remote_kv_scratch *scratch = sl_remote_kv_scratch_create(NULL);
    float *scanned = malloc((size_t)offloaded_heads->n_tokens * (size_t)offloaded_heads->d * sizeof *scanned), q[512];
    assert_true(scratch != NULL && scanned != NULL);
    int n = (int)offloaded_heads->n_tokens, given[4] = {0, 2, 3, offloaded_heads->d - 1};
    for (int offloaded_head = 0; offloaded_head < make->n_offloaded_heads; offloaded_head++) {
        struct sl_remote_kv_query query = {.offloaded_head = FIRST_HEAD + make->first_offloaded_head + offloaded_head,
                                           .q = q};
        read_scanned(remote_kv, query.offloaded_head, scanned);
        for (int i = 0; i < 12; i++) {
            random_query(offloaded_heads, q);
            query.first = random_int(&offloaded_heads->seed, 0, i % 3 == 0 ? 0 : n);
            query.last = random_int(&offloaded_heads->seed, (int)query.first, n);
            query.last = i % 2 == 0 ? n : query.last;
            query.topk = (uint32_t)random_int(&offloaded_heads->seed, 0, i % 4 == 0 ? n + 5 : 40);
            query.n_channels =
                i % 5 == 0 ? offloaded_heads->d
                           : random_int(&offloaded_heads->seed, 1, 9 < offloaded_heads->d ? 9 : offloaded_heads->d);
            query.given = NULL;
            if (i % 6 == 1) {
                query.given = given;
                query.n_channels = 4;
            }
            check_query(remote_kv, scanned, &query, scratch);
        }
    }
    free(scanned);
    sl_remote_kv_scratch_destroy(&scratch);
    sl_remote_kv_destroy(&remote_kv);
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
        struct offloaded_heads offloaded_heads;
        offloaded_heads_create(&offloaded_heads, work, 2, sizes[i / 3].d, sizes[i / 3].n_tokens, i);
        for (int j = 0; j < 6; j++) {
            struct make make = {0, 2, j % 2 == 0 ? work : SL_KV_INT8, scans[j / 2], j == 3 ? 200 : 0};
            check_queries(&offloaded_heads, &make);
        }
        offloaded_heads_destroy(&offloaded_heads);
    }
}

// Ascending scores make every token a candidate, equal ones none but the first; then what is not a number.
static void test_search_of_extremes(void **state) {
    (void)state;
    enum { N = 90000, D = 8 }; // more than a query keeps scores of
    for (int i = 0; i < 5; i++) {
        struct offloaded_heads offloaded_heads;
        offloaded_heads_create(&offloaded_heads, SL_KV_F32, 1, D, N, 77);
        for (uint32_t j = 0; j < N; j++) {
            float k[D] = {0}, v[D] = {0};
            struct sl_kv until = offloaded_heads.kv[0];
            until.n_slots = j;
            k[1] = i == 0   ? (float)j
                   : i == 1 ? 3.0f
                   : i == 2 ? (j % 3 == 0 ? 1.0f : NAN)
                   : i == 3 ? (j < N - 100 ? NAN : -INFINITY)
                            : (j % 2 == 0 ? 0.0f : -0.0f);
            append_rows(offloaded_heads.ops, &until, k, v, D, 1, NULL);
        }
        struct make make = {0, 1, SL_KV_F32, SL_KV_F32, 0};
        struct sl_remote_kv *remote_kv = make_remote_kv(&offloaded_heads, &make);
        struct sl_remote_kv_scratch *scratch = sl_remote_kv_scratch_create(NULL);
        float *scanned = malloc(sizeof *scanned * N * D), q[D] = {0, 1};
        const int given[] = {1};
        assert_true(scratch != NULL && scanned != NULL);
        read_scanned(remote_kv, FIRST_HEAD, scanned);
        for (uint32_t topk = 1; topk < N; topk = topk * 9 + 3) {
            struct sl_remote_kv_query query = {FIRST_HEAD, q, given, 1, 0, N, topk};
            check_query(remote_kv, scanned, &query, scratch);
            query.first = 100;
            query.last = N - 3;
            check_query(remote_kv, scanned, &query, scratch);
        }
        free(scanned);
        sl_remote_kv_scratch_destroy(&scratch);
        sl_remote_kv_destroy(&remote_kv);
        offloaded_heads_destroy(&offloaded_heads);
    }
}

// Remote KVs with different offloaded heads together are one with all, many searches at once find what each finds
// alone, and a team what one thread finds.
static void test_search_in_company(void **state) {
    (void)state;
    enum { N = 5000, D = 32, HEADS = 4, K = 50, SEARCHES = 11 };
    struct offloaded_heads offloaded_heads;
    offloaded_heads_create(&offloaded_heads, SL_KV_F16, HEADS, D, N, 5);
    struct make whole = {0, HEADS, SL_KV_F16, SL_KV_F16, 0}, low = {0, 1, SL_KV_F16, SL_KV_F16, 0},
                high = {1, HEADS - 1, SL_KV_F16, SL_KV_F16, 9};
    struct sl_remote_kv *one = make_remote_kv(&offloaded_heads, &whole),
                        *shares[] = {make_remote_kv(&offloaded_heads, &low), make_remote_kv(&offloaded_heads, &high)};
    struct sl_team *team;
    struct sl_error err;
    assert_int_equal(sl_team_create(3, &team, &err), SL_OK);
    struct sl_remote_kv_scratch *alone = sl_remote_kv_scratch_create(NULL), *helped = sl_remote_kv_scratch_create(team);
    assert_true(alone != NULL && helped != NULL);
    float q[SEARCHES][D];
    uint32_t found[3][SEARCHES][K];
    struct sl_remote_kv_search searches[3][SEARCHES];
    for (int i = 0; i < SEARCHES; i++) {
        int offloaded_head = FIRST_HEAD + i % HEADS;
        random_query(&offloaded_heads, q[i]);
        for (int way = 0; way < 3; way++) {
            const struct sl_remote_kv *remote_kv = way == 2 ? shares[offloaded_head > FIRST_HEAD] : one;
            searches[way][i] = (struct sl_remote_kv_search){.remote_kv = remote_kv,
                                                            .query = {offloaded_head, q[i], NULL, 8, i, N - i, K},
                                                            .tokens_out = found[way][i]};
        }
        assert_int_equal(sl_remote_kv_search(&searches[0][i], 1, alone, &err), SL_OK);
    }
    assert_int_equal(sl_remote_kv_search(searches[1], SEARCHES, alone, &err), SL_OK);
    assert_int_equal(sl_remote_kv_search(searches[2], SEARCHES, helped, &err), SL_OK);
    assert_memory_equal(found[0], found[1], sizeof found[0]);
    assert_memory_equal(found[0], found[2], sizeof found[0]);
    assert_true(searches[0][0].scanned_bytes >= 8 * 2 * (N - 64) && searches[0][0].scanned_bytes <= 8 * 2 * N);
    sl_remote_kv_scratch_destroy(&alone);
    sl_remote_kv_scratch_destroy(&helped);
    sl_team_destroy(&team);
    sl_remote_kv_destroy(&one);
    sl_remote_kv_destroy(&shares[0]);
    sl_remote_kv_destroy(&shares[1]);
    offloaded_heads_destroy(&offloaded_heads);
}

// --- while it grows ------------------------------------------------------------------------------------------------

enum { GROW_TOKENS = 40 * SL_PAGE_SLOTS, GROW_D = 16, GROW_K = 30 };

struct grow {
    struct offloaded_heads *offloaded_heads;
    struct sl_remote_kv *remote_kv;
    const float *q;
    const int *given;
    const float *scanned;
    atomic_int n_failed;
    atomic_bool is_over;
};

// The search is right for any current content of the remote KV.
static void *search_on(void *arg) {
    struct grow *grow = arg;
    struct sl_remote_kv_scratch *scratch = sl_remote_kv_scratch_create(NULL);
    uint32_t found[GROW_K], expected[GROW_K];
    char row[2 * GROW_D * 2];
    bool is_last = false;
    while (!is_last) {
        is_last = atomic_load(&grow->is_over);
        int64_t n = sl_remote_kv_n_tokens(grow->remote_kv);
        struct sl_remote_kv_search search = {.remote_kv = grow->remote_kv,
                                             .query = {FIRST_HEAD, grow->q, grow->given, 3, 0, n, GROW_K},
                                             .tokens_out = found};
        bool good = sl_remote_kv_search(&search, 1, scratch, NULL) == SL_OK;
        good = good && search.n_out == expected_topk(grow->remote_kv, &search.query, grow->scanned, expected) &&
               memcmp(found, expected, search.n_out * sizeof *found) == 0;
        if (search.n_out > 0) {
            sl_remote_kv_rows(grow->remote_kv, FIRST_HEAD, &found[search.n_out - 1], 1, row);
        }
        atomic_fetch_add(&grow->n_failed, !good);
    }
    sl_remote_kv_scratch_destroy(&scratch);
    return NULL;
}

static void test_search_while_remote_kv_grows(void **state) {
    (void)state;
    struct offloaded_heads offloaded_heads;
    offloaded_heads_create(&offloaded_heads, SL_KV_F16, 1, GROW_D, GROW_TOKENS, 9);
    struct make make = {0, 1, SL_KV_F16, SL_KV_F16, 1};
    struct sl_remote_kv *remote_kv, *finished = make_remote_kv(&offloaded_heads, &make);
    struct sl_error err;
    float q[GROW_D], *scanned = malloc(sizeof *scanned * GROW_TOKENS * GROW_D);
    const int given[] = {0, 5, 9};
    random_query(&offloaded_heads, q);
    read_scanned(finished, FIRST_HEAD, scanned);
    for (int round = 0; round < 5; round++) {
        assert_int_equal(sl_remote_kv_create(offloaded_heads.ops, FIRST_HEAD, 1, GROW_D, GROW_TOKENS, &remote_kv, &err),
                         SL_OK);
        struct grow grow = {&offloaded_heads, remote_kv, q, given, scanned, 0, false};
        pthread_t threads[3];
        for (int i = 0; i < 3; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, search_on, &grow), 0);
        }
        for (int i = 0; i < 40; i++) {
            struct sl_kv_segment *segment =
                make_segment(&offloaded_heads, &make, (int64_t)i * SL_PAGE_SLOTS, SL_PAGE_SLOTS);
            assert_int_equal(sl_remote_kv_append(remote_kv, segment, &err), SL_OK);
            sl_kv_segment_unref(&segment);
        }
        atomic_store(&grow.is_over, true);
        for (int i = 0; i < 3; i++) {
            pthread_join(threads[i], NULL);
        }
        assert_int_equal(atomic_load(&grow.n_failed), 0);
        sl_remote_kv_destroy(&remote_kv);
    }
    free(scanned);
    sl_remote_kv_destroy(&finished);
    offloaded_heads_destroy(&offloaded_heads);
}

// --- what is refused -----------------------------------------------------------------------------------------------

static void test_search_refuses_what_is_not_there(void **state) {
    (void)state;
    struct offloaded_heads offloaded_heads;
    offloaded_heads_create(&offloaded_heads, SL_KV_F16, 2, 16, 200, 1);
    struct make make = {0, 2, SL_KV_F16, SL_KV_F16, 0};
    struct sl_remote_kv *remote_kv = make_remote_kv(&offloaded_heads, &make);
    struct sl_remote_kv_scratch *scratch = sl_remote_kv_scratch_create(NULL);
    float q[16] = {0};
    uint32_t found[8];
    const int descending[] = {3, 1}, twice[] = {3, 3}, beyond[] = {3, 16}, below[] = {-1, 3};
    const struct sl_remote_kv_query bad[] = {
        {FIRST_HEAD - 1, q, NULL, 2, 0, 200, 8}, {FIRST_HEAD + 2, q, NULL, 2, 0, 200, 8},
        {FIRST_HEAD, q, NULL, 0, 0, 200, 8},     {FIRST_HEAD, q, NULL, 17, 0, 200, 8},
        {FIRST_HEAD, q, NULL, 2, -1, 200, 8},    {FIRST_HEAD, q, NULL, 2, 0, 201, 8},
        {FIRST_HEAD, q, NULL, 2, 100, 99, 8},    {FIRST_HEAD, q, descending, 2, 0, 200, 8},
        {FIRST_HEAD, q, twice, 2, 0, 200, 8},    {FIRST_HEAD, q, beyond, 2, 0, 200, 8},
        {FIRST_HEAD, q, below, 2, 0, 200, 8},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sl_remote_kv_search search = {.remote_kv = remote_kv, .query = bad[i], .tokens_out = found};
        struct sl_error err = {0};
        assert_int_equal(sl_remote_kv_search(&search, 1, scratch, &err), SL_ERR_INVALID);
        assert_true(err.text[0] != '\0');
    }
    assert_int_equal(sl_remote_kv_search(NULL, 0, scratch, NULL), SL_OK);
    sl_remote_kv_scratch_destroy(&scratch);
    sl_remote_kv_destroy(&remote_kv);
    offloaded_heads_destroy(&offloaded_heads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search_finds_what_sorting_finds),
        cmocka_unit_test(test_search_of_extremes),
        cmocka_unit_test(test_search_in_company),
        cmocka_unit_test(test_search_while_remote_kv_grows),
        cmocka_unit_test(test_search_refuses_what_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
