// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one request of a client, from Submit until it is forgotten.
 *
 *                       +-------------- a worker was lost: retry ------------+
 *                       v                     |                             |
 *   QUEUED --------> PREFILLING -------> SHIPPING -------> DECODING -------> DONE
 *    |  ^              |  ^   |              |                ^ |
 *    |  +- retry       |  +- retry           |                | |
 *    |                 |      +------ one-token prompt -------+ |
 *    +-----------------+---------------------+------------------+----------> FAILED, CANCELLED
 *
 * Invariants: in PREFILLING and later states, both workers are chosen and the decode worker holds a grant; in DECODING the capsule has
 *             arrived. DONE, FAILED and CANCELLED are entered last: no worker holds anything for the job then, and the event log is closed.
 *
 * Design: only the fiber that runs the job (run/run.c) changes it; others read, watch, or ask to cancel. sl_job_move() is the only
 *         function that changes the state.
 * Ownership: reference-counted: the table of jobs, the running fiber and every handler hold one each.
 * Threads: every function from any thread; those marked "runner" from the job's fiber only.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/hash_table.h"
#include "base/job_id.h"
#include "base/lease_id.h"
#include "base/salted_hash.h"
#include "base/status.h"
#include "base/trace.h"
#include "coordinator/jobs/event_log.h"
#include "coordinator/workers/admit.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/job/error_statistics.h"
#include "engine/job/slot_statistics.h"
#include "engine/sampling/sampler.h"
#include "net/trust/identity.h"
#include "proto/sluice/v1/inference.pb-c.h"

#define SL_MAX_STOPS      16
#define SL_MAX_STOP_BYTES 256
#define SL_MAX_LABEL      128
#define SL_MAX_KEY        128

#define SL_STATUS_TEXT_BYTES     sizeof(((struct sl_error *)0)->text)
#define SL_CONVERSATION_ID_BYTES 65

// A store's copy of a conversation's session, and its name there.
struct sl_session_copy {
    char store[SL_ADDRESS_BYTES]; // "": there is none
    uint64_t model_fingerprint, recipe_fingerprint;
    struct sl_hash128 history;
    int64_t n_tokens, bytes; // of its body
};

/*
 * A turn of a conversation (conversations.h), and where the session is that holds the first n_kept tokens of its prompt. A worker holds it
 * under a lease, until the lease ends, the worker is lost or it needs the memory. A store may hold it, too. n_kept 0: there is no session.
 */
struct sl_job_turn {
    char id[SL_CONVERSATION_ID_BYTES]; // "": no conversation
    int64_t keep_ms;
    int64_t n_kept, kept_bytes; // its tokens, and its body as a capsule
    char worker[64], lease_id[SL_LEASE_ID_BYTES];
    struct sl_hash128
        history; // of the tokens of all turns, and of where they were cut: the session is a result of both; and of the conversation
    struct sl_session_copy copy;    // of the same session
    struct sl_session_copy earlier; // of the session that an earlier turn left; this session begins with it
    struct sl_demand demand;        // of this turn
    uint64_t recipe_hash;           // of its text; 0: no turn has been planned
    int rope_set;
    // Copied from the request: see conversations.c.
    bool is_chat, has_seed;
    uint64_t seed; // the turn's seed: the next turn keeps it
    size_t n_said, n_answer;
    uint64_t said;
    uint64_t n_ended; // conversations, when the turn began
};

#define SL_JOB_DOCUMENT_BYTES 65 // the longest name of a document
#define SL_MAX_JOINS_OF_JOB   7  // documents after the first

// The part of a later document's capsule that a decode worker joins to the prompt (Decode.Run, JoinedPart).
struct sl_job_join {
    int32_t *tokens; // [n_all] the prompt of the capsule; owned
    int64_t n_all, from, n_tokens, at;
    uint64_t first_key; // of that prompt
    int document;       // its number among the job's; the first, 0, is not joined
    char (*stores)[64]; // names of the stores that had the capsule when the job's fiber began; owned; NULL: none
    int n_stores;
};

