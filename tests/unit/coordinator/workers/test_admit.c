// SPDX-License-Identifier: Apache-2.0
// Purpose: admission's arithmetic agrees with the plan, the line is fair, and what is claimed comes back.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/version.h"
#include "coordinator/workers/admit.h"
#include "engine/compress/plan/plan.h"
#include "tests/unit/coordinator/workers/admit_fixture.h"
#include "tests/unit/scarce.h"

static const struct sl_kv_geometry geometry = {.n_layers = 6, .n_kv_heads = 2, .head_dim = 64};
static void test_demand_agrees_with_the_plan(void **state) {
    (void)state;
    struct sl_recipe recipe;
    struct sl_error err;
    struct sl_plan *plan = malloc(sizeof(*plan));
    const char *const recipes[] = {"full", "h2o,budget=256", "full,format=int4"};
    for (size_t r = 0; r < 3; r++) {
        assert_int_equal(sl_recipe_parse(recipes[r], &recipe, &err), SL_OK);
        assert_int_equal(sl_plan_make(&recipe, &geometry, 1999, 0, plan, &err), SL_OK);
        struct sl_demand demand;
        assert_int_equal(sl_demand_make(&recipe, &geometry, 2000, 100, &demand, &err), SL_OK);
        assert_int_equal(demand.n_prefill_tokens, 1999); // the last token is the decode worker's
        assert_int_equal(demand.capsule_bytes, plan->capsule_bytes);
        assert_int_equal(demand.prefill_bytes, plan->prefill_peak_bytes);
        assert_int_equal(demand.decode_bytes, sl_plan_decode_bytes(plan, 101));
        assert_true(demand.decode_bytes > demand.capsule_bytes);
    }
    struct sl_demand full, evicting;
    assert_int_equal(sl_recipe_parse("full", &recipe, &err), SL_OK);
    assert_int_equal(sl_demand_make(&recipe, &geometry, 4000, 10, &full, &err), SL_OK);
    assert_int_equal(sl_recipe_parse("h2o,budget=256", &recipe, &err), SL_OK);
    assert_int_equal(sl_demand_make(&recipe, &geometry, 4000, 10, &evicting, &err), SL_OK);
    // f16 without compression: 2 bytes, K and V, in whole pages.
    assert_true(full.capsule_bytes >= (int64_t)3999 * 6 * 2 * 64 * 2 * 2);
    assert_true(evicting.decode_bytes * 8 < full.decode_bytes); // 256 of 4000 slots: a cluster holds more of these

    struct sl_demand two; // of which prefill reads one
    assert_int_equal(sl_demand_make(&recipe, &geometry, 2, 10, &two, &err), SL_OK);
    assert_int_equal(two.n_prefill_tokens, 1);
    assert_true(two.capsule_bytes > 0 && two.prefill_bytes > 0);

    struct sl_demand single;
    assert_int_equal(sl_demand_make(&recipe, &geometry, 1, 10, &single, &err), SL_OK);
    assert_int_equal(single.n_prefill_tokens, 0);
    assert_int_equal(single.capsule_bytes, 0);
    assert_int_equal(single.prefill_bytes, 0);
    assert_true(single.decode_bytes > 0);
    free(plan);
}

static void test_admission_refuses_what_never_fits_with_numbers(void **state) {
    (void)state;
    struct fixture f = make(4, 4);
    struct sl_error err;
    struct sl_queue_place place = {0};
    struct sl_demand demand = {.n_prefill_tokens = 10, .decode_bytes = 1001, .prefill_bytes = 10};
    join(&f, "decode-0", DECODE, 1000, 4);
    join(&f, "decode-1", DECODE, 500, 4);
    join(&f, "prefill-0", PREFILL, 777, 4);
    assert_int_equal(sl_admission_enter(f.admission, &demand, &place, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "1001"));
    assert_non_null(strstr(err.text, "1000"));
    demand.decode_bytes = 1000;
    demand.prefill_bytes = 778;
    assert_int_equal(sl_admission_enter(f.admission, &demand, &place, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "778"));
    assert_non_null(strstr(err.text, "prefill"));
    demand.prefill_bytes = 777;
    assert_int_equal(sl_admission_enter(f.admission, &demand, &place, &err), SL_OK);
    sl_admission_leave(f.admission, &place);
    cleanup(&f);
}

