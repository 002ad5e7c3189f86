// SPDX-License-Identifier: Apache-2.0
// Purpose: which workers may join, what a heartbeat means, when a worker is lost, and what draining does. Time is
// passed in.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/version.h"
#include "coordinator/workers/registry.h"
#include "tests/unit/rpc_group.h"

#define MODEL 0x1234567890abcdefULL
#define MS    SL_NS_PER_MS

static struct sl_registry *make(void) {
    struct sl_registry *registry = NULL;
    struct sl_error err;
    struct sl_registry_config config = {.model_fingerprint = MODEL, .heartbeat_ms = 1000, .stall_ms = 5000};
    assert_int_equal(sl_registry_create(&config, &registry, &err), SL_OK);
    return registry;
}

static Sluice__V1__WorkerInfo worker_info(char *name, Sluice__V1__WorkerRole role, uint64_t epoch) {
    Sluice__V1__WorkerInfo info = SLUICE__V1__WORKER_INFO__INIT;
    info.name = name;
    info.role = role;
    info.rpc_address = "127.0.0.1:1";
    info.version = SL_VERSION;
    info.model_fingerprint = MODEL;
    info.arena_bytes = 1000;
    info.max_jobs = 2;
    info.epoch = epoch;
    return info;
}

static enum sl_status beat(struct sl_registry *registry, char *name, uint64_t epoch, int64_t now_ns, bool *drain_out) {
    Sluice__V1__HeartbeatRequest request = SLUICE__V1__HEARTBEAT_REQUEST__INIT;
    Sluice__V1__WorkerLoad load = SLUICE__V1__WORKER_LOAD__INIT;
    load.leases = 3;
    request.name = name;
    request.epoch = epoch;
    request.load = &load;
    struct sl_error err;
    return sl_registry_heartbeat(registry, &request, now_ns, drain_out, &err);
}

static int count_ready(struct sl_registry *registry, Sluice__V1__WorkerRole role) {
    struct sl_worker_set set;
    sl_registry_snapshot(registry, role, &set);
    int n = sl_route_count_ready(set.views, set.n);
    sl_worker_set_release(&set);
    return n;
}

static struct sl_worker *only_worker(struct sl_registry *registry, Sluice__V1__WorkerRole role) {
    struct sl_worker_set set;
    sl_registry_snapshot(registry, role, &set);
    assert_int_equal(set.n, 1);
    struct sl_worker *worker = sl_worker_ref(set.workers[0]);
    sl_worker_set_release(&set);
    return worker;
}

static void test_registry_refuses_other_versions_and_models(void **state) {
    (void)state;
    struct sl_registry *registry = make();
    struct sl_error err;
    Sluice__V1__WorkerInfo info = worker_info("prefill-0", SLUICE__V1__WORKER_ROLE__PREFILL, 1);
    info.version = "0.0.9";
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "0.0.9"));
    assert_non_null(strstr(err.text, SL_VERSION));

    info = worker_info("prefill-0", SLUICE__V1__WORKER_ROLE__PREFILL, 1);
    info.model_fingerprint = 0xbad;
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "0000000000000bad"));
    assert_non_null(strstr(err.text, "1234567890abcdef"));

    info = worker_info("prefill-2", SLUICE__V1__WORKER_ROLE__PREFILL, 1);
    info.reads = true; // which prefill workers do anyway
    assert_int_equal(sl_registry_register(registry, &info, 0, NULL), SL_ERR_INVALID);
    info = worker_info("store-0", SLUICE__V1__WORKER_ROLE__KVSTORE, 1);
    info.model_fingerprint = 0; // keeps capsules of any model
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_OK);

    info = worker_info("", SLUICE__V1__WORKER_ROLE__DECODE, 1);
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_ERR_INVALID);
    info = worker_info("two words", SLUICE__V1__WORKER_ROLE__DECODE, 1);
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_ERR_INVALID);
    info = worker_info("decode-0", SLUICE__V1__WORKER_ROLE__WORKER_ROLE_UNSPECIFIED, 1);
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_ERR_INVALID);
    info = worker_info("decode-0", SLUICE__V1__WORKER_ROLE__DECODE, 1);
    info.arena_bytes = -5;
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_ERR_INVALID);
    info.arena_bytes = INT64_MAX; // and a sum of two would be less than nothing
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_ERR_INVALID);
    info.arena_bytes = 1000;
    info.staging_bytes = INT64_MAX;
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_ERR_INVALID);
    info = worker_info("kvstore-1", SLUICE__V1__WORKER_ROLE__KVSTORE, 1);
    info.arena_bytes = INT64_MAX;
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_ERR_INVALID);
    info.arena_bytes = -5;
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_ERR_INVALID);
    assert_int_equal(count_ready(registry, SLUICE__V1__WORKER_ROLE__PREFILL), 0);
    assert_int_equal(count_ready(registry, SLUICE__V1__WORKER_ROLE__DECODE), 0);
    assert_int_equal(count_ready(registry, SLUICE__V1__WORKER_ROLE__KVSTORE), 1);
    sl_registry_destroy(&registry);
}

