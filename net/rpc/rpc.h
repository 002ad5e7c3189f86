// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: gRPC in plain, blocking C: a server whose handlers read like functions, and calls that look like calls.
 *          The only user of gRPC core. Messages are protobuf-c's.
 *
 * Design: completion queues are polled by their own threads, which never run handlers; each accepted call runs its
 *         handler on a thread of a bounded pool, so a handler may block as long as it watches sl_rpc_call_cancelled()
 *         or a deadline. Over the bound a call is refused with RESOURCE_EXHAUSTED at once. Unknown methods get
 *         UNIMPLEMENTED. Health and reflection are services like others (net/rpc/rpc_standard.h).
 *         A C string cannot hold a zero byte, so messages from the network whose strings have one are refused: a server
 *         answers INVALID_ARGUMENT with the field's name, a client's call ends with SL_ERR_PEER_CORRUPT.
 * Threads: a server handles calls concurrently. A channel may be used by many threads, a stream by one at a time
 *          (sl_rpc_stream_cancel() by any).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "net/trust/identity.h"
#include "net/trust/tls_files.h"
#include "proto/service.h"

// Start and stop gRPC core; once per process, before any thread that matters and after the last. Blocks no signals.
// Fork and spawn before, never in between. Stopping leaves gRPC's own globals behind (net/rpc/rpc_core.c says why).
void sl_rpc_init(void);
void sl_rpc_shutdown(void);
bool sl_rpc_is_up(void); // asked by the thread that starts and stops it

// ---- who we are ------------------------------------------------------------------------------------------------

// A process's certificate. NULL wherever it is wanted: calls are in the clear, and everybody is anybody.
struct sl_rpc_credentials;

/*
 * Of a process's files, which are read again when they change; the paths are copied. No files given: SL_OK, and NULL.
 * SL_ERR_INVALID names the file and what is wrong with it. Destroyed after the servers and channels that were made with it.
 */
enum sl_status sl_rpc_credentials_create(const struct sl_tls_files *files, struct sl_rpc_credentials **credentials_out,
                                         struct sl_error *err);
// For channels to servers of others: they are known by host name, and ours need have no identity of the cluster.
enum sl_status sl_rpc_credentials_create_foreign(const struct sl_tls_files *files,
                                                 struct sl_rpc_credentials **credentials_out, struct sl_error *err);
void sl_rpc_credentials_destroy(struct sl_rpc_credentials **credentials); // *credentials may be NULL
// Who they say that we are; of NULL: anybody.
const struct sl_identity *sl_rpc_credentials_self(const struct sl_rpc_credentials *credentials);

// ---- server ----------------------------------------------------------------------------------------------------

struct sl_rpc_server;
struct sl_rpc_call; // one call being handled; lives until its handler has returned

/*
 * Answer one call. `request` is unpacked and freed by the server (NULL for bidirectional methods: use
 * sl_rpc_call_receive). Send replies with sl_rpc_call_send(): exactly one for unary methods before returning SL_OK. The
 * returned status becomes the call's gRPC status, with err->text as its details (net/rpc/rpc_status.c has the mapping);
 * reason and culprit travel as metadata (net/rpc/rpc_reason.c).
 */
typedef enum sl_status (*sl_rpc_handler_fn)(void *context, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                            struct sl_error *err);

struct sl_rpc_handler {
    const struct sl_rpc_method *method;
    sl_rpc_handler_fn fn;
    unsigned roles; // who may call it: of enum sl_role, not 0. Others get PERMISSION_DENIED before the handler runs
};

// What answers the calls of a service.
struct sl_rpc_implementation {
    const struct sl_rpc_service *service;
    const struct sl_rpc_handler *handlers; // [n_handlers], one for each method of the service
    size_t n_handlers;
    void *context;                      // given to the handlers
    int max_calls;                      // concurrent handlers of this service alone; 0: it shares the server's
    void (*stopping_fn)(void *context); // the server begins to stop: handlers that only wait shall return; may be NULL
};
// Of an array of handlers.
#define SL_RPC_IMPLEMENTATION(its_service, array, its_context)                                                         \
    (struct sl_rpc_implementation) {                                                                                   \
        .service = (its_service), .handlers = (array), .n_handlers = sizeof(array) / sizeof *(array),                  \
        .context = (its_context)                                                                                       \
    }

