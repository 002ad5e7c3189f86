// SPDX-License-Identifier: Apache-2.0
// Purpose: roles follow the load, and do not swing with it: constant demand, alternating demand at many periods, noise, and workers that come,
// go, and change by drain.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/version.h"
#include "coordinator/workers/rebalance.h"
#include "coordinator/workers/registry.h"

#define PREFILL SLUICE__V1__WORKER_ROLE__PREFILL
#define DECODE  SLUICE__V1__WORKER_ROLE__DECODE
#define STEP_S  0.1 // of windows of a second

// --- arithmetic ----------------------------------------------------------------------------------------------------------

// A cluster that is asked for some workers' work of either kind. What is short holds up the other: jobs need both.
struct fluid {
    struct sl_rebalance rebalance;
    int n[SL_N_DUTIES], n_up, n_down;
    double now_s;
};

static void run_fluid(struct fluid *fluid, const double demand[SL_N_DUTIES], double seconds) {
    const double end_s = fluid->now_s + seconds;
    for (; fluid->now_s < end_s - STEP_S / 2; fluid->now_s += STEP_S) {
        double served = fmin(1, fmin(fluid->n[0] / demand[0], fluid->n[1] / demand[1]));
        struct sl_rebalance_side sides[SL_N_DUTIES];
        for (int i = 0; i < SL_N_DUTIES; i++) {
            sides[i] = (struct sl_rebalance_side){fluid->n[i], served * demand[i], true};
        }
        int duty = sl_rebalance_sample(&fluid->rebalance, sides, fluid->now_s);
        if (duty >= 0) {
            fluid->n[duty]++;
            fluid->n[1 - duty]--;
            assert_true(fluid->n[1 - duty] >= 1);
            fluid->n_up += duty == SL_READING;
            fluid->n_down += duty == SL_WRITING;
        }
    }
}

static void test_constant_demand_moves_workers_in_one_direction(void **state) {
    (void)state;
    int n_moves = 0;
    for (int n = 2; n <= 12; n++) {
        for (int first = 1; first < n; first++) {
            for (double share = 0.05; share < 2.5; share += 0.11) {
                for (double other = 0.05; other < 2.5; other += 0.13) {
                    struct fluid fluid = {.rebalance.least_s = 1, .n = {first, n - first}};
                    const double demand[] = {share * n, other * n};
                    run_fluid(&fluid, demand, 3.0 * n);
                    assert_true(fluid.n_up == 0 || fluid.n_down == 0);
                    assert_true(n > 3 || fluid.n_up + fluid.n_down <= 1);
                    int moved = fluid.n_up + fluid.n_down;
                    run_fluid(&fluid, demand, 10); // it has come to rest
                    assert_int_equal(fluid.n_up + fluid.n_down, moved);
                    n_moves += moved;
                }
            }
        }
    }
    assert_true(n_moves > 1000);
}

static void test_one_side_only_gets_what_it_lacks(void **state) {
    (void)state;
    struct fluid fluid = {.rebalance.least_s = 1, .n = {1, 7}};
    run_fluid(&fluid, (const double[]){3.2, 1}, 30);
    assert_int_equal(fluid.n[SL_READING], 4); // 3.2 of 4 are not too many
    assert_true(fabs(fluid.rebalance.means[SL_READING] - 3.2) < 0.01 &&
                fabs(fluid.rebalance.means[SL_WRITING] - 1) < 0.01);
    assert_true(fluid.rebalance.mean_s >= 1 && fluid.rebalance.mean_s < 1 + 2 * STEP_S);
    run_fluid(&fluid, (const double[]){0.3, 6.5}, 60);
    assert_int_equal(fluid.n[SL_READING], 1);
    struct fluid full = {.rebalance.least_s = 1, .n = {1, 2}}; // both are full: neither can spare one
    run_fluid(&full, (const double[]){5, 5}, 30);
    assert_int_equal(full.n_up + full.n_down, 0);
}

// Alternates between two demands, each for half_s. Returns the changes in `seconds`.
static int alternate(double half_s, double seconds) {
    static const double demands[2][SL_N_DUTIES] = {{2.5, 0.3}, {0.3, 2.5}};
    struct fluid fluid = {.rebalance.least_s = 1, .n = {2, 2}};
    for (int k = 0; fluid.now_s < seconds; k++) {
        run_fluid(&fluid, demands[k % 2], half_s);
    }
    return fluid.n_up + fluid.n_down;
}

