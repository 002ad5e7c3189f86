// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the data plane. Moves bytes from one process's registered memory into memory that another process has
 *          granted, over the available transport: RDMA and shared memory by UCX, TCP by our own links.
 *
 * Vocabulary: region  memory registered once, at start-up
 *             grant   a block of a region that the owner has opened for one ship, with a generation and a deadline
 *             ticket  the grant as bytes, which the control plane carries to the sender
 *             ship    the sender's side: pieces into the grant, then a final message with a header
 *
 * Design: one progress thread per fabric; other threads communicate with it through a queue and wait with deadlines.
 *         Peers meet over a link (net/fabric/link), with TLS if there are certificates. The transfer mode depends on the
 *         peer: one-sided puts if hardware or shared memory supports them, else messages, received straight into the
 *         granted block. Each piece's digest travels in the final message (one-sided) or beside the piece (active
 *         message); the receiver verifies all of them before the grant completes, and acknowledges.
 *
 * Failure: a lost peer (error callback, or missed heartbeats) ends every ship to it and every grant that it was writing
 *          to, on both sides. A piece for a closed grant, or of another generation, is refused. If a grant ends before
 *          its ship completed over one-sided puts, it is quarantined: its memory is reported back (on_release) only
 *          when no late write can land in it any more.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "net/trust/tls_files.h"

struct sl_fabric;

struct sl_fabric_config {
    const char *listen;             // "HOST:PORT"; port 0 picks a free one. NULL: this process only sends
    const char *transport;          // "auto", "shm" (same host only), "tcp", "rdma"; "ucx-tcp" for comparison, insecure
    const struct sl_tls_files *tls; // NULL: no authentication and no encryption
    bool insecure;                  // accepts that, even if other hosts can connect
    int64_t
        heartbeat_ms; // between beats to each connected peer; a peer that misses 3 beats, of the slower side, is lost.
                      // 0: 1000
    bool device_memory; // regions of device memory will be added: starts UCX with the transports for them, if it has
                        // them
    // fault injection for tests: e.g. "corrupt:3" flips a byte of the 3rd piece; "pace:25000" ships at 25 Gbit/s at most;
    // NULL or "": none
    const char *inject;
};

// Checks that a transport of this name exists. SL_ERR_INVALID.
enum sl_status sl_fabric_check_transport(const char *name, struct sl_error *err);

/*
 * Starts UCX and the progress thread. Gives up after 20 s (SL_ERR_DEADLINE). SL_ERR_EXISTS: the port is in use.
 * SL_ERR_UNSUPPORTED: the transport is not available. SL_ERR_INVALID: without tls other hosts could connect, and
 * `insecure` is not set.
 */
enum sl_status sl_fabric_create(const struct sl_fabric_config *config, struct sl_fabric **fabric_out,
                                struct sl_error *err);

/*
 * Ends every ship, grant (their callbacks run), connection, request and fetch, then stops. Their owners must still
 * close them and reply to incoming requests. Frees the memory of regions. Accepts NULL.
 */
void sl_fabric_destroy(struct sl_fabric **fabric);

// Returns the "HOST:PORT" that peers connect to, with certificates "NAME@HOST:PORT"; "" when not listening. Owned by the
// fabric.
const char *sl_fabric_address(const struct sl_fabric *fabric);
// Returns the random number of this incarnation: a restarted process at the same address is another peer.
uint64_t sl_fabric_epoch(const struct sl_fabric *fabric);

// Returns the progress counter of the progress thread, which counts its turns and always has work. Lives as long as the
// fabric.
struct sl_progress_counter *sl_fabric_progress_counter(struct sl_fabric *fabric);

// Return whether RDMA would carry transfers, and whether UCX here could put from GPU memory at all: it has CUDA support
// and is 1.16 or newer. Slow: call at start-up.
bool sl_fabric_has_rdma(const struct sl_fabric *fabric);
bool sl_fabric_knows_cuda(const struct sl_fabric *fabric);
// Returns whether UCX here is 1.16 or newer, and writes its version, "1.13.1".
bool sl_fabric_ucx_puts_from_devices(char *version_out, size_t bytes);

/*
 * Allocates and registers `bytes` of memory for the fabric's transports (a shared-memory segment if peers on this host
 * can put into it), page-aligned and zeroed. Lives until sl_fabric_destroy(). SL_ERR_PRECONDITION: memory cannot be
 * locked, and err names the limit (ulimit -l) and the needed size; or there are too few huge pages, or peers are
 * reached by more than TCP: UCX allocates shared memory in ordinary pages.
 */
