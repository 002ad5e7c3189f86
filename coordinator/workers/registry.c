// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/registry_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/liveness_timer.h"
#include "base/version.h"

#define FORGET_LOST_AFTER_NS (600 * SL_NS_PER_S)
#define MAX_FORGOTTEN        64                 // by one sweep
#define MAX_MEMORY_BYTES     ((int64_t)1 << 50) // of a worker: sums over all of them stay within 64 bits

enum sl_status sl_registry_create(const struct sl_registry_config *config, struct sl_registry **registry_out,
                                  struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_registry, registry, err, "registry: no memory");
    registry->config = *config;
    pthread_mutex_init(&registry->mutex, NULL);
    *registry_out = registry;
    return SL_OK;
}

void sl_registry_destroy(struct sl_registry **registry_in) {
    SL_TAKE_OR_RETURN(registry, registry_in);
    for (int i = 0; i < registry->n_workers; i++) {
        assert(registry->workers[i]->refs == 1 && "a job outlived the registry");
        sl_worker_unref(&registry->workers[i]);
    }
    pthread_mutex_destroy(&registry->mutex);
    free(registry);
}

// ---- entries ----------------------------------------------------------------------------------------------------

struct sl_worker *sl_worker_ref(struct sl_worker *worker) {
    SL_LOCKED(&worker->registry->mutex);
    worker->refs++;
    return worker;
}

void sl_worker_unref(struct sl_worker **worker_in) {
    SL_TAKE_OR_RETURN(worker, worker_in);
    int refs;
    SL_WITH_LOCK(&worker->registry->mutex, refs = --worker->refs);
    if (refs == 0) { // closing a channel may take a while: not under the lock
        sl_rpc_channel_destroy(&worker->channel);
        free(worker);
    }
}

static int class_of(int64_t tokens) {
    int i = 0;
    while (i < SL_LINE_CLASSES - 1 && tokens >> (i + 1) > 0) {
        i++;
    }
    return i;
}

// Adds a prompt of this many tokens (0: none is read), or takes it out. Called under the lock.
static void count_prompt(struct sl_worker *worker, int64_t tokens, int n) {
    if (tokens > 0) {
        worker->line.n[class_of(tokens)] += n;
        worker->line.tokens[class_of(tokens)] += n * tokens;
        worker->claimed_tokens += n * tokens;
    }
}

// Returns the sum of the least of the prompt's tokens and those of each prompt in line; of its own class, nearly. Called under the lock.
static int64_t delay_of(const struct sl_worker *worker, int64_t tokens) {
    int own = class_of(tokens);
    int64_t delay = 0;
    for (int i = 0; i < SL_LINE_CLASSES && worker->claimed_tokens > 0; i++) {
        int64_t sum = worker->line.tokens[i], wait = worker->line.n[i] * tokens;
        delay += i < own || (i == own && sum < wait) ? sum : wait;
    }
    return delay;
}

void sl_worker_claim(struct sl_worker *worker, struct sl_route_need need, int64_t tokens) {
    SL_LOCKED(&worker->registry->mutex);
    worker->claimed_bytes += need.bytes;
    worker->claimed_staging_bytes += need.staging_bytes;
    count_prompt(worker, tokens, 1);
    worker->jobs++;
    worker->jobs_ever++;
}

void sl_worker_unclaim(struct sl_worker *worker, struct sl_route_need need, int64_t tokens) {
    SL_LOCKED(&worker->registry->mutex);
    worker->claimed_bytes -= need.bytes;
    worker->claimed_staging_bytes -= need.staging_bytes;
    count_prompt(worker, tokens, -1);
    worker->jobs--;
    assert(worker->claimed_bytes >= 0 && worker->claimed_staging_bytes >= 0 && worker->claimed_tokens >= 0 &&
           worker->jobs >= 0);
}

void sl_worker_unclaim_reading(struct sl_worker *worker, int64_t staging_bytes, int64_t tokens) {
    SL_LOCKED(&worker->registry->mutex);
    worker->claimed_staging_bytes -= staging_bytes;
    count_prompt(worker, tokens, -1);
    assert(worker->claimed_staging_bytes >= 0 && worker->claimed_tokens >= 0);
}

void sl_worker_await(struct sl_worker *worker, int n) {
    SL_LOCKED(&worker->registry->mutex);
    worker->awaited += n;
    assert(worker->awaited >= 0 && worker->awaited <= worker->jobs);
}

