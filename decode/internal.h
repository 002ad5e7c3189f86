// SPDX-License-Identifier: Apache-2.0
// Purpose: what the files of the decode worker share.
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/rate.h"
#include "decode/decode.h"
#include "kvcache/capsule.h"
#include "offload/remote/remote_source.h"
#include "runner/output.h"
#include "runner/step.h"

#define SL_DECODE_MAX_ROWS 512 // of one step, over all sequences

// One token on its way from the engine's thread to the handler.
struct sl_decoded {
    struct sl_decoded *next;
    struct sl_token token;
    int64_t index;
    char text[]; // NUL-terminated
};

/*
 * One answer being written. The engine's thread owns sequence and output from join to `ended`; the handler before and
 * after.
 */
struct sl_answer {
    struct sl_answer *next; // in the inbox
    struct sl_decode *decode;
    const char *job_id;
    struct sl_sequence sequence;
    struct sl_output *output;
    int32_t *pending; // tokens to read before the next one is written
    int n_pending;
    size_t session_bytes;  // what the session may take from the arena beside its capsule
    size_t promised_bytes; // of those, what it has not taken

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
    struct sl_connections *connections; // to stores
    int64_t retrieve_deadline_ms, retrieve_lost_ms;
    pthread_t engine_thread;
    pthread_mutex_t mutex; // over inbox and stopping
    pthread_cond_t wake;
    struct sl_answer *inbox, **inbox_end; // in order of arrival
    bool stopping;
    _Atomic int64_t n_jobs, n_fallbacks; // of all jobs
    struct sl_rate tokens_rate;
};

// engine_thread.c
void *sl_decode_engine_main(void *decode);
void sl_decode_join(struct sl_decode *decode, struct sl_answer *answer); // from a handler

// run.c, lease.c: handlers of sluice.v1.Decode
enum sl_status sl_decode_handle_run(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                    struct sl_error *err);
enum sl_status sl_decode_handle_reserve(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                        struct sl_error *err);