// As the coordinator does.
static void sweep_until(struct sl_registry *registry, int64_t from_ms, int64_t until_ms) {
    for (int64_t ms = from_ms; ms <= until_ms; ms += 100) {
        sl_registry_sweep(registry, ms * MS);
    }
}

static void test_registry_two_missed_beats_lose_a_worker_for_good(void **state) {
    (void)state;
    struct sl_registry *registry = make();
    struct sl_error err;
    bool drain = true;
    Sluice__V1__WorkerInfo info = worker_info("decode-0", SLUICE__V1__WORKER_ROLE__DECODE, 7);
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_OK);
    struct sl_worker *worker = only_worker(registry, SLUICE__V1__WORKER_ROLE__DECODE);
    assert_int_equal(beat(registry, "decode-0", 7, 1000 * MS, &drain), SL_OK);
    assert_false(drain);
    sweep_until(registry, 1000, 2900); // one missed
    assert_false(sl_worker_is_lost(worker));
    sweep_until(registry, 3000, 3300); // two missed
    assert_true(sl_worker_is_lost(worker));
    assert_int_equal(count_ready(registry, SLUICE__V1__WORKER_ROLE__DECODE), 0);
    assert_int_equal(beat(registry, "decode-0", 7, 3400 * MS, &drain), SL_ERR_NOT_FOUND); // too late
    assert_true(sl_worker_is_lost(worker));

    assert_int_equal(sl_registry_register(registry, &info, 3500 * MS, &err), SL_OK); // as a new entry
    assert_true(sl_worker_is_lost(worker)); // jobs of the old one still see that it is gone
    assert_int_equal(count_ready(registry, SLUICE__V1__WORKER_ROLE__DECODE), 1);
    sl_worker_unref(&worker);
    sl_registry_destroy(&registry);
}

// A coordinator that stood still has heard no beats: they may be on their way, or their workers stood still with it.
static void test_registry_does_not_count_while_nobody_sweeps(void **state) {
    (void)state;
    struct sl_registry *registry = make();
    struct sl_error err;
    bool drain;
    Sluice__V1__WorkerInfo info = worker_info("decode-0", SLUICE__V1__WORKER_ROLE__DECODE, 7);
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_OK);
    struct sl_worker *worker = only_worker(registry, SLUICE__V1__WORKER_ROLE__DECODE);
    sweep_until(registry, 0, 500);
    sl_registry_sweep(registry, 60500 * MS);
    assert_false(sl_worker_is_lost(worker));
    assert_int_equal(beat(registry, "decode-0", 7, 60600 * MS, &drain), SL_OK);
    sl_registry_sweep(registry, 90000 * MS);
    assert_false(sl_worker_is_lost(worker));
    sweep_until(registry, 90100, 91300); // but it is gone
    assert_true(sl_worker_is_lost(worker));
    sl_worker_unref(&worker);
    sl_registry_destroy(&registry);
}

