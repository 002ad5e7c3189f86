// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what the files of the fabric share.
 *
 * Threads: one thread, the progress thread, calls UCX and owns every peer, every claimed grant and every running ship;
 *          so nothing of UCX can be closed while it is being used. Other threads reach it in three ways: commands
 *          (sl_fabric_post), the shared half of a ship under the ship's lock, and atomics.
 *          fabric->lock guards what is marked so below; it is never held while a callback of the user runs.
 */
#ifndef SL_FABRIC_CORE_H
#define SL_FABRIC_CORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

#include "fabric/ask.h"
#include "fabric/fabric.h"
#include "fabric/wire.h"

enum sl_transport { SL_TRANSPORT_AUTO, SL_TRANSPORT_SHM, SL_TRANSPORT_TCP, SL_TRANSPORT_RDMA };

#define SL_START_NS        (20 * SL_NS_PER_S) // UCX that has not started by then never will
#define SL_SPIN_NS         50000              // of idleness before the progress thread sleeps
#define SL_TICK_MAX_NS     (50 * SL_NS_PER_MS)
#define SL_MISSED_BEATS    3
#define SL_CONNECT_NS      (5 * SL_NS_PER_S)
#define SL_REQUERY_NS      (500 * SL_NS_PER_MS)
#define SL_PART_MS         1000               // for the peers to hear BYE and close
#define SL_DRAIN_NS        (2 * SL_NS_PER_S)  // for the sends of a failed ship; then its connection is closed
#define SL_QUARANTINE_NS   (30 * SL_NS_PER_S) // for a silent writer that could put into our memory if it woke up
#define SL_WINDOW_BYTES    (4u << 20)         // unacknowledged bytes of one ship
#define SL_MAX_CONNECTING  64
#define SL_N_BUFFERS       (SL_WINDOW_BYTES / SL_SEGMENT_MAX_BYTES) // kept at most
#define SL_EAGER_MAX_BYTES ((size_t)256 << 10) // requests, answers: sent without asking, for a rendezvous costs a round
#define SL_READS_PER_PEER  8
#define SL_N_PAST          1024 // ended grants whose end is remembered

struct sl_region {
    struct sl_region *next;
    uint8_t *base;
    size_t bytes;
    ucp_mem_h handle;
    void *rkey;
    size_t rkey_bytes;
    bool locked;
};

// Something for the progress thread to do. Freed by run(), or lives on the stack of a caller that waits.
struct sl_command {
    struct sl_command *next;
    void (*run)(struct sl_fabric *fabric, struct sl_command *command);
};

enum sl_peer_state { PEER_CONNECTING, PEER_UP, PEER_CLOSING };

// The remote half of a region as this connection reaches it. Kept: attaching shared memory costs a fault per page.
struct sl_remote_region {
    struct sl_remote_region *next;
    ucp_rkey_h rkey;
    bool one_sided;
    intptr_t mapping; // of shared memory: what turns an address of the owner's into one of ours. 0: not mapped
    uint64_t packed_hash;
    size_t packed_bytes;
};

// A READ on its way.
struct sl_read {
    bool used, receiving;
    bool direct; // by rendezvous into the caller's memory: it ends before the fetch does
    uint32_t serial, n_ranges;
    struct sl_fetch *fetch; // NULL: over, the answer will be dropped
    size_t cursor, at;      // where it begins in the fetch's ranges
    size_t bytes;
};

struct sl_peer {
    struct sl_peer *next;
    struct sl_fabric *fabric;
    enum sl_peer_state state;
    ucp_ep_h ep;
    char name[128];     // address that we connected to, or of the one who connected
    bool connector;     // we connected, so ships may use it
    uint64_t wanted;    // epoch in the ticket; 0 when accepted
    uint64_t epoch;     // after HELLO
    int64_t silence_ns; // after which it is lost
    int64_t born_ns, heard_ns, beat_ns;
    bool beating;       // a beat has not left yet
    bool goodbye;       // it said BYE: the end of this connection is no loss
    bool parting;       // we said BYE, or never wanted it: no loss either
    bool silent;        // closed for its silence: it may wake up and go on putting
    ucs_status_t error; // from the error callback
    void *closing;      // request of ucp_ep_close_nbx
    bool closed;
    size_t n_requests; // UCX requests not yet completed
    struct sl_remote_region *regions;
    size_t n_questions;                      // of it, that are here and not yet answered
    struct sl_read reads[SL_READS_PER_PEER]; // of ours
    size_t n_reads_served;                   // of its, being answered
};

