// SPDX-License-Identifier: Apache-2.0
// Purpose: routing is deterministic, respects room, follows prefixes, and cannot make one worker hot.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/workers/route.h"

#define N 8

static char names[N][16];

static void idle_cluster(struct sl_route_view views[N]) {
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "worker-%d", i);
        views[i] = (struct sl_route_view){.name = names[i], .ready = true, .capacity_bytes = 1000, .max_jobs = 4};
    }
}

static struct sl_route_need arena(int64_t bytes) {
    return (struct sl_route_need){.bytes = bytes};
}

static int prefill_by(const char *policy, const struct sl_route_view *views, int64_t n_tokens, int64_t budget_tokens) {
    struct sl_route_ask ask = {.need = arena(10), .n_tokens = n_tokens, .budget_tokens = budget_tokens};
    assert_int_equal(sl_route_policy_find(policy, &ask.policy, NULL), SL_OK);
    return sl_route_prefill(views, N, &ask);
}

static int prefill(const struct sl_route_view *views, int64_t n_tokens, struct sl_route_need need) {
    const struct sl_route_ask ask = {sl_route_policies, need, n_tokens, INT64_MAX};
    return sl_route_prefill(views, N, &ask);
}

static int decode_by(const char *policy, const struct sl_route_view *views, struct sl_route_need need) {
    struct sl_route_ask ask = {.need = need};
    assert_int_equal(sl_route_policy_find(policy, &ask.policy, NULL), SL_OK);
    return sl_route_decode(views, N, &ask);
}

static int decode(const struct sl_route_view *views, struct sl_route_need need) {
    return decode_by(sl_route_policies[0].name, views, need);
}

static void test_policies_differ(void **state) {
    (void)state;
    struct sl_route_view views[N];
    idle_cluster(views);
    for (int i = 0; i < N; i++) {
        views[i].claimed_tokens = views[i].delay_tokens = 1000 + i;
        views[i].jobs_ever = 10 - i;
        views[i].claimed_bytes = 100 + i;
    }
    views[5].claimed_tokens = 1950; // the longest line, of prompts that are longer than this one
    views[5].delay_tokens = 900;
    assert_int_equal(prefill_by("affinity", views, 1000, 5000), 5);
    assert_int_equal(prefill_by("deadline", views, 1000, INT64_MAX), 5);
    views[6].matched_tokens = 64;
    assert_int_equal(prefill_by("affinity", views, 1000, 5000), 5); // what it has read before is in a store, for all
    assert_int_equal(prefill_by("deadline", views, 1000, 5000), 6); // all are in time
    assert_int_equal(prefill_by("deadline", views, 1000, 2002), N - 1 - 5); // 0, 1 and 2 are, and 2 had the fewest jobs
    assert_int_equal(prefill_by("deadline", views, 1000, 1950), 0);         // none is: the first to be done
    assert_int_equal(prefill_by("least-loaded", views, 1000, 5000), 0);
    assert_int_equal(prefill_by("round-robin", views, 1000, 5000), N - 1);

    views[3].held_bytes = 200;
    assert_int_equal(decode_by("affinity", views, arena(200)), 3);
    assert_int_equal(decode_by("deadline", views, arena(200)), 3);
    assert_int_equal(decode_by("least-loaded", views, arena(200)), 0);
    assert_int_equal(decode_by("round-robin", views, arena(200)), N - 1);

    const struct sl_route_policy *policy = NULL;
    struct sl_error err;
    assert_int_equal(sl_route_policy_find("robin", &policy, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "round-robin"));
    assert_null(policy);
    for (policy = sl_route_policies; policy->name != NULL; policy++) { // none gives a job to a worker without room
        views[7].jobs = views[7].max_jobs;
        assert_int_not_equal(prefill_by(policy->name, views, 1000, INT64_MAX), 7);
        assert_int_equal(decode_by(policy->name, views, arena(10000)), -1);
    }
}