// A beat with so much work and progress.
static void beat_with(struct sl_registry *registry, int64_t waiting, int64_t progress, bool stalled, int64_t now_ns) {
    Sluice__V1__HeartbeatRequest request = SLUICE__V1__HEARTBEAT_REQUEST__INIT;
    Sluice__V1__WorkerLoad load = SLUICE__V1__WORKER_LOAD__INIT;
    load.waiting = waiting;
    load.progress = progress;
    load.stalled = stalled;
    request.name = "decode-0";
    request.epoch = 7;
    request.load = &load;
    struct sl_error err;
    bool drain;
    assert_int_equal(sl_registry_heartbeat(registry, &request, now_ns, &drain, &err), SL_OK);
}

static Sluice__V1__WorkerState only_state(struct sl_registry *registry, int64_t now_ns) {
    struct sl_worker_report *reports;
    size_t n = 0;
    struct sl_error err;
    assert_int_equal(sl_registry_report(registry, now_ns, &reports, &n, &err), SL_OK);
    assert_int_equal(n, 1);
    Sluice__V1__WorkerState state = reports[0].status.state;
    free(reports);
    return state;
}

static void test_registry_work_without_progress_is_a_stall(void **state) {
    (void)state;
    struct sl_registry *registry = make();
    struct sl_error err;
    Sluice__V1__WorkerInfo info = worker_info("decode-0", SLUICE__V1__WORKER_ROLE__DECODE, 7);
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_OK);
    struct sl_worker *worker = only_worker(registry, SLUICE__V1__WORKER_ROLE__DECODE);
    int64_t now = 0;
    for (int i = 0; i < 20; i++) { // idle, then busy
        beat_with(registry, i >= 10, i >= 10 ? i : 3, false, now += 1000 * MS);
        assert_false(sl_worker_is_lost(worker));
    }
    for (int i = 0; i < 5; i++) { // as long as it may
        beat_with(registry, 1, 19, false, now += 1000 * MS);
        assert_false(sl_worker_is_lost(worker));
    }
    beat_with(registry, 1, 19, false, now += 1000 * MS);
    assert_true(sl_worker_is_lost(worker)); // to its jobs
    assert_int_equal(count_ready(registry, SLUICE__V1__WORKER_ROLE__DECODE), 0);
    assert_int_equal(only_state(registry, now), SLUICE__V1__WORKER_STATE__STALLED);
    beat_with(registry, 1, 20, false, now += 1000 * MS); // progress
    assert_false(sl_worker_is_lost(worker));
    assert_int_equal(count_ready(registry, SLUICE__V1__WORKER_ROLE__DECODE), 1);
    assert_int_equal(only_state(registry, now), SLUICE__V1__WORKER_STATE__READY);

    beat_with(registry, 1, 21, true, now += 1000 * MS); // it says so itself
    assert_true(sl_worker_is_lost(worker));
    beat_with(registry, 0, 21, false, now += 1000 * MS); // the work was taken back
    assert_false(sl_worker_is_lost(worker));

    // A coordinator that was itself stopped for a minute must not conclude that workers stalled.
    beat_with(registry, 1, 22, false, now += 1000 * MS);
    beat_with(registry, 1, 22, false, now += 60000 * MS);
    assert_false(sl_worker_is_lost(worker));
    sl_worker_unref(&worker);
    sl_registry_destroy(&registry);
}