static void test_alternating_demand_is_averaged_or_followed(void **state) {
    (void)state;
    for (double half_s = 0.2; half_s <= 40; half_s *= 1.15) {
        double steps_s = round(half_s / STEP_S) * STEP_S, n_halves = 1000 / steps_s;
        int n = alternate(steps_s, 1000);
        if (steps_s < 0.8) {
            assert_int_equal(n, 0); // a window has both halves
        } else if (steps_s < 5) {
            assert_true(n <= n_halves); // a change comes too late here: half of them or more are left out
        } else {
            assert_true(n <= 2 * n_halves + 2); // 3 of 4 go to either side
        }
        assert_true(steps_s < 10 || n >= 2 * n_halves - 4); // and slow ones are followed
    }
}

static void test_noise_does_not_move_workers(void **state) {
    (void)state;
    uint64_t random = 1;
    struct fluid fluid = {.rebalance.least_s = 10, .n = {2, 2}};
    for (int k = 0; k < 20000; k++) { // bursts of half a second around 1.5 of 2 workers
        random = random * 6364136223846793005u + 1442695040888963407u;
        double burst = (double)(random >> 40) / (double)(1 << 24);
        run_fluid(&fluid, (const double[]){0.5 + 2 * burst, 2.5 - 2 * burst}, 0.5);
    }
    assert_int_equal(fluid.n_up + fluid.n_down, 0);
}

// --- workers ---------------------------------------------------------------------------------------------------------------

#define WINDOW_MS 1000

struct crew {
    struct sl_registry *registry;
    int64_t now_ms;
    int n_changes;
};

static void join(struct crew *crew, const char *name, Sluice__V1__WorkerRole role, bool reads, uint64_t epoch) {
    Sluice__V1__WorkerInfo info = SLUICE__V1__WORKER_INFO__INIT;
    struct sl_error err;
    info.name = (char *)name;
    info.rpc_address = (char *)"127.0.0.1:1";
    info.version = (char *)SL_VERSION;
    info.role = role;
    info.reads = reads;
    info.arena_bytes = 1000;
    info.max_jobs = 4;
    info.epoch = epoch;
    info.model_fingerprint = 1;
    assert_int_equal(sl_registry_register(crew->registry, &info, crew->now_ms * SL_NS_PER_MS, &err), SL_OK);
}

static struct crew open_crew(void) {
    struct crew crew = {0};
    struct sl_error err;
    const struct sl_registry_config config = {.model_fingerprint = 1,
                                              .heartbeat_ms = 1000,
                                              .stall_ms = 5000,
                                              .rebalance_ms = WINDOW_MS,
                                              .is_simulated = true};
    assert_int_equal(sl_registry_create(&config, &crew.registry, &err), SL_OK);
    return crew;
}

static void pass(struct crew *crew, int64_t ms, bool reading_short, bool writing_short) {
    const bool is_short[SL_N_DUTIES] = {reading_short, writing_short};
    for (int64_t until_ms = crew->now_ms + ms; crew->now_ms < until_ms; crew->now_ms += 50) {
        crew->n_changes +=
            sl_registry_rebalance(crew->registry, is_short, crew->now_ms * SL_NS_PER_MS) == SL_DUTIES_CHANGE;
    }
}

// Returns the workers of a role that take jobs, as "a b c".
static const char *ready(struct crew *crew, Sluice__V1__WorkerRole role) {
    static struct sl_worker_set set;
    static char names[256];
    names[0] = '\0';
    sl_registry_snapshot(crew->registry, role, &set);
    for (int i = 0; i < set.n; i++) {
        if (set.views[i].ready) {
            strcat(strcat(names, names[0] ? " " : ""), set.views[i].name);
            assert_int_equal(set.views[i].reads, false);
        }
    }
    sl_worker_set_release(&set);
    return names;
}

static struct sl_worker *find(struct crew *crew, const char *name) {
    struct sl_worker *worker = sl_registry_find(crew->registry, DECODE, name, NULL);
    assert_non_null(worker);
    return worker;
}