enum sl_region_kind {
    SL_REGION_LOCKED = 1,
    SL_REGION_HUGE_PAGES = 2
}; // flags; huge: reserved pages of 2 MiB, all touched at once
enum sl_status sl_fabric_region_create(struct sl_fabric *fabric, size_t bytes, unsigned kinds, void **base_out,
                                       struct sl_error *err);

/*
 * Registers device memory as a region to send from, or to receive puts, until sl_fabric_destroy(); the memory must
 * outlive the fabric. The fabric never reads or writes it by the device's address. SL_ERR_UNSUPPORTED: without UCX, or
 * UCX cannot register it. SL_ERR_INVALID: `seen` is wrong.
 */
struct sl_device_region {
    void *base;
    size_t bytes;
    // Its address for the network (sl_device_network_view()): its own address, which requires CUDA support in UCX, or
    // that of ordinary memory, which for arrivals lies in a region of sl_fabric_region_create().
    void *seen;
    bool arrives; // grants are opened in it
    void (*enter)(
        void *arg); // called on the progress thread before UCX sees it, to make its device current there. May be NULL
    void *arg;
};
enum sl_status sl_fabric_region_add(struct sl_fabric *fabric, const struct sl_device_region *what,
                                    struct sl_error *err);

// ---- receiving -------------------------------------------------------------------------------------------------

struct sl_grant;

// Callbacks in the order of a grant's life. They run on the progress thread and must not block.
struct sl_grant_events {
    // All pieces have landed with matching digests. header is valid during the call. body_bytes: the highest written
    // byte.
    void (*on_complete)(void *arg, const void *header, size_t header_bytes, size_t body_bytes);
    // The ship failed: peer lost, wrong digest, deadline, sender's abort. The memory is not free before on_release.
    void (*on_failure)(void *arg, enum sl_status status, const char *text);
    // Exactly once and last for every grant, after sl_grant_close() or in sl_fabric_destroy(): no write can land in the
    // block any more. Free it here (or keep what landed).
    void (*on_release)(void *arg);
};

// Segments that have landed in device memory. Their receiver flushes what the network wrote, and then verifies them
// there.
struct sl_arrived {
    const void *data;           // the device's address
    const uint32_t *part_bytes; // [n_parts], each at least 1: the digest is chained over them (ops->digest)
    size_t bytes;               // of all parts
    uint64_t digest;            // sent by the sender
    uint32_t n_parts;
};
struct sl_arrival {
    struct sl_arrival *next;     // unused: the receiver may link it
    const struct sl_arrived *at; // [n]
    uint32_t n;
};

typedef void (*sl_arrived_fn)(void *arg, struct sl_arrival *arrival);

struct sl_grant_plan {
    void *block; // in a region
    size_t bytes;
    int64_t deadline_ns;
    const struct sl_grant_events *events;
    void *arg;
    // For a grant in device memory; else NULL. A writer that cannot put there, or has only messages, gets `block`.
    void *device_block; // in a region that `arrives`
    // Runs on the progress thread and must not block; was called at least once if a body arrived in the device. Any
    // thread must end each arrival exactly once, possibly within on_arrived, and before sl_fabric_destroy(): until then
    // the grant stays. A grant has only one unended arrival at a time.
    sl_arrived_fn on_arrived;
};

/*
 * Opens the plan's memory for one ship until the deadline. *ticket_out is malloc'd, the caller frees it; it is opaque
 * and at most SL_TICKET_MAX_BYTES long. SL_ERR_INVALID: block or device_block is not in such a region.
 */
#define SL_TICKET_MAX_BYTES 512
enum sl_status sl_grant_open(struct sl_fabric *fabric, const struct sl_grant_plan *plan, struct sl_grant **grant_out,
                             uint8_t **ticket_out, size_t *ticket_bytes_out, struct sl_error *err);
// Returns, within events, whether its ship puts, or has put, into the device.
bool sl_grant_is_in_device(const struct sl_grant *grant);
// Ends an arrival. SL_OK: all digests match. SL_ERR_PEER_CORRUPT: at[which] does not match. Another failure: they could
// not be checked. The grant fails then.
void sl_arrival_end(struct sl_arrival **arrival, enum sl_status status, uint32_t which);

