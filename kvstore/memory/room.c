// SPDX-License-Identifier: Apache-2.0
#include "kvstore/memory/room.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"

// When more than HIGH of the arena is taken, evict down to LOW before new data comes in.
#define HIGH_PERCENT 90
#define LOW_PERCENT  85
#define ALARM_MS     60000
#define NO_MERCY     INT64_MAX // used instead of the current time: nothing evictable is passed over

void sl_room_init(struct sl_room *room, struct sl_ledger *ledger, struct sl_inbound *inbound,
                  struct sl_capsule_cache *capsule_cache, struct sl_kv_segments *segments) {
    *room = (struct sl_room){.arena = sl_ledger_arena(ledger),
                             .ledger = ledger,
                             .inbound = inbound,
                             .capsule_cache = capsule_cache,
                             .segments = segments};
    pthread_mutex_init(&room->mutex, NULL);
}

void sl_room_cleanup(struct sl_room *room) {
    pthread_mutex_destroy(&room->mutex);
}

static bool evict_one(struct sl_room *room, int64_t now_ns) {
    int64_t capsule_cache_ns = sl_capsule_cache_oldest_ns(room->capsule_cache, now_ns);
    int64_t segments_ns = sl_kv_segments_oldest_ns(room->segments, now_ns);
    return capsule_cache_ns < segments_ns ? sl_capsule_cache_evict_one(room->capsule_cache, now_ns)
                                          : sl_kv_segments_evict_one(room->segments, now_ns);
}

bool sl_room_evict_one(struct sl_room *room) {
    return evict_one(room, sl_capsule_cache_now_ns(room->capsule_cache)) || evict_one(room, NO_MERCY);
}

// Returns used and promised bytes, without `covered_bytes` of the promises.
static size_t taken_bytes(struct sl_room *room, size_t covered_bytes) {
    struct sl_arena_stats arena;
    sl_arena_get_stats(room->arena, &arena);
    return arena.used_bytes + sl_ledger_promised_bytes(room->ledger) - covered_bytes;
}

static bool has_block(struct sl_room *room, size_t bytes) {
    struct sl_arena_stats stats;
    sl_arena_get_stats(room->arena, &stats);
    return stats.largest_free_bytes >= bytes;
}

/*
 * Fails if there is no block of this size, and evicting all capsules would not make one, because memory in use lies
 * between them. Does not check when segments can be evicted too. Call with the lock held, before anything is evicted.
 */
static enum sl_status foresee_block(struct sl_room *room, const char *label, size_t bytes, struct sl_error *err) {
    struct sl_capsule_cache_stats capsules;
    struct sl_kv_segments_stats segments;
    sl_capsule_cache_get_stats(room->capsule_cache, &capsules);
    sl_kv_segments_get_stats(room->segments, &segments);
    size_t max = (size_t)capsules.n_capsules;
    void **bodies = has_block(room, bytes) || segments.evictable_bytes > 0 ? NULL : malloc((max + 1) * sizeof *bodies);
    if (!bodies) {
        return SL_OK;
    }
    size_t n = sl_capsule_cache_evictable(room->capsule_cache, bodies, max);
    size_t largest = sl_arena_largest_if_freed(room->arena, bodies, n);
    free(bodies);
    SL_FAIL_IF(largest < bytes, err, SL_ERR_EXHAUSTED,
               "%s: no block of %zu bytes can be free: memory in use lies between, and leaves at "
               "most %zu in a row; retry in 500 ms",
               label, bytes, largest);
    return SL_OK;
}