bool sl_worker_is_lost(struct sl_worker *worker) {
    SL_LOCKED(&worker->registry->mutex);
    return worker->lost || worker->stalled;
}

void sl_worker_suspect(struct sl_worker *worker) {
    pthread_mutex_lock(&worker->registry->mutex);
    bool news = !worker->suspect && !worker->lost;
    worker->suspect = true;
    pthread_mutex_unlock(&worker->registry->mutex);
    if (news) {
        sl_log_warn("registry", "worker=%s epoch=%" PRIx64 " does not answer: no new jobs until its next heartbeat",
                    worker->name, worker->epoch);
    }
}

bool sl_worker_is_suspect(struct sl_worker *worker) {
    SL_LOCKED(&worker->registry->mutex);
    return worker->suspect;
}

const char *sl_worker_name(const struct sl_worker *worker) {
    return worker->name;
}

const char *sl_worker_address(const struct sl_worker *worker) {
    return worker->rpc_address;
}

struct sl_rpc_channel *sl_worker_channel(struct sl_worker *worker) {
    return worker->channel;
}

int64_t sl_worker_disk_bytes(const struct sl_worker *worker) {
    return worker->disk_bytes;
}

uint64_t sl_worker_name_hash(const char *name) {
    return sl_hash(name, strlen(name), 0);
}

// ---- membership -------------------------------------------------------------------------------------------------

// Returns the living entry of a name, or NULL. Called under the lock.
static struct sl_worker *find_living(struct sl_registry *registry, const char *name) {
    for (int i = 0; i < registry->n_workers; i++) {
        struct sl_worker *worker = registry->workers[i];
        if (!worker->lost && strcmp(worker->name, name) == 0) {
            return worker;
        }
    }
    return NULL;
}

static enum sl_status copy_field(const char *field, const char *value, bool required, char *to, size_t to_bytes,
                                 struct sl_error *err) {
    SL_FAIL_IF(required && value[0] == '\0', err, SL_ERR_INVALID, "worker.%s is empty", field);
    SL_FAIL_IF(strlen(value) >= to_bytes, err, SL_ERR_INVALID, "worker.%s is longer than %zu bytes", field,
               to_bytes - 1);
    for (const unsigned char *c = (const unsigned char *)value; *c != '\0'; c++) {
        SL_FAIL_IF(*c <= ' ' || *c >= 127, err, SL_ERR_INVALID,
                   "worker.%s contains the byte 0x%02x: visible ASCII only", field, *c);
    }
    strcpy(to, value);
    return SL_OK;
}

static enum sl_status check_info(const struct sl_registry *registry, const Sluice__V1__WorkerInfo *info,
                                 struct sl_error *err) {
    bool computes = info->role == SLUICE__V1__WORKER_ROLE__PREFILL || info->role == SLUICE__V1__WORKER_ROLE__DECODE;
    if ((!computes && info->role != SLUICE__V1__WORKER_ROLE__KVSTORE) ||
        (info->reads && info->role != SLUICE__V1__WORKER_ROLE__DECODE)) {
        return sl_fail(err, SL_ERR_INVALID, "worker.role is %d: PREFILL, DECODE (may read) or KVSTORE", info->role);
    }
    SL_FAIL_IF(strcmp(info->version, SL_VERSION) != 0, err, SL_ERR_PRECONDITION,
               "worker %.60s has version '%.30s', the cluster has '%s': use the same build everywhere", info->name,
               info->version, SL_VERSION);
    SL_FAIL_IF(computes && info->model_fingerprint != registry->config.model_fingerprint, err, SL_ERR_PRECONDITION,
               "worker %.60s has the model %016" PRIx64 ", the cluster has %016" PRIx64
               ": start it with the coordinator's --model and --weights",
               info->name, info->model_fingerprint, registry->config.model_fingerprint);
    SL_FAIL_IF(info->arena_bytes < 0 || info->arena_bytes > MAX_MEMORY_BYTES || info->staging_bytes > MAX_MEMORY_BYTES,
               err, SL_ERR_INVALID,
               "worker %.60s: arena_bytes %" PRId64 " and staging_bytes %" PRId64
               " must be what a host can have, at most 1 PiB",
               info->name, info->arena_bytes, info->staging_bytes);
    SL_FAIL_IF(info->disk_bytes < 0, err, SL_ERR_INVALID, "worker %.60s: disk_bytes %" PRId64 " must not be negative",
               info->name, info->disk_bytes);
    SL_FAIL_IF(computes && (info->arena_bytes < 1 || info->max_jobs < 1 || info->staging_bytes < 0), err,
               SL_ERR_INVALID,
               "worker %.60s: arena_bytes %" PRId64 " and max_jobs %d must be positive, staging_bytes %" PRId64
               " not negative",
               info->name, info->arena_bytes, info->max_jobs, info->staging_bytes);
    return SL_OK;
}