// A worker that reads and writes holds the session at its largest, once.
static void test_admission_claims_one_worker_of_both_roles(void **state) {
    (void)state;
    struct fixture f = make(4, 4);
    struct sl_error err;
    struct sl_queue_place place = {0}, next = {0};
    struct sl_claim taken, second;
    struct sl_demand demand = {.n_prefill_tokens = 10, .capsule_bytes = 100, .decode_bytes = 300, .prefill_bytes = 600};
    join(&f, "decode-0", BOTH, 1000, 4);
    assert_true(sl_registry_is_served(f.registry, PREFILL) && sl_registry_is_served(f.registry, DECODE));
    assert_int_equal(sl_admission_enter(f.admission, &demand, &place, &err), SL_OK);
    assert_int_equal(claim(&f, &place, &demand, &taken, &err), SL_OK);
    assert_true(taken.is_here && taken.prefill == taken.decode);
    assert_string_equal(taken.why, ""); // there was no choice
    struct sl_admission_stats stats;
    sl_admission_get_stats(f.admission, &stats);
    assert_int_equal(stats.claimed_bytes, 600);
    assert_int_equal(sl_admission_enter(f.admission, &demand, &next, &err), SL_OK);
    assert_int_equal(claim(&f, &next, &demand, &second, &err), SL_AGAIN);
    sl_admission_release_prefill(f.admission, &taken);
    assert_null(taken.prefill);
    assert_int_equal(claim(&f, &next, &demand, &second, &err), SL_AGAIN); // it is being written
    sl_admission_release(f.admission, &taken);
    assert_int_equal(claim(&f, &next, &demand, &second, &err), SL_OK);
    sl_admission_release(f.admission, &second);
    sl_admission_leave(f.admission, &place);
    sl_admission_leave(f.admission, &next);
    demand.prefill_bytes = 1001;
    assert_int_equal(sl_admission_enter(f.admission, &demand, &place, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "1001 bytes of KV memory on an aggregated worker"));
    cleanup(&f);
}

static void test_admission_takes_the_place_that_has_room(void **state) {
    (void)state;
    struct fixture f = make(4, 4);
    struct sl_error err;
    struct sl_queue_place place = {0}, next = {0};
    struct sl_claim taken, second;
    struct sl_demand demand = {.n_prefill_tokens = 10, .capsule_bytes = 100, .decode_bytes = 300, .prefill_bytes = 600};
    join(&f, "decode-0", BOTH, 1000, 4);
    join(&f, "prefill-0", PREFILL, 1000, 4);
    assert_int_equal(sl_admission_enter(f.admission, &demand, &place, &err), SL_OK);
    assert_int_equal(sl_admission_enter(f.admission, &demand, &next, &err), SL_OK);
    assert_int_equal(claim(&f, &place, &demand, &taken, &err), SL_OK);
    assert_true(taken.is_here);
    assert_non_null(strstr(taken.why, "no rate is measured yet"));
    assert_int_equal(claim(&f, &next, &demand, &second, &err), SL_OK); // 600 bytes do not fit there again, 300 do
    assert_false(second.is_here);
    assert_string_equal(sl_worker_name(second.prefill), "prefill-0");
    assert_string_equal(second.why, "no aggregated worker has room");
    sl_admission_release(f.admission, &taken);
    sl_admission_release(f.admission, &second);
    sl_admission_leave(f.admission, &place);
    sl_admission_leave(f.admission, &next);
    cleanup(&f);
}

