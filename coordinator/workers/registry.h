// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the workers of the cluster: their incarnations, their states, and the memory promised to jobs.
 *
 * Design: an entry is one incarnation (name and epoch) of a worker. It never comes back to life:
 *
 *        register            Drain              Drain(undo)
 *     -------------> READY ---------> DRAINING -------------> READY
 *                      |                 |
 *                      +------> LOST <---+     two missed heartbeats, or another incarnation under the same name
 *
 *         STALLED marks a worker that beats but makes no progress with its work. It gets no new job, and its jobs treat it as lost. The
 *         mark goes with the first beat that reports progress, or no work. Time counts from beat to beat; a long time between two counts as
 *         a short one.
 *         A worker that was LOST hears NOT_FOUND at its next heartbeat and registers again, as a new entry; jobs that
 *         hold the old one see that it is lost and go elsewhere. SUSPECT is a mark on a READY worker that has just
 *         broken a connection: it gets no new job until its next heartbeat shows that it lives.
 *
 *         An operator's drain command reaches the worker with the reply to its beat, and every other coordinator with the beats that
 *         follow. So all coordinators know it when another one becomes the leader.
 *
 * Ownership: entries are reference-counted; a job keeps the workers it uses, with their channels, alive.
 * Bounds: SL_MAX_WORKERS entries; lost ones leave after a while, or when room is needed and no job holds them.
 * Threads: every function from any thread. Time is passed in where it decides.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "coordinator/workers/rebalance.h"
#include "coordinator/workers/route.h"
#include "proto/sluice/v1/cluster.pb-c.h"
#include "net/rpc/rpc.h"

#define SL_MAX_WORKERS SL_ROUTE_MAX_VIEWS

struct sl_registry;
struct sl_worker; // one incarnation

struct sl_registry_config {
    uint64_t model_fingerprint; // that prefill and decode workers must have
    int64_t heartbeat_ms;
    int64_t stall_ms;                             // without progress though there is work, and a worker is stalled
    const struct sl_rpc_credentials *credentials; // outlive the registry
    bool is_simulated;                            // workers have no channels
    int64_t rebalance_ms; // least time between two changes of a worker's duty; 0: workers that read have both roles
};

enum sl_status sl_registry_create(const struct sl_registry_config *config, struct sl_registry **registry_out,
                                  struct sl_error *err);
// Destroys the registry; every reference to a worker must have been released.
void sl_registry_destroy(struct sl_registry **registry);

// ---- what workers and operators say -----------------------------------------------------------------------------

// Registers a worker; for a living incarnation this is a heartbeat. SL_ERR_PRECONDITION: another version or model.
enum sl_status sl_registry_register(struct sl_registry *registry, const Sluice__V1__WorkerInfo *info, int64_t now_ns,
                                    struct sl_error *err);
// Applies a heartbeat. SL_ERR_NOT_FOUND: this incarnation is not known, or is lost.
enum sl_status sl_registry_heartbeat(struct sl_registry *registry, const Sluice__V1__HeartbeatRequest *beat,
                                     int64_t now_ns, bool *drain_out, struct sl_error *err);
enum sl_status sl_registry_drain(struct sl_registry *registry, const char *name, bool undo, int *jobs_out,
                                 struct sl_error *err);
// Returns whether the worker's beats already report the last sl_registry_drain(); true of a worker that is gone.
bool sl_registry_drain_is_heard(struct sl_registry *registry, const char *name);
// Records the drain state that the worker itself reports, at registration or after a command that it did not receive.
void sl_registry_adopt_drain(struct sl_registry *registry, const char *name, bool drains);

// Marks workers as lost that have missed two heartbeats, and forgets those lost long ago. Called regularly.
void sl_registry_sweep(struct sl_registry *registry, int64_t now_ns);

// duties.c: gives workers that read one role at a time, and changes it with the load. Called regularly. is_short: the first job in line
// waits for room there.
enum sl_duty_news { SL_DUTIES_SAME, SL_DUTIES_GIVEN, SL_DUTIES_CHANGE }; // GIVEN: there may be room
enum sl_duty_news sl_registry_rebalance(struct sl_registry *registry, const bool is_short[SL_N_DUTIES], int64_t now_ns);

