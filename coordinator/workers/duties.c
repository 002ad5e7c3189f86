// SPDX-License-Identifier: Apache-2.0
// Purpose: gives duties to the workers that can read and write (rebalance.h), and lets them change by drain.
#include <math.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "coordinator/workers/registry_internal.h"

static const char *const names[SL_N_DUTIES] = {"reading", "writing"};

static Sluice__V1__WorkerRole role_of(int duty) {
    return duty == SL_READING ? SLUICE__V1__WORKER_ROLE__PREFILL : SLUICE__V1__WORKER_ROLE__DECODE;
}

static bool is_there(const struct sl_worker *worker) {
    return worker->role != SLUICE__V1__WORKER_ROLE__KVSTORE && !worker->lost && !worker->stalled &&
           !sl_worker_is_draining(worker);
}

// Returns the share of the worker that its jobs use; is_full: they leave no room. Of a place that is promised to a job whose prompt is still
// read, nothing is used: where reading is short, all places are promised.
static double busy_of(const struct sl_worker *worker, int duty, bool is_full) {
    double jobs = (double)worker->jobs / worker->max_jobs;
    double bytes = (double)worker->claimed_bytes / (double)worker->arena_bytes;
    double share = is_full ? 1 : fmin(fmax(jobs, bytes), 1);
    double used = worker->jobs > 0 ? share * (worker->jobs - worker->awaited) / worker->jobs : share;
    return duty == SL_READING ? is_full || worker->jobs > 0 : used;
}

static void give(struct sl_worker *worker, int duty) {
    worker->duty = role_of(duty);
    worker->turns = false;
    sl_registry_take_turns(worker);
    sl_log_info("registry", "worker=%s is for %s now", worker->name, names[duty]);
}

struct crew {
    struct sl_rebalance_side sides[SL_N_DUTIES];
    struct sl_worker *idlest[SL_N_DUTIES]; // that can take the other duty
    struct sl_worker *turning;
    int n_free; // without a duty: they do both
};

static struct crew muster(const struct sl_registry *registry, const bool is_short[SL_N_DUTIES]) {
    struct crew crew = {0};
    for (int i = 0; i < registry->n_workers; i++) {
        struct sl_worker *worker = registry->workers[i];
        if (!is_there(worker)) {
            continue;
        }
        int duty = sl_worker_has_role(worker, role_of(SL_READING)) ? SL_READING : SL_WRITING;
        if (worker->turns) {
            crew.turning = worker;
        } else if (worker->reads && worker->duty == 0) {
            crew.n_free++;
        } else {
            crew.sides[duty].n++;
            crew.sides[duty].busy += busy_of(worker, duty, is_short[duty]);
            struct sl_worker *idlest = crew.idlest[duty];
            if (worker->reads && (idlest == NULL || worker->jobs < idlest->jobs)) {
                crew.idlest[duty] = worker;
                crew.sides[duty].gives = true;
            }
        }
    }
    return crew;
}

static int smaller(const struct sl_rebalance_side sides[SL_N_DUTIES]) {
    return sides[SL_WRITING].n < sides[SL_READING].n ? SL_WRITING : SL_READING;
}

// Gives duties to the workers without one, if both duties then have workers: a worker that is alone does both.
static bool employ(struct sl_registry *registry, struct crew *crew) {
    bool is_enough = crew->n_free > 0 && crew->sides[0].n + crew->sides[1].n + crew->n_free > 1;
    for (int i = 0; i < registry->n_workers && is_enough; i++) {
        struct sl_worker *worker = registry->workers[i];
        if (is_there(worker) && worker->reads && worker->duty == 0) {
            int duty = smaller(crew->sides);
            give(worker, duty);
            crew->sides[duty].n++;
        }
    }
    return is_enough;
}

// Lets a worker of the other duty do both, when the last one of a duty has gone.
static bool fill_in(struct crew *crew) {
    int empty = smaller(crew->sides);
    struct sl_worker *worker = crew->turning != NULL ? crew->turning : crew->idlest[1 - empty];
    if (crew->sides[empty].n > 0 || crew->n_free > 0 || worker == NULL) {
        return false;
    }
    worker->duty = 0;
    worker->turns = false;
    sl_log_info("registry", "worker=%s reads and writes: no other worker is for %s", worker->name, names[empty]);
    return true;
}

// Ends the drain of a worker that has no job left, or has drained for a window: it can do both.
static bool end_drain(struct sl_registry *registry, struct sl_worker *worker, int64_t now_ns) {
    bool ends = worker->jobs == 0 || now_ns - worker->turned_ns > registry->config.rebalance_ms * SL_NS_PER_MS;
    if (ends) {
        give(worker, worker->duty == role_of(SL_READING) ? SL_WRITING : SL_READING);
    }
    return ends;
}

static bool change(struct sl_registry *registry, const struct crew *crew, int64_t now_ns) {
    const struct sl_rebalance_side *sides = crew->sides;
    int duty = sl_rebalance_sample(&registry->rebalance, sides, (double)now_ns / SL_NS_PER_S);
    if (duty < 0) {
        return false;
    }
    struct sl_worker *worker = crew->idlest[1 - duty];
    worker->turns = true;
    worker->turned_ns = now_ns;
    const struct sl_rebalance *why = &registry->rebalance;
    sl_log_info(
        "registry",
        "worker=%s drains, to go over from %s to %s: for %.1f s, reading kept %.1f of %d workers busy, and writing "
        "%.1f of %d",
        worker->name, names[1 - duty], names[duty], why->mean_s, why->means[SL_READING], sides[SL_READING].n,
        why->means[SL_WRITING], sides[SL_WRITING].n);
    return true;
}

enum sl_duty_news sl_registry_rebalance(struct sl_registry *registry, const bool is_short[SL_N_DUTIES],
                                        int64_t now_ns) {
    if (registry->config.rebalance_ms == 0) {
        return SL_DUTIES_SAME;
    }
    enum sl_duty_news news = SL_DUTIES_SAME;
    SL_LOCKED(&registry->mutex);
    registry->rebalance.least_s = (double)registry->config.rebalance_ms / 1000;
    struct crew crew = muster(registry, is_short);
    if (fill_in(&crew) || employ(registry, &crew) ||
        (crew.turning != NULL && end_drain(registry, crew.turning, now_ns))) {
        news = SL_DUTIES_GIVEN;
    } else if (crew.turning == NULL && change(registry, &crew, now_ns)) {
        news = SL_DUTIES_CHANGE;
    }
    return news;
}
