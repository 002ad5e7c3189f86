// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the core's interface to the verbs: posting to the progress thread, registered memory, peers, and messages to
 *          and from them. See verb.h.
 *
 * Threads: one thread, the progress thread, owns the links, UCX, every peer, and all pending operations; so none of
 *          these can be closed while it is being used. Other threads reach it in three ways: commands (sl_fabric_post),
 *          data that a verb shares with its callers under a separate lock, and atomics. fabric->lock guards the members
 *          that are marked below; it is never held while a callback of the user runs.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "base/progress_counter.h"
#include "base/liveness_timer.h"
#include "base/status.h"
#include "net/fabric/core/verb.h"
#include "net/fabric/core/wire.h"
#include "net/fabric/link/link.h"

enum sl_transport { SL_TRANSPORT_AUTO, SL_TRANSPORT_SHM, SL_TRANSPORT_TCP, SL_TRANSPORT_RDMA, SL_TRANSPORT_UCX_TCP };

#define SL_N_BUFFERS 8                 // kept at most
#define SL_DRAIN_NS  (2 * SL_NS_PER_S) // for failed operations to end; then their connection is closed

// A job for the progress thread. run() frees it, or it lives on the stack of a caller that waits.
struct sl_command {
    struct sl_command *next;
    void (*run)(struct sl_fabric *fabric, struct sl_command *command);
};
// Returns the struct that contains a command, a receive or the like as a member.
#define SL_CONTAINER(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

struct sl_fabric {
    enum sl_transport transport;
    bool device_memory;
    bool has_rdma; // UCX has it here, and the configuration allows it
    int64_t heartbeat_ms;
    char *listen_text; // NULL: not listening
    struct sockaddr_storage listen;
    socklen_t listen_bytes;
    char address[256];
    char listen_host[128];
    uint64_t epoch, host_id;

    struct sl_verb *verbs[SL_MAX_VERBS + 1]; // up to the first NULL
    size_t peer_bytes;                       // of a struct sl_peer, including the verbs' per-peer state
    struct sl_binding {
        struct sl_verb *verb;
        const struct sl_handler *handler;
    } bindings[SL_WIRE_END]; // by message

    pthread_t thread;
    struct sl_progress_counter progress_counter; // counts turns of the progress thread
    int wake_fd;
    atomic_bool sleeping, stopping, posted;
    struct sl_gate *gate; // for objects that may outlive the fabric

    pthread_mutex_t lock; // guards this paragraph
    pthread_cond_t changed;
    bool started, abandoned;
    struct sl_error start_error;
    struct sl_command *first, **last;
    struct sl_region *regions;

    _Atomic uint64_t generation; // the last one given to memory that was opened for others
    _Atomic uint64_t peers_lost, peers_connected;

    // owned by the progress thread
    const struct sl_tls_files *tls; // only while it starts; NULL: links are not encrypted
    struct sl_links *links;
    struct sl_ucx *ucx; // NULL: transport tcp
    int64_t links_ns;   // last poll of the links
    struct sl_peer *peers;
    bool peers_changed;
    void *buffers[SL_N_BUFFERS]; // of SL_SEGMENT_MAX_BYTES, for packing: new memory costs one page fault per page
    size_t n_buffers;
    int64_t next_tick_ns, complained_ns;
    uint64_t n_unexpected;
};

// ---- post.c: posting to the progress thread -------------------------------------------------------------------------

void sl_fabric_post(struct sl_fabric *fabric, struct sl_command *command);
void sl_fabric_wake(struct sl_fabric *fabric);
bool sl_fabric_run_commands(struct sl_fabric *fabric); // on the progress thread: true if there were any

/*
 * Gives objects that may outlive a fabric access to it. Reference-counted: one reference of the fabric, one of every
 * such object. Commands that were posted before the gate was shut are run; after that nothing reaches the fabric.
 */