struct sl_rpc_server_config {
    const char *listen;                           // "HOST:PORT"; port 0 picks a free one
    const struct sl_rpc_implementation *services; // [n_services]
    size_t n_services;
    int max_calls;         // concurrent handlers; 0: 256
    int max_message_bytes; // of one message; 0: 4 MiB
    int64_t request_bytes; // memory of all requests that are being handled; 0: 256 MiB
    int64_t send_ms;       // a client that has read nothing for so long is taken for gone; 0: 30 s
    const struct sl_rpc_credentials *credentials; // outlive the server
    bool insecure;                                // without them, listen also where other hosts can connect
};

// SL_ERR_EXISTS: the address is in use. SL_ERR_PRECONDITION: it wants credentials. SL_ERR_INTERNAL: a method has no handler, or
// two, or one that nobody may call. Config is copied, the services' tables must stay valid.
enum sl_status sl_rpc_server_start(const struct sl_rpc_server_config *config, struct sl_rpc_server **server_out,
                                   struct sl_error *err);
const char *sl_rpc_server_address(const struct sl_rpc_server *server); // "HOST:PORT" with the real port

// Tell the services, refuse new calls, give running ones grace_ms, cancel the rest, wait for their handlers. Accepts
// NULL, nulls *server.
void sl_rpc_server_stop(struct sl_rpc_server **server, int64_t grace_ms);

// Queue a message to the client; waits until the transport has taken it. SL_ERR_CANCELLED: the client is gone or the
// deadline has passed. SL_ERR_INTERNAL: not the method's reply (logged). The message stays the caller's.
enum sl_status sl_rpc_call_send(struct sl_rpc_call *call, const ProtobufCMessage *message);
// Next message of a bidirectional call: SL_OK with a message to free with protobuf_c_message_free_unpacked(),
// SL_ERR_NOT_FOUND when the client has half-closed, SL_ERR_INVALID when it sent something else or a string with a zero byte,
// SL_ERR_EXHAUSTED when requests take all memory that is for them, SL_ERR_CANCELLED. The message is freed before the next one is received.
enum sl_status sl_rpc_call_receive(struct sl_rpc_call *call, const ProtobufCMessageDescriptor *type,
                                   ProtobufCMessage **message_out, struct sl_error *err);
// Who calls: one of the roles that the handler is for. Lives as long as the call.
const struct sl_identity *sl_rpc_call_identity(const struct sl_rpc_call *call);
// Count what a handler keeps of its client's, until it returns, as memory of its request. SL_ERR_EXHAUSTED: there is none left.
enum sl_status sl_rpc_call_hold(struct sl_rpc_call *call, size_t bytes, struct sl_error *err);
bool sl_rpc_call_cancelled(const struct sl_rpc_call *call);
int64_t sl_rpc_call_deadline_ns(const struct sl_rpc_call *call); // SL_NO_DEADLINE when the client set none
/*
 * Run fn(arg) once when the call is cancelled (client gone, deadline, server stop); at once if it already is. So that a
 * handler waiting on a condition of its own can be woken. fn runs on a polling thread and must not block.
 * Pass NULL to unregister; after that returns, fn is not running.
 */
void sl_rpc_call_on_cancel(struct sl_rpc_call *call, void (*fn)(void *), void *arg);

// ---- client ----------------------------------------------------------------------------------------------------

// Of "HOST:PORT,HOST:PORT,...", at least one. SL_ERR_INVALID names what is wrong.
#define SL_RPC_MAX_ADDRESSES 8
#define SL_RPC_ADDRESS_BYTES 272
struct sl_rpc_addresses {
    int n;
    char text[SL_RPC_MAX_ADDRESSES][SL_RPC_ADDRESS_BYTES];
};
enum sl_status sl_rpc_addresses_parse(const char *list, struct sl_rpc_addresses *addresses_out, struct sl_error *err);

