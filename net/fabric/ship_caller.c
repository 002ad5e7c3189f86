// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the caller's half of a ship: its queue of pieces, its requests, its status; all of it under ship->lock, with
 *          `work` to announce changes.
 *
 * Threads: the caller's functions come first; the progress thread's functions on the same half are at the end.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/array.h"
#include "base/locked.h"
#include "net/fabric/ship.h"

// ---- the caller's side -----------------------------------------------------------------------------------------

static enum sl_status push_piece(struct sl_pieces *pieces, const struct sl_piece *piece) {
    struct sl_piece *last = pieces->n > 0 ? &pieces->at[pieces->n - 1] : NULL;
    if (last && !last->device && !piece->device && last->offset + last->bytes == piece->offset &&
        last->data + last->bytes == piece->data) {
        last->bytes += piece->bytes;
        return SL_OK;
    }
    if (!SL_GROW(pieces->at, pieces->n, pieces->capacity)) {
        return SL_ERR_EXHAUSTED;
    }
    pieces->at[pieces->n++] = *piece;
    return SL_OK;
}

static enum sl_status queue_piece(struct sl_ship *ship, const struct sl_piece *piece) {
    if (piece->offset > ship->ticket.head.bytes || piece->bytes > ship->ticket.head.bytes - piece->offset) {
        return SL_ERR_RANGE;
    }
    pthread_mutex_lock(&ship->lock);
    enum sl_status status = ship->status;
    SL_THEN(status, ship->finish_wanted || ship->close_wanted ? SL_ERR_PRECONDITION : SL_OK);
    if (status == SL_OK && piece->bytes > 0) {
        status = push_piece(&ship->queued, piece);
        atomic_store(&ship->work, true);
    }
    bool attached = !ship->detached;
    pthread_mutex_unlock(&ship->lock);
    if (attached) {
        sl_fabric_wake(ship->fabric);
    }
    return status;
}

enum sl_status sl_ship_piece(struct sl_ship *ship, size_t offset, const void *data, size_t bytes) {
    return queue_piece(ship, &(struct sl_piece){.offset = offset, .data = data, .bytes = bytes});
}

static enum sl_ship_straight way_of(const struct sl_ship *ship, const struct sl_region *region) {
    switch (atomic_load(&((struct sl_ship *)(uintptr_t)ship)->way)) {
    case SHIP_NO_WAY_YET:
        return SL_STRAIGHT_UNKNOWN;
    case SHIP_BY_RDMA:
        return SL_STRAIGHT_YES;
    case SHIP_BY_SHARED_MEMORY: // by the processor
        return sl_region_is_cuda(region) ? SL_STRAIGHT_NO : SL_STRAIGHT_YES;
    case SHIP_BY_MESSAGES:
        break;
    }
    return SL_STRAIGHT_NO;
}

enum sl_ship_straight sl_ship_straight(const struct sl_ship *ship, const void *data) {
    struct sl_region *region = sl_fabric_region(ship->fabric, data, 1);
    return !region || !region->seen || atomic_load(&region->failed) ? SL_STRAIGHT_NO : way_of(ship, region);
}

enum sl_status sl_ship_digested(struct sl_ship *ship, size_t offset, const void *data, size_t bytes, uint64_t digest) {
    if (bytes > SL_DIGESTED_MAX_BYTES) {
        return SL_ERR_RANGE;
    }
    struct sl_region *region = sl_fabric_region(ship->fabric, data, bytes);
    if (!region) {
        return SL_ERR_RANGE;
    }
    // Read once: a put of this ship or another may fail at any time, after the caller was told "straight"; that is not
    // the caller's error.
    if (region->seen && atomic_load(&region->failed)) {
        return SL_ERR_PEER_LOST;
    }
    if (!region->seen || way_of(ship, region) != SL_STRAIGHT_YES) {
        return SL_ERR_PRECONDITION;
    }
    return queue_piece(
        ship, &(struct sl_piece){.offset = offset, .data = data, .bytes = bytes, .device = region, .digest = digest});
}

