// SPDX-License-Identifier: Apache-2.0
// Purpose: declarations that the files of the prefill worker share.
#pragma once

#include <stdatomic.h>

#include "base/rate.h"
#include "base/loop.h"
#include "engine/compress/evict/compressor.h"
#include "engine/compress/plan/plan.h"
#include "engine/job/error_statistics.h"
#include "engine/kvcache/capsule.h"
#include "engine/runner/reader.h"
#include "net/node/outbound.h"
#include "net/offload/prefill/offload.h"
#include "prefill/archive.h"
#include "prefill/prefill.h"
#include "net/store/store.h"
#include "proto/kept.h"

struct sl_copy;

// Reasons why a capsule did not arrive, as metrics name them.
enum sl_ship_failure {
    SL_SHIP_FAILED_LOST, // no receiver at the other end, or another one
    SL_SHIP_FAILED_CORRUPT,
    SL_SHIP_FAILED_DEADLINE,
    SL_SHIP_FAILED_CANCELLED,
    SL_SHIP_FAILED_OTHERWISE,
    SL_N_SHIP_FAILURES
};

struct sl_prefill {
    struct sl_node *node;
    struct sl_prefill_host host;               // its functions are NULL if this worker is alone
    struct stepper *stepper;                   // the engine's thread's
    struct sl_loop loop;                       // the engine's thread, if no host has it; its mutex guards the inbox
    struct sl_prefill_job *inbox, **inbox_end; // for the engine's thread, in order of arrival
    struct sl_store_client *store;
    struct sl_archive *archive;
    _Atomic int64_t n_jobs;
    _Atomic int64_t n_ship_failures[SL_N_SHIP_FAILURES];
    _Atomic int64_t n_not_cached[SL_N_NOT_CACHED]; // prompts that were read from their beginning, by reason
    struct sl_rate tokens_rate;
    int64_t max_chunk_tokens;
    int64_t checkpoint_ms; // 0: never
    double checkpoint_share;
};

/*
 * WAITING --there is memory for it: opened--> READING, in turns --done, failed or cancelled--> READ
 *     |
 *     +--cancelled before it was opened--> ABANDONED: the handler leaves, the engine's thread frees the job
 */
enum sl_prefill_phase { SL_PREFILL_WAITING, SL_PREFILL_READING, SL_PREFILL_READ, SL_PREFILL_ABANDONED };

/*
 * One Run call. The handler owns the objects that it points to; the engine's thread works on it in phase READING.
 */
struct sl_prefill_job {
    struct sl_prefill *prefill;
    const char *id;
    const int32_t *tokens;
    struct sl_hash128 salt; // salt of their hashes
    struct sl_plan plan;
    struct sl_capsule_id capsule;
    const char *store_address; // "" for none
    int64_t store_bytes;       // capacity of this store; 0: not known
    bool estimate_errors, no_reuse;
    bool restoring;              // a store reads the document back: nothing is read
    bool here;                   // nothing is shipped: the host writes the answer from this session
    size_t later_bytes;          // here: promised for the tokens after the prompt
    int64_t most_slots;          // here: of the session, whatever follows
    struct sl_outbound outbound; // transfer of the capsule to the decode worker
    bool shipped_by_store;
    struct sl_offload *offload;      // for recipes that offload; NULL: all layers are in the capsule
    Sluice__V1__AnnexShare **shares; // [n_shares] for the decode worker
    size_t n_shares;
    uint8_t *header;                  // of the capsule, while it is shipped
    int64_t capsule_bytes;            // bytes shipped, including the header
    struct sl_copy *copy;             // copy for the store, after sl_archive_prepare() has decided; NULL: none
    Sluice__V1__Kept kept;            // the result of that copy
    Sluice__V1__NotCached not_cached; // why nothing was reused; NOT_SAID while that is open, or something was
    atomic_int kept_state;            // the same for the state between two chunks; any thread

    // Used only by the engine's thread, from the inbox to READ:
    struct sl_prefill_job *next; // in the inbox or in line for memory
    int64_t ticket;              // order of arrival, from 1 on
    struct sl_reader *reader;
    struct sl_prefill_pass *pass; // over its next chunk; NULL: none
    size_t memory_bytes;          // the most that reading may take from the arena in addition to a resumed capsule
    size_t promised_bytes;        // the part of memory_bytes that the session does not hold
    size_t offload_peak_bytes;    // peak memory of the session and of the tiles that were read back
    bool boundary_put;            // the archive was offered the state between two chunks
    int64_t checkpoint_tokens;    // of the last checkpoint; 0: none
    int64_t checkpoint_ns;        // when it was made
    bool checkpoints_end;         // the next one would be too large
    int64_t release_tokens;       // no pass may reach this token while a copy is sent from the pages; 0: no limit
    int64_t release_ns;           // set by the archive: such a pass waits until then; 0: it does not wait yet

    atomic_int n_refs;
    atomic_bool cancelled;
    pthread_mutex_t mutex; // guards the fields below
    pthread_cond_t changed;
    enum sl_prefill_phase phase;
    int64_t n_done, n_reused;
    size_t resident_bytes, peak_bytes;
    struct sl_session *session;         // before reading: the resumed session; afterwards: the complete one
    bool is_whole;                      // `session` was complete before reading
    double slots_per_head;              // of the complete one
    char kept_lease[SL_LEASE_ID_BYTES]; // here: of the session, after the host has taken it
    enum sl_status status;
    struct sl_error err;
    struct sl_compress_stats stats;
    struct sl_error_statistics errors;
    int64_t queued_ns, started_ns, ended_ns; // arrived; first chunk; last chunk
};

// job.c
void sl_prefill_job_unref(struct sl_prefill_job *job); // frees the struct when both handler and engine have released it
void sl_prefill_join(struct sl_prefill *prefill,
                     struct sl_prefill_job *job); // to the engine, which takes a reference of its own
void sl_prefill_wake(struct sl_prefill *prefill); // memory was freed
enum sl_status sl_prefill_send_progress(struct sl_rpc_call *call, const struct sl_prefill_job *job, int64_t n_done,
                                        int64_t n_reused, size_t resident_bytes);

// engine_thread.c
void *sl_prefill_engine_main(void *prefill); // runs until `stopping` and until no job is left
enum sl_status sl_prefill_stepper_create(struct sl_prefill *prefill, struct stepper **stepper_out,
                                         struct sl_error *err);
void sl_prefill_stepper_destroy(struct stepper **stepper); // when no job is left. Accepts NULL, nulls

// run.c: the handler of sluice.v1.Prefill/Run.
sl_rpc_handler_fn sl_prefill_handle_run;

/*
 * reuse.c: looks for a stored prefix. If it is the whole prompt, the store ships it (job->shipped_by_store). If it is a
 * part, job->session holds it. If there is none, or the store fails, the prompt is read from its beginning, and
 * job->not_cached says why.
 */
enum sl_status sl_prefill_reuse(struct sl_prefill_job *job, const Sluice__V1__PrefillRequest *request,
                                struct sl_rpc_call *call, struct sl_error *err);