// Two decode workers: one can never hold the capsule in transit, the other can hold one at a time, until it has arrived.
static void test_admission_counts_staging_memory(void **state) {
    (void)state;
    struct fixture f = make(4, 4);
    struct sl_error err;
    struct sl_queue_place places[2] = {{0}};
    struct sl_claim claims[2];
    const int64_t capsule = 3 * SL_ARENA_UNIT;
    struct sl_demand demand = {
        .n_prefill_tokens = 10, .capsule_bytes = capsule - 1, .decode_bytes = capsule, .prefill_bytes = capsule};
    demand.travelling_bytes = 2 * SL_ARENA_UNIT;
    join_staging(&f, "decode-0", DECODE, 100 * capsule, capsule - 1, 4);
    join(&f, "prefill-0", PREFILL, 100 * capsule, 4);
    assert_int_equal(sl_admission_enter(f.admission, &demand, &places[0], &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "--staging"));
    assert_non_null(strstr(err.text, "decode"));
    join_staging(&f, "decode-1", DECODE, 100 * capsule, 2 * capsule - 1, 4);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sl_admission_enter(f.admission, &demand, &places[i], &err), SL_OK);
    }
    assert_int_equal(claim(&f, &places[0], &demand, &claims[0], &err), SL_OK);
    assert_string_equal(sl_worker_name(claims[0].decode), "decode-1");
    assert_int_equal(claim(&f, &places[1], &demand, &claims[1], &err), SL_AGAIN);
    sl_admission_release_prefill(f.admission, &claims[0]); // the capsule has arrived
    assert_int_equal(claim(&f, &places[1], &demand, &claims[1], &err), SL_OK);
    assert_string_equal(sl_worker_name(claims[1].decode), "decode-1");
    for (int i = 0; i < 2; i++) {
        sl_admission_release(f.admission, &claims[i]);
        sl_admission_leave(f.admission, &places[i]);
    }
    // A prefill worker needs room for the data that go to stores, in addition to the capsule.
    struct fixture g = make(4, 4);
    join(&g, "decode-0", DECODE, 100 * capsule, 4);
    join_staging(&g, "prefill-0", PREFILL, 100 * capsule, capsule + 2 * SL_ARENA_UNIT - 1, 4);
    assert_int_equal(sl_admission_enter(g.admission, &demand, &places[0], &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "prefill"));
    join_staging(&g, "prefill-1", PREFILL, 100 * capsule, capsule + 2 * SL_ARENA_UNIT, 4);
    assert_int_equal(sl_admission_enter(g.admission, &demand, &places[0], &err), SL_OK);
    assert_int_equal(claim(&g, &places[0], &demand, &claims[0], &err), SL_OK);
    assert_string_equal(sl_worker_name(claims[0].prefill), "prefill-1");
    sl_admission_release(g.admission, &claims[0]);
    sl_admission_leave(g.admission, &places[0]);
    cleanup(&g);
    cleanup(&f);
}

// Jobs on one document meet on the worker that holds its capsule, and claim what they add to it.
static void test_admission_counts_a_document_once(void **state) {
    (void)state;
    struct fixture f = make(10, 10);
    join(&f, "decode-0", DECODE, 1000, 8);
    join(&f, "decode-1", DECODE, 1000, 8);
    const struct sl_demand demand = {.decode_bytes = 500};
    const struct sl_claim_spec spec = {.demand = &demand, .held_key = 77, .held_bytes = 400, .avoid = &none};
    struct sl_queue_place places[4] = {0};
    struct sl_claim claims[4] = {0};
    struct sl_admission_stats stats;
    struct sl_error err;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sl_admission_enter(f.admission, &demand, &places[i], &err), SL_OK);
        assert_int_equal(sl_admission_claim(f.admission, &places[i], &spec, 20, &claims[i], &err), SL_OK);
        assert_ptr_equal(claims[i].decode, claims[0].decode);
        sl_admission_get_stats(f.admission, &stats);
        assert_int_equal(stats.claimed_bytes, 400 + 100 * (i + 1));
        if (i == 0) { // without the document it goes to the other worker
            sl_admission_release(f.admission, &claims[0]);
            assert_int_equal(sl_admission_enter(f.admission, &demand, &places[3], &err), SL_OK);
            assert_int_equal(claim(&f, &places[3], &demand, &claims[3], &err), SL_OK);
            assert_string_equal(sl_worker_name(claims[3].decode), "decode-1");
            sl_admission_release(f.admission, &claims[3]);
            sl_admission_leave(f.admission, &places[3]);
            assert_int_equal(sl_admission_claim(f.admission, &places[0], &spec, 20, &claims[0], &err), SL_OK);
            assert_string_equal(sl_worker_name(claims[0].decode), "decode-0");
        }
    }
    // The capsule stays claimed as long as one of them runs, and is claimed again after that.
    for (int i = 0; i < 3; i++) {
        sl_admission_release(f.admission, &claims[i]);
        sl_admission_leave(f.admission, &places[i]);
        sl_admission_get_stats(f.admission, &stats);
        assert_int_equal(stats.claimed_bytes, i < 2 ? 400 + 100 * (2 - i) : 0);
    }
    cleanup(&f);
}