static void test_registry_new_epoch_replaces_the_old_incarnation(void **state) {
    (void)state;
    struct sl_registry *registry = make();
    struct sl_error err;
    bool drain;
    Sluice__V1__WorkerInfo info = worker_info("decode-0", SLUICE__V1__WORKER_ROLE__DECODE, 7);
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_OK);
    struct sl_worker *old = only_worker(registry, SLUICE__V1__WORKER_ROLE__DECODE);
    assert_int_equal(sl_registry_register(registry, &info, 10 * MS, &err), SL_OK); // a repeated call is harmless
    assert_false(sl_worker_is_lost(old));
    info.epoch = 8;
    assert_int_equal(sl_registry_register(registry, &info, 20 * MS, &err), SL_OK);
    assert_true(sl_worker_is_lost(old));
    assert_int_equal(beat(registry, "decode-0", 7, 30 * MS, &drain), SL_ERR_NOT_FOUND);
    assert_int_equal(beat(registry, "decode-0", 8, 30 * MS, &drain), SL_OK);
    struct sl_worker *new = only_worker(registry, SLUICE__V1__WORKER_ROLE__DECODE);
    assert_ptr_not_equal(new, old);
    sl_worker_unref(&old);
    sl_worker_unref(&new);
    sl_registry_destroy(&registry);
}

static bool beat_of(struct sl_registry *registry, char *name, bool drains, bool stopping, int64_t now_ns) {
    Sluice__V1__HeartbeatRequest request = SLUICE__V1__HEARTBEAT_REQUEST__INIT;
    Sluice__V1__WorkerLoad load = SLUICE__V1__WORKER_LOAD__INIT;
    load.drains = drains;
    load.stopping = stopping;
    request.name = name;
    request.epoch = 1;
    request.load = &load;
    struct sl_error err;
    bool drain = false;
    assert_int_equal(sl_registry_heartbeat(registry, &request, now_ns, &drain, &err), SL_OK);
    return drain;
}

// A coordinator that does not lead hears what the one that does has said.
static void test_registry_learns_of_drains_from_beats(void **state) {
    (void)state;
    struct sl_registry *registry = make();
    struct sl_error err;
    int jobs = 0;
    char name[] = "prefill-0";
    const Sluice__V1__WorkerRole role = SLUICE__V1__WORKER_ROLE__PREFILL;
    Sluice__V1__WorkerInfo info = worker_info(name, role, 1);
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_OK);
    assert_false(beat_of(registry, name, false, false, 1 * MS));
    assert_true(beat_of(registry, name, true, false, 2 * MS)); // another one was told
    assert_int_equal(count_ready(registry, role), 0);
    assert_false(beat_of(registry, name, false, false, 3 * MS)); // and took it back
    assert_int_equal(count_ready(registry, role), 1);
    // We are told: until the worker has heard, its beats are older news.
    assert_int_equal(sl_registry_drain(registry, name, false, &jobs, &err), SL_OK);
    assert_false(sl_registry_drain_is_heard(registry, name));
    assert_true(beat_of(registry, name, false, false, 4 * MS));
    assert_false(sl_registry_drain_is_heard(registry, name));
    assert_true(beat_of(registry, name, true, false, 5 * MS));
    assert_true(sl_registry_drain_is_heard(registry, name));
    assert_false(beat_of(registry, name, false, false, 6 * MS)); // undone by the current leader
    // A command that was never heard is forgotten.
    assert_int_equal(sl_registry_drain(registry, name, false, &jobs, &err), SL_OK);
    sl_registry_adopt_drain(registry, name, false);
    assert_false(beat_of(registry, name, false, false, 7 * MS));
    assert_true(sl_registry_drain_is_heard(registry, "nobody"));
    // One that ends drains whatever operators say.
    assert_true(beat_of(registry, name, false, true, 8 * MS));
    assert_int_equal(sl_registry_drain(registry, name, true, &jobs, &err), SL_OK);
    assert_true(beat_of(registry, name, false, true, 9 * MS));
    assert_int_equal(count_ready(registry, role), 0);
    sl_registry_adopt_drain(registry, name, true); // as it says when it registers
    assert_true(beat_of(registry, name, true, false, 10 * MS));
    sl_registry_destroy(&registry);
}