struct sl_gate {
    atomic_int refs;
    pthread_mutex_t lock;
    struct sl_fabric *fabric; // NULL: shut
};
struct sl_gate *sl_gate_create(struct sl_fabric *fabric);
struct sl_gate *sl_gate_ref(struct sl_gate *gate);
void sl_gate_unref(struct sl_gate *gate);
bool sl_gate_post(struct sl_gate *gate, struct sl_command *command); // false: shut, the command will not run
void sl_gate_wake(struct sl_gate *gate);                             // makes the progress thread poll for work
void sl_gate_shut(struct sl_gate *gate);                             // the verbs leave first

// ---- address.c -------------------------------------------------------------------------------------------------------

// Resolves "HOST:PORT" or "[HOST]:PORT". SL_ERR_INVALID.
enum sl_status sl_address_resolve(const char *address, struct sockaddr_storage *sockaddr_out, socklen_t *bytes_out,
                                  struct sl_error *err);
// Returns the host alone.
enum sl_status sl_address_host(const char *address, char *host_out, size_t host_bytes, struct sl_error *err);

// ---- memory.c: registered memory, ours and the peers' ---------------------------------------------------------------

struct sl_region {
    struct sl_region *next;
    uint8_t *base;
    size_t bytes;
    uint8_t *seen; // of device memory: its address for the network. NULL: host memory
    const struct sl_region
        *within;        // one of our regions that contains `seen`: its key serves for this one. NULL: it has its own
                        // key, or none
    bool arrives;       // of device memory: grants may be opened in it
    atomic_bool failed; // a put from it has failed: nothing is sent from there any more
    struct sl_huge_joining *joining; // of pages into huge ones (huge.h); NULL: not of this region
    void *handle;                    // UCX's; NULL: not registered with UCX
    void *rkey;
    size_t rkey_bytes;
};
// Implements sl_fabric_region_create(), with the same contract.
enum sl_status sl_region_create(struct sl_fabric *fabric, size_t bytes, bool lock, bool huge, void **base_out,
                                struct sl_error *err);
// Device memory; same contract as sl_fabric_region_add().
struct sl_region_source {
    void *base, *seen;
    size_t bytes;
    bool arrives;
    void (*enter)(void *arg);
    void *arg;
};
enum sl_status sl_region_add(struct sl_fabric *fabric, const struct sl_region_source *what, struct sl_error *err);
// Returns true if the network needs UCX to treat it as CUDA memory.
static inline bool sl_region_is_cuda(const struct sl_region *region) {
    return region->seen != NULL && region->seen == region->base;
}
struct sl_region *sl_fabric_region(struct sl_fabric *fabric, const void *data, size_t bytes);
void sl_fabric_free_regions(struct sl_fabric *fabric);

// A region of a peer, as reached from here. Kept: attaching shared memory costs one page fault per page.
struct sl_remote_region {
    struct sl_remote_region *next;
    void *rkey; // UCX's
    bool one_sided, rdma;
    intptr_t mapping;     // of shared memory: added to an owner's address it gives ours. 0: not mapped
    uintptr_t begin, end; // of the memory that is mapped here
    size_t key_bytes;
    uint8_t key[SL_PLACE_KEY_MAX_BYTES];
};

// The address and key of a peer's memory, as the peer sends them on its connection.
struct sl_place {
    struct sl_wire_place head;
    uint8_t key[SL_PLACE_KEY_MAX_BYTES];
};
// Writes this description of [base, base + bytes) of one of our regions, at most SL_PLACE_MAX_BYTES, to `to`; returns 0
// if others cannot reach it.
#define SL_PLACE_MAX_BYTES (sizeof(struct sl_wire_place) + SL_PLACE_KEY_MAX_BYTES)
size_t sl_place_pack(const struct sl_region *region, const void *base, size_t bytes, uint8_t *to);
// Reads a place. SL_ERR_PEER_CORRUPT: it does not describe `expected` bytes, or is malformed.
enum sl_status sl_place_unpack(struct sl_place *place, const uint8_t *from, size_t from_bytes, uint64_t expected,
                               struct sl_error *err);
