// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the life of a ship, from sl_ship_open() to sl_ship_close().
 *
 *      WAITING ---- peer up, CLAIM sent: pump_waiting -----------------> CLAIMING (could put) or FLOWING (messages)
 *      CLAIMING --- owner says where: on_place; or go on: on_answer ---> FLOWING
 *      FLOWING ---- all pieces sent, finish wanted: pump_flowing ------> FINISHING
 *      FINISHING -- owner has verified everything: on_answer ----------> ENDING (status OK)
 *      any -------- refused, lost, late, closed: ship_fail ------------> ENDING (status < 0)
 *      ENDING ----- no send outstanding: pump_ending ------------------> ENDED
 *
 * WAITING    the connection is being made
 * CLAIMING   no put may start before the owner has agreed, since a put cannot be refused; and only the owner says where
 * FLOWING    segments leave, at most WINDOW_BYTES unacknowledged; messages need no agreement, each is checked
 * FINISHING  FINAL has been sent; its answer is asked for again every REQUERY_NS, since either may have been lost
 * ENDING     nothing new leaves; if a send hangs for SL_DRAIN_NS, the connection to the peer is closed
 * ENDED      the pieces' memory is no longer read; the owner got ABORT if the ship had failed
 *
 * Threads: the progress thread, except sl_ship_open(). The caller's half is in ship_caller.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "net/fabric/ship.h"

#define WINDOW_BYTES  (4u << 20) // unacknowledged bytes of one ship
#define REQUERY_NS    (500 * SL_NS_PER_MS)
#define PACE_AHEAD_NS 100000 // what a card takes ahead of a paced wire
#define PACE_IDLE_NS  (2 * SL_NS_PER_MS)

extern const struct sl_verb_ops sl_ship_ops;

static struct sl_wire_key key_of(const struct sl_ship *ship) {
    return (struct sl_wire_key){ship->ticket.head.generation, ship->id, ship->ticket.head.id, 0};
}

// ---- opening --------------------------------------------------------------------------------------------------

static void run_open(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_ship *ship = SL_CONTAINER(command, struct sl_ship, open_command);
    ship->next = ship->ships->first;
    ship->ships->first = ship;
    struct sl_error err = {0};
    if (atomic_load(&fabric->stopping)) { // do not make a peer that would never be closed
        sl_ship_fail(ship, SL_ERR_CANCELLED, "this fabric stops");
        return;
    }
    ship->peer = sl_peer_connect(fabric, ship->ticket.address, &ship->sockaddr, ship->sockaddr_bytes,
                                 ship->ticket.head.epoch, &err);
    if (!ship->peer) {
        sl_ship_fail(ship, err.status, err.text);
    }
}

enum sl_status sl_ship_open(struct sl_fabric *fabric, const uint8_t *ticket, size_t ticket_bytes, int64_t deadline_ns,
                            struct sl_ship **ship_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_ship, ship, err, "no memory for a ship");
    enum sl_status status = sl_ticket_unpack(&ship->ticket, SL_WIRE_MAGIC, "grant", ticket, ticket_bytes, err);
    SL_THEN(status, sl_address_resolve(ship->ticket.address, &ship->sockaddr, &ship->sockaddr_bytes, err));
    SL_TRY_OR(status, free(ship));
    struct sl_ships *ships = sl_verb_of_fabric(fabric, &sl_ship_ops);
    ship->ships = ships;
    ship->fabric = fabric;
    ship->open_command.run = run_open;
    ship->deadline_ns = deadline_ns;
    ship->segment_bytes = sl_ship_segment_bytes(ship->ticket.head.bytes);
    atomic_store(&ship->mode, "none yet");
    pthread_mutex_init(&ship->lock, NULL);
    ship->id = atomic_fetch_add(&ships->last_id, 1) + 1;
    atomic_fetch_add(&ships->n_open, 1);
    sl_fabric_post(fabric, &ship->open_command);
    *ship_out = ship;
    return SL_OK;
}

// ---- FINAL -----------------------------------------------------------------------------------------------------

static void on_final_sent(struct sl_peer_send *send, enum sl_status status) {
    struct sl_ship *ship = send->arg;
    ship->n_outstanding--;
    if (status != SL_OK) {
        sl_ship_fail(ship, status, sl_status_text(status));
    }
}

