// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: short requests between fabrics: one body, one reply, both a contiguous message. For calls that are too
 *          frequent for gRPC: a decode worker asks a kvstore in every layer of every step.
 *
 * Vocabulary: connection  a reference to a peer, by its address, bound to its epoch
 *             request     a sent request, at the requester
 *             incoming    a received request, until it is replied to
 *
 * Failure: a lost peer ends every pending request (SL_ERR_PEER_LOST) and cancels those that came from it. A request
 *          whose deadline has passed, or that was given up, never touches the caller's buffer again. The responder
 *          refuses bodies longer than SL_REQUEST_MAX_BYTES, replies longer than the requester's buffer, and more than
 *          SL_MAX_INCOMING requests of one peer without a reply.
 */
#pragma once

#include <stdbool.h>

#include "net/fabric/fabric.h"

#define SL_REQUEST_MAX_BYTES (1u << 20)
#define SL_MAX_INCOMING      1024

// --- replying --------------------------------------------------------------------------------------------------------

struct sl_fabric_incoming;

/*
 * Runs on the progress thread and must not block: pass the request to another thread. Set once, before peers know the
 * address.
 */
typedef void (*sl_fabric_request_fn)(void *arg, struct sl_fabric_incoming *incoming);
void sl_fabric_on_request(struct sl_fabric *fabric, sl_fabric_request_fn fn, void *arg);

const void *sl_fabric_incoming_body(const struct sl_fabric_incoming *incoming,
                                    size_t *bytes_out); // valid until the reply
// Returns true if the requester has gone or given up: no need to work for it.
bool sl_fabric_incoming_is_cancelled(const struct sl_fabric_incoming *incoming);
/*
 * Replies, from any thread, exactly once per request; *incoming is then invalid. `reply` must stay unchanged until
 * release(arg) is called: on the progress thread, also if the requester is gone; before this returns if the fabric was
 * destroyed meanwhile. release may be NULL. A reply in a region of this fabric saves the transport a copy.
 */
void sl_fabric_incoming_reply(struct sl_fabric_incoming **incoming, const void *reply, size_t bytes,
                              void (*release)(void *arg), void *arg);

// --- requesting ------------------------------------------------------------------------------------------------------

struct sl_connection;

/*
 * Opens a connection and returns at once; the requests report a failure to connect. address: "HOST:PORT"; epoch:
 * sl_fabric_epoch() of the peer. Connections to one fabric share a peer. A connection whose peer was lost stays lost:
 * open another.
 */
enum sl_status sl_connection_open(struct sl_fabric *fabric, const char *address, uint64_t epoch,
                                  struct sl_connection **connection_out, struct sl_error *err);
void sl_connection_close(struct sl_connection **connection);                 // ends its requests; accepts NULL, nulls
const char *sl_connection_transport(const struct sl_connection *connection); // "shm", "tcp", ...; "" before it is known

struct sl_fabric_question {
    const void *body; // copied
    size_t body_bytes;
    void *reply_out; // must stay until the request is closed
    size_t reply_capacity;
    int64_t deadline_ns;
};

struct sl_fabric_request;

// Sends a request and returns at once.
enum sl_status sl_fabric_request_open(struct sl_connection *connection, const struct sl_fabric_question *question,
                                      struct sl_fabric_request **request_out, struct sl_error *err);
/*
 * Waits for the reply until until_ns. SL_AGAIN: not yet. SL_ERR_DEADLINE: the request's own deadline. SL_ERR_PEER_LOST.
 * SL_ERR_PEER_STALE: another epoch is at the address. SL_ERR_RANGE: the reply is longer than the capacity.
 * SL_ERR_EXHAUSTED: too many requests without a reply there. SL_ERR_UNSUPPORTED: that fabric has no handler for
 * requests. SL_ERR_CANCELLED: the connection was closed or the fabric destroyed. May spin for some microseconds first.
 */
enum sl_status sl_fabric_request_wait(struct sl_fabric_request *request, int64_t until_ns, size_t *bytes_out,
                                      struct sl_error *err);
bool sl_fabric_request_is_done(const struct sl_fabric_request *request);
void sl_fabric_request_close(
    struct sl_fabric_request **request); // accepts NULL, nulls; gives up an unfinished request; never waits
