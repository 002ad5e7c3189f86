// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: declarations that only the files of net/rpc/ share.
 *
 * Design: a tag is the first member of a struct that waits for an operation; a polling thread calls tag->fn, which must
 *         be short and must never wait. Code that wants to wait uses sl_rpc_batch_run() on a thread or fiber of its own.
 */
#pragma once

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/fiber/bell.h"
#include "base/locals.h"
#include "base/thread.h"
#include "base/trace.h"
#include "net/rpc/connections/rpc_connections.h"
#include "net/rpc/rpc.h"

// ---- rpc_core.c: the completion queue, and bytes to messages -------------------------------------------------------

enum { SL_RPC_LOOK_MS = 1000 }; // between looks for new revocation lists, while a thread waits for a server

struct sl_rpc_tag {
    void (*fn)(struct sl_rpc_tag *tag, bool ok); // called on a polling thread
};

// Stops Abseil's record of the order in which gRPC locks its mutexes. Returns false if this build of Abseil has no such function.
bool sl_rpc_stop_lock_records(void);
// Returns the process's completion queue; sl_rpc_init() must have been called.
grpc_completion_queue *sl_rpc_queue(void);

// Starts operations; tag->fn runs when all have completed. On failure (a bug of ours: logged) it never runs.
enum sl_status sl_rpc_batch_start(grpc_call *call, const grpc_op *ops, size_t n_ops, struct sl_rpc_tag *tag);

// Starts operations and waits for them; cancels a call that has not completed them by the deadline (SL_NO_DEADLINE: the
// call's own deadline is enough). SL_ERR_CANCELLED: gRPC reports failure; for sends, this means that the call is over.
enum sl_status sl_rpc_batch_run(grpc_call *call, const grpc_op *ops, size_t n_ops, int64_t deadline_ns);
// As sl_rpc_batch_run(), and calls look_fn once a second meanwhile (NULL: does not).
enum sl_status sl_rpc_batch_run_looking(grpc_call *call, const grpc_op *ops, size_t n_ops, int64_t deadline_ns,
                                        void (*look_fn)(void *arg), void *arg);

struct sl_rpc_account;

// Packs a message into bytes, in one allocation; NULL when there is no memory. Free with grpc_byte_buffer_destroy().
grpc_byte_buffer *sl_rpc_message_pack(const ProtobufCMessage *message);
// Unpacks a message that came over the network; all such messages pass here. `what` names it in err: "the request".
// SL_ERR_INVALID: it is not of this type, or one of its strings has a zero byte (rpc_wire.h). SL_ERR_EXHAUSTED: there
// is no memory; if `account` (may be NULL) has no room, the error is that of sl_rpc_account_complain(). The caller
// keeps the buffer.
enum sl_status sl_rpc_message_unpack(grpc_byte_buffer *bytes, const char *what, const ProtobufCMessageDescriptor *type,
                                     struct sl_rpc_account *account, ProtobufCMessage **message_out,
                                     struct sl_error *err);

gpr_timespec sl_rpc_deadline_to_timespec(int64_t deadline_ns);
int64_t sl_rpc_deadline_from_timespec(gpr_timespec deadline);

