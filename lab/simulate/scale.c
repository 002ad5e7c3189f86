// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/scale.h"

#include <math.h>

#include "lab/simulate/cluster.h"

// As in deploy/components/keda; tests/unit/lab/simulate/test_simulate_commands.py compares them
#define PREFILL_WAITING 4.0 // seconds of reading that wait, a worker
#define PREFILL_BUSY    0.8 // seconds of reading a second
#define DECODE_ARENA    0.8 // of its memory
#define DECODE_WAITING  5.0 // jobs that wait, a worker
#define UP_WORKERS      2
#define UP_S            60
#define DOWN_WORKERS    1
#define DOWN_S          300
#define TOLERANCE       0.1 // of Kubernetes' autoscaler

static int64_t before(const int64_t *ring, const struct sl_scale *scale, int64_t s) {
    int64_t tick = scale->n_ticks - s / SL_SCALE_EVERY_S;
    return ring[(tick > 0 ? tick : 0) % SL_SCALE_TICKS];
}

int64_t sl_scale_step(struct sl_scale *scale, const double asked[2]) {
    int64_t wanted = 0, most_wanted = 0, n = scale->n;
    if (scale->n_ticks == 0) {
        scale->was[0] = n;
    }
    for (int i = 0; i < 2; i++) {
        bool is_near = fabs(asked[i] / (double)n - 1) <= TOLERANCE;
        int64_t workers = is_near ? n : (int64_t)ceil(fmin(asked[i], (double)scale->most));
        wanted = workers > wanted ? workers : wanted;
    }
    scale->n_ticks++;
    scale->wanted[scale->n_ticks % SL_SCALE_TICKS] = wanted;
    for (int64_t i = 0; i < SL_SCALE_TICKS && i < scale->n_ticks; i++) {
        int64_t one = scale->wanted[(scale->n_ticks - i) % SL_SCALE_TICKS];
        most_wanted = one > most_wanted ? one : most_wanted;
    }
    if (wanted > n) {
        int64_t limit = before(scale->was, scale, UP_S) + UP_WORKERS;
        n = wanted < limit ? wanted : limit > n ? limit : n;
    } else if (most_wanted < n) {
        int64_t limit = before(scale->was, scale, DOWN_S) - DOWN_WORKERS;
        n = most_wanted > limit ? most_wanted : limit < n ? limit : n;
    }
    n = n < scale->least ? scale->least : n > scale->most ? scale->most : n;
    scale->was[scale->n_ticks % SL_SCALE_TICKS] = n;
    return scale->n = n;
}

// --- workers -----------------------------------------------------------------------------------------------------------

// Lets a worker that has started take jobs, and ends one that has no job left.
static void advance(struct sl_sim *sim, int64_t i, double at_s) {
    struct sl_sim_node *node = &sim->nodes[i];
    if (node->power == SL_SIM_STARTS && at_s >= node->ready_s) {
        (void)sl_sim_drain(sim, i, true);
        node->power = SL_SIM_ON;
        sim->wants_pump = true;
    } else if (node->power == SL_SIM_DRAINS && sl_sim_drain(sim, i, false) == 0) {
        node->power = SL_SIM_OFF;
    }
}

// Starts and stops workers until there are scale->n. Those that start go first, then the last ones.
static void run_to_rule(struct sl_sim *sim, int role, double at_s) {
    int64_t first = role == 0 ? 0 : sim->config->n_prefill, most = sim->scales[role].most, n = 0;
    for (int64_t i = first; i < first + most; i++) {
        n += sim->nodes[i].power == SL_SIM_STARTS || sim->nodes[i].power == SL_SIM_ON;
    }
    for (int64_t i = first; i < first + most && n < sim->scales[role].n; i++) {
        if (sim->nodes[i].power == SL_SIM_OFF) {
            sim->nodes[i].power = SL_SIM_STARTS;
            sim->nodes[i].ready_s = at_s + (double)sim->config->start_ms / 1000;
            n++;
        }
    }
    for (int kind = 0; kind < 2; kind++) {
        for (int64_t i = first + most - 1; i >= first && n > sim->scales[role].n; i--) {
            if (sim->nodes[i].power == (kind == 0 ? SL_SIM_STARTS : SL_SIM_ON)) {
                sim->nodes[i].power = SL_SIM_DRAINS;
                (void)sl_sim_drain(sim, i, false);
                n--;
            }
        }
    }
}

// --- metrics -----------------------------------------------------------------------------------------------------------

// Returns how much a counter has grown in the last s seconds.
static double growth(const struct sl_sim *sim, const double *ring, int64_t s) {
    int64_t tick = sim->n_scale_ticks - s / SL_SCALE_EVERY_S;
    return ring[sim->n_scale_ticks % SL_SCALE_TICKS] - (tick > 0 ? ring[tick % SL_SCALE_TICKS] : 0);
}

static void look(void *arg, double at_s, uint64_t tag) {
    struct sl_sim *sim = arg;
    struct sl_admission_stats stats;
    const struct sl_sim_config *config = sim->config;
    if (sim->n_ended == config->workload->n) {
        return;
    }
    sl_admission_get_stats(sim->admission, &stats);
    sl_sim_count_workers(sim, at_s);
    sim->n_scale_ticks++;
    sim->read_s[sim->n_scale_ticks % SL_SCALE_TICKS] = sim->all_read_s;
    sim->n_read[sim->n_scale_ticks % SL_SCALE_TICKS] = (double)sim->n_all_read;
    double n_read = growth(sim, sim->n_read, 300);
    double mean_s = n_read > 0 ? growth(sim, sim->read_s, 300) / n_read : 0, n_queued = (double)stats.n_queued;
    const double asked[2][2] = {
        {n_queued * mean_s / PREFILL_WAITING, growth(sim, sim->read_s, 120) / 120 / PREFILL_BUSY},
        {sim->held_bytes / (double)config->decode_arena / DECODE_ARENA, n_queued / DECODE_WAITING}};
    for (int64_t i = 0; i < config->n_prefill + config->n_decode; i++) {
        advance(sim, i, at_s);
    }
    for (int role = 0; role < 2; role++) {
        (void)sl_scale_step(&sim->scales[role], asked[role]);
        run_to_rule(sim, role, at_s);
    }
    sl_sim_at(&sim->events, at_s + SL_SCALE_EVERY_S, look, sim, tag);
}

void sl_sim_scale_begin(struct sl_sim *sim) {
    const struct sl_sim_config *config = sim->config;
    for (int role = 0; role < 2; role++) {
        int64_t first = role == 0 ? 0 : config->n_prefill, most = role == 0 ? config->n_prefill : config->n_decode;
        sim->scales[role] = (struct sl_scale){.n = config->autoscale, .least = config->autoscale, .most = most};
        for (int64_t i = first; i < first + most; i++) {
            sim->nodes[i].power = i < first + config->autoscale ? SL_SIM_ON : SL_SIM_OFF;
            if (sim->nodes[i].power == SL_SIM_OFF) {
                (void)sl_sim_drain(sim, i, false);
            }
        }
    }
    sl_sim_at(&sim->events, SL_SCALE_EVERY_S, look, sim, 0);
}
