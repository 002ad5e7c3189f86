// SPDX-License-Identifier: Apache-2.0
// Purpose: the checks and metrics of the coordinator's admin port (net/admin/admin.h): liveness, readiness, jobs and workers.
#include <stdlib.h>

#include "base/locked.h"
#include "net/admin/admin.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "coordinator/coordinator_internal.h"

// The sweeper runs many times per second.
static bool is_swept(void *arg, char why[SL_WHY_BYTES]) {
    struct sl_coordinator *coordinator = arg;
    int64_t still_ms = (sl_now_ns() - atomic_load(&coordinator->swept_ns)) / SL_NS_PER_MS;
    snprintf(why, SL_WHY_BYTES, "the sweeper stands still for %lld ms", (long long)still_ms);
    return still_ms < coordinator->config.stall_ms;
}

static bool port_answers(void *arg, char why[SL_WHY_BYTES]) {
    const struct sl_coordinator *coordinator = arg;
    return sl_rpc_selfcheck_answers(coordinator->selfcheck, why, SL_WHY_BYTES);
}

static bool port_has_room(void *arg, char why[SL_WHY_BYTES]) {
    const struct sl_coordinator *coordinator = arg;
    return sl_rpc_selfcheck_has_room(coordinator->selfcheck, why, SL_WHY_BYTES);
}

static bool takes_jobs(void *arg, char why[SL_WHY_BYTES]) {
    struct sl_coordinator *coordinator = arg;
    bool stopping;
    SL_WITH_LOCK(&coordinator->mutex, stopping = coordinator->stopping);
    snprintf(why, SL_WHY_BYTES, "stopping: running jobs finish");
    return !stopping;
}

static void write_jobs(struct sl_coordinator *coordinator, FILE *page) {
    static const char *const states[] = {[SLUICE__V1__JOB_STATE__QUEUED] = "queued",
                                         [SLUICE__V1__JOB_STATE__PREFILLING] = "prefilling",
                                         [SLUICE__V1__JOB_STATE__SHIPPING] = "shipping",
                                         [SLUICE__V1__JOB_STATE__DECODING] = "decoding"};
    int64_t counts[SL_N_JOB_STATES];
    sl_jobs_count(coordinator->jobs, NULL, counts);
    sl_metrics_declare(page, SL_GAUGE, "sluice_jobs", "Jobs that have not ended.");
    for (int i = SLUICE__V1__JOB_STATE__QUEUED; i <= SLUICE__V1__JOB_STATE__DECODING; i++) {
        sl_metrics_sample(page, "sluice_jobs", (double)counts[i], "state", states[i], NULL);
    }
}

// Writes zeros without --state.
static void write_state(struct sl_coordinator *coordinator, FILE *page) {
    struct sl_state_stats stats = {0};
    if (coordinator->state != NULL) {
        sl_state_get_stats(coordinator->state, &stats);
    }
    sl_metrics_write(page, SL_GAUGE, "sluice_state_jobs", "Jobs in --state.", (double)stats.n_jobs);
    sl_metrics_write(page, SL_GAUGE, "sluice_state_bytes", "Bytes that they take there.", (double)stats.bytes);
    sl_metrics_write(page, SL_COUNTER, "sluice_state_lost_jobs_total",
                     "Jobs that could not be written there completely.", (double)stats.n_lost);
}

enum { BOTH = 3, N_ROLES = 4, N_STATES = 4 };

static void write_workers(const struct sl_worker_report *reports, size_t n_reports, FILE *page) {
    static const char *const roles[N_ROLES] = {"prefill", "decode", "kvstore", "both"};
    static const char *const states[N_STATES] = {"ready", "draining", "lost", "stalled"};
    int counts[N_ROLES][N_STATES] = {{0}};
    for (size_t i = 0; i < n_reports; i++) {
        int role = reports[i].info.reads ? BOTH : (int)reports[i].info.role - SLUICE__V1__WORKER_ROLE__PREFILL;
        int state = (int)reports[i].status.state - SLUICE__V1__WORKER_STATE__READY;
        if (role >= 0 && role < N_ROLES && state >= 0 && state < N_STATES) {
            counts[role][state]++;
        }
    }
    sl_metrics_declare(page, SL_GAUGE, "sluice_workers", "Workers that are known; lost ones for some time.");
    for (int role = 0; role < N_ROLES; role++) {
        for (int state = 0; state < N_STATES; state++) {
            sl_metrics_sample(page, "sluice_workers", counts[role][state], "role", roles[role], "state", states[state],
                              NULL);
        }
    }
}

