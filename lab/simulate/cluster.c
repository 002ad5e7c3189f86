// SPDX-License-Identifier: Apache-2.0
// Purpose: see cluster.h.
#include "lab/simulate/cluster.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/version.h"
#include "engine/compress/plan/plan.h"
#include "engine/runner/reader.h"

#define SAMPLE_TOKENS 8192 // of the prompt whose plan says what a written token takes
#define HEARTBEAT_MS  1000
#define STALL_MS      30000

// --- workers -----------------------------------------------------------------------------------------------------------

static int64_t n_workers(const struct sl_sim_config *config) {
    return config->n_prefill + config->n_decode + config->n_aggregated;
}

static void name_node(int64_t i, char name[32]) {
    snprintf(name, 32, "node-%" PRId64, i);
}

static enum sl_status register_node(struct sl_sim *sim, int64_t i, struct sl_error *err) {
    const struct sl_sim_config *config = sim->config;
    bool is_prefill = i < config->n_prefill, is_store = i >= n_workers(config);
    char name[32], address[32];
    name_node(i, name);
    snprintf(address, sizeof address, "127.0.0.1:%" PRId64, i + 1);
    Sluice__V1__WorkerInfo info = SLUICE__V1__WORKER_INFO__INIT;
    info.name = name;
    info.rpc_address = info.fabric_address = address;
    info.version = (char *)SL_VERSION;
    info.device = (char *)"";
    info.epoch = info.model_fingerprint = 1;
    info.role = is_store     ? SLUICE__V1__WORKER_ROLE__KVSTORE
                : is_prefill ? SLUICE__V1__WORKER_ROLE__PREFILL
                             : SLUICE__V1__WORKER_ROLE__DECODE;
    info.arena_bytes = is_store ? config->store_arena : is_prefill ? config->prefill_arena : config->decode_arena;
    info.max_jobs = (int32_t)(is_prefill ? config->prefill_jobs : config->decode_jobs);
    info.reads = !is_store && i >= config->n_prefill + config->n_decode;
    return sl_registry_register(sim->registry, &info, SL_NS_PER_S, err);
}

int sl_sim_drain(struct sl_sim *sim, int64_t node, bool undo) {
    char name[32];
    int n_jobs = 0;
    struct sl_error ignored; // the node is registered
    name_node(node, name);
    (void)sl_registry_drain(sim->registry, name, undo, &n_jobs, &ignored);
    return n_jobs;
}

void sl_sim_count_workers(struct sl_sim *sim, double at_s) {
    for (int64_t i = 0; i < n_workers(sim->config); i++) {
        sim->there_s[i >= sim->config->n_prefill] += sim->nodes[i].power != SL_SIM_OFF ? at_s - sim->scaled_s : 0;
    }
    sim->scaled_s = at_s;
}

// Returns the node's number, which its address has as its port.
static int64_t number_of(const char *address) {
    return strtoll(address + sizeof "127.0.0.1:" - 1, NULL, 10) - 1;
}

struct sl_sim_node *sl_sim_node_of(struct sl_sim *sim, const struct sl_worker *worker) {
    return &sim->nodes[number_of(sl_worker_address(worker))];
}

struct sl_sim_node *sl_sim_store_of(struct sl_sim *sim, uint64_t key) {
    char address[SL_ADDRESS_BYTES];
    bool found = sim->config->n_stores > 0 && sl_registry_store_address(sim->registry, key, address) > 0;
    return found ? &sim->nodes[number_of(address)] : NULL;
}

// --- what stores have --------------------------------------------------------------------------------------------------

static int64_t now_ns(void *arg) {
    return (int64_t)((((struct sl_sim *)arg)->events.now_s + 1) * 1e9);
}

// Returns the id of a finished capsule, or of a state before the last chunk, which no finished capsule equals.
static struct sl_capsule_id id_of(struct sl_hash128 hash, bool is_state) {
    return (struct sl_capsule_id){1, is_state ? 2 : 1, hash};
}

// Returns the tokens of the state before the last chunk, at a block of the trace.
static int64_t state_tokens(const struct sl_sim_job *job) {
    int64_t chunk = job->sim->engine_model.cut.chunk;
    int64_t tokens = (job->prompt.n_tokens - 1) / chunk * chunk;
    return job->sim->evicts ? tokens / SL_TRACE_BLOCK * SL_TRACE_BLOCK : 0;
}

double sl_sim_copy_bytes(const struct sl_sim_job *job) {
    return (double)job->demand.capsule_bytes + job->sim->full_bytes * (double)state_tokens(job);
}

