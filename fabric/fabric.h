// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the data plane. Moves bytes from one process's registered memory into memory that another process has
 *          granted, over what there is between them: RDMA and shared memory by UCX, TCP by links of our own.
 *
 * Vocabulary: region  memory registered once, at start-up
 *             grant   a block of a region that the owner has opened for one ship, with a generation and a deadline
 *             ticket  the grant as bytes, carried to the sender by the control plane
 *             ship    the sender's side: pieces into the grant, then a final message with a header
 *
 * Design: one progress thread per fabric; every other thread talks to it through a queue and waits
 *         with deadlines. Peers meet over a link (fabric/link), with TLS where there are certificates. The way is chosen
 *         per peer by what there is: one-sided puts where hardware or shared memory does them, else messages, received
 *         straight into the granted block. Each piece carries its digest in the final message (one-sided) or
 *         beside it (active message); the receiver verifies all of them before the grant completes, and acknowledges.
 *
 * Failure: a lost peer (error callback, or heartbeats missed) ends every ship to it and every grant that it was writing
 *          to, on both sides. A piece for a closed grant, or of another generation, is refused. A grant that ends
 *          before its ship completed over one-sided puts is quarantined: its memory is reported back (on_release) only
 *          when no late write can land in it any more.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "trust/tls_files.h"

struct sl_fabric;

struct sl_fabric_config {
    const char *listen;    // "HOST:PORT"; port 0 picks a free one. NULL: this process only sends
    const char *transport; // "auto", "shm" (same host only), "tcp", "rdma"; "ucx-tcp" to compare with, insecure
    const struct sl_tls_files *tls; // NULL: nobody is asked who it is, and anybody can read what is sent
    bool insecure;                  // that is wanted, also where other hosts can connect
    int64_t
        heartbeat_ms; // between beats to each connected peer; one silent for 3 beats, of the slower side, is lost. 0: 1000
    bool
        device_memory; // regions of a GPU's memory will be added: UCX is started with what it needs for them, if it has it
    const char *inject; // fault injection for tests: e.g. "corrupt:3" flips a byte of the 3rd piece; NULL or "": none
};

// Whether there is a transport of this name. SL_ERR_INVALID.
enum sl_status sl_fabric_check_transport(const char *name, struct sl_error *err);

/*
 * Starts UCX and the progress thread. A start that takes longer than 20 s is given up (SL_ERR_DEADLINE).
 * SL_ERR_EXISTS: the port is in use. SL_ERR_UNSUPPORTED: the transport is not there. SL_ERR_PRECONDITION: without tls
 * other hosts could connect, and `insecure` is not set.
 */
enum sl_status sl_fabric_create(const struct sl_fabric_config *config, struct sl_fabric **fabric_out,
                                struct sl_error *err);

/*
 * Ends every ship, grant (their callbacks run), connection, request and fetch, then stops. All of these are still closed, and
 * incoming requests replied to, by their owners. Memory of regions is released here. Accepts NULL.
 */
void sl_fabric_destroy(struct sl_fabric **fabric);

// "HOST:PORT" that peers connect to; "" when not listening. Owned by the fabric.
const char *sl_fabric_address(const struct sl_fabric *fabric);
// Random number of this incarnation: a restarted process at the same address is another peer.
uint64_t sl_fabric_epoch(const struct sl_fabric *fabric);

// Of the progress thread, which always has work: its turns. Lives as long as the fabric.
struct sl_pulse *sl_fabric_pulse(struct sl_fabric *fabric);

// Returns whether RDMA would carry what is sent, and whether UCX here could put from memory of a GPU: knows it, and is 1.16 or newer. Takes a
// while: for start-up.
bool sl_fabric_has_rdma(const struct sl_fabric *fabric);
bool sl_fabric_knows_cuda(const struct sl_fabric *fabric);
// Returns whether UCX here is 1.16 or newer, and writes its version, "1.13.1".
bool sl_fabric_ucx_puts_from_devices(char *version_out, size_t bytes);