// A checked request (request.c). Constant from then on, but for the names of stores, which are the job's fiber's.
struct sl_job_spec {
    int32_t *tokens; // the prompt; owned
    int64_t n_tokens;
    char recipe[SL_RECIPE_TEXT_BYTES]; // canonical
    struct sl_recipe
        parsed_recipe; // the same, resolved: nothing parses the text again; zeros for a restored job that has ended
    struct sl_demand demand;
    int64_t stored_tokens; // of the document that the prompt begins with: stores keep its capsule; 0: no document
    struct sl_session_copy whole; // its capsule, if the prompt begins with all its tokens, and no layers are offloaded
    int64_t full_bytes;           // what the prompt takes in f16 without compression
    // Prefix hashes, shortened and mixed with the recipe; owned. They only suggest a worker: after a false match, the worker finds nothing.
    uint64_t *keys;
    int64_t n_keys;
    char (*stores)[64]; // the same of the document that the prompt begins with
    int n_stores;
    struct sl_job_join *joins; // [n_joins], in the order of the prompt; owned. NULL: none, or the job was restored
    int n_joins;
    int64_t joined_tokens;            // of all of them
    Sluice__V1__NotJoined not_joined; // why there are none, of several documents
    struct sl_sampling sampling;
    int32_t max_new_tokens;
    char *stop[SL_MAX_STOPS]; // owned
    int n_stop;
    bool ignore_eos, estimate_errors, no_reuse;
    bool own_deadline; // the client chose one before the default: the job waits for a worker until then
    char label[SL_MAX_LABEL + 1];
    char tenant[SL_TENANT_BYTES]; // the owner; "": an operator, or tenants are not told apart
    struct sl_hash128 salt;       // the tenant's, of prefix hashes
    char key[SL_MAX_KEY + 1];     // the client's idempotency key: one key is one job; "": none
    uint64_t request_hash;        // with a key
    int32_t *delivered;           // tokens that the client had from another coordinator; owned
    int64_t n_delivered;
    struct sl_job_turn turn;
    // Name of the document that begins the prompt; "": none, or the job was restored
    char document[SL_JOB_DOCUMENT_BYTES];
    char later[SL_MAX_JOINS_OF_JOB][SL_JOB_DOCUMENT_BYTES]; // names of the documents that follow it, then ""
    int64_t submitted_ns; // when the request came in: all times of the statistics count from here
    int64_t deadline_ns;
};
void sl_job_spec_cleanup(struct sl_job_spec *spec);
void sl_job_joins_free(struct sl_job_join *joins, int n_joins); // accepts NULL

struct sl_job {
    // Constant.
    char id[SL_JOB_ID_BYTES];
    struct sl_job_spec spec; // tokens, keys and stops are dropped when the job ends
    int64_t submitted_ms;    // Unix time
    struct sl_trace trace;   // what its request was a part of

    struct sl_event_log log;
    atomic_int refs;
    atomic_bool cancel;
    atomic_bool forgotten;       // the table has released it
    struct sl_queue_place place; // admission's, but for its tenant: a reference of the job's, or NULL

    // Runner.
    int32_t *output; // ids of the tokens that were sent to clients, [spec.max_new_tokens]

    // Guarded by the mutex; written by the runner.
    pthread_mutex_t mutex;
    Sluice__V1__JobState state;
    int64_t n_output;
    int64_t n_read; // of the prompt, by this attempt
    char prefill_worker[64], decode_worker[64];
    Sluice__V1__Statistics statistics; // points into the next five
    Sluice__V1__Sampling sampling;     // the spec's
    char transport[32];
    struct sl_slot_statistics *slots;   // sl_slot_statistics_bytes() of it; owned; NULL: nothing was measured
    struct sl_error_statistics *errors; // owned; NULL: nothing was estimated
    Sluice__V1__Retrieval retrieval;
    int status_code;    // gRPC's
    bool another_leads; // failed here alone
    char status_text[SL_STATUS_TEXT_BYTES];
    int64_t ended_ns;

