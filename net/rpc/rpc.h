// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: gRPC in plain, blocking C: a server whose handlers read like functions, and calls that look like calls.
 *          The only user of gRPC core. Messages are protobuf-c's.
 *
 * Design: completion queues are polled by their own threads, which never run handlers; each accepted call runs its
 *         handler on a thread of a bounded pool, or a fiber, so that it may wait as long as it watches sl_rpc_call_cancelled()
 *         or a deadline. A call over the bound is refused with RESOURCE_EXHAUSTED at once. Unknown methods get
 *         UNIMPLEMENTED. Health and reflection are ordinary services (net/rpc/standard/rpc_standard.h). A C string cannot hold a
 *         zero byte, so messages from the network whose strings have one are refused: a server answers INVALID_ARGUMENT
 *         with the field's name, a client's call ends with SL_ERR_PEER_CORRUPT.
 * Threads: a server handles calls concurrently. A channel may be used by many threads, a stream by one at a time
 *          (sl_rpc_stream_cancel() by any).
 */
#pragma once

#include <stdbool.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"
#include "net/trust/identity.h"
#include "net/trust/tls_files.h"
#include "proto/service.h"
#include "proto/sluice/v1/cluster.pb-c.h"

// Starts and stops gRPC core, once per process: before all threads that use gRPC, and after them. Changes no signal
// masks. Fork and spawn before sl_rpc_init(), never between the two calls. Stopping leaves gRPC's own globals allocated
// (net/rpc/rpc_core.c says why).
void sl_rpc_init(void);
void sl_rpc_shutdown(void);
bool sl_rpc_is_up(void); // called only by the thread that starts and stops it
// Channels that are created afterwards read 64 KiB and a message ahead of a stream's reader, and not what the network carries
// meanwhile, which is megabytes: for a process whose readers may be many and slow. A file then takes longer over a far network.
void sl_rpc_read_little_ahead(void);
const char *sl_rpc_library_version(void); // of gRPC's core: a static text; gRPC need not be started

// ---- credentials of this process -----------------------------------------------------------------------------------

// A process's certificate. A NULL pointer means no certificate: calls are not encrypted, and every peer has every role.
struct sl_rpc_credentials;

/*
 * Creates credentials from a process's files, which are read again when they change; the paths are copied. No files
 * given: SL_OK, and NULL. SL_ERR_INVALID names the file and its error. Destroy them after the servers and channels that
 * use them.
 */
enum sl_status sl_rpc_credentials_create(const struct sl_tls_files *files, struct sl_rpc_credentials **credentials_out,
                                         struct sl_error *err);
// Creates credentials for channels to servers outside the cluster: such a server is verified by host name, and our
// certificate needs no identity of the cluster.
enum sl_status sl_rpc_credentials_create_foreign(const struct sl_tls_files *files,
                                                 struct sl_rpc_credentials **credentials_out, struct sl_error *err);
void sl_rpc_credentials_destroy(struct sl_rpc_credentials **credentials); // *credentials may be NULL
// Returns the role of certificates of workers that register as `role`.
static inline unsigned sl_rpc_role_of(Sluice__V1__WorkerRole role) {
    return role == SLUICE__V1__WORKER_ROLE__PREFILL  ? SL_ROLE_PREFILL
           : role == SLUICE__V1__WORKER_ROLE__DECODE ? SL_ROLE_DECODE
                                                     : SL_ROLE_KVSTORE;
}
// Returns this process's identity in its certificate; for NULL an identity with every role.
const struct sl_identity *sl_rpc_credentials_self(const struct sl_rpc_credentials *credentials);

// ---- server ----------------------------------------------------------------------------------------------------

struct sl_rpc_server;
struct sl_rpc_call; // one call being handled; lives until its handler has returned

/*
 * Answers one call. The server unpacks `request` and frees it (NULL for bidirectional methods: use
 * sl_rpc_call_receive). Send replies with sl_rpc_call_send(): exactly one for unary methods before returning SL_OK. The
 * returned status becomes the call's gRPC status, with err->text as its details (net/rpc/rpc_status.c has the mapping);
 * reason and culprit travel as metadata (net/rpc/rpc_reason.c).
 */
typedef enum sl_status sl_rpc_handler_fn(void *context, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                         struct sl_error *err);