static void test_prefill_idle_cluster_takes_turns(void **state) {
    (void)state;
    struct sl_route_view views[N];
    idle_cluster(views);
    for (int job = 0; job < 3 * N; job++) { // each ends before the next comes
        int i = prefill(views, 100, arena(10));
        assert_int_equal(i, job % N);
        views[i].jobs_ever++;
    }
}

static void test_prefill_same_inputs_same_answer(void **state) {
    (void)state;
    struct sl_route_view views[N], reversed[N];
    idle_cluster(views);
    for (int i = 0; i < N; i++) {
        views[i].delay_tokens = i == 3 || i == 5 ? 0 : 50;
        reversed[N - 1 - i] = views[i];
    }
    int a = prefill(views, 100, arena(10));
    int b = prefill(reversed, 100, arena(10));
    assert_int_equal(a, 3);
    assert_string_equal(views[a].name, reversed[b].name); // the order of the snapshot does not matter
}

static void test_prefill_of_equal_workers_prefers_who_has_read_the_prefix(void **state) {
    (void)state;
    struct sl_route_view views[N];
    idle_cluster(views);
    views[6].matched_tokens = 64;
    assert_int_equal(prefill(views, 100, arena(10)), 6);
    views[6].delay_tokens = 1;
    assert_int_not_equal(prefill(views, 100, arena(10)), 6);
}

// All jobs have the same prefix, which one worker has: load spreads all the same, because jobs pile up.
static void test_prefill_popular_prefix_makes_no_hot_worker(void **state) {
    (void)state;
    struct sl_route_view views[N];
    idle_cluster(views);
    int jobs[N] = {0};
    for (int i = 0; i < N; i++) {
        views[i].max_jobs = 1000;
        views[i].capacity_bytes = 1000000;
    }
    views[0].matched_tokens = 900;
    const int n_jobs = 80;
    for (int job = 0; job < n_jobs; job++) { // none ends
        int i = prefill(views, 1000, arena(10));
        assert_in_range(i, 0, N - 1);
        jobs[i]++;
        views[i].delay_tokens += 1000;
        views[i].claimed_bytes += 10;
        views[i].jobs++;
        views[i].jobs_ever++;
    }
    for (int i = 0; i < N; i++) {
        assert_in_range(jobs[i], n_jobs / N - 1, n_jobs / N + 1);
    }
}

static void test_decode_balances_projected_bytes(void **state) {
    (void)state;
    struct sl_route_view views[N];
    idle_cluster(views);
    for (int i = 0; i < N; i++) {
        views[i].max_jobs = 1000;
        views[i].capacity_bytes = 100000 * (1 + i % 2); // half of them twice as large
    }
    for (int job = 0; job < 900; job++) {
        int i = decode(views, arena(500 + job % 7 * 100));
        assert_in_range(i, 0, N - 1);
        views[i].claimed_bytes += 500 + job % 7 * 100;
        views[i].jobs++;
    }
    double low = 1, high = 0;
    for (int i = 0; i < N; i++) {
        double full = (double)views[i].claimed_bytes / (double)views[i].capacity_bytes;
        low = full < low ? full : low;
        high = full > high ? full : high;
    }
    assert_true(high <= 1.0);
    assert_true(high - low < 0.03);
}

static void test_route_never_exceeds_room(void **state) {
    (void)state;
    struct sl_route_view views[N];
    idle_cluster(views);
    for (int i = 0; i < N; i++) {
        views[i].claimed_bytes = 995;
    }
    assert_int_equal(decode(views, arena(6)), -1);
    assert_int_equal(prefill(views, 1, arena(6)), -1);
    assert_int_equal(decode(views, arena(5)), 0);
    for (int i = 0; i < N; i++) {
        views[i].jobs = views[i].max_jobs;
    }
    assert_int_equal(decode(views, arena(5)), -1);
    assert_int_equal(sl_route_largest(views, N), 1000);
}