// Copies the gRPC address. With certificates the name goes before it, so that all who connect there expect that name.
static enum sl_status copy_rpc_address(const struct sl_registry *registry, const Sluice__V1__WorkerInfo *info,
                                       struct sl_worker *worker, struct sl_error *err) {
    SL_FAIL_IF(strchr(info->rpc_address, '@') != NULL, err, SL_ERR_INVALID,
               "worker.rpc_address contains a name: expected HOST:PORT");
    char address[2 * SL_ADDRESS_BYTES];
    const bool is_named = registry->config.credentials != NULL;
    snprintf(address, sizeof address, "%s%s%s", is_named ? info->name : "", is_named ? "@" : "", info->rpc_address);
    return copy_field("rpc_address", address, true, worker->rpc_address, sizeof worker->rpc_address, err);
}

static enum sl_status make_worker(struct sl_registry *registry, const Sluice__V1__WorkerInfo *info, int64_t now_ns,
                                  struct sl_worker **worker_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_worker, worker, err, "registry: no memory for a worker");
    enum sl_status status = copy_field("name", info->name, true, worker->name, sizeof(worker->name), err);
    SL_THEN(status, copy_rpc_address(registry, info, worker, err));
    SL_THEN(status, copy_field("fabric_address", info->fabric_address, false, worker->fabric_address,
                               sizeof(worker->fabric_address), err));
    SL_THEN(status, copy_field("version", info->version, true, worker->version, sizeof(worker->version), err));
    SL_THEN(status, copy_field("device", info->device, false, worker->device, sizeof(worker->device), err));
    SL_THEN_IF(status, !registry->config.is_simulated,
               sl_rpc_channel_create(worker->rpc_address, registry->config.credentials, sl_rpc_role_of(info->role),
                                     &worker->channel, err));
    SL_TRY_OR(status, free(worker));
    worker->registry = registry;
    worker->role = info->role;
    worker->model_fingerprint = info->model_fingerprint;
    worker->epoch = info->epoch;
    worker->arena_bytes = info->arena_bytes;
    worker->staging_bytes = info->staging_bytes;
    worker->disk_bytes = info->disk_bytes;
    worker->max_jobs = info->max_jobs;
    worker->reads = info->reads;
    worker->refs = 1;
    worker->last_beat_ns = now_ns;
    sl_liveness_timer_reset(&worker->liveness, now_ns);
    sluice__v1__worker_load__init(&worker->load);
    *worker_out = worker;
    return SL_OK;
}

// Takes entry i out of the table; its reference passes to the caller. Called under the lock.
static struct sl_worker *take_out(struct sl_registry *registry, int i) {
    struct sl_worker *worker = registry->workers[i];
    memmove(&registry->workers[i], &registry->workers[i + 1],
            (size_t)(registry->n_workers - i - 1) * sizeof(registry->workers[0]));
    registry->n_workers--;
    return worker;
}

void sl_registry_take_turns(struct sl_worker *worker) {
    const struct sl_registry *registry = worker->registry;
    int64_t least = INT64_MAX;
    for (int i = 0; i < registry->n_workers; i++) {
        const struct sl_worker *other = registry->workers[i];
        bool counts = other != worker && !other->lost &&
                      sl_worker_has_role(other, worker->duty != 0 ? worker->duty : worker->role);
        least = counts && other->jobs_ever < least ? other->jobs_ever : least;
    }
    worker->jobs_ever = least < INT64_MAX ? least : worker->jobs_ever;
}

// Makes room for one more entry: removes the one that was lost first. Called under the lock.
static struct sl_worker *take_out_oldest_lost(struct sl_registry *registry) {
    for (int i = 0; i < registry->n_workers; i++) {
        if (registry->workers[i]->lost && registry->workers[i]->refs == 1) {
            return take_out(registry, i);
        }
    }
    return NULL;
}

