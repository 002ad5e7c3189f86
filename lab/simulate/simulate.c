// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/simulate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kvcache/capsule.h"
#include "lab/simulate/cluster.h"

#define CHECK_EVERY    4096  // events
#define MAX_PREFIXES   65536 // --prefixes of the coordinator
#define LOOKS_A_WINDOW 50    // at workers' roles
#define KEYS_A_BLOCK   (SL_TRACE_BLOCK / SL_PREFIX_BLOCK)

// --- jobs ----------------------------------------------------------------------------------------------------------------

static struct sl_sim_job *take_job(struct sl_sim *sim) {
    struct sl_sim_job *job = sim->free_jobs;
    if (job) {
        sim->free_jobs = job->next_free;
        uint64_t ship_tag = job->ship.tag, copy_tag = job->copy.tag; // events of earlier transfers may still come
        *job = (struct sl_sim_job){.ship.tag = ship_tag, .copy.tag = copy_tag, .next_made = job->next_made};
    } else if ((job = calloc(1, sizeof *job)) != NULL) {
        job->next_made = sim->made_jobs;
        sim->made_jobs = job;
    }
    return job;
}

static void unref_job(struct sl_sim_job *job) {
    if (--job->refs == 0) {
        free(job->hashes);
        free(job->keys);
        job->hashes = NULL;
        job->keys = NULL;
        job->next_free = job->sim->free_jobs;
        job->sim->free_jobs = job;
    }
}

static void at(struct sl_sim_job *job, double at_s, void (*run_fn)(void *arg, double at_s, uint64_t tag)) {
    sl_sim_at(&job->sim->events, at_s, run_fn, job, 0);
}

// Computes the hashes of the prompt's prefixes, one a block of the trace, and its keys for routing. A prompt without
// hash_ids has nothing in common with others.
static bool make_keys(struct sl_sim_job *job) {
    const struct sl_workload *workload = job->sim->config->workload;
    int64_t n_blocks = (job->arrival->n_prompt + SL_TRACE_BLOCK - 1) / SL_TRACE_BLOCK;
    int64_t n_keys = job->demand.n_prefill_tokens / SL_PREFIX_BLOCK;
    job->hashes = malloc((size_t)n_blocks * sizeof *job->hashes);
    job->keys = malloc((size_t)(n_keys + 1) * sizeof *job->keys);
    if (!job->hashes || !job->keys) {
        return false;
    }
    struct sl_hash128 hash = {{1}};
    for (int64_t b = 0; b < n_blocks; b++) {
        int64_t id = job->arrival->n_blocks > 0 ? workload->blocks[job->arrival->first_block + b] : -1 - job->request;
        hash = sl_salted_hash(&hash, &id, sizeof id);
        job->hashes[b] = hash;
        for (int64_t k = b * KEYS_A_BLOCK; k < (b + 1) * KEYS_A_BLOCK && k < n_keys; k++) {
            job->keys[k] = sl_hash128_short(&hash) + (uint64_t)(k % KEYS_A_BLOCK);
        }
    }
    job->n_keys = n_keys;
    return true;
}

static void end_job(struct sl_sim_job *job, enum sl_sim_outcome outcome, const struct sl_error *err) {
    struct sl_sim *sim = job->sim;
    sim->result->requests[job->request].outcome = outcome;
    if (outcome == SL_SIM_FAILED && !sim->result->failure[0]) {
        snprintf(sim->result->failure, sizeof sim->result->failure, "request %" PRId64 ": %.200s", job->request + 1,
                 err->text);
    }
    sim->n_ended++;
    sim->n_live--;
    sim->result->seconds = sim->events.now_s + sim->config->costs->call_s;
    unref_job(job);
}

// --- writing -------------------------------------------------------------------------------------------------------------

static void count_gap(struct sl_sim_result *result, double gap_s) {
    double bin = log(fmax(gap_s, 1e-6) / 1e-6) * 200;
    result->gaps[bin < SL_SIM_GAP_BINS - 1 ? (int)bin : SL_SIM_GAP_BINS - 1]++;
}