// Attaches the region of a place, or finds it attached. SL_ERR_PEER_CORRUPT: the place is outside of the memory that
// its key has mapped here.
enum sl_status sl_peer_region(struct sl_peer *peer, const struct sl_place *place, struct sl_remote_region **region_out,
                              struct sl_error *err);
void sl_peer_free_regions(struct sl_peer *peer);

void *sl_fabric_take_buffer(struct sl_fabric *fabric); // SL_SEGMENT_MAX_BYTES, or NULL
void sl_fabric_give_buffer(struct sl_fabric *fabric, void *buffer);
void sl_fabric_free_buffers(struct sl_fabric *fabric);

// ---- peer.c: peers ---------------------------------------------------------------------------------------------------

enum sl_peer_state { PEER_CONNECTING, PEER_UP, PEER_CLOSING };

// The verbs' per-peer state follows in the same allocation.
struct sl_peer {
    struct sl_peer *next;
    struct sl_fabric *fabric;
    enum sl_peer_state state;
    struct sl_link *link;
    void *ep;         // UCX's endpoint, which carries messages; NULL: the link carries them
    void *ep_closing; // its closing is pending
    bool ep_met;      // the other side's UCX has answered: the endpoint may be closed
    int64_t closing_ns;
    uint64_t number; // our number for this peer, which starts its messages over UCX
    uint64_t its_number;
    bool near;          // on this host
    char name[256];     // the address that we connected to, or that connected to us
    bool connector;     // we connected, so verbs may start exchanges over it
    uint64_t wanted;    // epoch; 0 when accepted
    uint64_t epoch;     // after HELLO
    int64_t silence_ns; // without a message for this long, it is lost
    struct sl_liveness_timer liveness;
    int64_t beat_ns;
    bool beating;         // the last beat is still queued
    bool goodbye;         // it said BYE: its end is not a loss
    bool parting;         // we said BYE, or it was not the wanted peer: not a loss either
    int64_t finished_ns;  // CLOSING: when we had ended everything, and said so; 0: not yet
    bool quiet;           // gone, and none of its operations on our memory is pending
    enum sl_status error; // SL_OK, or how link or endpoint were lost
    char error_text[128];
    size_t n_operations; // pending; a peer outlives its operations
    struct sl_remote_region *regions;
};

extern const struct sl_verb_ops sl_peer_ops; // part of every fabric: meets peers and sends heartbeats

/*
 * A message with its own copy of the header; done (may be NULL) runs exactly once, possibly before sl_peer_send_start()
 * returns.
 */
struct sl_peer_send {
    struct sl_peer *peer;
    void (*done)(struct sl_peer_send *send, enum sl_status status);
    void *arg;
    size_t bytes;      // for the sender's windows
    void *buffer;      // from sl_fabric_take_buffer(), returned afterwards
    struct iovec *iov; // scattered data, instead of sl_peer_send_start()'s; freed afterwards
    size_t n_iov;
    bool eager; // no rendezvous over UCX, which costs a round trip
    struct sl_link_send by_link;
    struct iovec whole;
    size_t header_bytes;
    uint64_t to; // its_number: before the header over UCX
    uint8_t header[];
};
struct sl_peer_send *sl_peer_send_create(struct sl_peer *peer, const void *header, size_t header_bytes);
void sl_peer_send_free(struct sl_peer_send *send); // one that was not started
void sl_peer_send_start(struct sl_peer_send *send, enum sl_wire_id id, const void *data, size_t bytes);
void sl_peer_tell(struct sl_peer *peer, enum sl_wire_id id, const void *header, size_t header_bytes);

/*
 * Receives the data of a message in transit: message->bytes bytes to `to`. done runs exactly once, possibly before this
 * returns, with the number of received bytes. False: no memory; done does not run.
 */
typedef void (*sl_received_fn)(void *arg, struct sl_peer *peer, enum sl_status status, size_t bytes);
bool sl_peer_receive(struct sl_peer *peer, struct sl_message *message, void *to, sl_received_fn done, void *arg);
// Counts an unexpected message, and logs some of them.
void sl_fabric_unexpected(struct sl_fabric *fabric, const char *what, size_t bytes);