// Returns one argument for creating a channel or a server.
static inline grpc_arg sl_rpc_setting(const char *key, int value) {
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

// Returns false after sl_rpc_read_little_ahead().
bool sl_rpc_reads_far_ahead(void);

// Adds to the gauge of sl_rpc_live_calls().
void sl_rpc_live_calls_add(int n);

// ---- rpc_pollers.c: the threads that poll --------------------------------------------------------------------------

// Starts them; without any, nothing works, and the process ends.
void sl_rpc_pollers_start(grpc_completion_queue *queue);
// Waits until they have ended. The queue has been shut down.
void sl_rpc_pollers_join(void);
// Runs a tag that gRPC has completed, and those whose operations then complete at once on this thread: the queue would wake another one for
// them. They run after the tag, so a tag that starts operations must not wait for them in any way. The last one of many leaves its to the queue.
void sl_rpc_tags_run(void *tag, int ok);

// ---- rpc_address.c -------------------------------------------------------------------------------------------------

struct sl_rpc_address {
    char host[256]; // without the brackets of an IPv6 literal
    int port;
    bool bracketed;
};

// Parses "HOST:PORT" or "[V6]:PORT". SL_ERR_INVALID.
enum sl_status sl_rpc_address_parse(const char *text, struct sl_rpc_address *address_out, struct sl_error *err);
// Writes the address as a target for a channel: literals bypass the resolver.
void sl_rpc_address_target(const struct sl_rpc_address *address, char *target, size_t target_bytes);
void sl_rpc_address_format(const struct sl_rpc_address *address, char *text, size_t text_bytes);
// Finds out why a server cannot listen there, by trying itself, because gRPC only reports that it failed. Returns the
// failure.
enum sl_status sl_rpc_address_diagnose(const struct sl_rpc_address *address, struct sl_error *err);

// Rejects an address that other hosts can reach, and names it, if there are no credentials: see net/trust/tls_files.h.
enum sl_status sl_rpc_address_may_listen(const struct sl_rpc_address *address, bool has_credentials, bool insecure,
                                         struct sl_error *err);

// Writes the address at which this host reaches a server that listens at `address`: a number, the loopback for a
// wildcard. SL_ERR_INVALID.
enum sl_status sl_rpc_address_near(const struct sl_rpc_address *address, struct sl_rpc_address *near_out,
                                   struct sl_error *err);

// ---- rpc_credentials.c ---------------------------------------------------------------------------------------------

// Returns credentials for channels to servers of these roles and this name ("": any); NULL: no memory. The caller frees
// them.
grpc_channel_credentials *sl_rpc_channel_credentials(const struct sl_rpc_credentials *credentials, unsigned roles,
                                                     const char *name);
// The caller frees them
grpc_server_credentials *sl_rpc_server_credentials(const struct sl_rpc_credentials *credentials);
// Returns a number that changes when certificates may have been revoked: open calls must be checked again.
uint64_t sl_rpc_credentials_edition(const struct sl_rpc_credentials *credentials);
// Rejects an accepted call whose caller was revoked. SL_ERR_DENIED.
enum sl_status sl_rpc_check_revoked(const struct sl_rpc_credentials *credentials, grpc_call *call,
                                    struct sl_error *err);
// Writes the identity of the caller. SL_ERR_DENIED: it has none of the roles.
enum sl_status sl_rpc_identify(const struct sl_rpc_credentials *credentials, grpc_call *call, unsigned roles,
                               struct sl_identity *caller_out, struct sl_error *err);

// ---- rpc_channel.c: connections to servers --------------------------------------------------------------------------

enum { SL_RPC_MAX_REPLY_BYTES = 64 << 20, SL_RPC_BACKOFF_MAX_MS = 1000 };

struct sl_rpc_channel {
    pthread_mutex_t mutex; // guards the next two
    grpc_channel *channel;
    uint64_t edition; // of the revocation lists when it was made
    const struct sl_rpc_credentials *credentials;
    unsigned roles; // of servers
    int max_reply_bytes;
    bool shares;
    char target[300], name[SL_IDENTITY_BYTES];
    atomic_bool has_answered;    // the server has replied: it takes our connections
    atomic_llong tried_again_ns; // time when gRPC was last told to reset its backoff
};

// Begins a call. parent: NULL, or the call of a server that it ends with.
grpc_call *sl_rpc_channel_call(struct sl_rpc_channel *channel, const char *path, int64_t deadline_ns,
                               struct sl_rpc_call *parent);
// Returns the edition of the revocation lists by which the server was checked; the next call may be checked by a newer one.
uint64_t sl_rpc_channel_edition(struct sl_rpc_channel *channel);
void sl_rpc_channel_reset_backoff(struct sl_rpc_channel *channel);

// ---- rpc_pool.c: threads that start and exit on demand ----------------------------------------------------------------

struct sl_rpc_pool;

struct sl_rpc_job { // part of the struct that the job is about; belongs to the pool until fn is called
    void (*fn)(struct sl_rpc_job *job);
    struct sl_rpc_job *next;
};

enum sl_status sl_rpc_pool_create(struct sl_rpc_pool **pool_out, struct sl_error *err);
// Submits a job. Never waits for a thread: takes an idle one or starts one. SL_ERR_EXHAUSTED: no thread could be
// started.
enum sl_status sl_rpc_pool_submit(struct sl_rpc_pool *pool, struct sl_rpc_job *job, struct sl_error *err);
// Runs all submitted jobs, then joins every thread.
void sl_rpc_pool_destroy(struct sl_rpc_pool **pool);

// ---- rpc_budget.c: memory of requests -------------------------------------------------------------------------------

struct sl_rpc_budget { // memory of all requests of a quota together
    atomic_llong left;
};

enum sl_rpc_over { SL_RPC_WITHIN, SL_RPC_OVER_ITS_OWN, SL_RPC_OVER_ALL, SL_RPC_NO_MEMORY };

struct sl_rpc_account { // memory of one call; one thread at a time
    struct sl_rpc_budget *budget;
    int64_t left;          // bytes left for the current message
    int64_t taken, held;   // taken by the current message; held by the handler
    enum sl_rpc_over over; // first refusal since the message began
};

void sl_rpc_account_open(struct sl_rpc_account *account, struct sl_rpc_budget *budget);
void sl_rpc_account_begin(struct sl_rpc_account *account,
                          size_t message_bytes);                        // a message arrives; the previous one was freed
bool sl_rpc_account_take(struct sl_rpc_account *account, size_t bytes); // false: account->over has the reason
bool sl_rpc_account_hold(struct sl_rpc_account *account, int64_t bytes); // until the call ends
void sl_rpc_account_close(struct sl_rpc_account *account);               // the call has ended
// The current message is kept until the call ends, or was freed.
void sl_rpc_account_end_message(struct sl_rpc_account *account, bool is_kept);
// Returns SL_OK if no allocation was refused, else the refusal. what: "/sluice.v1.Inference/Submit".
enum sl_status sl_rpc_account_complain(const struct sl_rpc_account *account, const char *what, struct sl_error *err);
ProtobufCAllocator sl_rpc_account_allocator(struct sl_rpc_account *account); // the account outlives the allocator

// ---- rpc_trace.c: trace context ------------------------------------------------------------------------------------

struct sl_rpc_trace_entry { // lives until its operation has completed
    grpc_metadata metadata;
    char text[SL_TRACEPARENT_BYTES];
};
// Puts the trace context of this thread into a GRPC_OP_SEND_INITIAL_METADATA.
void sl_rpc_trace_attach(struct sl_rpc_trace_entry *entry, grpc_op *op);
// Reads the client's trace context. False: the client sent none that is valid.
bool sl_rpc_trace_take(const grpc_metadata_array *metadata, struct sl_trace *trace_out);

// ---- rpc_reason.c: reason and culprit of a failure -------------------------------------------------------------------

struct sl_rpc_reason_entries { // live until their operation has completed
    grpc_metadata metadata[2];
    char culprit[SL_CULPRIT_BYTES];
};
// Fills in what a server sends with the status of a failed call. Returns how many entries that are.
size_t sl_rpc_reason_attach(struct sl_rpc_reason_entries *entries, const struct sl_error *err);
// Adds what the server has sent to the failure in *err (may be NULL), which has its status and text already.
void sl_rpc_reason_take(const grpc_metadata_array *trailing, struct sl_error *err);

// ---- rpc_call.c: one call at the server ----------------------------------------------------------------------------

enum {
    SL_RPC_CALL_BYTES = 16 << 10, // what gRPC takes for a call
    SL_RPC_LINE_BYTES = 64 << 20,
    SL_RPC_WAITING_BYTES = 3 * SL_RPC_LINE_BYTES, // of replies that wait until clients have read others
};

struct sl_rpc_line { // calls that wait for their clients, the longest first
    struct sl_rpc_call *oldest, *newest;
    int64_t n, most;              // how many there are, and may be
    int64_t bytes;                // which these calls take; at most SL_RPC_LINE_BYTES
    int64_t owned[SL_RPC_OWNERS]; // the same bytes, by callers
};

struct sl_rpc_calls {      // the call objects of a server: posted or accepted, and not yet freed
    pthread_mutex_t mutex; // guards all lines too
    struct sl_bell gone;   // rung when n becomes 0
    size_t n;
    struct sl_rpc_call *accepted; // those that are accepted
    uint64_t edition; // of the revocation lists by which they were checked; only for sl_rpc_calls_end_revoked()
    struct sl_rpc_line unsent;      // whose last message gRPC has not sent yet
    struct sl_bell left;            // rung when a call leaves that line
    int64_t waiting_bytes;          // replies of calls that wait to join it
    int64_t read_ns[SL_RPC_OWNERS]; // when a caller's client has last taken one
};

struct sl_rpc_quota {        // limits how many handlers run at once, and the memory of their requests
    int limit, caller_limit; // of all callers, and of one
    atomic_int n_running, owned[SL_RPC_OWNERS]; // and those of each caller
    struct sl_rpc_usage *usage;                 // NULL: not counted
    struct sl_rpc_budget budget;
    struct sl_rpc_line awaited; // calls whose request has not come
};

struct sl_rpc_bound { // a method as registered with gRPC
    const struct sl_rpc_method *method;
    sl_rpc_handler_fn *handler;
    unsigned roles;
    void *context;
    struct sl_rpc_quota *quota;
    bool on_fibers;
    void *registered;
};

struct sl_rpc_call {
    struct sl_rpc_server *server;
    struct sl_rpc_calls *calls;
    int64_t send_ms;                  // the server's setting
    const struct sl_rpc_bound *bound; // NULL: an unknown method
    grpc_call *call;                  // NULL until the call is accepted
    grpc_metadata_array metadata;
    grpc_call_details details; // for unknown methods
    gpr_timespec deadline;
    grpc_byte_buffer *payload; // the request; NULL for bidirectional calls
    grpc_byte_buffer *reply;   // the reply of a unary call, or the last message of a stream: sent with the status
    int64_t accepted_ns;
    atomic_bool has_message;     // gRPC has taken one for the client
    atomic_bool is_streaming;    // the handler of a stream has begun
    atomic_bool has_made_room;   // the server has cancelled it for others
    _Atomic int64_t deadline_ns; // a handler may lower it while gRPC reports the end
    struct sl_identity caller;   // valid once the call is accepted
    size_t owner;                // hash of the caller, below SL_RPC_OWNERS; 0 before it is known
    uint64_t caller_hash;        // 0 before it is known
    struct sl_rpc_account account;
    bool metadata_sent;
    atomic_int refs;                     // held by the thread that handles it and by each pending operation
    struct sl_rpc_reason_entries reason; // of the final status
    struct sl_rpc_tag accept_tag, close_tag, finish_tag, send_tag; // the first for the call, then for its request
    struct sl_rpc_job job;
    int close_cancelled;                              // written by gRPC before close_tag comes back
    struct sl_rpc_call *next_accepted, **at_accepted; // under the lock of `calls`, as the next five
    struct sl_rpc_line *line;                         // in which it waits; NULL: in none
    struct sl_rpc_call *older, *newer;
    int64_t line_bytes; // of its message, and what the call takes
    int64_t joined_ns;

    pthread_mutex_t mutex;        // guards the fields below
    struct sl_bell changed;       // rung when on_cancel_running or is_sending becomes false
    bool is_sending, send_failed; // the last message is under way; a message was not taken
    atomic_bool cancelled;        // written with the mutex, read without it
    void (*on_cancel)(void *);
    void *on_cancel_arg;
    bool on_cancel_running;
    const struct sl_locals *on_cancel_locals; // of the thread or fiber that runs it
};

// most_unsent: how many may wait for their clients to read.
void sl_rpc_calls_init(struct sl_rpc_calls *calls, int64_t most_unsent);
void sl_rpc_calls_cleanup(struct sl_rpc_calls *calls);
// Waits until the last call has been freed: SL_OK, or SL_ERR_DEADLINE.
enum sl_status sl_rpc_calls_wait(struct sl_rpc_calls *calls, int64_t deadline_ns);
// Waits with a large reply until its caller, which has many, has read some of them. Ends if it reads nothing for 5 s, and at
// once if too many wait. Not for a polling thread.
void sl_rpc_call_await_room(struct sl_rpc_call *call);
// Cancels calls whose replies wait since before a time, and those that must make room for the newest, if it is not NULL.
void sl_rpc_calls_end_unsent(struct sl_rpc_calls *calls, int64_t before_ns, struct sl_rpc_call *newest);

// Creates a call and adds it to `calls`, which outlive it. NULL: no memory.
struct sl_rpc_call *sl_rpc_call_create(struct sl_rpc_server *server, struct sl_rpc_calls *calls,
                                       const struct sl_rpc_bound *bound);
// Notes that gRPC has accepted a call: sl_rpc_calls_end_revoked() finds it.
void sl_rpc_call_note_accepted(struct sl_rpc_call *call);
// Cancels accepted calls whose callers were revoked, when the lists have changed. For one thread.
void sl_rpc_calls_end_revoked(struct sl_rpc_calls *calls, const struct sl_rpc_credentials *credentials);
// Watches for the client to disconnect, after acceptance. Takes its own reference.
enum sl_status sl_rpc_call_watch(struct sl_rpc_call *call);
// Counts a call that its client has cancelled at once, or that took the place of another of its caller. Closes the connection of too many.
void sl_rpc_call_count_waste(struct sl_rpc_call *call);
// Puts a call whose request has not come into the line of its quota.
void sl_rpc_call_await(struct sl_rpc_call *call);
// Takes a call out of a line. False: it had to make room before.
bool sl_rpc_call_leave_line(struct sl_rpc_call *call, struct sl_rpc_line *line);
// Takes out the call of a caller that waits longest. The caller has its reference. NULL: there is none.
struct sl_rpc_call *sl_rpc_calls_take_out_of(struct sl_rpc_calls *calls, struct sl_rpc_line *line, size_t owner);
// Takes out a call that waits since before a time, or must make room. The caller has its reference. NULL: there is none.
struct sl_rpc_call *sl_rpc_calls_take_out(struct sl_rpc_calls *calls, struct sl_rpc_line *line, int64_t before_ns);
// Sends the final status without waiting: SL_OK, or the failure in *err, with its text, reason and culprit (NULL: the status
// has no text). Takes its own reference. The call's handler has returned, or never ran.
void sl_rpc_call_finish(struct sl_rpc_call *call, enum sl_status status, const struct sl_error *err);
void sl_rpc_call_unref(struct sl_rpc_call *call);