enum sl_status sl_registry_register(struct sl_registry *registry, const Sluice__V1__WorkerInfo *info, int64_t now_ns,
                                    struct sl_error *err) {
    SL_TRY(check_info(registry, info, err));
    struct sl_worker *worker = NULL, *forgotten = NULL;
    SL_TRY(make_worker(registry, info, now_ns, &worker, err));
    bool known = false, replaced = false;

    pthread_mutex_lock(&registry->mutex);
    struct sl_worker *old = find_living(registry, info->name);
    enum sl_status status = SL_OK;
    if (old != NULL && old->epoch == info->epoch) { // the reply to its first attempt was lost
        old->last_beat_ns = now_ns;
        sl_liveness_timer_reset(&old->liveness, now_ns);
        old->suspect = false;
        known = true;
        forgotten = worker;
    } else {
        if (registry->n_workers == SL_MAX_WORKERS) {
            forgotten = take_out_oldest_lost(registry);
        }
        if (registry->n_workers < SL_MAX_WORKERS) {
            if (old != NULL) {
                old->lost = true; // its jobs see it and go elsewhere
                replaced = true;
            }
            sl_registry_take_turns(worker);
            registry->workers[registry->n_workers++] = worker;
        } else {
            forgotten = worker;
            status = sl_fail(err, SL_ERR_EXHAUSTED, "the registry is full: %d workers", SL_MAX_WORKERS);
        }
    }
    pthread_mutex_unlock(&registry->mutex);

    if (status == SL_OK && !known) {
        sl_log_info("registry", "worker=%s role=%d rpc=%s epoch=%" PRIx64 " arena_bytes=%" PRId64 " joined%s",
                    info->name, (int)info->role, info->rpc_address, info->epoch, info->arena_bytes,
                    replaced ? ", replacing its former incarnation" : "");
    }
    sl_worker_unref(&forgotten);
    return status;
}

// Updates whether the worker is stalled. Called under the lock, before the beat is applied.
static void look_at_progress(const struct sl_registry *registry, struct sl_worker *worker,
                             const Sluice__V1__WorkerLoad *load, int64_t now_ns) {
    int64_t age_ns = now_ns - worker->last_beat_ns, most_ns = 2 * registry->config.heartbeat_ms * SL_NS_PER_MS;
    bool moves = load->waiting == 0 || load->progress != worker->load.progress;
    worker->still_ns = moves ? 0 : worker->still_ns + (age_ns < most_ns ? age_ns : most_ns);
    bool stalled = load->stalled || worker->still_ns > registry->config.stall_ms * SL_NS_PER_MS;
    if (stalled && !worker->stalled) {
        sl_log_warn("registry",
                    "worker=%s epoch=%" PRIx64 " stalled: it beats, but with %" PRId64
                    " jobs at its engine nothing gets done "
                    "(%s); its jobs go on elsewhere",
                    worker->name, worker->epoch, load->waiting,
                    load->stalled ? "as it says itself" : "no progress for --stall-after");
    } else if (!stalled && worker->stalled) {
        sl_log_info("registry", "worker=%s epoch=%" PRIx64 " moves again", worker->name, worker->epoch);
    }
    worker->stalled = stalled;
}

// Applies what a beat says of draining: the leader has told the worker, and the worker tells us. Called under the lock.
static void look_at_drain(struct sl_worker *worker, const Sluice__V1__WorkerLoad *load) {
    if (load->drains == worker->draining) {
        worker->drain_unheard = false;
    } else if (!worker->drain_unheard) {
        worker->draining = load->drains;
    }
}

enum sl_status sl_registry_heartbeat(struct sl_registry *registry, const Sluice__V1__HeartbeatRequest *beat,
                                     int64_t now_ns, bool *drain_out, struct sl_error *err) {
    pthread_mutex_lock(&registry->mutex);
    struct sl_worker *worker = find_living(registry, beat->name);
    bool known = worker != NULL && worker->epoch == beat->epoch;
    if (known) {
        if (beat->load != NULL) {
            look_at_progress(registry, worker, beat->load, now_ns);
            look_at_drain(worker, beat->load);
            Sluice__V1__WorkerLoad load = *beat->load;
            load.base = worker->load.base; // not the unknown fields, which belong to the request
            worker->load = load;
        }
        worker->last_beat_ns = now_ns;
        sl_liveness_timer_reset(&worker->liveness, now_ns);
        worker->suspect = false;
        *drain_out = sl_worker_is_draining(worker);
    }
    pthread_mutex_unlock(&registry->mutex);
    SL_FAIL_IF(!known, err, SL_ERR_NOT_FOUND, "worker %.60s with epoch %" PRIx64 " is not registered: register again",
               beat->name, beat->epoch);
    return SL_OK;
}

