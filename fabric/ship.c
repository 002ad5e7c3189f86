// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the life of a ship, from sl_ship_open() to sl_ship_close().
 *
 *      WAITING ---- peer up, CLAIM sent: pump_waiting -----------------> CLAIMING (puts) or FLOWING (messages)
 *      CLAIMING --- owner says go on: on_answer -----------------------> FLOWING
 *      FLOWING ---- all pieces sent, finish wanted: pump_flowing ------> FINISHING
 *      FINISHING -- owner has verified everything: on_answer ----------> ENDING (status OK)
 *      any -------- refused, lost, late, closed: ship_fail ------------> ENDING (status < 0)
 *      ENDING ----- no send outstanding: pump_ending ------------------> ENDED
 *
 * WAITING    the connection is being made
 * CLAIMING   no put may be under way before the owner has agreed: a put cannot be refused
 * FLOWING    segments leave, at most SL_WINDOW_BYTES unacknowledged; messages need no agreement, each is checked
 * FINISHING  FINAL has been sent; its answer is asked for again every SL_REQUERY_NS, since either may have been lost
 * ENDING     nothing new leaves; a send that hangs for SL_DRAIN_NS costs the peer its connection
 * ENDED      the pieces' memory is no longer read; the owner was told ABORT if the ship had failed
 *
 * Threads: the caller's half (queue of pieces, wishes, status) is under ship->lock; `work` announces changes of it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/thread.h"
#include "fabric/core.h"

static struct sl_wire_key key_of(const struct sl_ship *ship) {
    return (struct sl_wire_key){ship->ticket.head.generation, ship->id, ship->ticket.head.id, 0};
}

// ---- the caller's side -----------------------------------------------------------------------------------------

static void run_open(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_ship *ship = (struct sl_ship *)((char *)command - offsetof(struct sl_ship, open_command));
    ship->next = fabric->ships;
    fabric->ships = ship;
    struct sl_error err = {0};
    if (atomic_load(&fabric->stopping)) { // no connection is made that nobody would close
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
    struct sl_ship *ship = calloc(1, sizeof *ship);
    if (!ship) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a ship");
    }
    enum sl_status status = sl_ticket_unpack(&ship->ticket, SL_WIRE_MAGIC, ticket, ticket_bytes, err);
    if (status == SL_OK) {
        status = sl_fabric_resolve(ship->ticket.address, &ship->sockaddr, &ship->sockaddr_bytes, err);
    }
    if (status != SL_OK) {
        free(ship);
        return status;
    }
    ship->fabric = fabric;
    ship->open_command.run = run_open;
    ship->deadline_ns = deadline_ns;
    atomic_store(&ship->verb, "none yet");
    pthread_mutex_init(&ship->lock, NULL);
    sl_cond_init(&ship->changed);
    pthread_mutex_lock(&fabric->lock);
    ship->id = ++fabric->next_ship;
    pthread_mutex_unlock(&fabric->lock);
    atomic_fetch_add(&fabric->stats.ships_open, 1);
    sl_fabric_post(fabric, &ship->open_command);
    *ship_out = ship;
    return SL_OK;
}

static enum sl_status push_piece(struct sl_pieces *pieces, size_t offset, const uint8_t *data, size_t bytes) {
    struct sl_piece *last = pieces->n > 0 ? &pieces->at[pieces->n - 1] : NULL;
    if (last && last->offset + last->bytes == offset && last->data + last->bytes == data) {
        last->bytes += bytes;
        return SL_OK;
    }
    if (pieces->n == pieces->capacity) {
        size_t capacity = pieces->capacity ? 2 * pieces->capacity : 64;
        struct sl_piece *grown = realloc(pieces->at, capacity * sizeof *grown);
        if (!grown) {
            return SL_ERR_EXHAUSTED;
        }
        pieces->at = grown;
        pieces->capacity = capacity;
    }
    pieces->at[pieces->n++] = (struct sl_piece){offset, data, bytes};
    return SL_OK;
}

