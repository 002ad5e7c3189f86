// SPDX-License-Identifier: Apache-2.0
// Purpose: what a simulation is made of: nodes with engines and links, stores, jobs, and the coordinator's own objects.
#pragma once

#include "coordinator/workers/admit.h"
#include "lab/simulate/engines.h"
#include "lab/simulate/network.h"
#include "lab/simulate/scale.h"
#include "lab/simulate/sim_store.h"
#include "lab/simulate/simulate.h"

struct sl_sim_node {
    struct sl_sim_engine engine;
    struct sl_sim_link link;
    enum { SL_SIM_ON, SL_SIM_STARTS, SL_SIM_DRAINS, SL_SIM_OFF } power;
    double ready_s;             // when one that starts takes jobs
    struct sl_sim_store *store; // of a kvstore, which has no engine
};

struct sl_sim_job {
    struct sl_sim *sim;
    int refs; // until its answer has ended, and until its copy is stored
    int64_t request;
    const struct sl_workload_arrival *arrival;
    double arrived_s, entered_s, asked_s, read_s; // read_s 0: not yet
    struct sl_queue_place place;
    struct sl_claim claim;
    struct sl_demand demand;
    struct sl_hash128 *hashes; // of the prefixes that end with a block of the trace
    uint64_t *keys;            // [n_keys]
    int64_t n_keys, n_reused;
    struct sl_sim_node *prefill, *decode, *store; // store NULL: none
    struct sl_sim_prompt prompt;
    struct sl_sim_answer answer;
    struct sl_sim_transfer ship, copy;
    bool is_shipped; // but perhaps for its last layer
    struct sl_sim_job *next_free, *next_made;
};

struct sl_sim {
    const struct sl_sim_config *config;
    struct sl_sim_result *result;
    struct sl_sim_events events;
    struct sl_sim_network network;
    struct sl_costs costs;
    struct sl_sim_model engine_model;
    struct sl_registry *registry;
    struct sl_affinity *affinity;
    struct sl_admission *admission;
    struct sl_sim_node *nodes;  // prefill, decode and aggregated workers, then stores
    struct sl_prefix *prefixes; // scratch
    struct sl_sim_job *free_jobs, *made_jobs;
    int64_t n_live, n_ended, n_events;
    double full_bytes, new_bytes; // of a token in f16; of one that is written
    double balanced_s;            // when roles were last looked at
    struct sl_scale scales[2];    // prefill's and decode's
    double there_s[2];            // time of all prefill workers, and of all others
    double scaled_s, all_read_s,
        held_bytes; // until when workers were counted; what prefill and decode tell of themselves
    double read_s[SL_SCALE_TICKS], n_read[SL_SCALE_TICKS]; // all_read_s and n_all_read of the last ticks
    int64_t n_scale_ticks, n_all_read;
    bool evicts, wants_pump;
    void (*final_fn)(struct sl_sim_engine *engine, struct sl_sim_prompt *prompt, double at_s);
    void (*read_fn)(struct sl_sim_engine *engine, struct sl_sim_prompt *prompt, double at_s);
    void (*token_fn)(struct sl_sim_engine *engine, struct sl_sim_answer *answer, double at_s);
};

// Makes everything from sim->config and the three functions. The caller closes it after a failure, too.
enum sl_status sl_sim_open(struct sl_sim *sim, size_t max_prefixes, struct sl_error *err);
void sl_sim_close(struct sl_sim *sim);

// Lets a worker take no new job, or takes that back. Returns how many jobs it has.
int sl_sim_drain(struct sl_sim *sim, int64_t node, bool undo);
// Adds the time until at_s of all workers that are there.
void sl_sim_count_workers(struct sl_sim *sim, double at_s);
struct sl_sim_node *sl_sim_node_of(struct sl_sim *sim, const struct sl_worker *worker);
struct sl_sim_node *sl_sim_store_of(struct sl_sim *sim, uint64_t key); // NULL: there is none

// Returns the bytes that go to the store: the capsule and, of a recipe that evicts, the state before the last chunk.
double sl_sim_copy_bytes(const struct sl_sim_job *job);
// Stores them.
void sl_sim_keep(struct sl_sim_job *job);
// Returns how many tokens of the prompt the store has, and the bytes of that capsule.
int64_t sl_sim_find(struct sl_sim_job *job, size_t *bytes_out);