enum sl_status sl_registry_drain(struct sl_registry *registry, const char *name, bool undo, int *jobs_out,
                                 struct sl_error *err) {
    pthread_mutex_lock(&registry->mutex);
    struct sl_worker *worker = find_living(registry, name);
    if (worker != NULL) {
        worker->draining = !undo;
        worker->drain_unheard = true;
        *jobs_out = worker->jobs;
    }
    pthread_mutex_unlock(&registry->mutex);
    SL_FAIL_IF(worker == NULL, err, SL_ERR_NOT_FOUND, "there is no worker '%.60s'; `sluice top` lists them", name);
    sl_log_info("registry", "worker=%s %s", name, undo ? "takes jobs again" : "drains");
    return SL_OK;
}

bool sl_registry_drain_is_heard(struct sl_registry *registry, const char *name) {
    SL_LOCKED(&registry->mutex);
    const struct sl_worker *worker = find_living(registry, name);
    return worker == NULL || !worker->drain_unheard;
}

void sl_registry_adopt_drain(struct sl_registry *registry, const char *name, bool drains) {
    SL_LOCKED(&registry->mutex);
    struct sl_worker *worker = find_living(registry, name);
    if (worker != NULL) {
        worker->draining = drains;
        worker->drain_unheard = false;
    }
}

void sl_registry_sweep(struct sl_registry *registry, int64_t now_ns) {
    // Two missed beats, and a fifth of one for the network.
    int64_t patience_ns = (2 * registry->config.heartbeat_ms + registry->config.heartbeat_ms / 5) * SL_NS_PER_MS;
    struct sl_worker *forgotten[MAX_FORGOTTEN];
    int n_forgotten = 0;

    pthread_mutex_lock(&registry->mutex);
    for (int i = registry->n_workers - 1; i >= 0; i--) {
        struct sl_worker *worker = registry->workers[i];
        int64_t age_ns = now_ns - worker->last_beat_ns;
        int64_t silence_ns =
            sl_liveness_timer_poll(&worker->liveness, now_ns, registry->config.heartbeat_ms * SL_NS_PER_MS);
        if (!worker->lost && silence_ns > patience_ns) {
            worker->lost = true;
            sl_log_warn("registry", "worker=%s epoch=%" PRIx64 " lost: no heartbeat for %" PRId64 " ms", worker->name,
                        worker->epoch, (int64_t)(silence_ns / SL_NS_PER_MS));
        }
        if (worker->lost && worker->refs == 1 && age_ns > FORGET_LOST_AFTER_NS && n_forgotten < MAX_FORGOTTEN) {
            forgotten[n_forgotten++] = take_out(registry, i);
        }
    }
    pthread_mutex_unlock(&registry->mutex);

    for (int i = 0; i < n_forgotten; i++) {
        sl_worker_unref(&forgotten[i]);
    }
    if (n_forgotten == MAX_FORGOTTEN) { // there may be more
        sl_registry_sweep(registry, now_ns);
    }
}

// ---- views ------------------------------------------------------------------------------------------------------

static bool takes_jobs(const struct sl_worker *worker) {
    return !sl_worker_is_draining(worker) && !worker->suspect && !worker->stalled && !worker->turns;
}

// Describes the workers of a role, without references. Called under the lock.
static void describe(const struct sl_registry *registry, Sluice__V1__WorkerRole role, struct sl_worker_set *set_out) {
    set_out->n = 0;
    for (int i = 0; i < registry->n_workers; i++) {
        struct sl_worker *worker = registry->workers[i];
        if (worker->lost || !sl_worker_has_role(worker, role)) {
            continue;
        }
        set_out->workers[set_out->n] = worker;
        set_out->views[set_out->n++] = (struct sl_route_view){
            .name = worker->name,
            .ready = takes_jobs(worker),
            .capacity_bytes = worker->arena_bytes,
            .claimed_bytes = worker->claimed_bytes,
            .staging_bytes = worker->staging_bytes,
            .claimed_staging_bytes = worker->claimed_staging_bytes,
            .claimed_tokens = worker->claimed_tokens,
            .jobs = worker->jobs,
            .max_jobs = worker->max_jobs,
            .jobs_ever = worker->jobs_ever,
            .reads = worker->reads && worker->duty == 0,
        };
    }
}