enum sl_grant_state { GRANT_OPEN, GRANT_CLAIMED, GRANT_COMPLETE, GRANT_FAILED };

struct sl_grant {
    struct sl_fabric *fabric;
    struct sl_command close_command;
    uint32_t id;
    uint64_t generation;
    uint8_t *block;
    size_t bytes;
    _Atomic int64_t deadline_ns;
    struct sl_grant_events events;
    void *arg;
    // the progress thread's
    enum sl_grant_state state;
    enum sl_status status;
    char text[SL_ANSWER_TEXT_BYTES];
    bool closed;      // by its owner
    bool quarantined; // counted in the gauge
    int64_t ended_ns;
    struct sl_peer *writer;
    uint64_t ship_id;
    bool one_sided;
    bool writer_quiet; // no put of the writer can be under way
    size_t n_receives;
    uint64_t n_segments;
    uint64_t body_bytes; // verified
    uint64_t highest;
    bool final_seen, header_ready;
    struct sl_wire_final final;
    uint8_t *header;
};

struct sl_past {
    uint64_t generation, ship_id;
    uint32_t grant_id;
    enum sl_status status;
    char text[SL_ANSWER_TEXT_BYTES];
};

// A ticket, unpacked.
struct sl_ticket {
    struct sl_wire_ticket head;
    char address[256];
    uint8_t rkey[SL_TICKET_MAX_BYTES];
};

enum sl_ship_state { SHIP_WAITING, SHIP_CLAIMING, SHIP_FLOWING, SHIP_FINISHING, SHIP_ENDING, SHIP_ENDED };

struct sl_piece {
    size_t offset;
    const uint8_t *data;
    size_t bytes;
};

struct sl_pieces {
    struct sl_piece *at;
    size_t n, capacity;
};

struct sl_ship {
    struct sl_ship *next;
    struct sl_fabric *fabric;
    struct sl_command open_command;
    struct sl_ticket ticket;
    struct sockaddr_storage sockaddr;
    socklen_t sockaddr_bytes;
    uint64_t id;
    int64_t deadline_ns;

    // shared, under lock
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sl_pieces queued;
    bool finish_wanted, close_wanted, ended, detached;
    const void *header;
    size_t header_bytes;
    enum sl_status status;
    char text[SL_ANSWER_TEXT_BYTES + 128];
    char verb_text[48];
    _Atomic(const char *) verb; // verb_text once it is written
    atomic_bool work;           // something of the above is new to the progress thread
    atomic_size_t acked_bytes;

    // the progress thread's
    enum sl_ship_state state;
    struct sl_peer *peer;
    struct sl_remote_region *region;
    bool claimed;                   // CLAIM has been sent, so the owner must hear of the end
    bool fresh, finishing, closing; // seen of the shared half: pieces queued, finish_wanted, close_wanted
    bool stalled;                   // by fault injection
    struct sl_pieces taken;
    size_t cursor; // in taken
    size_t n_outstanding, outstanding_bytes;
    uint64_t n_segments, body_bytes;
    int64_t asked_ns, ending_ns;
};

// Asks under way by id: the low half is the place, the high half tells successive users of the place apart.
struct sl_asks {
    struct sl_ask **at;
    uint32_t *n_uses;
    uint32_t n, first_free; // no place before first_free is free
};

struct sl_inject {
    uint64_t corrupt, drop_final, stall, drop_reply; // the Nth, counted down; 0: never
    uint64_t slow_reply;                             // ms
    uint64_t get;                                    // not a fault: fetch by gets, whatever the transport
};