// A worker that held a document, and may have dropped it, has no room for it that others have claimed.
static void test_admission_needs_room_for_a_document_that_no_job_shares(void **state) {
    (void)state;
    struct fixture f = make(10, 10);
    join(&f, "decode-0", DECODE, 1000, 8);
    const struct sl_demand demand = {.decode_bytes = 500}, other = {.decode_bytes = 600};
    const struct sl_claim_spec spec = {.demand = &demand, .held_key = 77, .held_bytes = 400, .avoid = &none};
    struct sl_queue_place places[2] = {0};
    struct sl_claim claims[2] = {0};
    struct sl_error err;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sl_admission_enter(f.admission, &demand, &places[i], &err), SL_OK);
    }
    assert_int_equal(sl_admission_claim(f.admission, &places[0], &spec, 20, &claims[0], &err), SL_OK);
    sl_admission_release(f.admission, &claims[0]);
    assert_int_equal(claim(&f, &places[1], &other, &claims[1], &err), SL_OK);
    assert_int_equal(sl_admission_claim(f.admission, &places[0], &spec, 20, &claims[0], &err), SL_AGAIN);
    sl_admission_release(f.admission, &claims[1]);
    assert_int_equal(sl_admission_claim(f.admission, &places[0], &spec, 20, &claims[0], &err), SL_OK);
    for (int i = 0; i < 2; i++) {
        sl_admission_release(f.admission, &claims[i]);
        sl_admission_leave(f.admission, &places[i]);
    }
    cleanup(&f);
}

static void test_admission_full_line_says_when_to_retry(void **state) {
    (void)state;
    struct fixture f = make(4, 2);
    struct sl_error err;
    struct sl_queue_place places[3] = {{0}};
    struct sl_demand demand = {.decode_bytes = 10};
    assert_int_equal(sl_admission_enter(f.admission, &demand, &places[0], &err), SL_OK);
    assert_int_equal(sl_admission_enter(f.admission, &demand, &places[1], &err), SL_OK);
    assert_int_equal(sl_admission_enter(f.admission, &demand, &places[2], &err), SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "retry in "));
    assert_non_null(strstr(err.text, " ms"));
    sl_admission_leave(f.admission, &places[0]);
    assert_int_equal(sl_admission_enter(f.admission, &demand, &places[2], &err), SL_OK);
    sl_admission_leave(f.admission, &places[1]);
    sl_admission_leave(f.admission, &places[2]);
    cleanup(&f);
}

static void test_admission_is_first_come_first_served(void **state) {
    (void)state;
    struct fixture f = make(8, 8);
    struct sl_error err;
    join(&f, "decode-0", DECODE, 1000, 8);
    struct sl_demand big = {.decode_bytes = 700}, small = {.decode_bytes = 100};
    struct sl_queue_place first = {0}, second = {0}, third = {0};
    struct sl_claim a, b, c;
    assert_int_equal(sl_admission_enter(f.admission, &big, &first, &err), SL_OK);
    assert_int_equal(sl_admission_enter(f.admission, &big, &second, &err), SL_OK);
    assert_int_equal(sl_admission_enter(f.admission, &small, &third, &err), SL_OK);
    assert_int_equal(claim(&f, &second, &big, &b, &err), SL_AGAIN); // not its turn
    assert_int_equal(claim(&f, &first, &big, &a, &err), SL_OK);
    assert_int_equal(claim(&f, &second, &big, &b, &err), SL_AGAIN);  // its turn, no room
    assert_int_equal(claim(&f, &third, &small, &c, &err), SL_AGAIN); // room, not its turn: big ones do not starve
    struct sl_admission_stats stats;
    sl_admission_get_stats(f.admission, &stats);
    assert_int_equal(stats.n_queued, 2);
    assert_int_equal(stats.n_running, 1);
    assert_int_equal(stats.claimed_bytes, 700);
    sl_admission_release(f.admission, &a);
    sl_admission_release(f.admission, &a); // idempotent
    assert_int_equal(claim(&f, &second, &big, &b, &err), SL_OK);
    assert_int_equal(claim(&f, &third, &small, &c, &err), SL_OK);
    // A retry of the first goes before all jobs that came later.
    struct sl_queue_place fourth = {0};
    struct sl_claim d;
    assert_int_equal(sl_admission_enter(f.admission, &big, &fourth, &err), SL_OK);
    assert_int_equal(claim(&f, &first, &big, &a, &err), SL_AGAIN);
    sl_admission_release(f.admission, &b);
    assert_int_equal(claim(&f, &fourth, &big, &d, &err), SL_AGAIN);
    assert_int_equal(claim(&f, &first, &big, &a, &err), SL_OK);
    sl_admission_release(f.admission, &a);
    sl_admission_release(f.admission, &c);
    sl_admission_leave(f.admission, &first);
    sl_admission_leave(f.admission, &second);
    sl_admission_leave(f.admission, &third);
    sl_admission_leave(f.admission, &fourth);
    cleanup(&f);
}

