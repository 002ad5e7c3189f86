// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shared by the three files of ships: ship.c, the life of a ship; ship_caller.c, its caller's half; segment.c,
 *          the sending of its bytes.
 */
#pragma once

#include "base/fiber/bell.h"
#include "net/fabric/core/core.h"
#include "net/fabric/fabric.h"

struct sl_ships {
    struct sl_verb verb;
    struct sl_ship *first;
    _Atomic uint64_t last_id, n_open;
    uint64_t corrupt, drop_final, stall, device_put; // fault injection: the Nth, counted down; 0: never
    uint64_t pace;   // Mbit/s that leave at most, for measurements of slower networks; 0: no limit
    int64_t wire_ns; // when a network of that pace will have sent everything so far
    bool has_more;   // ships had more to send at the end of their last turn
};

enum sl_ship_state { SHIP_WAITING, SHIP_CLAIMING, SHIP_FLOWING, SHIP_FINISHING, SHIP_ENDING, SHIP_ENDED };

// The way to the owner.
enum sl_ship_way { SHIP_NO_WAY_YET, SHIP_BY_MESSAGES, SHIP_BY_SHARED_MEMORY, SHIP_BY_RDMA };

struct sl_piece {
    size_t offset;
    const uint8_t *data;
    size_t bytes;
    struct sl_region
        *device; // whose memory the host cannot read: the piece is one segment, with this digest. NULL: host memory
    uint64_t digest;
};

struct sl_pieces {
    struct sl_piece *at;
    size_t n, capacity;
};

struct sl_ship {
    struct sl_ship *next;
    struct sl_ships *ships;
    struct sl_fabric *fabric;
    struct sl_command open_command;
    struct sl_ticket ticket;
    struct sockaddr_storage sockaddr;
    socklen_t sockaddr_bytes;
    uint64_t id;
    int64_t deadline_ns;
    size_t segment_bytes; // of host memory, at most

    // shared, under lock
    pthread_mutex_t lock;
    struct sl_bell changed;
    struct sl_pieces queued;
    bool finish_wanted, close_wanted, detached;
    const void *header;
    size_t header_bytes;
    enum sl_status status;
    char text[SL_ANSWER_TEXT_BYTES + 128];
    char mode_text[48];
    _Atomic(const char *) mode; // mode_text once it is written
    _Atomic(enum sl_ship_way) way;
    atomic_bool work; // a change above is new to the progress thread
    atomic_size_t acked_bytes;

    // owned by the progress thread
    enum sl_ship_state state;
    struct sl_peer *peer;
    struct sl_remote_region *region; // to put into; NULL: everything goes by messages
    uint64_t address;                // of the grant in it, from its owner
    size_t place_bytes;              // of PLACE, not yet handled
    uint8_t place[SL_PLACE_MAX_BYTES];
    bool claimed;                   // CLAIM has been sent, so the owner must be told of the end
    bool fresh, finishing, closing; // copies of the shared half: pieces queued, finish_wanted, close_wanted
    bool stalled;                   // by fault injection
    struct sl_pieces taken;
    size_t cursor; // in taken
    size_t n_outstanding, outstanding_bytes;
    uint64_t n_segments, body_bytes;
    int64_t asked_ns, ending_ns;
};

// ship_caller.c: the progress thread's view of the caller's half
void sl_ship_see_wishes(struct sl_ship *ship);
void sl_ship_take_pieces(struct sl_ship *ship); // more of them, after the previous ones are used up
void sl_ship_fail(struct sl_ship *ship, enum sl_status status, const char *text);
void sl_ship_detach(struct sl_ship *ship); // after this the caller owns the ship and may free it

// segment.c
size_t sl_ship_segment_bytes(size_t granted_bytes);
// Sends one segment of the taken pieces. False: nothing to send.
bool sl_ship_send_segment(struct sl_ship *ship);