// Call with the lock held. block_bytes of the bytes have to be one block; 0: none.
static enum sl_status make_room(struct sl_room *room, const char *label, size_t wanted_bytes, size_t covered_bytes,
                                size_t block_bytes, struct sl_error *err) {
    struct sl_arena_stats arena;
    struct sl_capsule_cache_stats capsule_cache;
    struct sl_kv_segments_stats segments;
    sl_arena_get_stats(room->arena, &arena);
    sl_capsule_cache_get_stats(room->capsule_cache, &capsule_cache);
    sl_kv_segments_get_stats(room->segments, &segments);
    size_t taken = taken_bytes(room, covered_bytes),
           evictable = capsule_cache.evictable_bytes + segments.evictable_bytes;
    size_t fixed = taken > evictable ? taken - evictable : 0;
    SL_FAIL_IF(wanted_bytes > arena.capacity_bytes || fixed > arena.capacity_bytes - wanted_bytes, err,
               SL_ERR_EXHAUSTED,
               "%s: %zu bytes do not fit: arena %zu, of which %zu are in use or promised and cannot be evicted; "
               "retry in 500 ms",
               label, wanted_bytes, arena.capacity_bytes, fixed);
    SL_TRY(block_bytes > 0 ? foresee_block(room, label, block_bytes, err) : SL_OK);
    if (taken + wanted_bytes > arena.capacity_bytes / 100 * HIGH_PERCENT) {
        int64_t now_ns = sl_capsule_cache_now_ns(room->capsule_cache);
        while (taken_bytes(room, covered_bytes) + wanted_bytes > arena.capacity_bytes / 100 * LOW_PERCENT &&
               evict_one(room, now_ns)) {
        }
        while (taken_bytes(room, covered_bytes) + wanted_bytes > arena.capacity_bytes && evict_one(room, NO_MERCY)) {
        }
    }
    return SL_OK;
}

// Call with the lock held, at the end of every request for room. A store whose memory cannot be evicted refuses every
// request; the log tells the operator.
static enum sl_status tell(struct sl_room *room, enum sl_status status, const struct sl_error *why,
                           struct sl_error *err) {
    if (status == SL_ERR_EXHAUSTED) {
        atomic_fetch_add(&room->n_refused, 1);
        room->n_not_told++;
    }
    if (room->n_not_told > 0 && sl_now_ns() >= room->alarm_at_ns) {
        sl_log_warn("kvstore", "no room, and nothing more can be evicted: refused=%lld since this was said last: %s",
                    (long long)room->n_not_told, status == SL_OK ? "now there is" : why->text);
        room->n_not_told = 0;
        room->alarm_at_ns = sl_deadline_in_ms(ALARM_MS);
    }
    return status == SL_OK ? SL_OK : sl_fail(err, status, "%s", why->text);
}

enum sl_status sl_room_promise(struct sl_room *room, const char *label, size_t bytes, struct sl_error *err) {
    struct sl_error why = {0};
    SL_LOCKED(&room->mutex);
    enum sl_status status = make_room(room, label, bytes, 0, 0, &why);
    if (status == SL_OK && sl_ledger_try_promise(room->ledger, bytes) != SL_OK) {
        status =
            sl_fail(&why, SL_ERR_EXHAUSTED, "%s: %zu bytes do not fit beside %zu in use or promised; retry in 500 ms",
                    label, bytes, taken_bytes(room, 0));
    }
    status = tell(room, status, &why, err);
    return status;
}

enum sl_status sl_room_open_inbound(struct sl_room *room, const char *label, size_t body_bytes, size_t promised_bytes,
                                    size_t covered_bytes, struct sl_inbound_ticket *ticket_out, struct sl_error *err) {
    struct sl_error why = {0};
    SL_LOCKED(&room->mutex);
    enum sl_status status = make_room(room, label, body_bytes + promised_bytes, covered_bytes, body_bytes, &why);
    if (status == SL_OK) {
        while (!has_block(room, body_bytes) && sl_room_evict_one(room)) { // an inbound transfer is one contiguous block
        }
        sl_ledger_return(room->ledger, covered_bytes);
        status = sl_inbound_open(room->inbound, label, body_bytes, promised_bytes, ticket_out, &why);
        if (status != SL_OK) {
            sl_ledger_promise_again(room->ledger, covered_bytes);
        }
    }
    status = tell(room, status, &why, err);
    return status;
}

enum sl_status sl_room_take_block(struct sl_room *room, const char *label, size_t bytes, void **block_out,
                                  struct sl_error *err) {
    struct sl_error why = {0};
    SL_LOCKED(&room->mutex);
    enum sl_status status = make_room(room, label, bytes, 0, bytes, &why);
    if (status == SL_OK) {
        while (!has_block(room, bytes) && sl_room_evict_one(room)) {
        }
        void *block = sl_arena_alloc(room->arena, bytes);
        if (block) {
            *block_out = block;
        } else {
            status =
                sl_fail(&why, SL_ERR_EXHAUSTED, "%s: no block of %zu bytes is free; retry in 500 ms", label, bytes);
        }
    }
    status = tell(room, status, &why, err);
    return status;
}