static void test_route_skips_unready_and_avoids_if_it_can(void **state) {
    (void)state;
    struct sl_route_view views[N];
    idle_cluster(views);
    for (int i = 0; i < N; i++) {
        views[i].ready = i == 2 || i == 4;
    }
    assert_int_equal(sl_route_count_ready(views, N), 2);
    views[2].avoid = true;
    assert_int_equal(prefill(views, 10, arena(10)), 4);
    views[4].jobs = views[4].max_jobs; // busy: wait for it rather than go back to the one that failed
    assert_int_equal(prefill(views, 10, arena(10)), -1);
    views[4].ready = false; // gone: the avoided one is better than none
    assert_int_equal(prefill(views, 10, arena(10)), 2);
}

static void test_store_moves_only_the_lost_share(void **state) {
    (void)state;
    struct sl_route_view views[N];
    idle_cluster(views);
    int before[1000], share[N] = {0};
    for (int key = 0; key < 1000; key++) {
        before[key] = sl_route_store(views, N, (uint64_t)key * 2654435761U);
        share[before[key]]++;
    }
    views[5].ready = false;
    for (int key = 0; key < 1000; key++) {
        int after = sl_route_store(views, N, (uint64_t)key * 2654435761U);
        assert_int_not_equal(after, 5);
        if (before[key] != 5) {
            assert_int_equal(after, before[key]);
        }
    }
    for (int i = 0; i < N; i++) {
        assert_in_range(share[i], 60, 200);
        views[i].ready = false;
    }
    assert_int_equal(sl_route_store(views, N, 1), -1);
}

// --- shares of what is offloaded -------------------------------------------------------------------------------------

#define HEAD               1000
#define HEADS(n, replicas) (&(struct sl_route_offloaded_heads){n, replicas, HEAD})

// A worker that holds a document's capsule needs less, until its other jobs outweigh the capsule.
static void test_decode_prefers_a_worker_that_holds_the_capsule(void **state) {
    (void)state;
    struct sl_route_view views[N];
    idle_cluster(views);
    for (int i = 0; i < N; i++) {
        views[i].ready = i < 2;
        views[i].capacity_bytes = 1000;
    }
    views[1].held_bytes = 90;
    views[1].claimed_bytes = 80;
    assert_int_equal(decode(views, arena(100)), 1);
    views[1].claimed_bytes = 95;
    assert_int_equal(decode(views, arena(100)), 0);
    views[1].shared_bytes = 90; // claimed by the jobs that share them, and no load for one more
    views[1].claimed_bytes = 90 + 80;
    assert_int_equal(decode(views, arena(100)), 1);
    views[1].claimed_bytes = 90 + 95;
    assert_int_equal(decode(views, arena(100)), 0);
    views[0].ready = false;
    views[1].shared_bytes = 0;
    views[1].claimed_bytes = 901; // what it holds may be dropped, unless running jobs share it
    assert_int_equal(decode(views, arena(100)), -1);
    views[1].shared_bytes = 90;
    views[1].claimed_bytes = 990;
    assert_int_equal(decode(views, arena(100)), 1);
    views[1].claimed_bytes = 991;
    assert_int_equal(decode(views, arena(100)), -1);
}

// A worker whose capsules go through memory of their own needs room in both; of one without only its arena counts.
static void test_route_passes_over_who_has_too_little_staging_memory(void **state) {
    (void)state;
    struct sl_route_view views[N];
    idle_cluster(views);
    const struct sl_route_need need = {10, 50};
    for (int i = 0; i < N; i++) {
        views[i].ready = i < 3;
        views[i].capacity_bytes = 1000;
        views[i].jobs_ever = i; // in this order where nothing else decides
    }
    views[0].staging_bytes = 49;
    views[1].staging_bytes = 100;
    assert_int_equal(decode(views, need), 1);
    assert_int_equal(prefill(views, 1, need), 1);
    views[1].claimed_staging_bytes = 51; // now it has 49, too
    assert_int_equal(decode(views, need), 2);
    views[2].ready = false;
    assert_int_equal(decode(views, need), -1);
    assert_true(sl_route_fits(views, N, need)); // the second does when it is idle
    views[1].staging_bytes = 49;
    assert_false(sl_route_fits(views, N, need));
    views[2].ready = true;
    assert_true(sl_route_fits(views, N, need));
    assert_false(sl_route_fits(views, N, (struct sl_route_need){1001, 0}));
}