    // Used by the table (jobs.c), under its lock.
    struct sl_job *newer, *older;
    struct sl_hash_link by_id, by_key;
};

// Creates a job that is QUEUED and has one reference. Takes over *spec (and clears it) on success.
enum sl_status sl_job_create(const char *id, struct sl_job_spec *spec, struct sl_job **job_out, struct sl_error *err);
// Creates a job without its first event, for sl_job_restore().
enum sl_status sl_job_make(const char *id, struct sl_job_spec *spec, struct sl_job **job_out, struct sl_error *err);
struct sl_job *sl_job_ref(struct sl_job *job);
void sl_job_unref(struct sl_job **job); // accepts NULL, nulls *job

// Asks the runner to stop; it will within about 100 ms. Idempotent, never blocks.
void sl_job_cancel(struct sl_job *job);

// Returns SL_ERR_DEADLINE or SL_ERR_CANCELLED with a text when the job must not continue, else SL_OK.
enum sl_status sl_job_interrupted(struct sl_job *job, struct sl_error *err);

bool sl_job_is_edge(Sluice__V1__JobState from, Sluice__V1__JobState to); // of the diagram

// Writes the settings that the job runs with, for the first event and for the reply to Submit. *accepted_out points into the job.
void sl_job_accepted(const struct sl_job *job, Sluice__V1__Accepted *accepted_out);

// Runner: enters `state` and tells the watchers why. SL_ERR_PRECONDITION: not an edge of the diagram; the state stays.
enum sl_status sl_job_move(struct sl_job *job, Sluice__V1__JobState state, const char *detail);

// Runner: enters a final state, with the last event, closes the log and frees the prompt.
void sl_job_finish(struct sl_job *job, Sluice__V1__JobState state, const Sluice__V1__Finished *finished);

// Runner: appends one event. Progress beyond what the log keeps is dropped silently.
enum sl_status sl_job_tell_token(struct sl_job *job, const Sluice__V1__Token *token);
// what: the message of this kind, PREFILL, SHIP or NOTICE.
void sl_job_tell_progress(struct sl_job *job, Sluice__V1__Event__WhatCase kind, const ProtobufCMessage *what);

// Runner: sets the workers (NULL: none yet).
void sl_job_set_workers(struct sl_job *job, const char *prefill, const char *decode);

// The runner edits statistics between these two; the setters copy what the statistics point to.
Sluice__V1__Statistics *sl_job_statistics_lock(struct sl_job *job);
void sl_job_statistics_unlock(struct sl_job *job);
void sl_job_set_transport(struct sl_job *job, const char *transport);           // while locked
void sl_job_set_slots(struct sl_job *job, const Sluice__V1__Statistics *known); // while locked
// Sets prefill's error statistics (replaces those of an earlier attempt), and adds decode's; while locked.
void sl_job_set_errors(struct sl_job *job, const Sluice__V1__Statistics *prefill);
void sl_job_add_errors(struct sl_job *job, const Sluice__V1__Statistics *decode);
// Sets what prefill has offloaded (replaces an earlier attempt's), and how decode was served; while locked.
void sl_job_set_offloaded(struct sl_job *job, const Sluice__V1__Statistics *prefill);
void sl_job_set_served(struct sl_job *job, const Sluice__V1__Statistics *decode);

// Returns the reply to Get. The caller frees it: sluice__v1__job__free_unpacked(). NULL: no memory.
Sluice__V1__Job *sl_job_describe(struct sl_job *job);

Sluice__V1__JobState sl_job_state(struct sl_job *job);
// Returns gRPC's code of the job's status, and writes its text; 0: the job has not failed.
int sl_job_failure(struct sl_job *job, char text_out[SL_STATUS_TEXT_BYTES]);
// Returns whether the job was cancelled, or failed because another coordinator leads: the same request then makes another job.
bool sl_job_is_void(struct sl_job *job);
int64_t sl_job_ended_ns(struct sl_job *job); // 0 while it lives
size_t sl_job_bytes(struct sl_job *job);     // memory that the job takes while it is retained