struct sl_rpc_handler {
    const struct sl_rpc_method *method;
    sl_rpc_handler_fn *fn;
    // Bits of enum sl_role that may call it, not 0. Other callers get PERMISSION_DENIED before the handler runs
    unsigned roles;
};

// The handlers of a service.
struct sl_rpc_implementation {
    const struct sl_rpc_service *service;
    const struct sl_rpc_handler *handlers; // [n_handlers], one for each method of the service
    size_t n_handlers;
    void *context;  // passed to the handlers
    int max_calls;  // concurrent handlers of this service only, with memory of their own; 0: it shares the server's
    bool on_fibers; // handlers wait for nothing but bells (base/fiber/fiber.h); else each has a thread
    void (*stopping_fn)(void *context); // the server begins to stop: handlers that only wait must return; may be NULL
};
// Initializes an implementation from an array of handlers.
#define SL_RPC_IMPLEMENTATION(its_service, array, its_context)                                                         \
    (struct sl_rpc_implementation) {                                                                                   \
        .service = (its_service), .handlers = (array), .n_handlers = sizeof(array) / sizeof *(array),                  \
        .context = (its_context)                                                                                       \
    }

struct sl_rpc_usage {                        // zeroed before the server starts; read by any thread
    atomic_int n_running;                    // calls that are being handled, of services without a limit of their own
    atomic_llong n_over_limit, n_over_share; // calls refused because too many were handled: of all, of one caller
};

struct sl_rpc_server_config {
    const char *listen;                           // "HOST:PORT"; port 0 picks a free one
    const struct sl_rpc_implementation *services; // [n_services]
    size_t n_services;
    int max_calls; // concurrent handlers; 0: 256
    int caller_percent; // of them that one caller may have: a tenant or another role's name; without certificates a host, or a connection
        // of this machine; 0: all
    struct sl_rpc_usage *usage;                   // the caller's, and outlives the server; may be NULL
    int max_message_bytes;                        // bytes of one message; 0: 4 MiB
    int64_t request_bytes;                        // memory for all requests that are being handled; 0: 256 MiB
    int64_t send_ms;                              // after this time without reading, a client counts as lost; 0: 30 s
    int64_t request_ms;                           // time for a request to arrive; 0: 60 s
    const struct sl_rpc_credentials *credentials; // must outlive the server
    bool insecure;                                // without credentials, listen also where other hosts can connect
};

// Starts a server. SL_ERR_EXISTS: the address is in use. SL_ERR_INVALID: the address needs credentials.
// SL_ERR_INTERNAL: a method has no handler, or two, or one that no role may call. Copies the config; the services'
// tables must stay valid.
enum sl_status sl_rpc_server_start(const struct sl_rpc_server_config *config, struct sl_rpc_server **server_out,
                                   struct sl_error *err);
const char *sl_rpc_server_address(const struct sl_rpc_server *server); // "HOST:PORT" with the real port

// Notifies the services, refuses new calls, gives running ones grace_ms, cancels the rest, and waits for their
// handlers. Accepts NULL, nulls *server.
void sl_rpc_server_stop(struct sl_rpc_server **server, int64_t grace_ms);

// Queues a message to the client; waits until the transport has taken the one before. SL_ERR_CANCELLED: the client is gone, the
// deadline has passed, or the message before was not taken. SL_ERR_INTERNAL: not the method's reply, or after the last one (logged).
// The caller keeps the message.
enum sl_status sl_rpc_call_send(struct sl_rpc_call *call, const ProtobufCMessage *message);
// Keeps the last message of a stream, which travels with the status when the handler returns SL_OK: the client needs no second wake for it.
enum sl_status sl_rpc_call_send_last(struct sl_rpc_call *call, const ProtobufCMessage *message);
// Sends a message of a stream that the caller has packed already; its type is the method's reply. follows: another message, or the
// status, follows at once, and this one may wait for it.
enum sl_status sl_rpc_call_send_packed(struct sl_rpc_call *call, const uint8_t *packed, size_t n_bytes, bool follows);
// Waits until the transport has taken the last message of a stream: SL_OK or SL_ERR_CANCELLED.
enum sl_status sl_rpc_call_flush(struct sl_rpc_call *call);
// Waits the same way, but at most until the deadline. Returns whether the transport has the message, or has failed.
bool sl_rpc_call_wait_sent(struct sl_rpc_call *call, int64_t deadline_ns);
// Receives the next message of a bidirectional call. SL_OK: free the message with protobuf_c_message_free_unpacked()
// before receiving the next one. SL_ERR_NOT_FOUND: the client has half-closed. SL_ERR_INVALID: the message has another
// type, or a string with a zero byte. SL_ERR_EXHAUSTED: requests use all the memory that is reserved for them.
// SL_ERR_CANCELLED: the call is over. SL_ERR_DEADLINE: no message has come until the deadline, and the call is over.
enum sl_status sl_rpc_call_receive(struct sl_rpc_call *call, const ProtobufCMessageDescriptor *type,
                                   ProtobufCMessage **message_out, struct sl_error *err);