// Every offloaded head is held once by each replica, in order, cut alike and in different stores; room is kept to.
static void assert_covered(const struct sl_route_view *views, const struct sl_route_share *shares, int n_shares,
                           int n_offloaded_heads, int replicas) {
    int next[4] = {0};
    int64_t held[8] = {0}; // by views
    for (int i = 0; i < n_shares; i++) {
        const struct sl_route_share *share = &shares[i];
        assert_in_range(share->replica, 0, replicas - 1);
        assert_int_equal(share->first_offloaded_head, next[share->replica]);
        assert_true(share->n_offloaded_heads > 0);
        next[share->replica] += share->n_offloaded_heads;
        const struct sl_route_view *view = &views[share->view];
        assert_true(view->ready);
        held[share->view] += share->n_offloaded_heads * HEAD;
        assert_true((double)(view->claimed_bytes + held[share->view]) <= SL_STORE_FILL * (double)view->capacity_bytes);
        for (int j = 0; j < n_shares; j++) {
            bool overlap = shares[j].first_offloaded_head < share->first_offloaded_head + share->n_offloaded_heads &&
                           share->first_offloaded_head < shares[j].first_offloaded_head + shares[j].n_offloaded_heads;
            if (j != i && overlap) { // a replica of it
                assert_int_equal(shares[j].first_offloaded_head, share->first_offloaded_head);
                assert_int_equal(shares[j].n_offloaded_heads, share->n_offloaded_heads);
                assert_int_not_equal(shares[j].view, share->view);
            }
        }
    }
    for (int r = 0; r < replicas; r++) {
        assert_int_equal(next[r], n_offloaded_heads);
    }
}

static void test_a_session_goes_to_one_store_where_it_fits(void **state) {
    (void)state;
    struct sl_route_view views[3] = {{.name = "a", .ready = true, .capacity_bytes = 100 * HEAD},
                                     {.name = "b", .ready = true, .capacity_bytes = 100 * HEAD},
                                     {.name = "c", .ready = true, .capacity_bytes = 100 * HEAD}};
    struct sl_route_share shares[8];
    bool used[3] = {false};
    for (uint64_t key = 0; key < 64; key++) {
        uint64_t k = key * 0x9E3779B97F4A7C15u;
        assert_int_equal(sl_route_shares(views, 3, k, HEADS(90, 1), false, shares, 8), 1);
        assert_covered(views, shares, 1, 90, 1);
        assert_int_equal(shares[0].view, sl_route_store(views, 3, k)); // where the capsule of the prompt goes, too
        used[shares[0].view] = true;
    }
    assert_true(used[0] && used[1] && used[2]);
}

static void test_a_large_session_is_spread_by_offloaded_heads(void **state) {
    (void)state;
    struct sl_route_view views[4] = {
        {.name = "a", .ready = true, .capacity_bytes = 100 * HEAD, .claimed_bytes = 50 * HEAD},
        {.name = "b", .ready = true, .capacity_bytes = 100 * HEAD},
        {.name = "c", .capacity_bytes = 1000 * HEAD}, // not ready
        {.name = "d", .ready = true, .capacity_bytes = 20 * HEAD}};
    struct sl_route_share shares[8];
    for (uint64_t key = 1; key < 50; key++) {
        int n = sl_route_shares(views, 4, key * 77777, HEADS(40 + 90 + 18, 1), false, shares, 8);
        assert_int_equal(n, 3);
        assert_covered(views, shares, n, 148, 1);
        assert_int_equal(sl_route_shares(views, 4, key * 77777, HEADS(149, 1), false, shares, 8), -1);
        assert_int_equal(sl_route_shares(views, 4, key * 77777, HEADS(148, 1), false, shares, 2),
                         -1); // more than two shares
    }
    assert_int_equal(sl_route_store_room(views, 4), 198 * HEAD);
}