static void on_token(struct sl_sim_engine *engine, struct sl_sim_answer *answer, double at_s) {
    (void)engine;
    struct sl_sim_job *job = answer->job;
    struct sl_sim *sim = job->sim;
    struct sl_sim_request *request = &sim->result->requests[job->request];
    if (answer->first_s == 0) {
        answer->first_s = at_s;
        request->ttft_s = (float)(at_s + sim->config->costs->call_s - job->arrived_s);
    } else {
        count_gap(sim->result, at_s - answer->last_s);
    }
    answer->last_s = at_s;
    if (answer->n_left > 0) {
        return;
    }
    int64_t n = job->arrival->n_output;
    request->tpot_s = n > 1 ? (float)((at_s - answer->first_s) / (double)(n - 1)) : 0;
    request->e2e_s = (float)(at_s + sim->config->costs->call_s - job->arrived_s);
    sim->result->capsule_bytes += job->claim.is_here ? 0 : (double)job->demand.capsule_bytes;
    sim->result->full_bytes += sim->full_bytes * (double)job->demand.n_prefill_tokens;
    sim->result->resident_bytes += (double)job->demand.decode_bytes;
    sim->held_bytes -= (double)job->demand.decode_bytes;
    sim->all_read_s += job->prompt.began_s > 0 ? job->read_s - job->prompt.began_s : 0;
    sim->n_all_read++;
    sl_admission_release(sim->admission, &job->claim);
    sl_admission_leave(sim->admission, &job->place);
    end_job(job, SL_SIM_DONE, NULL);
    sim->wants_pump = true;
}

static void begin_writing(void *arg, double at_s, uint64_t tag) {
    (void)tag;
    struct sl_sim_job *job = arg;
    double n = (double)job->demand.n_prefill_tokens, bytes = (double)job->demand.capsule_bytes;
    job->answer = (struct sl_sim_answer){.n_left = job->arrival->n_output,
                                         .context = n + 1,
                                         .growth = bytes > 0 ? fmax(job->sim->new_bytes * n / bytes, 1) : 1,
                                         .job = job};
    sl_sim_engine_write(&job->decode->engine, &job->answer, at_s);
}

// --- shipping ------------------------------------------------------------------------------------------------------------

static void on_copied(void *arg, double at_s) {
    (void)at_s;
    struct sl_sim_job *job = arg;
    job->sim->result->copied_bytes += sl_sim_copy_bytes(job);
    sl_sim_keep(job);
    unref_job(job);
}

// Runs when the capsule is in the decode worker: prefill is free for others, and the store gets a copy.
static void on_read_and_shipped(void *arg, double at_s, uint64_t tag) {
    (void)tag;
    struct sl_sim_job *job = arg;
    struct sl_sim *sim = job->sim;
    sl_affinity_put(sim->affinity, job->keys, job->n_keys, sl_worker_name_hash(sl_worker_name(job->claim.prefill)));
    if (!job->claim.is_here) {
        sl_admission_note_prefill(sim->admission, job->prompt.n_tokens - job->n_reused,
                                  (job->read_s - job->asked_s) * 1e3, job->demand.capsule_bytes,
                                  (at_s - job->read_s) * 1e3);
    }
    sl_admission_release_prefill(sim->admission, &job->claim);
    if (job->store && job->n_reused < job->prompt.n_tokens) {
        job->refs++;
        job->copy.network = &sim->network;
        job->copy.from = &job->prefill->link;
        job->copy.to = &job->store->link;
        job->copy.end_fn = on_copied;
        job->copy.arg = job;
        sl_sim_send(&job->copy, sl_sim_copy_bytes(job), at_s);
    }
    at(job, at_s + sim->config->costs->call_s, begin_writing);
    sim->wants_pump = true;
}

static void on_ship_end(void *arg, double at_s) {
    struct sl_sim_job *job = arg;
    job->is_shipped = true;
    if (job->read_s > 0) {
        at(job, at_s, on_read_and_shipped);
    }
}

static void ship(struct sl_sim_job *job, struct sl_sim_link *from, double at_s) {
    job->ship.network = &job->sim->network;
    job->ship.from = from;
    job->ship.to = &job->decode->link;
    job->ship.end_fn = on_ship_end;
    job->ship.arg = job;
    sl_sim_send(&job->ship, (double)job->demand.capsule_bytes, at_s);
}

// The first layer of the last chunk is final: layers are shipped while later ones are read.
static void on_final(struct sl_sim_engine *engine, struct sl_sim_prompt *prompt, double at_s) {
    (void)engine;
    struct sl_sim_job *job = prompt->job;
    if (!job->claim.is_here) {
        ship(job, &job->prefill->link, at_s);
    }
}

static void on_read(struct sl_sim_engine *engine, struct sl_sim_prompt *prompt, double at_s) {
    (void)engine;
    struct sl_sim_job *job = prompt->job;
    const struct sl_sim *sim = job->sim;
    job->read_s = at_s;
    if (job->claim.is_here) {
        at(job, at_s + sim->config->costs->call_s, on_read_and_shipped);
    } else if (job->is_shipped) { // but for the last layer
        double bytes = (double)job->demand.capsule_bytes / sim->config->model->n_layers;
        at(job, at_s + bytes / sim->network.bytes_per_s + sim->network.latency_s, on_read_and_shipped);
    }
}