static void test_workers_get_roles_and_change_them_by_drain(void **state) {
    (void)state;
    struct crew crew = open_crew();
    join(&crew, "a", DECODE, true, 1);
    pass(&crew, 5000, true, true);
    assert_true(sl_registry_is_served(crew.registry, PREFILL)); // one worker alone does both
    assert_true(sl_registry_is_served(crew.registry, DECODE));
    join(&crew, "b", DECODE, true, 1);
    join(&crew, "c", DECODE, true, 1);
    pass(&crew, 100, false, false);
    assert_string_equal(ready(&crew, PREFILL), "a c");
    assert_string_equal(ready(&crew, DECODE), "b");

    // Writing is short: the idlest reader drains, and takes no job of either role until it has none
    struct sl_worker *busy = find(&crew, "a"), *b = find(&crew, "c");
    const struct sl_route_need need = {.bytes = 10};
    sl_worker_claim(busy, need, 0);
    sl_worker_claim(busy, need, 0);
    sl_worker_claim(b, need, 0);
    pass(&crew, 3 * WINDOW_MS / 2, false, true);
    assert_int_equal(crew.n_changes, 0); // one of two reads: it cannot be spared
    sl_worker_unclaim(busy, need, 0);
    sl_worker_unclaim(busy, need, 0);
    sl_worker_unclaim(b, need, 0);
    pass(&crew, 2 * WINDOW_MS, false, false);
    sl_worker_claim(b, need, 0);
    pass(&crew, 40 * WINDOW_MS / 50, false, true);
    sl_worker_claim(busy, need, 0); // both have a job when the window ends, for a short time
    pass(&crew, WINDOW_MS / 4, false, true);
    sl_worker_unclaim(busy, need, 0);
    sl_worker_unclaim(b, need, 0);
    pass(&crew, 2 * WINDOW_MS, false, true);
    assert_int_equal(crew.n_changes, 1);
    assert_string_equal(ready(&crew, PREFILL), "c");
    assert_string_equal(ready(&crew, DECODE), "a b");
    pass(&crew, 50 * WINDOW_MS, false, true); // the last of a role stays
    assert_string_equal(ready(&crew, PREFILL), "c");
    assert_int_equal(crew.n_changes, 1);
    sl_worker_unref(&busy);
    sl_worker_unref(&b);
    sl_registry_destroy(&crew.registry);
}

static void test_a_drain_ends_with_the_jobs_or_after_a_window(void **state) {
    (void)state;
    for (int ends = 0; ends < 2; ends++) {
        struct crew crew = open_crew();
        join(&crew, "p", PREFILL, false, 1);
        join(&crew, "d", DECODE, false, 1);
        join(&crew, "e", DECODE, true, 1);
        pass(&crew, 100, false, false);
        assert_string_equal(ready(&crew, PREFILL), "p e");
        struct sl_worker *worker = find(&crew, "e");
        const struct sl_route_need need = {.bytes = 10};
        for (int i = 0; i < 40 && crew.n_changes == 0; i++) {
            pass(&crew, 50, false, true);
        }
        assert_int_equal(crew.n_changes, 1);
        sl_worker_claim(worker, need, 0); // as if it still read
        pass(&crew, 800, false, true);
        assert_string_equal(ready(&crew, PREFILL), "p"); // a worker of one role is never asked to change
        assert_string_equal(ready(&crew, DECODE), "d");
        if (ends) {
            sl_worker_unclaim(worker, need, 0);
            pass(&crew, 50, false, true);
        } else {
            pass(&crew, 400, false, true); // it can do both: it goes on with its job, and takes new ones
        }
        assert_string_equal(ready(&crew, DECODE), "d e");
        if (!ends) {
            sl_worker_unclaim(worker, need, 0);
        }
        sl_worker_unref(&worker);
        sl_registry_destroy(&crew.registry);
    }
}

static void test_the_last_of_a_role_is_replaced_at_once(void **state) {
    (void)state;
    struct crew crew = open_crew();
    struct sl_error err;
    int n_jobs;
    join(&crew, "a", DECODE, true, 1);
    join(&crew, "b", DECODE, true, 1);
    pass(&crew, 100, false, false);
    assert_string_equal(ready(&crew, PREFILL), "a");
    assert_int_equal(sl_registry_drain(crew.registry, "a", false, &n_jobs, &err), SL_OK);
    pass(&crew, 100, false, false);
    assert_true(sl_registry_is_served(crew.registry, PREFILL)); // by b, which does both
    assert_true(sl_registry_is_served(crew.registry, DECODE));
    join(&crew, "c", DECODE, true, 1);
    pass(&crew, 100, false, false);
    assert_string_equal(ready(&crew, PREFILL), "b");
    assert_string_equal(ready(&crew, DECODE), "c");
    sl_registry_destroy(&crew.registry);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant_demand_moves_workers_in_one_direction),
        cmocka_unit_test(test_one_side_only_gets_what_it_lacks),
        cmocka_unit_test(test_alternating_demand_is_averaged_or_followed),
        cmocka_unit_test(test_noise_does_not_move_workers),
        cmocka_unit_test(test_workers_get_roles_and_change_them_by_drain),
        cmocka_unit_test(test_a_drain_ends_with_the_jobs_or_after_a_window),
        cmocka_unit_test(test_the_last_of_a_role_is_replaced_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
