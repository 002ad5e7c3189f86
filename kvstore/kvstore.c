// SPDX-License-Identifier: Apache-2.0
#include "kvstore/kvstore.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/thread.h"
#include "kvstore/disk/folder.h"
#include "kvstore/internal.h"
#include "proto/methods.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define MAX_OFFERS   1024 // capsules that wait to be written to disk
#define SILENT_MS    10000
#define PAUSE_MS     5000 // after a disk failure, and
#define MAX_PAUSE_MS 600000
#define KEEP_MS      100
#define READ_BACK_MS 60000 // first pause of a document that was not read back
#define PARTIAL_MS   60000 // for the next bytes of a document's layers
#define UNKNOWN_MS   3000  // after a start, until the coordinator has named the documents

static void report_load(void *arg, Sluice__V1__WorkerLoad *load) {
    struct sl_kvstore *kvstore = arg;
    struct sl_capsule_cache_stats stats;
    sl_capsule_cache_get_stats(kvstore->capsule_cache, &stats);
    load->stored_capsules = stats.n_capsules;
    load->stored_bytes = (int64_t)stats.bytes;
    load->jobs = (int32_t)atomic_load(&kvstore->n_jobs);
    load->progress = atomic_load(&kvstore->n_calls);
    load->leases += sl_pins_count(kvstore->pins);
    struct sl_kv_segments_stats segments;
    sl_kv_segments_get_stats(kvstore->segments, &segments);
    struct sl_questions_stats questions;
    sl_questions_get_stats(kvstore->questions, &questions);
    load->annexes = sl_remote_kv_table_count(kvstore->remote_kvs);
    load->leases += load->annexes;
    load->offloaded_bytes = (int64_t)segments.bytes;
    load->scan_load = questions.scan_load;
}

static void write_disk_metrics(FILE *page, bool there, const struct sl_disk_stats *disk) {
    static const char state[] = "sluice_disk_state";
    bool failed = disk->failure[0] != '\0';
    sl_metrics_declare(
        page, SL_GAUGE, state,
        "1 for what the disk is: used, failed (it is tried again), silent; 0 for all where there is none.");
    sl_metrics_sample(page, state, there && !failed && !disk->is_silent, "state", "used", NULL);
    sl_metrics_sample(page, state, failed, "state", "failed", NULL);
    sl_metrics_sample(page, state, !failed && disk->is_silent, "state", "silent", NULL);
    sl_metrics_write(page, SL_COUNTER, "sluice_disk_failures_total",
                     "Failures of the disk, and of attempts to use it again.", (double)disk->n_failures);
    sl_metrics_write(page, SL_COUNTER, "sluice_disk_dropped_total", "Capsules that were not written.",
                     (double)disk->n_dropped);
}

static void write_metrics(void *arg, FILE *page) {
    struct sl_kvstore *kvstore = arg;
    struct sl_capsule_cache_stats capsules;
    struct sl_kv_segments_stats segments;
    struct sl_disk_stats disk;
    sl_capsule_cache_get_stats(kvstore->capsule_cache, &capsules);
    sl_kv_segments_get_stats(kvstore->segments, &segments);
    sl_disk_get_stats(kvstore->disk, &disk);
    sl_metrics_declare(page, SL_GAUGE, "sluice_store_bytes", "What is stored: capsules and segments.");
    sl_metrics_sample(page, "sluice_store_bytes", (double)(capsules.bytes + segments.bytes), "tier", "memory", NULL);
    sl_metrics_sample(page, "sluice_store_bytes", (double)disk.bytes, "tier", "disk", NULL);
    sl_metrics_write(page, SL_GAUGE, "sluice_store_checkpoint_bytes",
                     "Of these, parts of prompts that are still being read, or whose reading ended early.",
                     (double)capsules.checkpoint_bytes);
    sl_metrics_write(page, SL_COUNTER, "sluice_store_evicted_total", "Capsules that were evicted from memory.",
                     (double)capsules.n_evicted);
    sl_metrics_declare(page, SL_COUNTER, "sluice_store_lookups_total",
                       "Prompts that were looked up, by where a capsule was found; none: nowhere.");
    // A capsule is counted as read back before it is counted as found, so the difference may briefly fall; a counter
    // must not.
    int64_t n_memory = capsules.n_hits - disk.n_hits;
    kvstore->n_memory_hits = n_memory > kvstore->n_memory_hits ? n_memory : kvstore->n_memory_hits;
    sl_metrics_sample(page, "sluice_store_lookups_total", (double)kvstore->n_memory_hits, "tier", "memory", NULL);
    sl_metrics_sample(page, "sluice_store_lookups_total", (double)disk.n_hits, "tier", "disk", NULL);
    sl_metrics_sample(page, "sluice_store_lookups_total", (double)capsules.n_misses, "tier", "none", NULL);
    sl_metrics_write(page, SL_COUNTER, "sluice_store_forgotten_total",
                     "Capsules of conversations and documents that were deleted because no job will need them.",
                     (double)atomic_load(&kvstore->n_forgotten));
    write_disk_metrics(page, kvstore->disk != NULL, &disk);
}