static void test_replicas_are_in_different_stores(void **state) {
    (void)state;
    struct sl_route_view views[4] = {{.name = "a", .ready = true, .capacity_bytes = 100 * HEAD},
                                     {.name = "b", .ready = true, .capacity_bytes = 100 * HEAD},
                                     {.name = "c", .ready = true, .capacity_bytes = 100 * HEAD},
                                     {.name = "d", .ready = true, .avoid = true, .capacity_bytes = 100 * HEAD}};
    struct sl_route_share shares[8];
    for (uint64_t key = 1; key < 50; key++) {
        int n = sl_route_shares(views, 4, key * 99991, HEADS(60, 2), false, shares, 8);
        assert_int_equal(n, 2);
        assert_covered(views, shares, n, 60, 2);
        assert_true(shares[0].view != 3 && shares[1].view != 3); // failed this job before: the last choice
        n = sl_route_shares(views, 4, key * 99991, HEADS(170, 2), false, shares, 8);
        assert_int_equal(n, 4);
        assert_covered(views, shares, n, 170, 2);
        assert_int_equal(sl_route_shares(views, 1, key, HEADS(10, 2), false, shares, 8), -1);
        assert_int_equal(sl_route_shares(views, 1, key, HEADS(10, 2), true, shares, 8), -1); // nor ever
        assert_true(sl_route_shares(views, 4, key * 99991, HEADS(170, 2), true, shares, 8) > 0);
    }
}

static void test_replicas_are_cut_alike_however_large_stores_are(void **state) {
    (void)state;
    struct sl_route_view views[5] = {{.name = "a", .ready = true, .capacity_bytes = 20 * HEAD},
                                     {.name = "b", .ready = true, .capacity_bytes = 30 * HEAD},
                                     {.name = "c", .ready = true, .capacity_bytes = 50 * HEAD},
                                     {.name = "d", .ready = true, .capacity_bytes = 100 * HEAD},
                                     {.name = "e", .ready = true, .capacity_bytes = 200 * HEAD}};
    struct sl_route_share shares[16];
    int n_cut = 0;
    for (uint64_t key = 1; key < 50; key++) {
        int n = sl_route_shares(views, 5, key * 99991, HEADS(60, 2), false, shares, 16);
        assert_in_range(n, 2, 16);
        assert_covered(views, shares, n, 60, 2);
        n_cut += n > 2;
    }
    assert_true(n_cut > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policies_differ),
        cmocka_unit_test(test_prefill_idle_cluster_takes_turns),
        cmocka_unit_test(test_prefill_same_inputs_same_answer),
        cmocka_unit_test(test_prefill_of_equal_workers_prefers_who_has_read_the_prefix),
        cmocka_unit_test(test_prefill_popular_prefix_makes_no_hot_worker),
        cmocka_unit_test(test_decode_balances_projected_bytes),
        cmocka_unit_test(test_route_never_exceeds_room),
        cmocka_unit_test(test_decode_prefers_a_worker_that_holds_the_capsule),
        cmocka_unit_test(test_route_passes_over_who_has_too_little_staging_memory),
        cmocka_unit_test(test_route_skips_unready_and_avoids_if_it_can),
        cmocka_unit_test(test_store_moves_only_the_lost_share),
        cmocka_unit_test(test_a_session_goes_to_one_store_where_it_fits),
        cmocka_unit_test(test_a_large_session_is_spread_by_offloaded_heads),
        cmocka_unit_test(test_replicas_are_in_different_stores),
        cmocka_unit_test(test_replicas_are_cut_alike_however_large_stores_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
