// SPDX-License-Identifier: Apache-2.0
// Purpose: what the files of the decode worker share.
#ifndef SL_DECODE_INTERNAL_H
#define SL_DECODE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "compress/evict/compressor.h"
#include "decode/decode.h"
#include "kvcache/capsule.h"
#include "retrieve/retriever.h"
#include "service/remote_source.h"
#include "service/writer.h"

#define SL_DECODE_MAX_ROWS 512 // of one step, over all sequences

// One token on its way from the engine's thread to the handler.
struct sl_decoded {
    struct sl_decoded *next;
    struct sl_token token;
    int64_t index;
    char text[]; // NUL-terminated
};

/*
 * One answer being written. The engine's thread owns session and writer from join to `ended`; the handler before and
 * after.
 */
struct sl_sequence {
    struct sl_sequence *next; // in the inbox
    const char *job_id;
    struct sl_session *session;
    struct sl_compressor *compressor; // NULL: the recipe leaves the session alone while decoding
    struct sl_compressor_wants wants; // of the compressor, while stepping
    struct sl_source *source;         // of a recipe that offloads: the stores that hold the session's annexes
    struct sl_retriever *retriever;
    bool wants_next_q; // of the retriever
    struct sl_writer *writer;
    int32_t *pending; // tokens to read before the next one is written
    int n_pending;
    int n_taken; // of pending, by the step that is running
    float *logits;
    size_t session_bytes;       // what the session may take from the arena beside its capsule
    size_t promised_bytes;      // of those, what it has not taken
    enum sl_status step_status; // of the step that is running: how its recipe's work has failed

    atomic_bool cancelled;
    pthread_mutex_t mutex; // over what follows
    pthread_cond_t changed;
    struct sl_decoded *first, **last; // not yet sent
    int64_t n_fallbacks;              // layers of steps without offloaded slots that no notice has told of
    char fallback[384];               // the last of them
    bool ended;                       // the engine's thread has let go
    enum sl_status status;
    struct sl_error err;
    enum sl_stop_reason stop;
};

struct sl_decode {
    struct sl_node node;
    struct sl_lines *lines; // to stores
    int64_t retrieve_deadline_ms, retrieve_lost_ms;
    struct sl_engine *engine;
    pthread_t engine_thread;
    pthread_mutex_t mutex; // over inbox and stopping
    pthread_cond_t wake;
    struct sl_sequence *inbox, **inbox_end; // in order of arrival
    bool stopping;
    _Atomic int64_t n_jobs, n_steps, n_tokens, rate_tokens_per_s;
};

// engine_thread.c
void *sl_decode_engine_main(void *decode);
void sl_decode_join(struct sl_decode *decode, struct sl_sequence *sequence); // from a handler

// run.c, lease.c: handlers of sluice.v1.Decode
enum sl_status sl_decode_handle_run(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                    struct sl_error *err);
enum sl_status sl_decode_handle_reserve(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                        struct sl_error *err);

#endif
