// SPDX-License-Identifier: Apache-2.0
// Purpose: what the files of the prefill worker share.
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/rate.h"
#include "engine/compress/evict/compressor.h"
#include "engine/compress/plan/plan.h"
#include "engine/job/error_statistics.h"
#include "engine/kvcache/capsule.h"
#include "net/node/outbound.h"
#include "net/offload/prefill/offload.h"
#include "prefill/archive.h"
#include "prefill/prefill.h"
#include "prefill/store.h"
#include "engine/runner/reader.h"

struct sl_copy;

// Why a capsule did not arrive, as metrics name it.
enum sl_ship_failure {
    SL_SHIP_FAILED_LOST, // nobody at the other end, or somebody else
    SL_SHIP_FAILED_CORRUPT,
    SL_SHIP_FAILED_DEADLINE,
    SL_SHIP_FAILED_CANCELLED,
    SL_SHIP_FAILED_OTHERWISE,
    SL_N_SHIP_FAILURES
};

struct sl_prefill {
    struct sl_node node;
    pthread_t engine_thread;
    pthread_mutex_t mutex; // over inbox and stopping
    pthread_cond_t wake;
    struct sl_prefill_job *inbox, **inbox_end; // to the engine's thread, in order of arrival
    bool stopping;
    struct sl_store_client *store;
    struct sl_archive *archive;
    _Atomic int64_t n_jobs;
    _Atomic int64_t n_ship_failures[SL_N_SHIP_FAILURES];
    struct sl_rate tokens_rate;
    int64_t max_chunk_tokens;
};

/*
 *   WAITING --there is memory for it: opened--> READING, by turns --done, failed or cancelled--> READ
 *      |
 *      +--cancelled before it was opened--> ABANDONED: the handler goes, the engine's thread forgets the job
 */
enum sl_prefill_phase { SL_PREFILL_WAITING, SL_PREFILL_READING, SL_PREFILL_READ, SL_PREFILL_ABANDONED };

/*
 * One Run call. The handler owns what it points to; the engine's thread works on it in phase READING.
 */
struct sl_prefill_job {
    struct sl_prefill *prefill;
    const char *id;
    const int32_t *tokens;
    struct sl_hash128 salt; // of their hashes
    struct sl_plan plan;
    struct sl_capsule_id capsule;
    const char *store_address; // "" for none
    int64_t store_bytes;       // that this store can hold at most; 0: not known
    bool estimate_errors;
    struct sl_outbound outbound; // the capsule, to whoever decodes
    bool shipped_by_store;
    struct sl_offload *offload;      // of recipes that offload; NULL: all layers are in the capsule
    Sluice__V1__AnnexShare **shares; // [n_shares] for whoever decodes
    size_t n_shares;
    int64_t capsule_bytes; // as shipped, header included
    struct sl_copy *copy;  // for the store, once sl_archive_prepare() has decided; NULL: none
    Sluice__V1__Kept kept; // what becomes of it
    atomic_int kept_state; // likewise, of the state between two chunks; any thread

    // The engine's thread alone, from the inbox to READ:
    struct sl_prefill_job *next; // in the inbox or in line for memory
    int64_t ticket;              // order of arrival, from 1 on
    struct sl_reader *reader;
    struct sl_prefill_pass *pass; // over its next chunk; NULL: none
    size_t memory_bytes;          // the most that reading may take from the arena beside a resumed capsule
    size_t promised_bytes;        // of those, what the session does not hold
    size_t offload_peak_bytes;    // the most of the session and of the tiles that were read back
    bool boundary_put;            // the state between two chunks has been offered to the archive
    int64_t let_go_tokens;        // no pass reads so many tokens while a copy is sent from the pages; 0: any may
    int64_t let_go_ns;            // until then such a pass waits; 0: it does not wait yet. The archive's

    atomic_int n_refs;
    atomic_bool cancelled;
    pthread_mutex_t mutex; // over what follows
    pthread_cond_t changed;
    enum sl_prefill_phase phase;
    int64_t n_done, n_reused;
    size_t resident_bytes, peak_bytes;
    struct sl_session *session; // resumed, before; complete, after
    enum sl_status status;
    struct sl_error err;
    struct sl_compress_stats stats;
    struct sl_error_statistics errors;
    int64_t queued_ns, started_ns, ended_ns; // handed to the engine's thread; first chunk; last chunk
};

// job.c
void sl_prefill_job_unref(struct sl_prefill_job *job); // the struct alone, by the last of handler and engine
void sl_prefill_join(struct sl_prefill *prefill,
                     struct sl_prefill_job *job); // to the engine, with a reference of its own
void sl_prefill_wake(struct sl_prefill *prefill); // memory has come back
enum sl_status sl_prefill_send_progress(struct sl_rpc_call *call, const struct sl_prefill_job *job, int64_t n_done,
                                        int64_t n_reused, size_t resident_bytes);

// engine_thread.c
void *sl_prefill_engine_main(void *prefill); // until `stopping`, when no job is left

// run.c: the handler of sluice.v1.Prefill/Run.
enum sl_status sl_prefill_handle_run(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                     struct sl_error *err);

/*
 * reuse.c: look for a stored prefix. The whole prompt: the store ships it (job->shipped_by_store). A part of it:
 * job->session holds it. Nothing, or a store that fails us: the prompt is read from its beginning.
 */
enum sl_status sl_prefill_reuse(struct sl_prefill_job *job, const Sluice__V1__PrefillRequest *request,
                                struct sl_rpc_call *call, struct sl_error *err);