/*
 * Allocate and register `bytes` of memory for the fabric's transports (shared-memory segments where peers on this host
 * can put into them), page-aligned and zeroed. Lives until sl_fabric_destroy(). SL_ERR_PRECONDITION: memory cannot be locked, and err
 * names the limit (ulimit -l) and what was needed; or there are too few huge pages, or peers are reached by more than TCP: UCX
 * allocates what it shares, in ordinary pages.
 */
enum sl_region_kind {
    SL_REGION_LOCKED = 1,
    SL_REGION_HUGE_PAGES = 2
}; // flags; huge: reserved ones of 2 MiB, all taken at once
enum sl_status sl_fabric_region_create(struct sl_fabric *fabric, size_t bytes, unsigned kinds, void **base_out,
                                       struct sl_error *err);

/*
 * Memory of a device becomes a region to send from, or one that others put into, until sl_fabric_destroy(), which it outlives. Nothing
 * here reads or writes it by its own address. SL_ERR_UNSUPPORTED: without UCX, or UCX cannot register it. SL_ERR_INVALID: `seen` is not as it says.
 */
struct sl_device_region {
    void *base;
    size_t bytes;
    // Where the network finds it (sl_device_network_view()): at its own address, where UCX must know CUDA's memory, or as ordinary
    // memory, which for what arrives lies in a region of sl_fabric_region_create().
    void *seen;
    bool arrives; // grants are opened in it
    void (*enter)(
        void *arg); // on the progress thread, before UCX sees it, to make its device current there. May be NULL
    void *arg;
};
enum sl_status sl_fabric_region_add(struct sl_fabric *fabric, const struct sl_device_region *what,
                                    struct sl_error *err);

// ---- receiving -------------------------------------------------------------------------------------------------

struct sl_grant;

// What has arrived, in the order of a grant's life. Callbacks run on the progress thread and must not block.
struct sl_grant_events {
    // All pieces have landed and their digests are right. header is valid during the call. body_bytes: highest byte
    // written.
    void (*on_complete)(void *arg, const void *header, size_t header_bytes, size_t body_bytes);
    // The ship ended badly: peer lost, digest wrong, deadline, sender's abort. The memory is not free before
    // on_release.
    void (*on_failure)(void *arg, enum sl_status status, const char *text);
    // Exactly once, last, for every grant, after sl_grant_close() or in sl_fabric_destroy(): no write can land in the
    // block any more. Free it here (or keep what landed).
    void (*on_release)(void *arg);
};

/*
 * Open [block, block + bytes) of a region for one ship until the deadline.
 * *ticket_out is malloc'd, the caller's to free; it is opaque and at most SL_TICKET_MAX_BYTES long.
 */
#define SL_TICKET_MAX_BYTES 512
enum sl_status sl_grant_open(struct sl_fabric *fabric, void *block, size_t bytes, int64_t deadline_ns,
                             const struct sl_grant_events *events, void *arg, struct sl_grant **grant_out,
                             uint8_t **ticket_out, size_t *ticket_bytes_out, struct sl_error *err);

// Segments that have landed in a device's memory. Whoever is given them verifies them there, behind a flush of what the network wrote.
struct sl_arrived {
    const void *data;           // by the device's address
    const uint32_t *part_bytes; // [n_parts], each at least 1: the digest is chained over them (ops->digest)
    size_t bytes;               // of all parts
    uint64_t digest;            // that the sender says it has
    uint32_t n_parts;
};
struct sl_arrival {
    struct sl_arrival *next;     // free for whoever has it
    const struct sl_arrived *at; // [n]
    uint32_t n;
};

/*
 * A grant in memory of a device, for a writer that can put there; one that cannot, or has only messages, gets `block`, of the host's,
 * as in sl_grant_open(). on_arrived runs on the progress thread and must not block; it was called at least once where a body arrived in
 * the device. Each arrival is ended exactly once, by any thread, also within on_arrived, and before sl_fabric_destroy(): until then
 * the grant stays. Only one of a grant is out at a time. SL_ERR_INVALID: device_block is not in a region that `arrives`.
 */
typedef void (*sl_arrived_fn)(void *arg, struct sl_arrival *arrival);
enum sl_status sl_grant_open_in_device(struct sl_fabric *fabric, void *device_block, sl_arrived_fn on_arrived,
                                       void *block, size_t bytes, int64_t deadline_ns,
                                       const struct sl_grant_events *events, void *arg, struct sl_grant **grant_out,
                                       uint8_t **ticket_out, size_t *ticket_bytes_out, struct sl_error *err);