struct sl_ucx_events;
// Callbacks of links and UCX.
extern const struct sl_link_events sl_peer_link_events;
extern const struct sl_ucx_events sl_peer_ucx_events;
void sl_peers_reconcile(struct sl_fabric *fabric);
// Returns "tcp" for the link, else UCX's name of the transport of one-sided transfers.
void sl_peer_transport(const struct sl_peer *peer, char *name_out, size_t name_bytes);
// Returns true if an RDMA device carries one-sided transfers to and from it.
bool sl_peer_by_rdma(const struct sl_peer *peer);

/*
 * One-sided transfers, if the remote region supports them: data to or from `remote`, an address in the owner's memory.
 * SL_INPROGRESS: op->done runs later; otherwise the transfer has ended, and done does not run.
 */
struct sl_peer_op { // several transfers may share it
    struct sl_peer *peer;
    void (*done)(struct sl_peer_op *op, enum sl_status status);
};
enum sl_status sl_peer_put(struct sl_peer_op *op, const struct sl_remote_region *region, const void *data, size_t bytes,
                           uint64_t remote);
enum sl_status sl_peer_get(struct sl_peer_op *op, const struct sl_remote_region *region, void *data, size_t bytes,
                           uint64_t remote);
enum sl_status sl_peer_flush(struct sl_peer_op *op); // ends when every earlier put has landed
// Returns the peer with this epoch; connects if there is none yet.
struct sl_peer *sl_peer_connect(struct sl_fabric *fabric, const char *address, const struct sockaddr_storage *sockaddr,
                                socklen_t sockaddr_bytes, uint64_t epoch, struct sl_error *err);
void sl_peer_close(struct sl_peer *peer, enum sl_status status, const char *why);

// ---- progress.c: the progress thread ---------------------------------------------------------------------------------

// Starts and waits for UCX. If the start fails, it frees the fabric.
enum sl_status sl_fabric_start(struct sl_fabric *fabric, struct sl_error *err);
void sl_fabric_stop(struct sl_fabric *fabric); // and frees it
void sl_fabric_free(struct sl_fabric *fabric); // one without a thread

// ---- ticket.c --------------------------------------------------------------------------------------------------------

// An unpacked ticket.
struct sl_ticket {
    struct sl_wire_ticket head;
    char address[256];
};
// Packs magic, id, generation, secret and size of *what; malloc'd, NULL without memory.
uint8_t *sl_ticket_pack(const struct sl_fabric *fabric, const struct sl_wire_ticket *what, size_t *bytes_out);
// Draws a random secret. SL_ERR_IO: the kernel returns no random numbers.
enum sl_status sl_secret_draw(struct sl_wire_secret *secret_out, struct sl_error *err);
// Compares in constant time.
bool sl_secret_equals(const struct sl_wire_secret *ours, const struct sl_wire_secret *theirs);
// Unpacks a ticket and checks it. owner: the name of the magic, for messages.
enum sl_status sl_ticket_unpack(struct sl_ticket *ticket, uint32_t magic, const char *owner, const uint8_t *data,
                                size_t bytes, struct sl_error *err);

// ---- slots.c ---------------------------------------------------------------------------------------------------------

// Objects that messages name by number, for any thread. Grows; the lowest free number is used next.
struct sl_slots {
    pthread_mutex_t lock;
    void **at; // NULL: free
    uint32_t n, first_free;
};
void sl_slots_init(struct sl_slots *slots);
void sl_slots_cleanup(struct sl_slots *slots);
bool sl_slots_take(struct sl_slots *slots, void *item, uint32_t *id_out); // false: no memory
void sl_slots_give(struct sl_slots *slots, uint32_t id);
void *sl_slots_find(struct sl_slots *slots, uint32_t id); // NULL: free
void *sl_slots_next(struct sl_slots *slots,
                    uint32_t *id_inout); // the first from *id on; *id becomes the next number; or NULL