// Opens the parts for offloaded layers: the room that they share with capsules, the table of remote KVs, and the
// answering threads.
static enum sl_status open_remote_kvs(struct sl_kvstore *kvstore, const struct sl_kvstore_config *config,
                                      struct sl_error *err) {
    struct sl_node *node = &kvstore->node;
    struct sl_runtime_config runtime = {.tier = node->config.tier, .threads = (int)config->scan_threads};
    enum sl_status status = sl_runtime_open(&runtime, &node->runtime, err);
    if (status == SL_OK) {
        kvstore->building = (struct sl_progress_counter){.name = "builder", .n_waiting = 1, .team = node->runtime.team};
        struct sl_remote_kv_table_config remote_kvs = {&kvstore->room,         node->runtime.ops,  node->runtime.team,
                                                       node->config.lease_ms,  &kvstore->building, node->fabric,
                                                       kvstore->remote_kv_pins};
        status = sl_remote_kv_table_create(&remote_kvs, &kvstore->remote_kvs, err);
    }
    if (status == SL_OK) {
        struct sl_questions_config questions = {.fabric = node->fabric,
                                                .arena = node->arena,
                                                .remote_kvs = kvstore->remote_kvs,
                                                .n_threads = (int)config->scan_threads,
                                                .pin = node->config.pin};
        status = sl_questions_create(&questions, &kvstore->questions, err);
    }
    if (status == SL_OK) {
        struct sl_document_layers_config layers = {.pins = kvstore->remote_kv_pins,
                                                   .room = &kvstore->room,
                                                   .ops = node->runtime.ops,
                                                   .team = node->runtime.team,
                                                   .disk = kvstore->disk,
                                                   .protected = kvstore->protected,
                                                   .pause_ms = READ_BACK_MS};
        status = sl_document_layers_create(&layers, &kvstore->layers, err);
    }
    kvstore->max_scan_load = config->max_scan_load;
    return status;
}

// Accepts a partly opened state. Answers in transit stay until the fabric is destroyed.
static void close_remote_kvs(struct sl_kvstore *kvstore) {
    if (kvstore->questions) {
        sl_questions_stop(kvstore->questions);
    }
    atomic_store(&kvstore->building.n_waiting, 0);
    sl_remote_kv_table_destroy(&kvstore->remote_kvs);
}

// Caches what arrives, ends leases that were not renewed, and measures how busy the scanning threads are. It is a
// separate thread, so that none of this waits for new work.
static void *keeper_main(void *arg) {
    struct sl_kvstore *kvstore = arg;
    uint64_t seen = 0;
    while (!atomic_load(&kvstore->stopping)) {
        sl_progress_counter_tick(&kvstore->keeping);
        sl_inbound_wait_change(kvstore->node.inbound, &seen, sl_deadline_in_ms(KEEP_MS));
        sl_arrivals_cache(kvstore->arrivals);
        sl_pins_reap(kvstore->pins, sl_now_ns());
        sl_remote_kv_table_reap(kvstore->remote_kvs, sl_now_ns());
        sl_questions_sample(kvstore->questions);
    }
    return NULL;
}