// A worker that joins late takes turns with the others, instead of catching up with what they did before.
static void test_registry_late_workers_take_turns(void **state) {
    (void)state;
    struct sl_registry *registry = make();
    struct sl_error err;
    char *names[] = {"prefill-0", "prefill-1", "prefill-2"};
    for (int i = 0; i < 3; i++) {
        Sluice__V1__WorkerInfo info = worker_info(names[i], SLUICE__V1__WORKER_ROLE__PREFILL, 1);
        assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_OK);
        struct sl_worker_set set;
        sl_registry_snapshot(registry, SLUICE__V1__WORKER_ROLE__PREFILL, &set);
        assert_int_equal(set.n, i + 1);
        assert_int_equal(set.views[i].jobs_ever, i == 0 ? 0 : 50); // the least of the others
        for (int job = 0; i == 0 && job < 50; job++) {
            sl_worker_claim(set.workers[0], (struct sl_route_need){0}, 0);
            sl_worker_unclaim(set.workers[0], (struct sl_route_need){0}, 0);
        }
        sl_worker_set_release(&set);
    }
    sl_registry_destroy(&registry);
}

static void test_registry_drain_and_suspicion_stop_new_jobs(void **state) {
    (void)state;
    struct sl_registry *registry = make();
    struct sl_error err;
    bool drain = false;
    int jobs = -1;
    Sluice__V1__WorkerInfo info = worker_info("prefill-0", SLUICE__V1__WORKER_ROLE__PREFILL, 1);
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_OK);
    struct sl_worker *worker = only_worker(registry, SLUICE__V1__WORKER_ROLE__PREFILL);
    sl_worker_claim(worker, (struct sl_route_need){100, 40}, 5);
    assert_int_equal(sl_registry_drain(registry, "prefill-0", false, &jobs, &err), SL_OK);
    assert_int_equal(jobs, 1);
    assert_int_equal(count_ready(registry, SLUICE__V1__WORKER_ROLE__PREFILL), 0);
    assert_int_equal(beat(registry, "prefill-0", 1, MS, &drain), SL_OK);
    assert_true(drain);
    assert_false(sl_worker_is_lost(worker)); // what runs goes on
    assert_int_equal(sl_registry_drain(registry, "prefill-0", true, &jobs, &err), SL_OK);
    assert_int_equal(count_ready(registry, SLUICE__V1__WORKER_ROLE__PREFILL), 1);
    assert_int_equal(sl_registry_drain(registry, "nobody", true, &jobs, &err), SL_ERR_NOT_FOUND);

    sl_worker_suspect(worker);
    assert_int_equal(count_ready(registry, SLUICE__V1__WORKER_ROLE__PREFILL), 0);
    assert_int_equal(beat(registry, "prefill-0", 1, 2 * MS, &drain), SL_OK);
    assert_int_equal(count_ready(registry, SLUICE__V1__WORKER_ROLE__PREFILL), 1);
    sl_worker_unclaim_reading(worker, 40, 0);
    sl_worker_unclaim(worker, (struct sl_route_need){100, 0}, 5);
    sl_worker_unref(&worker);
    sl_registry_destroy(&registry);
}