// Writes the metrics that endpoint pickers read, under the names of vLLM.
static void write_alias(const struct sl_admission_stats *stats, const struct sl_worker_report *reports,
                        size_t n_reports, FILE *page) {
    double arena_bytes = 0, used_bytes = 0;
    for (size_t i = 0; i < n_reports; i++) {
        bool decodes = reports[i].info.role == SLUICE__V1__WORKER_ROLE__DECODE &&
                       reports[i].status.state == SLUICE__V1__WORKER_STATE__READY;
        arena_bytes += decodes ? (double)reports[i].info.arena_bytes : 0;
        used_bytes += decodes ? (double)reports[i].load.arena_used_bytes : 0;
    }
    sl_metrics_write(page, SL_GAUGE, "vllm:num_requests_waiting", "Jobs that wait to be admitted.",
                     (double)stats->n_queued);
    sl_metrics_write(page, SL_GAUGE, "vllm:num_requests_running", "Jobs that are admitted.", (double)stats->n_running);
    sl_metrics_write(page, SL_GAUGE, "vllm:kv_cache_usage_perc",
                     "Share of the decode workers' arenas that is in use, 0 to 1.",
                     arena_bytes > 0 ? used_bytes / arena_bytes : 0);
}

static void write_metrics(void *arg, FILE *page) {
    struct sl_coordinator *coordinator = arg;
    struct sl_admission_stats stats;
    sl_admission_get_stats(coordinator->admission, &stats);
    write_jobs(coordinator, page);
    write_state(coordinator, page);
    sl_metrics_write(page, SL_GAUGE, "sluice_claimed_bytes", "KV bytes that are promised to admitted jobs.",
                     (double)stats.claimed_bytes);
    sl_metrics_write(page, SL_COUNTER, "sluice_role_changes_total", "Workers that went over to another role.",
                     (double)stats.n_rebalanced);
    sl_metrics_write(page, SL_GAUGE, "sluice_watchers", "Calls that follow jobs.",
                     atomic_load(&coordinator->n_watchers));
    sl_metrics_write(page, SL_GAUGE, "sluice_calls", "Calls of clients that are being handled.",
                     atomic_load(&coordinator->usage.n_running));
    sl_metrics_declare(page, SL_COUNTER, "sluice_calls_refused_total",
                       "Calls that were refused because as many were being handled as all callers, or one, may have.");
    sl_metrics_sample(page, "sluice_calls_refused_total", (double)atomic_load(&coordinator->usage.n_over_limit), "of",
                      "all", NULL);
    sl_metrics_sample(page, "sluice_calls_refused_total", (double)atomic_load(&coordinator->usage.n_over_share), "of",
                      "caller", NULL);
    struct sl_tokenizing_stats tokenizing;
    sl_tokenizing_get_stats(coordinator->tokenizing, &tokenizing);
    sl_metrics_write(page, SL_COUNTER, "sluice_tokenizing_waits_total",
                     "Times that a request waited for a processor to tokenize it.", (double)tokenizing.n_waits);
    sl_metrics_write(page, SL_COUNTER, "sluice_tokenizing_expired_total",
                     "Requests whose deadline passed before they were tokenized.", (double)tokenizing.n_expired);
    sl_job_figures_write(&coordinator->figures, page);
    struct sl_worker_report *reports = NULL;
    size_t n_reports = 0;
    struct sl_error err = {0};
    if (sl_registry_report(coordinator->registry, sl_now_ns(), &reports, &n_reports, &err) != SL_OK) {
        sl_log_warn("coordinator", "metrics without workers: %s", err.text);
        return;
    }
    write_workers(reports, n_reports, page);
    if (coordinator->vllm_names) {
        write_alias(&stats, reports, n_reports, page);
    }
    free(reports);
}

void sl_coordinator_add_probes(struct sl_coordinator *coordinator) {
    const struct sl_admin_check checks[] = {{SL_PROBE_LIVE, "sweeper", is_swept, coordinator},
                                            {SL_PROBE_LIVE, "port", port_answers, coordinator},
                                            {SL_PROBE_NOTICE, "connections", port_has_room, coordinator},
                                            {SL_PROBE_READY, "serving", takes_jobs, coordinator}};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        sl_admin_add_check(coordinator->admin, &checks[i]);
    }
    sl_admin_add_metrics(coordinator->admin, write_metrics, coordinator);
    sl_admin_started(coordinator->admin);
}