// Requests something from the progress thread. Call with the lock held.
static void want(struct sl_ship *ship, bool *wish) {
    *wish = true;
    atomic_store(&ship->work, true);
    if (!ship->detached) {
        sl_fabric_wake(ship->fabric);
    }
}

enum sl_status sl_ship_end(struct sl_ship *ship, const void *header, size_t header_bytes, struct sl_error *err) {
    SL_FAIL_IF(header_bytes > SL_HEADER_MAX_BYTES, err, SL_ERR_RANGE, "a header of %zu bytes; at most %u", header_bytes,
               SL_HEADER_MAX_BYTES);
    SL_LOCKED(&ship->lock);
    bool again = ship->finish_wanted;
    if (!again) {
        ship->header = header;
        ship->header_bytes = header_bytes;
        want(ship, &ship->finish_wanted);
    }
    return again ? sl_fail(err, SL_ERR_PRECONDITION, "the ship was finished before") : SL_OK;
}

enum sl_status sl_ship_await(struct sl_ship *ship, int64_t until_ns, struct sl_error *err) {
    SL_LOCKED(&ship->lock);
    while (!ship->detached && sl_bell_wait(&ship->changed, &ship->lock, until_ns) == SL_OK) {
    }
    enum sl_status status = ship->detached ? ship->status : SL_AGAIN;
    if (status != SL_OK && status != SL_AGAIN) {
        sl_fail(err, status, "ship to %s: %s", ship->ticket.address, ship->text);
    }
    return status;
}

enum sl_status sl_ship_finish(struct sl_ship *ship, const void *header, size_t header_bytes, struct sl_error *err) {
    enum sl_status status = sl_ship_end(ship, header, header_bytes, err);
    // The progress thread ends every ship: at its deadline, and SL_DRAIN_NS later by closing the connection.
    return status == SL_OK ? sl_ship_await(ship, SL_NO_DEADLINE, err) : status;
}

size_t sl_ship_progress(const struct sl_ship *ship, enum sl_status *status_out) {
    struct sl_ship *locked = (struct sl_ship *)(uintptr_t)ship; // the lock is not part of the const data
    if (status_out) {
        pthread_mutex_lock(&locked->lock);
        *status_out = ship->status;
        pthread_mutex_unlock(&locked->lock);
    }
    return atomic_load(&locked->acked_bytes);
}

const char *sl_ship_mode(const struct sl_ship *ship) {
    return atomic_load(&((struct sl_ship *)(uintptr_t)ship)->mode);
}

void sl_ship_close(struct sl_ship **ship) {
    SL_TAKE_OR_RETURN(it, ship);
    pthread_mutex_lock(&it->lock);
    want(it, &it->close_wanted);
    while (!it->detached) { // see sl_ship_finish()
        sl_bell_wait(&it->changed, &it->lock, SL_NO_DEADLINE);
    }
    pthread_mutex_unlock(&it->lock);
    pthread_mutex_destroy(&it->lock);
    free(it->queued.at);
    free(it->taken.at);
    free(it);
}

// ---- the progress thread's side --------------------------------------------------------------------------------

void sl_ship_see_wishes(struct sl_ship *ship) {
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
}

void sl_ship_take_pieces(struct sl_ship *ship) {
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

void sl_ship_fail(struct sl_ship *ship, enum sl_status status, const char *text) {
    if (ship->state == SHIP_ENDING || ship->state == SHIP_ENDED) {
        return;
    }
    pthread_mutex_lock(&ship->lock);
    ship->status = status;
    snprintf(ship->text, sizeof ship->text, "%s", text);
    pthread_mutex_unlock(&ship->lock);
    ship->state = SHIP_ENDING;
    ship->ending_ns = sl_now_ns();
}

void sl_ship_detach(struct sl_ship *ship) {
    atomic_fetch_sub(&ship->ships->n_open, 1);
    pthread_mutex_lock(&ship->lock);
    ship->detached = true;
    sl_bell_ring(&ship->changed, &ship->lock, INT_MAX);
}