static void send_final(struct sl_ship *ship) {
    ship->asked_ns = sl_now_ns();
    struct sl_ships *ships = ship->ships;
    if (ships->drop_final > 0 && --ships->drop_final == 0) {
        return;
    }
    struct sl_wire_final final = {.key = key_of(ship),
                                  .n_segments = ship->n_segments,
                                  .body_bytes = ship->body_bytes,
                                  .header_digest = sl_hash(ship->header, ship->header_bytes, 0),
                                  .header_bytes = ship->header_bytes};
    struct sl_peer_send *send = sl_peer_send_create(ship->peer, &final, sizeof final);
    if (!send) {
        sl_ship_fail(ship, SL_ERR_EXHAUSTED, "the sender has no memory for its final message");
        return;
    }
    send->done = on_final_sent;
    send->arg = ship;
    ship->n_outstanding++;
    sl_peer_send_start(send, SL_WIRE_FINAL, ship->header, ship->header_bytes);
}

// ---- CLAIM, PLACE and ANSWER -----------------------------------------------------------------------------------

static void set_mode(struct sl_ship *ship) {
    char transport[32];
    sl_peer_transport(ship->peer, transport, sizeof transport);
    snprintf(ship->mode_text, sizeof ship->mode_text, "%s %s", ship->region ? "put" : "am", transport);
    atomic_store(&ship->mode, ship->mode_text);
    atomic_store(&ship->way, !ship->region        ? SHIP_BY_MESSAGES
                             : ship->region->rdma ? SHIP_BY_RDMA
                                                  : SHIP_BY_SHARED_MEMORY);
}

static void send_claim(struct sl_ship *ship, bool one_sided) {
    struct sl_wire_claim claim = {.key = key_of(ship), .secret = ship->ticket.head.secret, .one_sided = one_sided};
    sl_peer_tell(ship->peer, SL_WIRE_CLAIM, &claim, sizeof claim);
    ship->claimed = true;
}

static void flow_by_messages(struct sl_ship *ship) {
    if (ship->fabric->transport == SL_TRANSPORT_SHM) {
        sl_ship_fail(ship, SL_ERR_UNSUPPORTED,
                     "transport shm: the receiver's memory cannot be mapped here (another "
                     "host or container, or a receiver without shared memory)");
        return;
    }
    ship->state = SHIP_FLOWING;
    set_mode(ship);
}

// Claims the grant. Without UCX to the owner puts are impossible, so there is nothing to wait for.
static bool pump_waiting(struct sl_ship *ship) {
    if (ship->peer->state != PEER_UP) {
        return false;
    }
    bool could_put = ship->peer->ep != NULL;
    send_claim(ship, could_put);
    if (could_put) {
        ship->state = SHIP_CLAIMING;
    } else {
        flow_by_messages(ship);
    }
    return true;
}

// Handles PLACE, the owner's answer where to put. If we cannot put there, the owner must agree to messages.
static bool pump_claiming(struct sl_ship *ship) {
    if (ship->place_bytes == 0) {
        ship->fabric->links_ns = 0; // the answer comes over the link: the next turn polls it
        return false;
    }
    struct sl_place there;
    struct sl_error err = {0};
    struct sl_remote_region *region = NULL;
    enum sl_status status = sl_place_unpack(&there, ship->place, ship->place_bytes, ship->ticket.head.bytes, &err);
    SL_THEN(status, sl_peer_region(ship->peer, &there, &region, &err));
    if (status != SL_OK) {
        sl_ship_fail(ship, status, err.text);
    } else if (region->one_sided) {
        ship->region = region;
        ship->address = there.head.address;
        ship->state = SHIP_FLOWING;
        set_mode(ship);
    } else {
        ship->place_bytes = 0;
        send_claim(ship, false); // over the link: messages over UCX must not overtake it, so wait for its answer
    }
    return true;
}

static struct sl_ship *find(const struct sl_ships *ships, const struct sl_peer *peer, const struct sl_wire_key *key) {
    struct sl_ship *ship = ships->first;
    while (ship &&
           !(ship->id == key->ship_id && ship->peer == peer && ship->ticket.head.generation == key->generation)) {
        ship = ship->next;
    }
    return ship;
}

static void on_place(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct sl_wire_key key;
    memcpy(&key, message->header, sizeof key);
    struct sl_ship *ship = find(state, peer, &key);
    size_t bytes = message->header_bytes - sizeof key;
    if (!ship || ship->state != SHIP_CLAIMING) { // it was closed meanwhile, or did not ask
        return;
    }
    if (bytes > sizeof ship->place) {
        sl_ship_fail(ship, SL_ERR_PEER_CORRUPT, "the receiver says at length where its memory is");
        return;
    }
    memcpy(ship->place, (const uint8_t *)message->header + sizeof key,
           bytes); // UCX cannot attach within a callback
    ship->place_bytes = bytes;
}