// --- reading -------------------------------------------------------------------------------------------------------------

static void read_rest(struct sl_sim_job *job, double at_s) {
    const struct sl_sim *sim = job->sim;
    job->prompt.n_done = job->n_reused;
    job->prompt.factor = sl_costs_factor(&sim->costs, (double)job->prompt.n_tokens);
    job->prompt.job = job;
    if (job->n_reused < job->prompt.n_tokens) {
        sl_sim_engine_read(&job->prefill->engine, &job->prompt, at_s);
    } else { // the whole prompt is here
        job->read_s = at_s;
        at(job, at_s, on_read_and_shipped);
    }
}

static void on_fetched(void *arg, double at_s) {
    read_rest(arg, at_s);
}

static void look_up(void *arg, double at_s, uint64_t tag) {
    (void)tag;
    struct sl_sim_job *job = arg;
    struct sl_sim *sim = job->sim;
    size_t bytes = 0;
    job->asked_s = at_s;
    job->n_reused = job->store ? sl_sim_find(job, &bytes) : 0;
    sim->result->requests[job->request].n_cached = job->n_reused;
    if (job->n_reused == 0) {
        read_rest(job, at_s);
        return;
    }
    sim->result->fetched_bytes += (double)bytes;
    if (job->n_reused == job->prompt.n_tokens && !job->claim.is_here) { // the store ships it to decode
        job->read_s = at_s;
        ship(job, &job->store->link, at_s);
        return;
    }
    job->ship = (struct sl_sim_transfer){.network = &sim->network,
                                         .from = &job->store->link,
                                         .to = &job->prefill->link,
                                         .tag = job->ship.tag,
                                         .end_fn = on_fetched,
                                         .arg = job};
    sl_sim_send(&job->ship, (double)bytes, at_s);
}

// --- admission -----------------------------------------------------------------------------------------------------------

static void begin(struct sl_sim_job *job, double at_s) {
    struct sl_sim *sim = job->sim;
    double call_s = sim->config->costs->call_s;
    job->decode = sl_sim_node_of(sim, job->claim.decode);
    sim->result->queued_s += at_s - job->entered_s;
    sim->held_bytes += (double)job->demand.decode_bytes;
    if (!job->claim.prefill) {
        at(job, at_s + call_s, begin_writing);
        return;
    }
    job->prefill = sl_sim_node_of(sim, job->claim.prefill);
    job->store = sl_sim_store_of(sim, job->n_keys > 0 ? job->keys[0] : 0);
    // Two calls, or here one; and one to the store
    double calls_s = (job->claim.is_here ? 1 : 2) * call_s + (job->store ? sim->config->costs->lookup_s : 0);
    at(job, at_s + calls_s, look_up);
}

// Admits the first jobs in line as long as there is room for them.
static void pump(struct sl_sim *sim, double at_s) {
    static const struct sl_avoid nothing;
    struct sl_queue_place *place;
    enum sl_status status = SL_OK;
    while (status != SL_AGAIN && (place = sl_admission_first(sim->admission)) != NULL) {
        struct sl_sim_job *job = (struct sl_sim_job *)((char *)place - offsetof(struct sl_sim_job, place));
        const struct sl_claim_spec spec = {
            .demand = &job->demand, .keys = job->keys, .n_keys = job->n_keys, .avoid = &nothing};
        struct sl_error err = {0};
        status = sl_admission_claim(sim->admission, place, &spec, 0, &job->claim, &err);
        if (status == SL_OK) {
            begin(job, at_s);
        } else if (status != SL_AGAIN) {
            sl_admission_leave(sim->admission, place);
            end_job(job, SL_SIM_FAILED, &err);
        }
    }
}

static void enter(void *arg, double at_s, uint64_t tag) {
    (void)tag;
    struct sl_sim_job *job = arg;
    struct sl_sim *sim = job->sim;
    struct sl_admission_stats stats;
    struct sl_error err = {0};
    job->entered_s = at_s;
    enum sl_status status = sl_admission_enter(sim->admission, &job->demand, &job->place, &err);
    if (status != SL_OK) {
        end_job(job, status == SL_ERR_EXHAUSTED ? SL_SIM_REFUSED : SL_SIM_FAILED, &err);
        return;
    }
    pump(sim, at_s);
    sl_admission_get_stats(sim->admission, &stats);
    sim->result->most_queued = stats.n_queued > sim->result->most_queued ? stats.n_queued : sim->result->most_queued;
}