// Returns the caller's identity, which has one of the handler's roles. Lives as long as the call.
const struct sl_identity *sl_rpc_call_identity(const struct sl_rpc_call *call);
// Returns a number that is the same for all calls of a tenant, of another role's name, or, without certificates, of a host, or a connection
// of this machine. Never 0.
uint64_t sl_rpc_call_caller(const struct sl_rpc_call *call);
// Returns the caller's tenant, or its name, for messages.
const char *sl_rpc_call_caller_name(const struct sl_rpc_call *call);
// Counts data that a handler keeps for its client, until the handler returns, as memory of its request.
// SL_ERR_EXHAUSTED: none is left.
enum sl_status sl_rpc_call_hold(struct sl_rpc_call *call, size_t bytes, struct sl_error *err);
// Tells what became of the last message that was received: its memory counts until the handler returns if it is kept, and
// no longer if it was freed.
void sl_rpc_call_end_message(struct sl_rpc_call *call, bool is_kept);
// Returns all memory of the request that counts now: its messages and what the handler holds.
int64_t sl_rpc_call_bytes(const struct sl_rpc_call *call);
// Limits how long the call may wait for messages; a later deadline than the call's changes nothing.
void sl_rpc_call_limit(struct sl_rpc_call *call, int64_t deadline_ns);
bool sl_rpc_call_cancelled(const struct sl_rpc_call *call);
// Returns the opposite, for loops that take a function to ask (sl_send.go_on and others).
static inline bool sl_rpc_call_wanted(void *call) {
    return !sl_rpc_call_cancelled((const struct sl_rpc_call *)call);
}
int64_t sl_rpc_call_deadline_ns(const struct sl_rpc_call *call); // SL_NO_DEADLINE when the client set none
/*
 * Runs fn(arg) once when the call is cancelled (client gone, deadline, server stop); at once if it already is. With it
 * a handler can wake up from a condition of its own. fn runs on a polling thread and must not block. Pass NULL to
 * unregister; when that returns, fn is not running.
 */
void sl_rpc_call_on_cancel(struct sl_rpc_call *call, void (*fn)(void *), void *arg);

// ---- client ----------------------------------------------------------------------------------------------------

// Parses "HOST:PORT,HOST:PORT,...", at least one. SL_ERR_INVALID names the error.
#define SL_RPC_MAX_ADDRESSES 8
#define SL_RPC_ADDRESS_BYTES 272
struct sl_rpc_addresses {
    int n;
    char text[SL_RPC_MAX_ADDRESSES][SL_RPC_ADDRESS_BYTES];
};
enum sl_status sl_rpc_addresses_parse(const char *list, struct sl_rpc_addresses *addresses_out, struct sl_error *err);

struct sl_rpc_channel; // connects on demand and reconnects on its own; keepalive pings find dead peers

/*
 * Creates a channel to "HOST:PORT" or "NAME@HOST:PORT". credentials outlive the channel; roles: bits of enum sl_role, one
 * of which the server must have, and the name, if there is one. Another server is never sent a request: calls end with
 * SL_ERR_PEER_LOST, and the error names the server's identity.
 */
enum sl_status sl_rpc_channel_create(const char *address, const struct sl_rpc_credentials *credentials, unsigned roles,
                                     struct sl_rpc_channel **channel_out, struct sl_error *err);
