// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the connections below gRPC: which are accepted, what they may hold, and which are closed. gRPC's own settings bound
 *          little of this, so rpc_accept.c and rpc_headers.c define functions of other libraries that gRPC calls.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/loop.h"
#include "base/status.h"
#include "net/trust/identity.h"

enum {
    SL_RPC_OWNERS = 256, // callers are told apart by this much of a hash
    SL_RPC_SERVERS = 16, // of a process
};

// ---- rpc_peers.c: the other ends ---------------------------------------------------------------------------------------

// Returns the port of a socket's own address; 0: it has none.
int sl_rpc_local_port(int fd);

struct sl_rpc_peer {
    uint8_t host[16]; // of IPv6; an IPv4 address is mapped
    int number;       // of its port
};
// Reads "ipv4:HOST:PORT", "ipv6:[HOST]:PORT" or "ipv6:%5BHOST%25ZONE%5D:PORT"; gRPC writes mapped addresses as IPv4.
bool sl_rpc_peer_read(const char *text, struct sl_rpc_peer *peer_out);
// Finds the peer that a socket is connected to. False: it has none, or one of another kind.
bool sl_rpc_peer_of_socket(int fd, struct sl_rpc_peer *peer_out);
// Returns a number that is the same for a caller without a certificate: a host, or a connection of this machine, whose processes
// have no other name. By the connection's descriptor, or as gRPC writes its peer. Never 0.
uint64_t sl_rpc_caller_of_socket(int fd);
uint64_t sl_rpc_caller_of_peer(const char *text);
// Returns the place of a caller in arrays of SL_RPC_OWNERS.
static inline size_t sl_rpc_owner_of(uint64_t caller) {
    return caller / 2 % SL_RPC_OWNERS;
}

// ---- rpc_accept.c: connections of a server -------------------------------------------------------------------------

// Guards the port of a server, with TLS or in_clear, from before it accepts until its gRPC has ended. SL_ERR_EXHAUSTED:
// too many servers.
enum sl_status sl_rpc_accept_guard(int port, bool in_clear, struct sl_error *err);
void sl_rpc_accept_release(int port);
// Counts connections of a guarded port since the process started; 0 for another port.
void sl_rpc_accept_counts(int port, uint64_t *n_accepted_out, uint64_t *n_refused_out);
// Closes the connection of a guarded port whose peer is "ipv4:HOST:PORT" or "ipv6:%5BHOST%5D:PORT". False: there is none.
bool sl_rpc_accept_cut(const char *text);

// ---- rpc_resets.c: connections that open calls and cancel them at once -----------------------------------------------

// Counts a call that its client cancelled as soon as it was accepted, or that took another's place. peer: grpc_call_get_peer(). True: too many, close it.
bool sl_rpc_resets_of_peer(const char *peer);
// Counts a stream whose reset arrived in the same read as its start. *n counts those of a connection since *since_ns.
// Returns true when a second has too many: close the connection.
bool sl_rpc_resets_in_a_read(int64_t *since_ns, int *n);
// Returns a number that is the same for all connections of a tenant, or of another role's name. Never 0.
uint64_t sl_rpc_caller_hash(const struct sl_identity *caller);
// Notes that a connection of a caller was closed for its calls, and tells whether that was so in the last seconds. 0: no caller.
void sl_rpc_resets_note(uint64_t caller);
bool sl_rpc_resets_are_recent(uint64_t caller);

// ---- rpc_headers.c: connections whose header blocks do not end --------------------------------------------------------

// Begins to follow the frames of a connection that was accepted at a port; with TLS that happens where it is decrypted. Those
// that gRPC makes are found by what it sends first. False: no memory.
bool sl_rpc_headers_watch(int fd, bool in_clear, int port);
// Counts connections that were closed because a server announced a reply that is too long.
uint64_t sl_rpc_headers_count_cut(void);

// ---- rpc_streams.c: messages that have arrived in part -----------------------------------------------------------------

struct sl_rpc_streams {               // the open streams of a connection; zeroed: none
    struct sl_rpc_open_stream *table; // [n] of [cap], with ascending ids
    size_t n, n_closed, cap;
    uint32_t newest;
    size_t owner;     // hash of the caller, below SL_RPC_OWNERS
    uint64_t caller;  // sl_rpc_caller_hash(), or sl_rpc_caller_of_socket(); 0: of a server
    bool are_replies; // they were opened by this process, and a server's messages come
    bool has_more;    // it had more open than it might have after a connection of its caller was closed
};

// Sets the streams that a connection may have open, and the bytes of unfinished messages that all may hold; the largest of
// all servers count.
void sl_rpc_streams_allow(size_t n_streams, int64_t n_bytes);
// Begins or ends to wake a loop when all hold much of that, as sl_rpc_streams_are_much() tells.
void sl_rpc_streams_wake(struct sl_loop *loop, bool wakes);
bool sl_rpc_streams_are_much(void);
// Returns how much the caller with most holds, and its number; 0: all do not hold much, or no longer.
int64_t sl_rpc_streams_most(size_t *owner_out);
// Sets the bytes of a reply that a server may announce; the largest of all channels counts.
void sl_rpc_streams_allow_replies(int64_t n_bytes);
// A stream's headers came, or were sent. False: too many are open, or no memory. A caller whose connection was closed for its calls may have
// fewer for some seconds, except over a connection that had more before.
bool sl_rpc_streams_open(struct sl_rpc_streams *streams, uint32_t id);
void sl_rpc_streams_close(struct sl_rpc_streams *streams, uint32_t id); // from either side
// Data of a stream came. False: the caller holds too much, or the reply will be too large.
bool sl_rpc_streams_data(struct sl_rpc_streams *streams, uint32_t id, const uint8_t *bytes, size_t n);
void sl_rpc_streams_end(struct sl_rpc_streams *streams); // the connection has ended; idempotent