void sl_registry_snapshot(struct sl_registry *registry, Sluice__V1__WorkerRole role, struct sl_worker_set *set_out) {
    SL_LOCKED(&registry->mutex);
    describe(registry, role, set_out);
    for (int i = 0; i < set_out->n; i++) {
        set_out->workers[i]->refs++;
    }
}

void sl_worker_set_delays(struct sl_worker_set *set, int64_t n_tokens) {
    struct sl_registry *registry = set->n > 0 ? set->workers[0]->registry : NULL;
    if (registry != NULL) {
        SL_LOCKED(&registry->mutex);
        for (int i = 0; i < set->n; i++) {
            set->views[i].delay_tokens = delay_of(set->workers[i], n_tokens);
        }
    }
}

void sl_worker_set_release(struct sl_worker_set *set) {
    int n_last = 0;
    struct sl_registry *registry = set->n > 0 ? set->workers[0]->registry : NULL;
    if (registry != NULL) { // one lock for all: a cluster may have a thousand workers
        SL_LOCKED(&registry->mutex);
        for (int i = 0; i < set->n; i++) {
            if (set->workers[i]->refs > 1) {
                set->workers[i]->refs--;
            } else {
                set->workers[n_last++] = set->workers[i];
            }
        }
    }
    for (int i = 0; i < n_last; i++) {
        sl_worker_unref(&set->workers[i]);
    }
    set->n = 0;
}

bool sl_registry_is_served(struct sl_registry *registry, Sluice__V1__WorkerRole role) {
    bool served = false;
    SL_LOCKED(&registry->mutex);
    for (int i = 0; i < registry->n_workers && !served; i++) {
        const struct sl_worker *worker = registry->workers[i];
        bool reads = role == SLUICE__V1__WORKER_ROLE__PREFILL && worker->reads && worker->duty == 0;
        served = (sl_worker_has_role(worker, role) || reads) && !worker->lost && takes_jobs(worker);
    }
    return served;
}

void sl_registry_count_places(struct sl_registry *registry, int *n_readers_out, int64_t *n_places_out,
                              int64_t *n_bytes_out) {
    *n_readers_out = 0;
    *n_places_out = *n_bytes_out = 0;
    SL_LOCKED(&registry->mutex);
    for (int i = 0; i < registry->n_workers; i++) {
        const struct sl_worker *worker = registry->workers[i];
        if (!worker->lost && takes_jobs(worker)) {
            *n_readers_out +=
                sl_worker_has_role(worker, SLUICE__V1__WORKER_ROLE__PREFILL) || (worker->reads && worker->duty == 0);
            const bool writes = sl_worker_has_role(worker, SLUICE__V1__WORKER_ROLE__DECODE);
            *n_places_out += writes ? worker->max_jobs : 0;
            *n_bytes_out += writes ? worker->arena_bytes : 0;
        }
    }
}

struct sl_worker *sl_registry_find(struct sl_registry *registry, Sluice__V1__WorkerRole role, const char *name,
                                   const char *address) {
    struct sl_worker *found = NULL;
    SL_LOCKED(&registry->mutex);
    for (int i = 0; i < registry->n_workers && found == NULL; i++) {
        struct sl_worker *worker = registry->workers[i];
        bool same = name != NULL ? strcmp(worker->name, name) == 0 : strcmp(worker->rpc_address, address) == 0;
        if (same && worker->role == role && !worker->lost) {
            worker->refs++;
            found = worker;
        }
    }
    return found;
}

int64_t sl_registry_store_address(struct sl_registry *registry, uint64_t key, char address_out[SL_ADDRESS_BYTES]) {
    struct sl_worker_set *stores = &registry->stores;
    SL_LOCKED(&registry->mutex);
    describe(registry, SLUICE__V1__WORKER_ROLE__KVSTORE, stores);
    int i = sl_route_store(stores->views, stores->n, key);
    int64_t arena_bytes = i < 0 ? 0 : stores->workers[i]->arena_bytes;
    strcpy(address_out, i < 0 ? "" : stores->workers[i]->rpc_address);
    return arena_bytes;
}