struct sl_fabric {
    struct sl_fabric_config config;
    enum sl_transport transport;
    struct sockaddr_storage listen;
    socklen_t listen_bytes;
    char address[256];
    char listen_host[128];
    char device[64];
    uint64_t epoch, host_id;
    struct sl_inject inject;

    pthread_t thread;
    int wake_fd;
    atomic_bool sleeping, stopping, posted;

    pthread_mutex_t lock; // guards this paragraph
    pthread_cond_t changed;
    bool started, abandoned;
    struct sl_error start_error;
    struct sl_command *first, **last;
    struct sl_region *regions;
    struct sl_grant **grants; // by id; NULL: free
    size_t n_grants;
    struct sl_window **windows; // by id; NULL: free
    uint32_t n_windows;
    uint64_t next_generation;
    uint64_t next_ship;

    struct sl_gate *gate; // for what may outlive the fabric; see line.h
    _Atomic(sl_question_fn) question_fn;
    void *question_arg;

    // the progress thread's
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_listener_h listener;
    int worker_fd;
    ucp_conn_request_h connecting[SL_MAX_CONNECTING];
    size_t n_connecting;
    struct sl_peer *peers;
    bool peers_changed;
    struct sl_ship *ships;
    struct sl_line *lines;
    bool lines_waiting; // one of them, for its peer to be up
    struct sl_asks asks;
    struct sl_fetch *fetches;
    struct sl_question *questions;
    size_t question_bytes; // of their requests
    void *buffers
        [SL_N_BUFFERS]; // of SL_SEGMENT_MAX_BYTES, for segments that are packed: fresh memory costs a fault a page
    size_t n_buffers;
    struct sl_past past[SL_N_PAST];
    size_t next_past;
    int64_t next_tick_ns, complained_ns;
    uint64_t n_unexpected;

    struct {
        _Atomic uint64_t bytes_sent, bytes_received, pieces_sent, pieces_received;
        _Atomic uint64_t peers_lost, digests_wrong, stale_refused;
        _Atomic uint32_t grants_open, grants_quarantined, ships_open, peers_connected;
        _Atomic uint32_t lines_open, asks_open, questions_open, windows_open, fetches_open;
    } stats;
};

// fabric.c
void sl_fabric_post(struct sl_fabric *fabric, struct sl_command *command);
void sl_fabric_wake(struct sl_fabric *fabric);
void sl_fabric_unexpected(struct sl_fabric *fabric, const char *what, size_t bytes); // counted, rarely logged
struct sl_region *sl_fabric_region(struct sl_fabric *fabric, const void *data, size_t bytes);
void *sl_fabric_take_buffer(struct sl_fabric *fabric); // SL_SEGMENT_MAX_BYTES, or NULL
void sl_fabric_give_buffer(struct sl_fabric *fabric, void *buffer);

// ucx.c
enum sl_status sl_fabric_from_ucs(ucs_status_t status);
enum sl_status sl_fabric_resolve(const char *address, struct sockaddr_storage *sockaddr_out, socklen_t *bytes_out,
                                 struct sl_error *err);
enum sl_status sl_fabric_device(struct sl_fabric *fabric, struct sl_error *err);
enum sl_status sl_fabric_ucx_start(struct sl_fabric *fabric, struct sl_error *err);
void sl_fabric_ucx_stop(struct sl_fabric *fabric);
void sl_fabric_transport(ucp_ep_h ep, char *name_out, size_t name_bytes);

/*
 * peer.c: connections. A message is sent with its own copies of header and payload; done (may be NULL) runs
 * exactly once, possibly before sl_peer_send() returns.
 */
struct sl_peer_send {
    struct sl_peer *peer;
    void (*done)(struct sl_peer_send *send, ucs_status_t status);
    void *arg;
    size_t bytes;      // for the window
    void *buffer;      // of sl_fabric_take_buffer(), goes back afterwards
    ucp_dt_iov_t *iov; // freed afterwards
    uint8_t header[];
};
struct sl_peer_send *sl_peer_send_create(struct sl_peer *peer, const void *header, size_t header_bytes);
void sl_peer_send_free(struct sl_peer_send *send); // one that was not started
void sl_peer_send_start(struct sl_peer_send *send, enum sl_wire_id id, size_t header_bytes, const void *data,
                        size_t data_bytes, const ucp_request_param_t *with);