// A turn that wants the worker of its session gets it at once, or learns why not. Other jobs never wait in line after it for a worker that
// they do not need.
static void test_admission_does_not_wait_for_one_worker(void **state) {
    (void)state;
    struct fixture f = make(8, 8);
    struct sl_error err;
    join(&f, "decode-0", DECODE, 1000, 8);
    join(&f, "decode-1", DECODE, 1000, 8);
    struct sl_demand demand = {.decode_bytes = 700};
    struct sl_queue_place first = {0}, second = {0};
    struct sl_claim a, b;
    assert_int_equal(sl_admission_enter(f.admission, &demand, &first, &err), SL_OK);
    assert_int_equal(sl_admission_enter(f.admission, &demand, &second, &err), SL_OK);
    struct sl_claim_spec spec = {.demand = &demand, .avoid = &none, .only = "decode-1"};
    assert_int_equal(sl_admission_claim(f.admission, &first, &spec, 0, &a, &err), SL_OK);
    assert_string_equal(sl_worker_name(a.decode), "decode-1");
    assert_int_equal(sl_admission_claim(f.admission, &second, &spec, 0, &b, &err), SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "decode-1"));
    spec.only = "decode-2";
    assert_int_equal(sl_admission_claim(f.admission, &second, &spec, 0, &b, &err), SL_ERR_PEER_STALE);
    assert_int_equal(claim(&f, &second, &demand, &b, &err), SL_OK);
    assert_string_equal(sl_worker_name(b.decode), "decode-0");
    sl_admission_release(f.admission, &a);
    sl_admission_release(f.admission, &b);
    sl_admission_leave(f.admission, &first);
    sl_admission_leave(f.admission, &second);
    cleanup(&f);
}

static void test_admission_names_the_missing_role(void **state) {
    (void)state;
    struct fixture f = make(8, 8);
    struct sl_error err;
    struct sl_demand demand = {.n_prefill_tokens = 5, .decode_bytes = 10, .prefill_bytes = 10};
    struct sl_queue_place place = {0};
    struct sl_claim got;
    assert_int_equal(sl_admission_enter(f.admission, &demand, &place, &err), SL_OK);
    assert_int_equal(claim(&f, &place, &demand, &got, &err), SL_ERR_PEER_LOST);
    assert_non_null(strstr(err.text, "no decode worker"));
    join(&f, "decode-0", DECODE, 1000, 8);
    assert_int_equal(claim(&f, &place, &demand, &got, &err), SL_ERR_PEER_LOST);
    assert_non_null(strstr(err.text, "no prefill worker"));
    join(&f, "prefill-0", PREFILL, 1000, 8);
    assert_int_equal(claim(&f, &place, &demand, &got, &err), SL_OK);
    struct sl_admission_stats stats;
    sl_admission_release_prefill(f.admission, &got);
    assert_null(got.prefill);
    sl_admission_get_stats(f.admission, &stats);
    assert_int_equal(stats.claimed_bytes, 10);
    sl_admission_release(f.admission, &got);
    sl_admission_leave(f.admission, &place);
    cleanup(&f);
}