// The longer one of two prompts in a line waits for the shorter one, whose tokens are the delay.
static void test_registry_knows_the_delay_of_a_prompt(void **state) {
    (void)state;
    struct sl_registry *registry = make();
    struct sl_worker_set *set = calloc(1, sizeof *set);
    const struct sl_route_need none = {0};
    struct sl_error err;
    Sluice__V1__WorkerInfo info = worker_info("prefill-0", SLUICE__V1__WORKER_ROLE__PREFILL, 1);
    assert_non_null(set);
    assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_OK);
    struct sl_worker *worker = only_worker(registry, SLUICE__V1__WORKER_ROLE__PREFILL);
    const int64_t line[] = {100000, 500, 1, 0, 500};
    const struct {
        int64_t tokens, delay, without_first;
    } expected[] = {{0, 0, 0},         {1, 4, 3},          {300, 901, 601},
                    {500, 1501, 1001}, {8000, 9001, 1001}, {300000, 101001, 1001}};
    for (int i = 0; i < 5; i++) {
        sl_worker_claim(worker, none, line[i]);
    }
    for (int without = 0; without < 2; without++) {
        for (int i = 0; i < 6; i++) {
            sl_registry_snapshot(registry, SLUICE__V1__WORKER_ROLE__PREFILL, set);
            sl_worker_set_delays(set, expected[i].tokens);
            assert_int_equal(set->views[0].delay_tokens, without ? expected[i].without_first : expected[i].delay);
            assert_int_equal(set->views[0].claimed_tokens, without ? 1001 : 101001);
            sl_worker_set_release(set);
        }
        if (!without) {
            sl_worker_unclaim(worker, none, line[0]);
        }
    }
    sl_worker_set_delays(set, 1); // of no workers
    for (int i = 1; i < 5; i++) {
        sl_worker_unclaim(worker, none, line[i]);
    }
    sl_worker_unref(&worker);
    free(set);
    sl_registry_destroy(&registry);
}

static void test_registry_is_bounded_and_forgets_the_lost(void **state) {
    (void)state;
    struct sl_registry *registry = make();
    struct sl_error err;
    char name[32];
    for (int i = 0; i < SL_MAX_WORKERS; i++) {
        snprintf(name, sizeof(name), "decode-%d", i);
        Sluice__V1__WorkerInfo info = worker_info(name, SLUICE__V1__WORKER_ROLE__DECODE, 1);
        assert_int_equal(sl_registry_register(registry, &info, 0, &err), SL_OK);
    }
    Sluice__V1__WorkerInfo more = worker_info("decode-x", SLUICE__V1__WORKER_ROLE__DECODE, 1);
    assert_int_equal(sl_registry_register(registry, &more, 0, &err), SL_ERR_EXHAUSTED);
    sweep_until(registry, 0, 10000);
    assert_int_equal(sl_registry_register(registry, &more, 10000 * MS, &err), SL_OK); // in place of a lost one
    struct sl_worker_report *reports;
    size_t n_reports;
    assert_int_equal(sl_registry_report(registry, 11000 * MS, &reports, &n_reports, &err), SL_OK);
    assert_int_equal(n_reports, SL_MAX_WORKERS);
    assert_int_equal(reports[0].status.state, SLUICE__V1__WORKER_STATE__LOST);
    assert_int_equal(reports[n_reports - 1].status.state, SLUICE__V1__WORKER_STATE__READY);
    assert_int_equal(reports[n_reports - 1].status.heartbeat_age_ms, 1000);
    assert_string_equal(reports[n_reports - 1].status.info->name, "decode-x");
    free(reports);
    sl_registry_sweep(registry, 700000 * MS);
    assert_int_equal(sl_registry_report(registry, 700000 * MS, &reports, &n_reports, &err), SL_OK);
    assert_true(n_reports <= 1);
    free(reports);
    sl_registry_destroy(&registry);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registry_refuses_other_versions_and_models),
        cmocka_unit_test(test_registry_two_missed_beats_lose_a_worker_for_good),
        cmocka_unit_test(test_registry_does_not_count_while_nobody_sweeps),
        cmocka_unit_test(test_registry_work_without_progress_is_a_stall),
        cmocka_unit_test(test_registry_new_epoch_replaces_the_old_incarnation),
        cmocka_unit_test(test_registry_learns_of_drains_from_beats),
        cmocka_unit_test(test_registry_drain_and_suspicion_stop_new_jobs),
        cmocka_unit_test(test_registry_late_workers_take_turns),
        cmocka_unit_test(test_registry_knows_the_delay_of_a_prompt),
        cmocka_unit_test(test_registry_is_bounded_and_forgets_the_lost),
    };
    return cmocka_run_group_tests(tests, start_rpc, stop_rpc);
}