void sl_sim_keep(struct sl_sim_job *job) {
    int64_t last = (job->prompt.n_tokens - 1) / SL_TRACE_BLOCK, state = state_tokens(job);
    struct sl_error err = {0};
    struct sl_capsule_keys keys = {.id = id_of(job->hashes[last], false),
                                   .hashes = job->hashes,
                                   .n_hashes = job->sim->evicts ? 0 : (size_t)last,
                                   .stride = SL_TRACE_BLOCK,
                                   .tenant = 1,
                                   .read_ms = (job->read_s - job->asked_s) * 1e3,
                                   .read_tokens = job->prompt.n_tokens - job->n_reused};
    // One that finds no room, or is there already, is not stored
    (void)sl_sim_store_put(job->store->store, &keys, job->prompt.n_tokens, (size_t)job->demand.capsule_bytes, &err);
    if (state > 0) {
        keys.id = id_of(job->hashes[state / SL_TRACE_BLOCK - 1], true);
        keys.n_hashes = 0;
        size_t bytes = (size_t)(job->sim->full_bytes * (double)state);
        (void)sl_sim_store_put(job->store->store, &keys, state, bytes, &err);
    }
}

int64_t sl_sim_find(struct sl_sim_job *job, size_t *bytes_out) {
    struct sl_prefix *prefixes = job->sim->prefixes;
    int64_t n_tokens = job->prompt.n_tokens, last = (n_tokens - 1) / SL_TRACE_BLOCK;
    size_t n = 0;
    prefixes[n++] = (struct sl_prefix){id_of(job->hashes[last], false), n_tokens};
    for (int64_t b = last; b > 0; b--) {
        prefixes[n++] = (struct sl_prefix){id_of(job->hashes[b - 1], job->sim->evicts), b * SL_TRACE_BLOCK};
    }
    return sl_sim_store_find(job->store->store, prefixes, n, n_tokens, job->sim->engine_model.cut.chunk, bytes_out);
}

// --- life --------------------------------------------------------------------------------------------------------------

// Computes the bytes of a token: in f16, and written under the recipe.
static enum sl_status measure_tokens(struct sl_sim *sim, struct sl_error *err) {
    const struct sl_sim_config *config = sim->config;
    struct sl_kv_geometry geometry = sl_model_geometry(config->model);
    struct sl_demand few = {0}, more = {0};
    int64_t n = config->model->max_positions / 2 < SAMPLE_TOKENS ? config->model->max_positions / 2 : SAMPLE_TOKENS;
    enum sl_status status = sl_demand_make(config->recipe, &geometry, n, 1, &few, err);
    SL_THEN(status, sl_demand_make(config->recipe, &geometry, n, n, &more, err));
    sim->new_bytes = (double)(more.decode_bytes - few.decode_bytes) / (double)(n - 1);
    sim->full_bytes = 4.0 * geometry.n_layers * geometry.n_kv_heads * geometry.head_dim;
    return status;
}

static enum sl_status open_nodes(struct sl_sim *sim, struct sl_error *err) {
    const struct sl_sim_config *config = sim->config;
    int64_t n = n_workers(config) + config->n_stores, most_tokens = 0;
    for (int64_t i = 0; i < config->workload->n; i++) {
        int64_t n_prompt = config->workload->arrivals[i].n_prompt;
        most_tokens = n_prompt > most_tokens ? n_prompt : most_tokens;
    }
    sim->nodes = calloc((size_t)n, sizeof *sim->nodes);
    sim->prefixes = calloc((size_t)(most_tokens / SL_TRACE_BLOCK + 2), sizeof *sim->prefixes);
    SL_FAIL_IF(!sim->nodes || !sim->prefixes, err, SL_ERR_EXHAUSTED, "no memory for %" PRId64 " nodes", n);
    const struct sl_sim_store_config store = {.policy = sl_eviction_find(SL_EVICTION_DEFAULT),
                                              .store_bytes = config->store_arena,
                                              .keep_ms = config->keep_ms,
                                              .ttl_ms = config->ttl_ms,
                                              .geometry = sl_model_geometry(config->model),
                                              .format = sl_recipe_layer_format(config->recipe, 0),
                                              .now_ns = now_ns,
                                              .arg = sim};
    enum sl_status status = SL_OK;
    for (int64_t i = 0; i < n && status == SL_OK; i++) {
        struct sl_sim_engine *engine = &sim->nodes[i].engine;
        sl_sim_engine_init(engine, &sim->engine_model, &sim->events);
        engine->final_fn = sim->final_fn;
        engine->read_fn = sim->read_fn;
        engine->token_fn = sim->token_fn;
        status = register_node(sim, i, err);
        SL_THEN(status, i >= n_workers(config) ? sl_sim_store_create(&store, &sim->nodes[i].store, err) : SL_OK);
    }
    return status;
}

