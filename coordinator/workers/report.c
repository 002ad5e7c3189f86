// SPDX-License-Identifier: Apache-2.0
// Purpose: copies what the registry knows of every worker, for status pages and metrics.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "coordinator/workers/registry_internal.h"

static void report_one(const struct sl_worker *worker, int64_t now_ns, struct sl_worker_report *report) {
    strcpy(report->name, worker->name);
    const char *at = strchr(worker->rpc_address, '@');
    strcpy(report->rpc_address, at != NULL ? at + 1 : worker->rpc_address);
    strcpy(report->fabric_address, worker->fabric_address);
    strcpy(report->version, worker->version);
    strcpy(report->device, worker->device);
    sluice__v1__worker_info__init(&report->info);
    report->info.name = report->name;
    report->info.rpc_address = report->rpc_address;
    report->info.fabric_address = report->fabric_address;
    report->info.version = report->version;
    report->info.device = report->device;
    report->info.role = worker->duty != 0 ? worker->duty : worker->role;
    report->info.model_fingerprint = worker->model_fingerprint;
    report->info.arena_bytes = worker->arena_bytes;
    report->info.staging_bytes = worker->staging_bytes;
    report->info.disk_bytes = worker->disk_bytes;
    report->info.max_jobs = worker->max_jobs;
    report->info.reads = worker->reads && worker->duty == 0;
    report->info.epoch = worker->epoch;
    report->load = worker->load;
    sluice__v1__worker_status__init(&report->status);
    report->status.info = &report->info;
    report->status.load = &report->load;
    report->status.state = worker->lost                                     ? SLUICE__V1__WORKER_STATE__LOST
                           : worker->stalled                                ? SLUICE__V1__WORKER_STATE__STALLED
                           : sl_worker_is_draining(worker) || worker->turns ? SLUICE__V1__WORKER_STATE__DRAINING
                                                                            : SLUICE__V1__WORKER_STATE__READY;
    report->status.heartbeat_age_ms = (now_ns - worker->last_beat_ns) / SL_NS_PER_MS;
}

enum sl_status sl_registry_report(struct sl_registry *registry, int64_t now_ns, struct sl_worker_report **reports_out,
                                  size_t *n_reports_out, struct sl_error *err) {
    struct sl_worker_report *reports = calloc(SL_MAX_WORKERS, sizeof(*reports));
    SL_FAIL_IF(reports == NULL, err, SL_ERR_EXHAUSTED, "no memory for the list of workers");
    pthread_mutex_lock(&registry->mutex);
    int n = registry->n_workers;
    for (int i = 0; i < n; i++) {
        report_one(registry->workers[i], now_ns, &reports[i]);
    }
    pthread_mutex_unlock(&registry->mutex);
    *reports_out = reports;
    *n_reports_out = (size_t)n;
    return SL_OK;
}