static void on_answer(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct sl_ships *ships = state;
    struct sl_wire_answer answer;
    memcpy(&answer, message->header, sizeof answer);
    answer.text[sizeof answer.text - 1] = '\0';
    struct sl_ship *ship = find(ships, peer, &answer.key);
    if (!ship) { // it was closed meanwhile
        return;
    }
    if (answer.status < 0) {
        char text[SL_ANSWER_TEXT_BYTES + 32];
        snprintf(text, sizeof text, "the receiver says: %s", answer.text);
        sl_ship_fail(ship, (enum sl_status)answer.status, text);
    } else if (answer.status == SL_OK && ship->state == SHIP_FINISHING) {
        ship->state = SHIP_ENDING;
        ship->ending_ns = sl_now_ns();
    } else if (answer.status == SL_INPROGRESS && ship->state == SHIP_CLAIMING) {
        flow_by_messages(ship); // its memory cannot be reached from here
    } else if (answer.status == SL_INPROGRESS && ship->state == SHIP_FINISHING &&
               answer.flags == SL_ANSWER_TO_QUERY) { // and not SL_ANSWER_FINAL_SEEN
        send_final(ship);
    }
}

// ---- by state --------------------------------------------------------------------------------------------------

// Returns whether a slower network has taken what was sent (fault injection "pace").
static bool may_send(const struct sl_ships *ships) {
    return ships->pace == 0 || ships->wire_ns - sl_now_ns() <= PACE_AHEAD_NS;
}

// Sleeps until it has, at most a millisecond: answers and other verbs get their turn.
static void rest(const struct sl_ships *ships) {
    int64_t left = ships->pace > 0 ? ships->wire_ns - sl_now_ns() : 0;
    if (left > PACE_AHEAD_NS) {
        nanosleep(&(struct timespec){.tv_nsec = left < SL_NS_PER_MS ? left : SL_NS_PER_MS}, NULL);
    }
}

static void account(struct sl_ships *ships, uint64_t bytes) {
    if (ships->pace > 0) {
        int64_t now = sl_now_ns();
        // The wire has not waited for a thread that woke up late, or had no processor while pieces lay there
        bool idle = now - ships->wire_ns > PACE_IDLE_NS && !ships->has_more;
        ships->wire_ns = (idle ? now : ships->wire_ns) + (int64_t)(bytes * 8000 / ships->pace);
    }
}

static bool pump_flowing(struct sl_ship *ship) {
    bool moved = false;
    sl_ship_take_pieces(ship);
    if (!may_send(ship->ships)) {
        return true; // its turn comes
    }
    // Puts through shared memory copy at once: one segment per turn, so that other ships and the clock get their turn.
    int at_most = ship->region ? 1 : INT32_MAX;
    uint64_t sent = ship->body_bytes;
    while (at_most-- > 0 && ship->state == SHIP_FLOWING && ship->outstanding_bytes < WINDOW_BYTES &&
           sl_ship_send_segment(ship)) {
        moved = true;
        account(ship->ships, ship->body_bytes - sent);
        sent = ship->body_bytes;
        sl_ship_take_pieces(ship);
        if (!may_send(ship->ships)) {
            return true;
        }
    }
    if (ship->state == SHIP_FLOWING && ship->finishing && !ship->stalled && !ship->fresh &&
        ship->cursor == ship->taken.n) {
        ship->state = SHIP_FINISHING;
        send_final(ship);
        moved = true;
    }
    return moved;
}

/*
 * Claims for a ship that was given up before it could claim: the owner still waits for it, and gets the abort as soon
 * as the connection is up. False: not yet.
 */
static bool claim_to_abort(struct sl_ship *ship) {
    if (ship->claimed || !ship->peer || ship->status == SL_OK) {
        return true;
    }
    if (ship->peer->state == PEER_CONNECTING) {
        return sl_now_ns() - ship->ending_ns > SL_DRAIN_NS;
    }
    send_claim(ship, false);
    return true;
}

static bool pump_ending(struct sl_ship *ship) {
    if (ship->n_outstanding > 0 || !claim_to_abort(ship)) {
        return false;
    }
    if (ship->claimed && ship->status != SL_OK && ship->peer) {
        struct sl_wire_abort abortion = {.key = key_of(ship), .status = ship->status};
        sl_peer_tell(ship->peer, SL_WIRE_ABORT, &abortion, sizeof abortion);
    }
    ship->state = SHIP_ENDED;
    return true;
}

