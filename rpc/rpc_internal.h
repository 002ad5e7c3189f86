// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what the files of rpc/ share and nobody else sees.
 *
 * Design: a tag is the first member of whatever waits for an operation; a polling thread calls tag->fn, which must be
 *         short and must never wait. Code that wants to wait uses sl_rpc_batch_run() on a thread of its own.
 */
#pragma once

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "rpc/rpc.h"

// ---- rpc_core.c: the completion queue, and bytes to messages -------------------------------------------------------

struct sl_rpc_tag {
    void (*fn)(struct sl_rpc_tag *tag, bool ok); // on a polling thread
};

// The process's completion queue; sl_rpc_init() must have been called.
grpc_completion_queue *sl_rpc_queue(void);

// Start operations; tag->fn runs when all have completed. On failure (a bug of ours: logged) it never runs.
enum sl_status sl_rpc_batch_start(grpc_call *call, const grpc_op *ops, size_t n_ops, struct sl_rpc_tag *tag);

// Start operations and wait for them. SL_ERR_CANCELLED: gRPC reports failure, which for sends means that the call is
// over.
enum sl_status sl_rpc_batch_run(grpc_call *call, const grpc_op *ops, size_t n_ops);

// A message as bytes, in one allocation; NULL when there is no memory. Free with grpc_byte_buffer_destroy().
grpc_byte_buffer *sl_rpc_message_pack(const ProtobufCMessage *message);
// The reverse; NULL when the bytes are not a message of this type. The buffer stays the caller's.
ProtobufCMessage *sl_rpc_message_unpack(grpc_byte_buffer *bytes, const ProtobufCMessageDescriptor *type);

gpr_timespec sl_rpc_deadline_to_timespec(int64_t deadline_ns);
int64_t sl_rpc_deadline_from_timespec(gpr_timespec deadline);

// One of the arguments that a channel or a server is made with.
static inline grpc_arg sl_rpc_setting(const char *key, int value) {
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

// The gauge behind sl_rpc_live_calls().
void sl_rpc_live_calls_add(int n);

// ---- rpc_address.c -------------------------------------------------------------------------------------------------

struct sl_rpc_address {
    char host[256]; // without the brackets of an IPv6 literal
    int port;
    bool bracketed;
};

// "HOST:PORT" or "[V6]:PORT". SL_ERR_INVALID.
enum sl_status sl_rpc_address_parse(const char *text, struct sl_rpc_address *address_out, struct sl_error *err);
// As a target for a channel: literals bypass the resolver.
void sl_rpc_address_target(const struct sl_rpc_address *address, char *target, size_t target_bytes);
void sl_rpc_address_format(const struct sl_rpc_address *address, char *text, size_t text_bytes);
// Why can nobody listen there? Tries itself, since gRPC only says that it failed. Returns the failure.
enum sl_status sl_rpc_address_diagnose(const struct sl_rpc_address *address, struct sl_error *err);

// ---- rpc_pool.c: threads that come and go --------------------------------------------------------------------------

struct sl_rpc_pool;

struct sl_rpc_job { // embedded in what the job is about; belongs to the pool until fn is called
    void (*fn)(struct sl_rpc_job *job);
    struct sl_rpc_job *next;
};

enum sl_status sl_rpc_pool_create(struct sl_rpc_pool **pool_out, struct sl_error *err);
// Never waits for a thread: takes an idle one or starts one. SL_ERR_EXHAUSTED: no thread could be started.
enum sl_status sl_rpc_pool_submit(struct sl_rpc_pool *pool, struct sl_rpc_job *job, struct sl_error *err);
// Runs what was submitted, then joins every thread.
void sl_rpc_pool_destroy(struct sl_rpc_pool **pool);

// ---- rpc_call.c: one call at the server ----------------------------------------------------------------------------

struct sl_rpc_calls { // the call objects of a server: posted or accepted, and not yet freed
    pthread_mutex_t mutex;
    pthread_cond_t gone; // n has become 0
    size_t n;
};

struct sl_rpc_quota { // how many handlers may run at once
    int limit;
    atomic_int n_running;
};

struct sl_rpc_bound { // a method as registered with gRPC
    const struct sl_rpc_method *method;
    sl_rpc_handler_fn handler;
    void *context;
    struct sl_rpc_quota *quota;
    void *registered;
};

struct sl_rpc_call {
    struct sl_rpc_server *server;
    struct sl_rpc_calls *calls;
    const struct sl_rpc_bound *bound; // NULL: an unknown method
    grpc_call *call;                  // NULL until accepted
    grpc_metadata_array metadata;
    grpc_call_details details; // of unknown methods
    gpr_timespec deadline;
    grpc_byte_buffer *payload; // the request; NULL for bidirectional calls
    grpc_byte_buffer *reply;   // of a unary call, kept to travel with the status
    int64_t deadline_ns;
    bool metadata_sent;
    atomic_int refs; // the thread that handles it, and each operation under way
    struct sl_rpc_tag accept_tag, close_tag, finish_tag;
    struct sl_rpc_job job;
    int close_cancelled; // written by gRPC before close_tag comes back

    pthread_mutex_t mutex; // guards what follows
    pthread_cond_t cond;   // on_cancel_running has become false
    atomic_bool cancelled; // written under the mutex, read without
    void (*on_cancel)(void *);
    void *on_cancel_arg;
    bool on_cancel_running;
    pthread_t on_cancel_thread;
};

void sl_rpc_calls_init(struct sl_rpc_calls *calls);
void sl_rpc_calls_cleanup(struct sl_rpc_calls *calls);
// Until the last one has been freed: SL_OK, or SL_ERR_DEADLINE.
enum sl_status sl_rpc_calls_wait(struct sl_rpc_calls *calls, int64_t deadline_ns);

// One more of `calls`, which outlive it. NULL: no memory.
struct sl_rpc_call *sl_rpc_call_create(struct sl_rpc_server *server, struct sl_rpc_calls *calls,
                                       const struct sl_rpc_bound *bound);
// After acceptance: watch for the client's going away. Takes its own reference.
enum sl_status sl_rpc_call_watch(struct sl_rpc_call *call);
// Send the final status without waiting. Takes its own reference. The call's handler has returned, or never ran.
void sl_rpc_call_finish(struct sl_rpc_call *call, enum sl_status status, const char *text);
void sl_rpc_call_unref(struct sl_rpc_call *call);
