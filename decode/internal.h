// SPDX-License-Identifier: Apache-2.0
// Purpose: declarations that the files of the decode worker share.
#pragma once

#include <stdatomic.h>

#include "base/rate.h"
#include "base/loop.h"
#include "decode/decode.h"
#include "decode/kept.h"
#include "engine/kvcache/capsule.h"
#include "net/offload/remote/remote_source.h"
#include "net/store/store.h"
#include "proto/kept.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "engine/runner/join.h"
#include "engine/runner/output.h"
#include "engine/runner/reading.h"
#include "engine/runner/writing.h"

#define SL_DECODE_MAX_ROWS 512 // rows of one pass, over all answers

// One token, passed from the engine's thread to the handler.
struct sl_decoded {
    struct sl_decoded *next;
    struct sl_token token;
    int64_t index;
    char text[]; // NUL-terminated
};

// Records how an answer began with a stored prefix (prefix.c).
struct sl_prefix_use {
    int64_t n_reused; // tokens of the prefix; 0: there was none
    int64_t fetched_bytes;
    int64_t begin_ns, opened_ns; // opened_ns: the session was there
    double slots_per_head;
    bool shared; // the worker held it
};

/*
 * One answer being written. The engine's thread owns writer, reader and output from join until `ended`; before and
 * after, the handler owns them.
 */
struct sl_answer {
    struct sl_answer *next; // in the inbox
    struct sl_decode *decode;
    const char *job_id;
    struct sl_recipe recipe; // the job's, parsed once
    struct sl_writer writer;
    struct sl_output *output;
    struct sl_reader *reader; // for a turn that this worker reads, with its session; NULL: none, or already read
    struct sl_join joins[SL_MAX_JOINS]; // [n_joins], of the reader, with their sessions
    int n_joins;
    int32_t *pending; // tokens to read before the next one is written
    int n_pending;
    int n_reading;    // the first of them, which prefill would read: the prompt's before its last
    int32_t *written; // if the session is to be retained: token ids, including resumed ones. Owned by the handler
    int64_t n_written;
    size_t session_bytes;  // the most that the session may take from the arena in addition to its capsule
    size_t promised_bytes; // the part of session_bytes that it has not taken
    struct sl_prefix_use prefix;
    int64_t read_ns;    // the engine's thread: when the prompt was read
    bool reads_in_step; // a step reads the rest of the prompt

    atomic_bool cancelled;
    pthread_mutex_t mutex; // guards the fields below
    pthread_cond_t changed;
    struct sl_decoded *first, **last; // not yet sent
    int64_t n_fallbacks;              // steps' layers without offloaded slots that no notice has reported yet
    char fallback[384];               // text of the last of them
    bool ended;                       // the engine's thread has released the answer
    enum sl_status status;
    struct sl_error err;
    enum sl_stop_reason stop;
};

struct sl_decode {
    struct sl_node node;
    struct sl_connections *connections;                   // to stores
    struct sl_kept kept;                                  // retained sessions, between two turns, and bases
    struct sl_store_client *store;                        // of the capsules of stored prefixes
    _Atomic int64_t n_prefixes_held, n_prefixes_fetched;  // answers that began with a stored prefix
    _Atomic int64_t n_prefixes_not_used[SL_N_NOT_CACHED]; // answers that prefill had to begin
    atomic_size_t copied_bytes; // bytes of sessions that are being copied to stores, outside the arena
    int64_t retrieve_deadline_ms, retrieve_lost_ms;
    struct sl_prefill *prefill;               // of an aggregated worker; NULL: this worker reads no whole prompts
    struct sl_activations *turn_activations;  // for the pass that reads a turn
    struct sl_activations *write_activations; // for passes that write: the engine's own, or beside prefill, others
    struct sl_loop loop;                      // the engine's thread; its mutex guards inbox and woken
    struct sl_answer *inbox, **inbox_end;     // in order of arrival
    _Atomic int n_here;                       // answers that the engine's thread reads or writes
    bool woken;                               // prefill has something to do
    _Atomic int64_t n_jobs, n_fallbacks;      // totals of all jobs
    struct sl_rate tokens_rate;
};

// engine_thread.c
void *sl_decode_engine_main(void *decode);
void sl_decode_join(struct sl_decode *decode, struct sl_answer *answer); // called by a handler

/*
 * turn.c. Returns the set of RoPE frequencies, chosen by all tokens that the job may reach.
 * Returns the most slots that the session may ever hold.
 * Writes the id of a session of the prompt's first n_tokens.
 */
int sl_decode_rope_set(const struct sl_decode *decode, const Sluice__V1__DecodeRequest *request);
int64_t sl_decode_most_slots(const struct sl_decode *decode, const Sluice__V1__DecodeRequest *request);
enum sl_status sl_decode_make_id(const struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                 const struct sl_recipe *recipe, int64_t n_tokens, struct sl_capsule_id *id_out,
                                 struct sl_error *err);
// Takes the session of the previous turn. SL_ERR_PEER_STALE: it is not here; SL_ERR_EXHAUSTED: no memory for the turn.
enum sl_status sl_decode_take_kept(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                   const struct sl_recipe *recipe, struct sl_answer *answer, struct sl_error *err);
// Promises bytes of memory for the answer, in addition to its session's: idle sessions and bases are dropped if necessary.
enum sl_status sl_decode_promise(struct sl_decode *decode, struct sl_answer *answer, size_t bytes,
                                 struct sl_error *err);
/*
 * prefix.c. Opens answer->writer.session, or answer->reader with it, from the beginning of the prompt that this worker
 * holds or the store has. *plan is the caller's memory. SL_ERR_CANCELLED; SL_ERR_PRECONDITION: any reason why prefill
 * must read the prompt instead, which is counted.
 */
enum sl_status sl_decode_open_prefix(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                     struct sl_rpc_call *call, struct sl_answer *answer, struct sl_plan *plan,
                                     struct sl_error *err);
// Releases the sessions of joined parts, after the reader has ended. Idempotent.
void sl_decode_drop_joined(struct sl_answer *answer);
// Adds what the prefix saved to the statistics of an answer that has ended.
void sl_decode_describe_prefix(const struct sl_answer *answer, Sluice__V1__Statistics *statistics);
void sl_decode_write_prefix_metrics(struct sl_decode *decode, FILE *page);
// Prepares the reading of the prompt's tokens after answer->writer.session, by answer->reader or by steps. *plan is the caller's memory.
enum sl_status sl_decode_open_turn(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                   struct sl_answer *answer, struct sl_plan *plan, struct sl_error *err);
// Moves the session into decode->kept and writes its lease into *done; frees a session that cannot be retained.
void sl_decode_keep_session(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                            struct sl_answer *answer, Sluice__V1__DecodeDone *done,
                            char lease_id_out[SL_LEASE_ID_BYTES]);

// lease.c. Tells the caller of a job that this worker is at work.
enum sl_status sl_decode_send_alive(struct sl_rpc_call *call);

// Drops the idle session that was used least recently, for a request of this many bytes. False: that would not help. Idle
// sessions hold no staging memory of a device.
bool sl_decode_make_room(struct sl_decode *decode, size_t bytes);

// run.c, archive.c, lease.c: handlers of sluice.v1.Decode
sl_rpc_handler_fn sl_decode_handle_run, sl_decode_handle_archive, sl_decode_handle_reserve;