// Watches the threads of the store. Threads that wake at regular times count as having work until they are stopped.
static void watch_threads(struct sl_kvstore *kvstore) {
    kvstore->keeping = (struct sl_progress_counter){.name = "keeper", .n_waiting = 1};
    sl_node_add_progress_counter(&kvstore->node, &kvstore->keeping);
    sl_node_add_progress_counter(&kvstore->node, &kvstore->building);
    if (kvstore->disk) {
        sl_node_add_progress_counter(&kvstore->node, &kvstore->writing);
    }
    struct sl_progress_counter *scanning;
    for (int i = 0; (scanning = sl_questions_progress_counter(kvstore->questions, i)) != NULL; i++) {
        sl_node_add_progress_counter(&kvstore->node, scanning);
    }
}

static enum sl_status serve(struct sl_kvstore *kvstore, struct sl_error *err) {
    watch_threads(kvstore);
    SL_TRY(sl_thread_start("keeper", keeper_main, kvstore, &kvstore->keeper, err));
    static const struct sl_rpc_handler handlers[] = {
        {&sl_method_store_reserve, sl_store_handle_reserve, SL_ROLE_COMPUTE | SL_ROLE_COORDINATOR},
        {&sl_method_store_renew, sl_store_handle_renew, SL_ROLE_COMPUTE | SL_ROLE_COORDINATOR},
        {&sl_method_store_release, sl_store_handle_release, SL_ROLE_COMPUTE | SL_ROLE_COORDINATOR},
        {&sl_method_store_lookup, sl_store_handle_lookup, SL_ROLE_COMPUTE | SL_ROLE_COORDINATOR},
        {&sl_method_store_fetch, sl_store_handle_fetch, SL_ROLE_COMPUTE | SL_ROLE_COORDINATOR},
        {&sl_method_store_forget, sl_store_handle_forget, SL_ROLE_COORDINATOR},
        {&sl_method_store_protect, sl_store_handle_protect, SL_ROLE_COORDINATOR},
        {&sl_method_store_read, sl_store_handle_read, SL_ROLE_COORDINATOR},
        {&sl_method_store_write, sl_store_handle_write, SL_ROLE_COORDINATOR},
        {&sl_method_store_stats, sl_store_handle_stats, SL_ROLE_COORDINATOR | SL_ROLE_OPERATOR},
        {&sl_method_store_open_annex, sl_store_handle_open_annex, SL_ROLE_COMPUTE},
        {&sl_method_store_grant_stretch, sl_store_handle_grant_stretch, SL_ROLE_COMPUTE},
        {&sl_method_store_await_annex, sl_store_handle_await_annex, SL_ROLE_COMPUTE},
    };
    struct sl_rpc_implementation rpc = SL_RPC_IMPLEMENTATION(&sl_service_store, handlers, kvstore);
    struct sl_node_service service = {.rpc = &rpc, .load_fn = report_load, .metrics_fn = write_metrics, .arg = kvstore};
    enum sl_status status = sl_node_serve(&kvstore->node, &service, err);
    atomic_store(&kvstore->stopping, true);
    pthread_join(kvstore->keeper, NULL);
    atomic_store(&kvstore->keeping.n_waiting, 0);
    return status;
}

static struct sl_stored *hold_segment(void *arg, const struct sl_capsule_id *key) {
    return sl_remote_kv_pins_hold(arg, key);
}

// Opens the disk, if one is configured.
static enum sl_status open_disk(struct sl_kvstore *kvstore, const struct sl_kvstore_config *config,
                                struct sl_error *err) {
    if (!config->disk[0]) {
        return config->disk_bytes > 0 ? sl_fail(err, SL_ERR_INVALID, "--disk-bytes without --disk DIR") : SL_OK;
    }
    struct sl_disk_config disk = {.folder = config->disk,
                                  .bytes = config->disk_bytes,
                                  .max_offers = MAX_OFFERS,
                                  .silent_ms = SILENT_MS,
                                  .pause_ms = PAUSE_MS,
                                  .max_pause_ms = MAX_PAUSE_MS,
                                  .progress_counter = &kvstore->writing,
                                  .capsule_cache = kvstore->capsule_cache,
                                  .room = &kvstore->room,
                                  .protected = kvstore->protected,
                                  .hold_fn = hold_segment,
                                  .arg = kvstore->remote_kv_pins};
    SL_TRY(sl_disk_open(&disk, &kvstore->disk, err));
    return sl_read_back_create(kvstore->disk, kvstore->capsule_cache, kvstore->protected, READ_BACK_MS,
                               &kvstore->read_back, err);
}