enum sl_status sl_ship_piece(struct sl_ship *ship, size_t offset, const void *data, size_t bytes) {
    if (offset > ship->ticket.head.bytes || bytes > ship->ticket.head.bytes - offset) {
        return SL_ERR_RANGE;
    }
    pthread_mutex_lock(&ship->lock);
    enum sl_status status = ship->status;
    if (status == SL_OK && (ship->finish_wanted || ship->close_wanted)) {
        status = SL_ERR_PRECONDITION;
    }
    if (status == SL_OK && bytes > 0) {
        status = push_piece(&ship->queued, offset, data, bytes);
        atomic_store(&ship->work, true);
    }
    bool attached = !ship->detached;
    pthread_mutex_unlock(&ship->lock);
    if (attached) {
        sl_fabric_wake(ship->fabric);
    }
    return status;
}

// Ask the progress thread for something, and wait until *done. With the lock held.
static void want(struct sl_ship *ship, bool *wish, const bool *done) {
    *wish = true;
    atomic_store(&ship->work, true);
    if (!ship->detached) {
        sl_fabric_wake(ship->fabric);
    }
    // The progress thread ends every ship: at its deadline, and SL_DRAIN_NS later by closing the connection.
    while (!*done) {
        pthread_cond_wait(&ship->changed, &ship->lock);
    }
}

enum sl_status sl_ship_finish(struct sl_ship *ship, const void *header, size_t header_bytes, struct sl_error *err) {
    if (header_bytes > SL_HEADER_MAX_BYTES) {
        return sl_fail(err, SL_ERR_RANGE, "a header of %zu bytes; at most %u", header_bytes, SL_HEADER_MAX_BYTES);
    }
    pthread_mutex_lock(&ship->lock);
    if (ship->finish_wanted) {
        pthread_mutex_unlock(&ship->lock);
        return sl_fail(err, SL_ERR_PRECONDITION, "the ship was finished before");
    }
    ship->header = header;
    ship->header_bytes = header_bytes;
    want(ship, &ship->finish_wanted, &ship->ended);
    enum sl_status status = ship->status;
    if (status != SL_OK) {
        sl_fail(err, status, "ship to %s: %s", ship->ticket.address, ship->text);
    }
    pthread_mutex_unlock(&ship->lock);
    return status;
}

size_t sl_ship_progress(const struct sl_ship *ship, enum sl_status *status_out) {
    struct sl_ship *locked = (struct sl_ship *)(uintptr_t)ship; // the lock is not part of what is const
    if (status_out) {
        pthread_mutex_lock(&locked->lock);
        *status_out = ship->status;
        pthread_mutex_unlock(&locked->lock);
    }
    return atomic_load(&locked->acked_bytes);
}

const char *sl_ship_verb(const struct sl_ship *ship) {
    return atomic_load(&((struct sl_ship *)(uintptr_t)ship)->verb);
}

void sl_ship_close(struct sl_ship **ship) {
    if (!ship || !*ship) {
        return;
    }
    struct sl_ship *it = *ship;
    pthread_mutex_lock(&it->lock);
    want(it, &it->close_wanted, &it->detached);
    pthread_mutex_unlock(&it->lock);
    pthread_mutex_destroy(&it->lock);
    pthread_cond_destroy(&it->changed);
    free(it->queued.at);
    free(it->taken.at);
    free(it);
    *ship = NULL;
}

// ---- the progress thread's side --------------------------------------------------------------------------------

static void end(struct sl_ship *ship) {
    if (ship->state != SHIP_ENDED) {
        ship->state = SHIP_ENDING;
        ship->ending_ns = sl_now_ns();
    }
}

void sl_ship_fail(struct sl_ship *ship, enum sl_status status, const char *text) {
    if (ship->state == SHIP_ENDING || ship->state == SHIP_ENDED) {
        return;
    }
    pthread_mutex_lock(&ship->lock);
    ship->status = status;
    snprintf(ship->text, sizeof ship->text, "%s", text);
    pthread_mutex_unlock(&ship->lock);
    end(ship);
}

static void on_final_sent(struct sl_peer_send *send, ucs_status_t status) {
    struct sl_ship *ship = send->arg;
    ship->n_outstanding--;
    if (status != UCS_OK) {
        sl_ship_fail(ship, sl_fabric_from_ucs(status), ucs_status_string(status));
    }
}