// ---- what routing sees ------------------------------------------------------------------------------------------

// A snapshot of the workers of one role that are not lost: views[i] describes workers[i].
struct sl_worker_set {
    int n;
    struct sl_route_view views[SL_MAX_WORKERS];
    struct sl_worker *workers[SL_MAX_WORKERS]; // one reference each
};
// Takes a snapshot. The set is larger than a stack frame should be: its owner has it on the heap.
void sl_registry_snapshot(struct sl_registry *registry, Sluice__V1__WorkerRole role, struct sl_worker_set *set_out);
// Writes the delay that a prompt of this many tokens would have in each worker's line, and give to others there (route.h).
void sl_worker_set_delays(struct sl_worker_set *set, int64_t n_tokens);
void sl_worker_set_release(struct sl_worker_set *set);

// Returns whether some worker takes jobs of this role; a decode worker that reads prompts, too, serves both.
bool sl_registry_is_served(struct sl_registry *registry, Sluice__V1__WorkerRole role);
// Counts, of the workers that take jobs, those that read prompts, and the jobs and bytes that those that write answers take at once.
void sl_registry_count_places(struct sl_registry *registry, int *n_readers_out, int64_t *n_places_out,
                              int64_t *n_bytes_out);
// Returns the worker of a role that has this name, or this address; the other is NULL. A reference, or NULL.
struct sl_worker *sl_registry_find(struct sl_registry *registry, Sluice__V1__WorkerRole role, const char *name,
                                   const char *address);

struct sl_worker *sl_worker_ref(struct sl_worker *worker);
void sl_worker_unref(struct sl_worker **worker); // accepts NULL, nulls *worker

// Promise memory (and tokens to read) of a worker to a job, and end the promise; for staging memory it may end earlier.
void sl_worker_claim(struct sl_worker *worker, struct sl_route_need need, int64_t tokens);
void sl_worker_unclaim(struct sl_worker *worker, struct sl_route_need need, int64_t tokens);
void sl_worker_unclaim_reading(struct sl_worker *worker, int64_t staging_bytes, int64_t tokens); // the rest stays
void sl_worker_await(struct sl_worker *worker,
                     int n); // jobs that begin to wait for another worker; negative: that end to

bool sl_worker_is_lost(struct sl_worker *worker); // or stalled: its jobs move to other workers
void sl_worker_suspect(struct sl_worker *worker);
bool sl_worker_is_suspect(struct sl_worker *worker); // until its next heartbeat

const char *sl_worker_name(const struct sl_worker *worker);
const char *sl_worker_address(const struct sl_worker *worker);
struct sl_rpc_channel *sl_worker_channel(struct sl_worker *worker);
int64_t sl_worker_disk_bytes(const struct sl_worker *worker); // 0: it has no disk
uint64_t sl_worker_name_hash(const char *name);               // how the affinity index knows it

// Writes the gRPC address, with certificates NAME@HOST:PORT, of the store that keeps prompts beginning with `key`; "" when there is none. Returns its capacity in bytes.
#define SL_ADDRESS_BYTES 128
int64_t sl_registry_store_address(struct sl_registry *registry, uint64_t key, char address_out[SL_ADDRESS_BYTES]);

// ---- what operators see -----------------------------------------------------------------------------------------

// One row of `sluice top`; the strings of info point into the struct.
struct sl_worker_report {
    Sluice__V1__WorkerStatus status;
    Sluice__V1__WorkerInfo info;
    Sluice__V1__WorkerLoad load;
    char name[64], rpc_address[SL_ADDRESS_BYTES], fabric_address[SL_ADDRESS_BYTES], version[32], device[32];
};
// Writes the rows in order of registration. The caller frees *reports_out.
enum sl_status sl_registry_report(struct sl_registry *registry, int64_t now_ns, struct sl_worker_report **reports_out,
                                  size_t *n_reports_out, struct sl_error *err);
