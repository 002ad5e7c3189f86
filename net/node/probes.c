// SPDX-License-Identifier: Apache-2.0
#include "net/node/probes.h"

#include "base/metrics.h"
#include "net/node/agent.h"
#include "net/node/ledger.h"
#include "net/node/load.h"

// Returns true if all threads make progress that the process can, or cannot, do without.
static bool all_move(const struct sl_node *node, bool is_spared, const char *rest, char why[SL_WHY_BYTES]) {
    for (const struct sl_progress_counter *counter = node->progress_counters; counter; counter = counter->next) {
        if (counter->is_spared == is_spared && atomic_load(&counter->is_still)) {
            snprintf(why, SL_WHY_BYTES, "the %s stands still%s", counter->name, rest);
            return false;
        }
    }
    return true;
}

static bool threads_move(void *arg, char why[SL_WHY_BYTES]) {
    return all_move(arg, false, "", why);
}

static bool spared_move(void *arg, char why[SL_WHY_BYTES]) {
    return all_move(arg, true, ", and the others go on without it", why);
}

static bool device_works(void *arg, char why[SL_WHY_BYTES]) {
    const struct sl_node *node = arg;
    snprintf(why, SL_WHY_BYTES, "the device has failed");
    return !node->runtime.device || !sl_device_has_failed(node->runtime.device);
}

static bool port_answers(void *arg, char why[SL_WHY_BYTES]) {
    const struct sl_node *node = arg;
    return sl_rpc_selfcheck_answers(node->selfcheck, why, SL_WHY_BYTES);
}

static bool port_has_room(void *arg, char why[SL_WHY_BYTES]) {
    const struct sl_node *node = arg;
    return sl_rpc_selfcheck_has_room(node->selfcheck, why, SL_WHY_BYTES);
}

static bool is_registered(void *arg, char why[SL_WHY_BYTES]) {
    struct sl_node *node = arg;
    return sl_agent_takes_jobs(node->agent, why, SL_WHY_BYTES);
}

static bool goes_on(void *arg, char why[SL_WHY_BYTES]) {
    const struct sl_node *node = arg;
    snprintf(why, SL_WHY_BYTES, "stopping: running jobs finish");
    return !atomic_load(&node->stopping);
}

static void write_arena(FILE *page, const char *name, const char *help, struct sl_arena *arena,
                        struct sl_ledger *ledger) {
    struct sl_arena_stats stats;
    sl_arena_get_stats(arena, &stats);
    size_t promised = sl_ledger_promised_bytes(ledger), taken = stats.used_bytes + promised;
    sl_metrics_declare(page, SL_GAUGE, name, help);
    sl_metrics_sample(page, name, (double)stats.used_bytes, "state", "used", NULL);
    sl_metrics_sample(page, name, (double)promised, "state", "promised", NULL);
    sl_metrics_sample(page, name, taken < stats.capacity_bytes ? (double)(stats.capacity_bytes - taken) : 0, "state",
                      "free", NULL);
}

static void write_load(FILE *page, const Sluice__V1__WorkerLoad *load) {
    sl_metrics_write(page, SL_GAUGE, "sluice_leases", "Memory that is held for jobs: transfers, sessions, remote KVs.",
                     (double)load->leases);
    sl_metrics_write(page, SL_GAUGE, "sluice_worker_jobs", "Calls of jobs that this worker serves.",
                     (double)load->jobs);
    sl_metrics_write(page, SL_COUNTER, "sluice_progress_steps_total",
                     "What was got done: steps of the engine and tasks within them, calls of a store.",
                     (double)load->progress);
    sl_metrics_write(page, SL_GAUGE, "sluice_fabric_grants", "Grants that are open or in quarantine.",
                     (double)load->fabric_grants);
    sl_metrics_write(page, SL_GAUGE, "sluice_fabric_ships", "Ships under way from here.", (double)load->fabric_ships);
}

static void write_metrics(void *arg, FILE *page) {
    struct sl_node *node = arg;
    Sluice__V1__WorkerLoad load = SLUICE__V1__WORKER_LOAD__INIT;
    sl_node_report_load(node, node->service, &load);
    write_load(page, &load);
    write_arena(page, "sluice_arena_bytes", "Memory for KV: in use, promised to jobs that run, and free.", node->arena,
                node->ledger);
    if (sl_node_stages(node)) {
        static const char capsules[] = "sluice_device_capsules_total";
        sl_metrics_declare(page, SL_COUNTER, capsules,
                           "Capsules that left a device with memory of its own, and arrived, or that arrived in one.");
        sl_metrics_sample(page, capsules, (double)atomic_load(&node->n_straight), "way", "straight", NULL);
        sl_metrics_sample(page, capsules, (double)atomic_load(&node->n_staged), "way", "staged", NULL);
        write_arena(page, "sluice_staging_bytes", "Host memory for capsules on their way, likewise.", node->staging,
                    node->staging_ledger);
    }
}

void sl_node_add_probes(struct sl_node *node, const struct sl_node_service *service) {
    // A notice only: a restart would not help a worker whose spared thread is stalled (a stall of such a thread does
    // not end the process), and would lose what is in memory.
    const struct sl_admin_check checks[] = {
        {SL_PROBE_LIVE, "threads", threads_move, node},        {SL_PROBE_NOTICE, "spared", spared_move, node},
        {SL_PROBE_LIVE, "device", device_works, node},         {SL_PROBE_LIVE, "port", port_answers, node},
        {SL_PROBE_NOTICE, "connections", port_has_room, node}, {SL_PROBE_READY, "registered", is_registered, node},
        {SL_PROBE_READY, "stopping", goes_on, node},           {SL_PROBE_READY, "threads", threads_move, node}};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        sl_admin_add_check(node->admin, &checks[i]);
    }
    node->service = service;
    sl_admin_add_metrics(node->admin, write_metrics, node);
    if (service->metrics_fn) {
        sl_admin_add_metrics(node->admin, service->metrics_fn, service->arg);
    }
}