// Within events: whether its ship puts, or has put, into the device.
bool sl_grant_is_in_device(const struct sl_grant *grant);
// SL_OK: all are right. SL_ERR_PEER_CORRUPT: at[which] is not. Another failure: they could not be looked at. The grant fails then.
void sl_arrival_end(struct sl_arrival **arrival, enum sl_status status, uint32_t which);

// Push the deadline of an open grant: the lease was renewed.
void sl_grant_renew(struct sl_grant *grant, int64_t deadline_ns);

/*
 * The owner is done with the grant, completed or not. Ends a running ship. on_release follows (perhaps before this
 * returns, perhaps later); *grant is nulled and must not be used again. Accepts NULL.
 */
void sl_grant_close(struct sl_grant **grant);

// ---- sending ---------------------------------------------------------------------------------------------------

struct sl_ship;

/*
 * Connect (or reuse the connection) to the ticket's owner. Returns at once; a failure to connect ends the ship.
 * SL_ERR_INVALID: not a ticket. deadline_ns bounds the whole ship.
 */
enum sl_status sl_ship_open(struct sl_fabric *fabric, const uint8_t *ticket, size_t ticket_bytes, int64_t deadline_ns,
                            struct sl_ship **ship_out, struct sl_error *err);

/*
 * Queue a piece: `bytes` from `data` (best in a region of this fabric) to `offset` in the granted block. Does not block
 * and does not copy: data must stay untouched until sl_ship_finish() or sl_ship_close() has returned. Pieces must not
 * overlap. SL_ERR_RANGE: outside the grant. The status of a ship that has already failed comes back here too.
 */
enum sl_status sl_ship_piece(struct sl_ship *ship, size_t offset, const void *data, size_t bytes);

/*
 * Whether pieces that lie in a device's memory, at `data`, can go from there: by puts, over RDMA, or over shared memory where the
 * network sees them as ordinary memory. Not known before the receiver has said how it is reached. After a put from there that
 * failed nothing goes from there any more.
 */
enum sl_ship_straight { SL_STRAIGHT_UNKNOWN, SL_STRAIGHT_YES, SL_STRAIGHT_NO };
enum sl_ship_straight sl_ship_straight(const struct sl_ship *ship, const void *data);

/*
 * Queue a piece of such memory, of at most SL_DIGESTED_MAX_BYTES, with its digest (base/hash.h, seed 0), since nobody here can read
 * it. As sl_ship_piece() otherwise; all work of the device that writes it is done. SL_ERR_PEER_LOST also when a put from there has
 * failed, of this ship or another: it is as over as if its receiver were lost. SL_ERR_PRECONDITION: not such memory, or not this way.
 */
#define SL_DIGESTED_MAX_BYTES ((size_t)512 << 10)
enum sl_status sl_ship_digested(struct sl_ship *ship, size_t offset, const void *data, size_t bytes, uint64_t digest);

// Send the header and wait until the receiver has verified everything. At most once. On failure err says which side and
// why.
enum sl_status sl_ship_finish(struct sl_ship *ship, const void *header, size_t header_bytes, struct sl_error *err);

// Bytes acknowledged by the transport so far; for progress. Status of the ship so far.
size_t sl_ship_progress(const struct sl_ship *ship, enum sl_status *status_out);

// Tells the receiver if the ship was not finished. When it returns no piece is being read any more. Accepts NULL,
// nulls.
void sl_ship_close(struct sl_ship **ship);

// ---- gauges ----------------------------------------------------------------------------------------------------

struct sl_fabric_stats {
    uint64_t peers_lost, digests_wrong, stale_refused;
    uint64_t grants_open, grants_quarantined, ships_open, peers_connected; // the leak gauges
    uint64_t connections_open, requests_open, incoming_open, windows_open, fetches_open;
};
void sl_fabric_get_stats(struct sl_fabric *fabric, struct sl_fabric_stats *stats_out);

// What a ship to this ticket would use: "put" or "am", and the transport's name; for benchmarks and logs.
const char *sl_ship_mode(const struct sl_ship *ship);