struct sl_rpc_channel; // connects on demand and reconnects on its own; keepalive pings find dead peers

/*
 * credentials outlive the channel; roles: of enum sl_role, one of which the server must be. A server that is not is never sent a
 * request: calls end with SL_ERR_PEER_LOST, and say whom we met.
 */
enum sl_status sl_rpc_channel_create(const char *address, const struct sl_rpc_credentials *credentials, unsigned roles,
                                     struct sl_rpc_channel **channel_out, struct sl_error *err);
// The same, to a server whose replies are not taken above so many bytes, and whose role is not asked for where the credentials are
// foreign.
enum sl_status sl_rpc_channel_create_bounded(const char *address, const struct sl_rpc_credentials *credentials,
                                             unsigned roles, int max_reply_bytes, struct sl_rpc_channel **channel_out,
                                             struct sl_error *err);
void sl_rpc_channel_destroy(struct sl_rpc_channel **channel);

// Milliseconds that the server asked for in a RESOURCE_EXHAUSTED reply come back in err->text ("... retry in N ms").

/*
 * One request, one reply, of the method's types; SL_ERR_INTERNAL: the request is of another one. deadline_ns may be
 * SL_NO_DEADLINE only with a parent that has one. `parent` (may be NULL) is the call being handled: its cancellation and
 * deadline travel with this call. *reply_out (may be NULL to discard) is freed by protobuf_c_message_free_unpacked(). On
 * failure the status is the mapped gRPC code, err->text the server's details, and err->reason the server's reason, or
 * SL_REASON_UNCONNECTED or SL_REASON_UNKNOWN_METHOD.
 */
enum sl_status sl_rpc_unary(struct sl_rpc_channel *channel, const struct sl_rpc_method *method,
                            const ProtobufCMessage *request, int64_t deadline_ns, struct sl_rpc_call *parent,
                            ProtobufCMessage **reply_out, struct sl_error *err);

/*
 * One request in several messages, all of the method's type, and one reply. next_fn gives the next message, which lives until it is
 * asked again; NULL: that was all. The rest as sl_rpc_unary(). A server that has heard enough ends the call, and is not sent the rest.
 */
enum sl_status sl_rpc_upload(struct sl_rpc_channel *channel, const struct sl_rpc_method *method,
                             const ProtobufCMessage *(*next_fn)(void *arg), void *arg, int64_t deadline_ns,
                             ProtobufCMessage **reply_out, struct sl_error *err);

struct sl_rpc_stream;

// Start a server-streaming call, or a unary one, which looks the same on the wire: read one message and close. A connection
// that cannot be made is reported by the first sl_rpc_stream_next(). The method outlives the stream.
enum sl_status sl_rpc_stream_open(struct sl_rpc_channel *channel, const struct sl_rpc_method *method,
                                  const ProtobufCMessage *request, int64_t deadline_ns, struct sl_rpc_call *parent,
                                  struct sl_rpc_stream **stream_out, struct sl_error *err);

/*
 * Next reply: SL_OK with a message; SL_AGAIN when none came within wait_ms (the stream goes on); SL_ERR_NOT_FOUND at
 * the orderly end of the stream (gRPC OK); anything else is the failure that ended it, with the server's details in
 * err. A server's own NOT_FOUND is told from the orderly end by err->status: SL_ERR_NOT_FOUND there, SL_OK here.
 */
enum sl_status sl_rpc_stream_next(struct sl_rpc_stream *stream, int64_t wait_ms, ProtobufCMessage **message_out,
                                  struct sl_error *err);
void sl_rpc_stream_cancel(struct sl_rpc_stream *stream);
void sl_rpc_stream_close(struct sl_rpc_stream **stream); // cancels if still running; accepts NULL

// Standard gRPC code (0..16) of a status, its name ("UNAVAILABLE"), and back.
int sl_rpc_code_of_status(enum sl_status status);
enum sl_status sl_rpc_status_of_code(int code);
const char *sl_rpc_code_name(int code);

// Calls being handled or made right now: a leak gauge.
int sl_rpc_live_calls(void);