// A job that lacks a worker may wait long for it; jobs after it that need no such worker start.
static void test_admission_passes_over_a_job_that_lacks_a_worker(void **state) {
    (void)state;
    struct fixture f = make(8, 8);
    struct sl_error err;
    struct sl_demand reads = {.n_prefill_tokens = 5, .decode_bytes = 10, .prefill_bytes = 10},
                     turn = {.decode_bytes = 10};
    struct sl_queue_place first = {0}, second = {0};
    struct sl_claim a, b;
    join(&f, "decode-0", DECODE, 1000, 8);
    assert_int_equal(sl_admission_enter(f.admission, &reads, &first, &err), SL_OK);
    assert_int_equal(sl_admission_enter(f.admission, &turn, &second, &err), SL_OK);
    assert_int_equal(claim(&f, &second, &turn, &b, &err), SL_AGAIN); // it is not known yet what the first job lacks
    assert_int_equal(claim(&f, &first, &reads, &a, &err), SL_ERR_PEER_LOST);
    assert_int_equal(claim(&f, &second, &turn, &b, &err), SL_OK);
    join(&f, "prefill-0", PREFILL, 1000, 8);
    assert_int_equal(claim(&f, &first, &reads, &a, &err), SL_OK);
    sl_admission_release(f.admission, &a);
    sl_admission_release(f.admission, &b);
    // One that waits for something else lets others pass, until it claims.
    struct sl_queue_place third = {0}, fourth = {0};
    assert_int_equal(sl_admission_enter(f.admission, &turn, &third, &err), SL_OK);
    assert_int_equal(sl_admission_enter(f.admission, &turn, &fourth, &err), SL_OK);
    assert_int_equal(claim(&f, &fourth, &turn, &b, &err), SL_AGAIN);
    sl_admission_let_pass(f.admission, &third);
    assert_int_equal(claim(&f, &fourth, &turn, &b, &err), SL_OK);
    assert_int_equal(claim(&f, &third, &turn, &a, &err), SL_OK);
    sl_admission_release(f.admission, &a);
    sl_admission_release(f.admission, &b);
    sl_admission_leave(f.admission, &first);
    sl_admission_leave(f.admission, &second);
    sl_admission_leave(f.admission, &third);
    sl_admission_leave(f.admission, &fourth);
    cleanup(&f);
}

static void test_admission_never_promises_more_than_there_is(void **state) {
    (void)state;
    struct fixture f = make(1000, 1000);
    struct sl_error err;
    join(&f, "decode-0", DECODE, 1000, 100);
    join(&f, "decode-1", DECODE, 1500, 100);
    struct sl_queue_place places[40] = {{0}};
    struct sl_claim claims[40];
    struct sl_demand demand = {.decode_bytes = 130};
    int n = 0;
    for (int i = 0; i < 40; i++) {
        assert_int_equal(sl_admission_enter(f.admission, &demand, &places[i], &err), SL_OK);
    }
    while (n < 40 && claim(&f, &places[n], &demand, &claims[n], &err) == SL_OK) {
        n++;
    }
    assert_int_equal(n, 1000 / 130 + 1500 / 130);
    for (int i = 0; i < n; i++) {
        sl_admission_release(f.admission, &claims[i]);
    }
    for (int i = 0; i < 40; i++) {
        sl_admission_leave(f.admission, &places[i]);
    }
    cleanup(&f);
}

static enum sl_status make_workers(void *arg, struct sl_error *err) {
    (void)arg;
    struct fixture f = {0};
    struct sl_registry_config config = {.model_fingerprint = 1, .heartbeat_ms = 1000};
    enum sl_status status = sl_registry_create(&config, &f.registry, err);
    status = status == SL_OK ? sl_affinity_create(100, &f.affinity, err) : status;
    status = status == SL_OK ? sl_admission_create(f.registry, f.affinity, 10, 10, &f.admission, err) : status;
    sl_admission_destroy(&f.admission);
    sl_affinity_destroy(&f.affinity);
    sl_registry_destroy(&f.registry);
    return status;
}

static void test_admission_without_memory_is_not_made(void **state) {
    (void)state;
    assert_true(assert_refused_without_memory(make_workers, NULL) >= 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demand_agrees_with_the_plan),
        cmocka_unit_test(test_admission_refuses_what_never_fits_with_numbers),
        cmocka_unit_test(test_admission_claims_one_worker_of_both_roles),
        cmocka_unit_test(test_admission_takes_the_place_that_has_room),
        cmocka_unit_test(test_admission_counts_staging_memory),
        cmocka_unit_test(test_admission_counts_a_document_once),
        cmocka_unit_test(test_admission_needs_room_for_a_document_that_no_job_shares),
        cmocka_unit_test(test_admission_full_line_says_when_to_retry),
        cmocka_unit_test(test_admission_is_first_come_first_served),
        cmocka_unit_test(test_admission_does_not_wait_for_one_worker),
        cmocka_unit_test(test_admission_names_the_missing_role),
        cmocka_unit_test(test_admission_passes_over_a_job_that_lacks_a_worker),
        cmocka_unit_test(test_admission_never_promises_more_than_there_is),
        cmocka_unit_test(test_admission_without_memory_is_not_made),
    };
    return cmocka_run_group_tests(tests, start_rpc, stop_rpc);
}