// Makes the job of a request. A prompt that the model does not read, or that no plan has, fails.
static enum sl_status arrive(struct sl_sim *sim, int64_t request, double at_s, struct sl_error *err) {
    const struct sl_sim_config *config = sim->config;
    const struct sl_workload_arrival *arrival = &config->workload->arrivals[request];
    struct sl_sim_job *job = take_job(sim);
    struct sl_error why = {0};
    SL_FAIL_IF(!job, err, SL_ERR_EXHAUSTED, "no memory for a job");
    job->sim = sim;
    job->refs = 1;
    job->request = request;
    job->arrival = arrival;
    job->arrived_s = at_s;
    sim->n_live++;
    sim->result->most_at_once = sim->n_live > sim->result->most_at_once ? sim->n_live : sim->result->most_at_once;
    struct sl_kv_geometry geometry = sl_model_geometry(config->model);
    enum sl_status status = SL_OK;
    if (arrival->n_prompt + arrival->n_output > config->model->max_positions) {
        status =
            sl_fail(&why, SL_ERR_RANGE, "%" PRId64 " and %" PRId64 " tokens, and the model has %" PRId64 " positions",
                    arrival->n_prompt, arrival->n_output, config->model->max_positions);
    } else {
        status = sl_demand_make(config->recipe, &geometry, arrival->n_prompt, arrival->n_output, &job->demand, &why);
    }
    job->prompt.n_tokens = job->demand.n_prefill_tokens;
    if (status != SL_OK) {
        end_job(job, SL_SIM_FAILED, &why);
        return SL_OK;
    }
    SL_FAIL_IF(!make_keys(job), err, SL_ERR_EXHAUSTED, "no memory for a job");
    at(job, at_s + config->costs->call_s, enter);
    return SL_OK;
}

// --- the run ---------------------------------------------------------------------------------------------------------------

// Looks at the workers' roles as the coordinator's sweeper does, at events, since nothing changes between them.
static void rebalance(struct sl_sim *sim) {
    double now_s = sim->events.now_s, least_s = (double)sim->config->rebalance_ms / 1000 / LOOKS_A_WINDOW;
    if (least_s > 0 && now_s - sim->balanced_s >= least_s) {
        sim->balanced_s = now_s;
        sim->wants_pump |= sl_admission_rebalance(sim->admission, (int64_t)((now_s + 1) * 1e9));
    }
}

static enum sl_status run_events(struct sl_sim *sim, double until_s, struct sl_error *err) {
    enum sl_status status = SL_OK;
    while (status == SL_OK && sl_sim_run_next(&sim->events, until_s)) {
        rebalance(sim);
        if (sim->wants_pump) {
            sim->wants_pump = false;
            pump(sim, sim->events.now_s);
        }
        if (sim->events.out_of_memory) {
            status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for events");
        } else if (sim->config->check_fn && ++sim->n_events % CHECK_EVERY == 0) {
            status = sim->config->check_fn(sim->config->arg, sim->n_ended, sim->events.now_s, err);
        }
    }
    return status;
}

enum sl_status sl_sim_run(const struct sl_sim_config *config, struct sl_sim_result *result, struct sl_error *err) {
    struct sl_sim *sim = calloc(1, sizeof *sim);
    const struct sl_workload *workload = config->workload;
    *result = (struct sl_sim_result){.requests = calloc((size_t)workload->n, sizeof *result->requests)};
    SL_FAIL_OR(!sim || !result->requests, free(sim), err, SL_ERR_EXHAUSTED, "no memory for %" PRId64 " requests",
               workload->n);
    sim->config = config;
    sim->result = result;
    sim->final_fn = on_final;
    sim->read_fn = on_read;
    sim->token_fn = on_token;
    enum sl_status status = sl_sim_open(sim, MAX_PREFIXES, err);
    if (status == SL_OK) {
        (void)sl_admission_rebalance(sim->admission, 0); // the first roles
    }
    if (status == SL_OK && config->autoscale > 0) {
        sl_sim_scale_begin(sim);
    }
    for (int64_t i = 0; i < workload->n && status == SL_OK; i++) {
        double at_s = workload->arrivals[i].at_s * config->time_scale;
        status = run_events(sim, at_s, err);
        SL_THEN(status, arrive(sim, i, at_s, err));
    }
    SL_THEN(status, run_events(sim, INFINITY, err));
    result->seconds = fmax(result->seconds, 1e-9);
    sl_sim_close(sim);
    free(sim);
    return status;
}

void sl_sim_result_cleanup(struct sl_sim_result *result) {
    free(result->requests);
    result->requests = NULL;
}