static enum sl_status open_parts(struct sl_kvstore *kvstore, const struct sl_kvstore_config *config,
                                 struct sl_error *err) {
    SL_TRY(open_disk(kvstore, config, err));
    SL_TRY(open_remote_kvs(kvstore, config, err));
    SL_TRY(sl_pins_create(kvstore->capsule_cache, kvstore->node.config.lease_ms, &kvstore->pins, err));
    return sl_arrivals_create(&kvstore->room, kvstore->disk, kvstore->layers, &kvstore->arrivals, err);
}

enum sl_status sl_kvstore_config_check(const struct sl_node_config *node_config, struct sl_error *err) {
    const struct sl_kvstore_config *config = (const struct sl_kvstore_config *)node_config;
    char names[128] = "";
    const struct sl_eviction_policy *policy;
    for (size_t i = 0; (policy = sl_eviction_at(i)) != NULL; i++) {
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", i > 0 ? ", " : "", policy->name);
    }
    return sl_eviction_find(config->evict)
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "--evict %s: unknown policy; there are %s", config->evict, names);
}

enum sl_status sl_kvstore_run(const struct sl_node_config *node_config, struct sl_error *err) {
    const struct sl_kvstore_config *config = (const struct sl_kvstore_config *)node_config;
    struct sl_kvstore kvstore = {0};
    SL_TRY(sl_kvstore_config_check(node_config, err));
    const struct sl_eviction_config eviction = {.policy = sl_eviction_find(config->evict), .ttl_ms = config->ttl_ms};
    struct sl_node_config node = config->node;
    node.beside_bytes = config->disk[0] ? (int64_t)sl_disk_folder_index_bytes(config->disk_bytes) : 0;
    SL_TRY(sl_node_open(&kvstore.node, &node, SLUICE__V1__WORKER_ROLE__KVSTORE, 0, err));
    kvstore.node.info.disk_bytes = config->disk[0] ? config->disk_bytes : 0;
    enum sl_status status = sl_capsule_cache_create(kvstore.node.arena, config->keep_ms, &kvstore.capsule_cache, err);
    SL_THEN(status, sl_protected_create(UNKNOWN_MS, &kvstore.protected, err));
    if (status == SL_OK) {
        sl_capsule_cache_protect(kvstore.capsule_cache, kvstore.protected);
        sl_capsule_cache_evict_by(kvstore.capsule_cache, &eviction);
        status = sl_kv_segments_create(config->keep_ms, &kvstore.segments, err);
    }
    sl_room_init(&kvstore.room, kvstore.node.ledger, kvstore.node.inbound, kvstore.capsule_cache, kvstore.segments);
    SL_THEN(status, sl_remote_kv_pins_create(kvstore.segments, (size_t)node.arena_bytes / SL_PROTECTED_SHARE,
                                             PARTIAL_MS, &kvstore.remote_kv_pins, err));
    SL_THEN(status, open_parts(&kvstore, config, err));
    SL_THEN(status, serve(&kvstore, err));
    sl_arrivals_destroy(&kvstore.arrivals);
    sl_pins_destroy(&kvstore.pins);
    sl_read_back_destroy(&kvstore.read_back);
    sl_document_layers_destroy(&kvstore.layers);
    sl_disk_close(&kvstore.disk, sl_deadline_in_ms(kvstore.node.config.grace_ms));
    close_remote_kvs(&kvstore);
    sl_remote_kv_pins_destroy(&kvstore.remote_kv_pins);
    sl_room_cleanup(&kvstore.room);
    sl_kv_segments_destroy(&kvstore.segments);
    sl_capsule_cache_destroy(&kvstore.capsule_cache);
    sl_protected_destroy(&kvstore.protected);
    sl_node_close(&kvstore.node);
    sl_questions_destroy(&kvstore.questions);
    return status;
}
