// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: workers that speak the protocol and hold no model, so that the coordinator can be shown every failure of
 *          theirs at will; and a coordinator in this process for them to join.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/status.h"
#include "coordinator/coordinator.h"
#include "net/rpc/rpc.h"
#include "proto/sluice/v1/cluster.pb-c.h"
#include "proto/sluice/v1/inference.pb-c.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "tests/unit/slowness.h"

enum fake_prefill_mode {
    FAKE_PREFILL_WORKS,
    FAKE_PREFILL_READS_FOR_EVER, // progress, but never the last chunk
    FAKE_PREFILL_SHIPS_FOR_EVER, // shipping progress, but never done
    FAKE_PREFILL_SILENT,         // nothing at all
    FAKE_PREFILL_UNAVAILABLE,    // the call breaks after the first progress
    FAKE_PREFILL_LOST_ANOTHER,   // likewise, and says that it was not itself that broke
    FAKE_PREFILL_REFUSES,        // FAILED_PRECONDITION: no retry can help
};

struct fake_worker {
    // Set before fake_worker_start().
    char name[32];
    Sluice__V1__WorkerRole role;
    int64_t arena_bytes;
    int max_jobs;
    int64_t lease_ms; // of what it grants
    uint64_t model_fingerprint;
    uint64_t epoch;

    // Behaviour; may change at any time.
    atomic_int prefill_mode;   // enum fake_prefill_mode
    atomic_int token_ms;       // between tokens of decode
    atomic_int break_at_token; // the decode call breaks when this index would come (then never again), -1: never
    atomic_bool repeat_tokens; // decode sends every token twice
    atomic_bool decode_hangs;  // alive, but no token
    atomic_bool mute;          // heartbeats are not sent
    atomic_int lie;            // enum fake_lie of fake_lies.h

    // This many runs of prefill end with this status, because the first store has no room. The store is the culprit;
    // or, with blames_in_words, only the text has its address.
    atomic_int n_store_refusals, store_refusal;
    atomic_bool blames_in_words;

    // This many Reserves of decode are refused with this status.
    atomic_int n_reserve_refusals, reserve_refusal;

    // Between the turns of a conversation (fake_turns.h): decode keeps sessions, and says that they are gone; copying
    // one takes until it is told; this many copies end as if the worker was lost. And what happened.
    atomic_bool keeps, has_lost_sessions, archive_hangs;
    atomic_int n_lost_archives, n_kept_runs, n_archives, n_fetched, n_forgotten;
    atomic_llong kept_bytes, archive_ms; // of a session; that the last copy has

    atomic_llong guard_term; // Reserve with an older term is refused

    // Results, read by tests.
    char first_stores[4][64]; // of the first runs of prefill: the address of their first store
    atomic_int n_runs, n_cancelled, n_reserved, n_released, n_renewed, n_done;
    atomic_int open_leases;
    atomic_int last_resumed;     // output tokens that the last decode call was given
    atomic_int last_said;        // the token after them, which is to be written again; -1: none
    atomic_int last_prompt;      // tokens that the last call was given
    atomic_int last_lease_empty; // the last decode call had no lease
    char coordinator[64];
    struct sl_rpc_server *server;
    struct sl_rpc_channel *channel;
    pthread_t heart;
    atomic_bool stop;
};

// Name, role and works-as-it-should defaults.
void fake_worker_init(struct fake_worker *worker, const char *name, Sluice__V1__WorkerRole role);
// Serve, join the coordinator at `address`, and beat. The status is RegisterWorker's.
enum sl_status fake_worker_start(struct fake_worker *worker, const char *address, struct sl_error *err);
void fake_worker_stop(struct fake_worker *worker); // at once, as if killed; idempotent

// A coordinator for the demo model with short patience, and a channel to it.
struct fake_cluster {
    struct sl_coordinator *coordinator;
    struct sl_rpc_channel *channel;
    uint64_t model_fingerprint;
};
#define FAKE_KEPT_BYTES   4096
#define FAKE_FIRST_ID     100 // output token i has the id FAKE_FIRST_ID + i
#define FAKE_HEARTBEAT_MS (100 * SLOWNESS)
#define FAKE_SILENCE_MS   (400 * SLOWNESS)
#define FAKE_WAIT_MS      (600 * SLOWNESS)
#define FAKE_CALL_MS      60000 // for a machine that lets this process wait; tests of deadlines set their own
void fake_cluster_start(struct fake_cluster *cluster, const struct sl_coordinator_config *config); // NULL: defaults
void fake_cluster_config(struct sl_coordinator_config *config);
// Asserts that workers hold nothing for any job, then stops.
void fake_cluster_stop(struct fake_cluster *cluster);
void fake_cluster_assert_idle(struct fake_cluster *cluster);

// ---- a client ---------------------------------------------------------------------------------------------------

// 20 tokens, max_new_tokens new ones, greedy.
void fake_request(Sluice__V1__GenerateRequest *request, int max_new_tokens);
void fake_submit(struct fake_cluster *cluster, const Sluice__V1__GenerateRequest *request, char id_out[64]);

struct fake_events {
    Sluice__V1__Event *events[4096];
    int n;
    enum sl_status status; // how the stream ended: SL_OK is orderly
    struct sl_error err;
};
// Collect what Watch says from a sequence on until the end.
void fake_watch(struct fake_cluster *cluster, const char *id, int64_t from_sequence, struct fake_events *events);
void fake_generate(struct fake_cluster *cluster, const Sluice__V1__GenerateRequest *request,
                   struct fake_events *events);
void fake_events_free(struct fake_events *events);
// Sequences without a gap; tokens 0, 1, 2, ... each once with the right id; Finished is last, and only there.
const Sluice__V1__Finished *fake_events_check(const struct fake_events *events, int n_tokens);

// Get or Cancel.
Sluice__V1__Job *fake_call_job(struct fake_cluster *cluster, const struct sl_rpc_method *method, const char *id);
// Wait until the job is in this state.
void fake_await_state(struct fake_cluster *cluster, const char *id, Sluice__V1__JobState state);

// Starts a prefill and a decode worker of the cluster, with their usual behavior.
void fake_workers_start(const struct fake_cluster *cluster, struct fake_worker *prefill, struct fake_worker *decode);

// Returns whether the details of a state have the text.
static inline bool fake_events_tell(const struct fake_events *events, const char *text) {
    bool is_told = false;
    for (int i = 0; i < events->n; i++) {
        const Sluice__V1__Event *event = events->events[i];
        is_told |= event->what_case == SLUICE__V1__EVENT__WHAT_STATE && strstr(event->state->detail, text) != NULL;
    }
    return is_told;
}