// Extends the deadline of an open grant, as its lease was renewed.
void sl_grant_renew(struct sl_grant *grant, int64_t deadline_ns);

/*
 * Ends the owner's use of the grant, completed or not. Ends a running ship. on_release follows (perhaps before this
 * returns, perhaps later); *grant is nulled and must not be used again. Accepts NULL.
 */
void sl_grant_close(struct sl_grant **grant);

// ---- sending ---------------------------------------------------------------------------------------------------

struct sl_ship;

/*
 * Connects (or reuses the connection) to the ticket's owner. Returns at once; a failure to connect ends the ship.
 * SL_ERR_INVALID: not a ticket. deadline_ns bounds the whole ship.
 */
enum sl_status sl_ship_open(struct sl_fabric *fabric, const uint8_t *ticket, size_t ticket_bytes, int64_t deadline_ns,
                            struct sl_ship **ship_out, struct sl_error *err);

/*
 * Queues a piece: `bytes` from `data` (best in a region of this fabric) to `offset` in the granted block. Does not
 * block and does not copy: data must stay unchanged until the ship has ended (sl_ship_await(), sl_ship_finish()) or
 * sl_ship_close() has returned. Pieces must not overlap. SL_ERR_RANGE: outside the grant. Also returns the status of a
 * ship that has already failed.
 */
enum sl_status sl_ship_piece(struct sl_ship *ship, size_t offset, const void *data, size_t bytes);

/*
 * Returns whether pieces in device memory, at `data`, can be sent from there: by puts, over RDMA, or over shared memory
 * if the network sees them as ordinary memory. Unknown until the receiver has said how it is reached. After a put from
 * device memory has failed, nothing is sent from there any more.
 */
enum sl_ship_straight { SL_STRAIGHT_UNKNOWN, SL_STRAIGHT_YES, SL_STRAIGHT_NO };
enum sl_ship_straight sl_ship_straight(const struct sl_ship *ship, const void *data);

/*
 * Queues a piece of such memory, of at most SL_DIGESTED_MAX_BYTES, with its digest (base/hash.h, seed 0), since the
 * fabric cannot read it. Otherwise as sl_ship_piece(); the device must have finished writing it. SL_ERR_PEER_LOST also
 * if a put from there has failed, of this ship or another: the ship has ended as if its receiver were lost.
 * SL_ERR_PRECONDITION: not such memory, or it cannot be sent from there.
 */
#define SL_DIGESTED_MAX_BYTES ((size_t)512 << 10)
enum sl_status sl_ship_digested(struct sl_ship *ship, size_t offset, const void *data, size_t bytes, uint64_t digest);

/*
 * Has the header sent after the last piece. Does not block and does not copy: the header must stay unchanged until
 * sl_ship_await() has returned the ship's end, or sl_ship_close() has returned. At most once: SL_ERR_PRECONDITION.
 */
enum sl_status sl_ship_end(struct sl_ship *ship, const void *header, size_t header_bytes, struct sl_error *err);

// Waits until the receiver has verified everything, after sl_ship_end(). SL_AGAIN: the ship has not ended at until_ns.
// On failure err says which side failed and why.
enum sl_status sl_ship_await(struct sl_ship *ship, int64_t until_ns, struct sl_error *err);

// Does both: waits for the ship's end, which its own deadline bounds.
enum sl_status sl_ship_finish(struct sl_ship *ship, const void *header, size_t header_bytes, struct sl_error *err);

// Returns the bytes acknowledged by the transport so far, for progress; *status_out: the status of the ship so far.
size_t sl_ship_progress(const struct sl_ship *ship, enum sl_status *status_out);

// Closes the ship; tells the receiver if it was not finished. After the return no piece is read any more. Accepts NULL,
// nulls.
void sl_ship_close(struct sl_ship **ship);

// ---- gauges ----------------------------------------------------------------------------------------------------

struct sl_fabric_stats {
    uint64_t peers_lost, digests_wrong, stale_refused;
    uint64_t grants_open, grants_quarantined, ships_open, peers_connected; // the leak gauges
    uint64_t connections_open, requests_open, incoming_open, windows_open, fetches_open;
};
void sl_fabric_get_stats(struct sl_fabric *fabric, struct sl_fabric_stats *stats_out);

// Returns how a ship sends to this ticket: "put" or "am", and the transport's name; for benchmarks and logs.
const char *sl_ship_mode(const struct sl_ship *ship);