enum sl_status sl_sim_open(struct sl_sim *sim, size_t max_prefixes, struct sl_error *err) {
    const struct sl_sim_config *config = sim->config;
    const struct sl_registry_config registry = {1,    HEARTBEAT_MS,         STALL_MS,
                                                NULL, .is_simulated = true, .rebalance_ms = config->rebalance_ms};
    int64_t n_nodes = n_workers(config) + config->n_stores;
    SL_FAIL_IF(sl_recipe_offloads(config->recipe), err, SL_ERR_UNSUPPORTED,
               "the recipe offloads layers, which are not simulated");
    SL_FAIL_IF(n_nodes > SL_MAX_WORKERS, err, SL_ERR_INVALID,
               "%" PRId64 " nodes, and a coordinator has at most %d: simulate fewer", n_nodes, SL_MAX_WORKERS);
    int64_t most = (config->n_decode + config->n_aggregated) * config->decode_jobs;
    most = config->max_jobs > 0 ? config->max_jobs : most;
    sim->network = (struct sl_sim_network){
        .events = &sim->events,
        .bytes_per_s = config->link_bytes_per_s > 0 ? config->link_bytes_per_s : config->costs->ship_bytes_per_s,
        .latency_s = config->costs->ship_latency_s,
        .only_out = config->only_out};
    sim->evicts = sl_recipe_evicts(config->recipe);
    sim->costs = *config->costs;
    sim->engine_model =
        (struct sl_sim_model){&sim->costs,
                              config->model->n_layers,
                              {config->recipe->chunk_tokens, sl_reader_half_position(config->model), !sim->evicts}};
    sl_costs_fit_reading(&sim->costs, &sim->engine_model.cut);
    enum sl_status status = measure_tokens(sim, err);
    SL_THEN(status, sl_registry_create(&registry, &sim->registry, err));
    SL_THEN(status, sl_affinity_create(max_prefixes, &sim->affinity, err));
    SL_THEN(status, sl_admission_create(sim->registry, sim->affinity, (int)most, (int)config->max_queued,
                                        &sim->admission, err));
    if (status == SL_OK && config->routing) {
        sl_admission_route_by(sim->admission, config->routing);
    }
    return status == SL_OK ? open_nodes(sim, err) : status;
}

// Gives back what a simulation that was stopped still holds.
static void end_jobs(struct sl_sim *sim) {
    while (sim->made_jobs) {
        struct sl_sim_job *job = sim->made_jobs;
        sim->made_jobs = job->next_made;
        if (sim->admission && job->refs > 0 && (job->place.in_line || job->place.was_admitted)) {
            sl_admission_release(sim->admission, &job->claim);
            sl_admission_leave(sim->admission, &job->place);
        }
        free(job->hashes);
        free(job->keys);
        free(job);
    }
}

void sl_sim_close(struct sl_sim *sim) {
    const struct sl_sim_config *config = sim->config;
    int64_t n = n_workers(config) + config->n_stores;
    if (sim->nodes) {
        sl_sim_count_workers(sim, sim->result->seconds);
        sim->result->worker_s = sim->there_s[0] + sim->there_s[1];
    }
    end_jobs(sim);
    for (int64_t i = 0; i < n && sim->nodes; i++) {
        struct sl_sim_store_stats stats = {0};
        bool is_prefill = i < config->n_prefill;
        double share = sim->nodes[i].engine.busy_s / fmax(sim->there_s[!is_prefill], 1e-9);
        sim->result->prefill_busy += is_prefill ? share : 0;
        sim->result->decode_busy += is_prefill ? 0 : share;
        if (sim->nodes[i].store) {
            sl_sim_store_get_stats(sim->nodes[i].store, &stats);
        }
        sim->result->n_evicted += stats.n_evicted;
        sl_sim_store_destroy(&sim->nodes[i].store);
    }
    if (sim->admission) {
        struct sl_admission_stats stats;
        sl_admission_get_stats(sim->admission, &stats);
        sim->result->n_rebalanced = stats.n_rebalanced;
    }
    sl_admission_destroy(&sim->admission);
    sl_affinity_destroy(&sim->affinity);
    sl_registry_destroy(&sim->registry);
    sl_sim_events_cleanup(&sim->events);
    free(sim->nodes);
    free(sim->prefixes);
}