// Creates a channel that refuses replies of more than max_reply_bytes. With foreign credentials it does not check the
// server's role.
enum sl_status sl_rpc_channel_create_bounded(const char *address, const struct sl_rpc_credentials *credentials,
                                             unsigned roles, int max_reply_bytes, struct sl_rpc_channel **channel_out,
                                             struct sl_error *err);
// Creates a channel with its own connection, which closes with the channel. Otherwise, channels of a process to the same
// address share a connection.
enum sl_status sl_rpc_channel_create_alone(const char *address, const struct sl_rpc_credentials *credentials,
                                           unsigned roles, struct sl_rpc_channel **channel_out, struct sl_error *err);
void sl_rpc_channel_destroy(struct sl_rpc_channel **channel);

// For a RESOURCE_EXHAUSTED reply, err->text contains the delay that the server asked for ("... retry in N ms").

/*
 * Sends one request and returns its reply, both of the method's types; SL_ERR_INTERNAL: the request has another type.
 * deadline_ns may be SL_NO_DEADLINE only with a parent that has one. `parent` (may be NULL) is the call being handled:
 * its cancellation and deadline apply to this call. *reply_out (may be NULL to discard) is freed by
 * protobuf_c_message_free_unpacked(). On failure the status is the mapped gRPC code, err->text the server's details, and
 * err->reason the server's reason, or SL_REASON_UNCONNECTED or SL_REASON_UNKNOWN_METHOD.
 */
enum sl_status sl_rpc_unary(struct sl_rpc_channel *channel, const struct sl_rpc_method *method,
                            const ProtobufCMessage *request, int64_t deadline_ns, struct sl_rpc_call *parent,
                            ProtobufCMessage **reply_out, struct sl_error *err);

/*
 * Sends one request in several messages, all of the method's type, and returns one reply. next_fn returns the next
 * message, which lives until the next call of next_fn; NULL: no more messages. Otherwise like sl_rpc_unary(). A server
 * may end the call early; it is then not sent the rest.
 */
enum sl_status sl_rpc_upload(struct sl_rpc_channel *channel, const struct sl_rpc_method *method,
                             const ProtobufCMessage *(*next_fn)(void *arg), void *arg, int64_t deadline_ns,
                             ProtobufCMessage **reply_out, struct sl_error *err);

struct sl_rpc_stream;

// Starts a server-streaming call, or a unary one, which looks the same on the wire: read one message and close. The
// first sl_rpc_stream_next() reports a connection that cannot be made. The method outlives the stream.
enum sl_status sl_rpc_stream_open(struct sl_rpc_channel *channel, const struct sl_rpc_method *method,
                                  const ProtobufCMessage *request, int64_t deadline_ns, struct sl_rpc_call *parent,
                                  struct sl_rpc_stream **stream_out, struct sl_error *err);

/*
 * Waits for the next reply: SL_OK with a message; SL_AGAIN when none came within wait_ms (the stream goes on);
 * SL_ERR_NOT_FOUND at the orderly end of the stream (gRPC OK); any other status is the failure that ended it, with the
 * server's details in err. err->status distinguishes a server's own NOT_FOUND from the orderly end: SL_ERR_NOT_FOUND
 * there, SL_OK here.
 */
enum sl_status sl_rpc_stream_next(struct sl_rpc_stream *stream, int64_t wait_ms, ProtobufCMessage **message_out,
                                  struct sl_error *err);
// Calls fn(arg) whenever sl_rpc_stream_next() may have something to return without waiting; also at once. fn runs on a polling
// thread, under the stream's lock: it only notes the news.
void sl_rpc_stream_on_news(struct sl_rpc_stream *stream, void (*fn)(void *arg), void *arg);
void sl_rpc_stream_cancel(struct sl_rpc_stream *stream);
void sl_rpc_stream_close(struct sl_rpc_stream **stream); // cancels if still running; accepts NULL

// Converts a status to the standard gRPC code (0..16), a code to its name ("UNAVAILABLE"), and a code back to a status.
int sl_rpc_code_of_status(enum sl_status status);
enum sl_status sl_rpc_status_of_code(int code);
const char *sl_rpc_code_name(int code);

// Returns how many calls are being handled or made now: a leak gauge.
int sl_rpc_live_calls(void);