static bool pump_ship(struct sl_ship *ship) {
    sl_ship_see_wishes(ship);
    switch (ship->state) {
    case SHIP_WAITING:
        return pump_waiting(ship);
    case SHIP_FLOWING:
        return pump_flowing(ship);
    case SHIP_ENDING:
        return pump_ending(ship);
    case SHIP_CLAIMING:
        return pump_claiming(ship);
    case SHIP_FINISHING:
    case SHIP_ENDED:
        break;
    }
    return false;
}

// ---- all ships -------------------------------------------------------------------------------------------------

// Moves the ship behind all others, so that they send before it does again.
static void move_last(struct sl_ship **at) {
    struct sl_ship *ship = *at;
    *at = ship->next;
    ship->next = NULL;
    while (*at) {
        at = &(*at)->next;
    }
    *at = ship;
}

static bool pump(void *state, int64_t) {
    struct sl_ships *ships = state;
    bool moved = false, has_more = false;
    struct sl_ship **at = &ships->first;
    while (*at) {
        struct sl_ship *ship = *at;
        uint64_t sent = ship->body_bytes;
        moved |= pump_ship(ship);
        has_more |= ship->state == SHIP_FLOWING && ship->cursor < ship->taken.n;
        if (ship->state == SHIP_ENDED) {
            *at = ship->next;
            sl_ship_detach(ship);
        } else if (ships->pace > 0 && ship->body_bytes > sent && ship->next) {
            move_last(at);
        } else {
            at = &ship->next;
        }
    }
    ships->has_more = has_more;
    if (moved) {
        rest(ships);
    }
    return moved;
}

static bool has_work(void *state) {
    struct sl_ships *ships = state;
    for (struct sl_ship *ship = ships->first; ship; ship = ship->next) {
        if (atomic_load(&ship->work)) {
            return true;
        }
    }
    return false;
}

static void tick(void *state, int64_t now_ns) {
    struct sl_ships *ships = state;
    for (struct sl_ship *ship = ships->first; ship; ship = ship->next) {
        if (ship->state < SHIP_ENDING && now_ns > ship->deadline_ns) {
            sl_ship_fail(ship, SL_ERR_DEADLINE, "the ship's deadline passed");
        } else if (ship->state == SHIP_FINISHING && now_ns - ship->asked_ns > REQUERY_NS) {
            struct sl_wire_query query = {.key = key_of(ship)};
            ship->asked_ns = now_ns;
            sl_peer_tell(ship->peer, SL_WIRE_QUERY, &query, sizeof query);
        } else if (ship->state == SHIP_ENDING && ship->n_outstanding > 0 && ship->peer &&
                   now_ns - ship->ending_ns > SL_DRAIN_NS) {
            sl_peer_close(ship->peer, SL_ERR_PEER_LOST, "it does not take what was sent to it");
        }
    }
}

static void peer_closing(void *state, struct sl_peer *peer, enum sl_status status, const char *text) {
    struct sl_ships *ships = state;
    for (struct sl_ship *ship = ships->first; ship; ship = ship->next) {
        if (ship->peer == peer) {
            sl_ship_fail(ship, status, text);
            ship->peer = NULL;
        }
    }
}

static void stop(void *state) {
    struct sl_ships *ships = state;
    for (struct sl_ship *ship = ships->first; ship; ship = ship->next) {
        sl_ship_fail(ship, SL_ERR_CANCELLED, "this fabric stops");
    }
}

static bool is_over(void *state) {
    return ((struct sl_ships *)state)->first == NULL;
}

static void release(void *state) {
    struct sl_ships *ships = state;
    while (ships->first) {
        struct sl_ship *ship = ships->first;
        ships->first = ship->next;
        sl_ship_detach(ship);
    }
}

const struct sl_verb_ops sl_ship_ops = {
    .state_bytes = sizeof(struct sl_ships),
    .handlers = {{SL_WIRE_ANSWER, "ANSWER", sizeof(struct sl_wire_answer), true, on_answer},
                 {SL_WIRE_PLACE, "PLACE", sizeof(struct sl_wire_grant_place), false, on_place}},
    .faults = {{"corrupt", offsetof(struct sl_ships, corrupt)},
               {"drop_final", offsetof(struct sl_ships, drop_final)},
               {"stall", offsetof(struct sl_ships, stall)},
               {"device_put", offsetof(struct sl_ships, device_put)},
               {"pace", offsetof(struct sl_ships, pace)}},
    .gauges = {SL_GAUGE(struct sl_ships, n_open, ships_open)},
    .pump = pump,
    .tick = tick,
    .has_work = has_work,
    .peer_closing = peer_closing,
    .stop = stop,
    .is_over = is_over,
    .release = release,
};