void sl_peer_tell(struct sl_peer *peer, enum sl_wire_id id, const void *header, size_t header_bytes);
void sl_peer_on_connection(ucp_conn_request_h request, void *arg);
void sl_peers_accept(struct sl_fabric *fabric);
struct sl_peer *sl_peer_connect(struct sl_fabric *fabric, const char *address, const struct sockaddr_storage *sockaddr,
                                socklen_t sockaddr_bytes, uint64_t epoch, struct sl_error *err);
struct sl_peer *sl_peer_heard(struct sl_fabric *fabric, const ucp_am_recv_param_t *param);
// The peer that sent a message of at least `least` bytes of header and may do so, or NULL: dropped.
struct sl_peer *sl_peer_sender(struct sl_fabric *fabric, const char *what, size_t header_bytes, size_t least,
                               const ucp_am_recv_param_t *param);
void sl_peer_close(struct sl_peer *peer, enum sl_status status, const char *why);
void sl_peers_tick(struct sl_fabric *fabric, int64_t now_ns);
void sl_peers_settle(struct sl_fabric *fabric);
struct sl_remote_region *sl_peer_region(struct sl_peer *peer, const struct sl_ticket *ticket, struct sl_error *err);
ucs_status_t sl_peer_on_hello(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                              const ucp_am_recv_param_t *param);
ucs_status_t sl_peer_on_beat(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                             const ucp_am_recv_param_t *param);
ucs_status_t sl_peer_on_bye(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                            const ucp_am_recv_param_t *param);

// ticket.c: pack takes magic, id, generation and range of *what; malloc'd, NULL when there is no memory for it.
uint8_t *sl_ticket_pack(const struct sl_fabric *fabric, const struct sl_region *region,
                        const struct sl_wire_ticket *what, size_t *bytes_out);
enum sl_status sl_ticket_unpack(struct sl_ticket *ticket, uint32_t magic, const uint8_t *data, size_t bytes,
                                struct sl_error *err);

// grant.c: the life of a grant
struct sl_grant *sl_grant_find(struct sl_fabric *fabric, const struct sl_wire_key *key);
void sl_grant_fail(struct sl_grant *grant, enum sl_status status, const char *text);
void sl_grant_check_complete(struct sl_grant *grant);
void sl_grant_try_release(struct sl_grant *grant);
void sl_grant_answer(struct sl_peer *peer, const struct sl_wire_key *key, enum sl_status status, uint32_t flags,
                     const char *text);
void sl_grants_peer_closing(struct sl_fabric *fabric, struct sl_peer *peer, enum sl_status status, const char *text);
void sl_grants_peer_gone(struct sl_fabric *fabric, struct sl_peer *peer);
void sl_grants_tick(struct sl_fabric *fabric, int64_t now_ns);
void sl_grants_end_all(struct sl_fabric *fabric);
void sl_grants_release_all(struct sl_fabric *fabric);

// receive.c: the messages that a grant's owner gets
ucs_status_t sl_grant_on_claim(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param);
ucs_status_t sl_grant_on_segment(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                                 const ucp_am_recv_param_t *param);
ucs_status_t sl_grant_on_final(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param);
ucs_status_t sl_grant_on_query(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param);
ucs_status_t sl_grant_on_abort(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param);

// ship.c: the life of a ship
void sl_ship_fail(struct sl_ship *ship, enum sl_status status, const char *text);
bool sl_ships_pump(struct sl_fabric *fabric, int64_t now_ns); // whether anything was done
void sl_ships_tick(struct sl_fabric *fabric, int64_t now_ns);
void sl_ships_peer_closing(struct sl_fabric *fabric, struct sl_peer *peer, enum sl_status status, const char *text);
void sl_ships_end_all(struct sl_fabric *fabric, const char *text);
ucs_status_t sl_ship_on_answer(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param);

// segment.c: pieces into segments, and segments onto the wire
bool sl_ship_send_segment(struct sl_ship *ship);

#endif