static void send_final(struct sl_ship *ship) {
    ship->asked_ns = sl_now_ns();
    struct sl_inject *inject = &ship->fabric->inject;
    if (inject->drop_final > 0 && --inject->drop_final == 0) {
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
    sl_peer_send_start(send, SL_WIRE_FINAL, sizeof final, ship->header, ship->header_bytes, NULL);
}

ucs_status_t sl_ship_on_answer(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param) {
    struct sl_fabric *fabric = arg;
    struct sl_wire_answer answer;
    struct sl_peer *peer = sl_peer_heard(fabric, param);
    (void)data;
    if (!peer || header_bytes < sizeof answer) {
        sl_fabric_unexpected(fabric, "ANSWER", header_bytes + bytes);
        return UCS_OK;
    }
    memcpy(&answer, header, sizeof answer);
    answer.text[sizeof answer.text - 1] = '\0';
    struct sl_ship *ship = fabric->ships;
    while (ship && !(ship->id == answer.key.ship_id && ship->peer == peer &&
                     ship->ticket.head.generation == answer.key.generation)) {
        ship = ship->next;
    }
    if (!ship) { // it was closed meanwhile
        return UCS_OK;
    }
    if (answer.status < 0) {
        char text[SL_ANSWER_TEXT_BYTES + 32];
        snprintf(text, sizeof text, "the receiver says: %s", answer.text);
        sl_ship_fail(ship, (enum sl_status)answer.status, text);
    } else if (answer.status == SL_OK && ship->state == SHIP_FINISHING) {
        end(ship);
    } else if (answer.status == SL_INPROGRESS && ship->state == SHIP_CLAIMING) {
        ship->state = SHIP_FLOWING;
    } else if (answer.status == SL_INPROGRESS && ship->state == SHIP_FINISHING &&
               answer.flags == SL_ANSWER_TO_QUERY) { // and not SL_ANSWER_FINAL_SEEN
        send_final(ship);
    }
    return UCS_OK;
}

static bool pump_waiting(struct sl_ship *ship) {
    if (ship->peer->state != PEER_UP) {
        return false;
    }
    struct sl_fabric *fabric = ship->fabric;
    struct sl_error err = {0};
    ship->region = sl_peer_region(ship->peer, &ship->ticket, &err);
    if (!ship->region) {
        sl_ship_fail(ship, err.status, err.text);
        return true;
    }
    bool one_sided = ship->region->one_sided;
    if (fabric->transport == SL_TRANSPORT_SHM && !one_sided) {
        sl_ship_fail(ship, SL_ERR_UNSUPPORTED,
                     "transport shm: the receiver's memory cannot be mapped here (another "
                     "host or container, or a receiver without shared memory)");
        return true;
    }
    char transport[32];
    sl_fabric_transport(ship->peer->ep, transport, sizeof transport);
    snprintf(ship->verb_text, sizeof ship->verb_text, "%s %s", one_sided ? "put" : "am", transport);
    atomic_store(&ship->verb, ship->verb_text);
    struct sl_wire_claim claim = {.key = key_of(ship), .one_sided = one_sided};
    sl_peer_tell(ship->peer, SL_WIRE_CLAIM, &claim, sizeof claim);
    ship->claimed = true;
    ship->state = one_sided ? SHIP_CLAIMING : SHIP_FLOWING;
    return true;
}

// More pieces, when those taken before are used up.
static void take_pieces(struct sl_ship *ship) {
    if (ship->cursor < ship->taken.n || !ship->fresh) {
        return;
    }
    pthread_mutex_lock(&ship->lock);
    struct sl_pieces empty = ship->taken;
    empty.n = 0;
    ship->taken = ship->queued;
    ship->queued = empty;
    pthread_mutex_unlock(&ship->lock);
    ship->cursor = 0;
    ship->fresh = false;
}

static bool pump_flowing(struct sl_ship *ship) {
    bool moved = false;
    take_pieces(ship);
    // Puts through shared memory copy at once: one segment a turn keeps the other ships and the clock going.
    int at_most = ship->region->one_sided ? 1 : INT32_MAX;
    while (at_most-- > 0 && ship->state == SHIP_FLOWING && ship->outstanding_bytes < SL_WINDOW_BYTES &&
           sl_ship_send_segment(ship)) {
        moved = true;
        take_pieces(ship);
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
 * A ship that was given up before it could claim: the owner waits for it all the same, and hears of it as soon as the
 * connection is up. False: not yet.
 */
static bool claim_to_abort(struct sl_ship *ship) {
    if (ship->claimed || !ship->peer || ship->status == SL_OK) {
        return true;
    }
    if (ship->peer->state == PEER_CONNECTING) {
        return sl_now_ns() - ship->ending_ns > SL_DRAIN_NS;
    }
    struct sl_wire_claim claim = {.key = key_of(ship)};
    sl_peer_tell(ship->peer, SL_WIRE_CLAIM, &claim, sizeof claim);
    ship->claimed = true;
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
    pthread_mutex_lock(&ship->lock);
    ship->ended = true;
    pthread_cond_broadcast(&ship->changed);
    pthread_mutex_unlock(&ship->lock);
    return true;
}

// After this the ship is the caller's, who may free it.
static void detach(struct sl_ship *ship) {
    atomic_fetch_sub(&ship->fabric->stats.ships_open, 1);
    pthread_mutex_lock(&ship->lock);
    ship->ended = true;
    ship->detached = true;
    pthread_cond_broadcast(&ship->changed);
    pthread_mutex_unlock(&ship->lock);
}

static bool pump(struct sl_ship *ship) {
    if (atomic_exchange(&ship->work, false)) {
        pthread_mutex_lock(&ship->lock);
        ship->fresh = true;
        ship->finishing = ship->finish_wanted;
        ship->closing = ship->close_wanted;
        pthread_mutex_unlock(&ship->lock);
        if (ship->closing) {
            sl_ship_fail(ship, SL_ERR_CANCELLED, "the sender closed the ship before it was finished");
        }
    }
    switch (ship->state) {
    case SHIP_WAITING:
        return pump_waiting(ship);
    case SHIP_FLOWING:
        return pump_flowing(ship);
    case SHIP_ENDING:
        return pump_ending(ship);
    case SHIP_CLAIMING:
    case SHIP_FINISHING:
    case SHIP_ENDED:
        break;
    }
    return false;
}

bool sl_ships_pump(struct sl_fabric *fabric, int64_t now_ns) {
    (void)now_ns;
    bool moved = false;
    struct sl_ship **at = &fabric->ships;
    while (*at) {
        struct sl_ship *ship = *at;
        moved |= pump(ship);
        if (ship->state == SHIP_ENDED && ship->closing) {
            *at = ship->next;
            detach(ship);
        } else {
            at = &ship->next;
        }
    }
    return moved;
}

void sl_ships_tick(struct sl_fabric *fabric, int64_t now_ns) {
    for (struct sl_ship *ship = fabric->ships; ship; ship = ship->next) {
        if (ship->state < SHIP_ENDING && now_ns > ship->deadline_ns) {
            sl_ship_fail(ship, SL_ERR_DEADLINE, "the ship's deadline passed");
        } else if (ship->state == SHIP_FINISHING && now_ns - ship->asked_ns > SL_REQUERY_NS) {
            struct sl_wire_query query = {.key = key_of(ship)};
            ship->asked_ns = now_ns;
            sl_peer_tell(ship->peer, SL_WIRE_QUERY, &query, sizeof query);
        } else if (ship->state == SHIP_ENDING && ship->n_outstanding > 0 && ship->peer &&
                   now_ns - ship->ending_ns > SL_DRAIN_NS) {
            sl_peer_close(ship->peer, SL_ERR_PEER_LOST, "it does not take what was sent to it");
        }
    }
}

void sl_ships_peer_closing(struct sl_fabric *fabric, struct sl_peer *peer, enum sl_status status, const char *text) {
    for (struct sl_ship *ship = fabric->ships; ship; ship = ship->next) {
        if (ship->peer == peer) {
            sl_ship_fail(ship, status, text);
            ship->peer = NULL;
        }
    }
}

// With a text: fail them. Without: everything is closed, let go of them whatever they wait for.
void sl_ships_end_all(struct sl_fabric *fabric, const char *text) {
    while (!text && fabric->ships) {
        struct sl_ship *ship = fabric->ships;
        fabric->ships = ship->next;
        detach(ship);
    }
    for (struct sl_ship *ship = fabric->ships; ship; ship = ship->next) {
        sl_ship_fail(ship, SL_ERR_CANCELLED, text);
    }
}
