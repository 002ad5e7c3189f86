// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: all KV memory of a worker. One range of bytes, taken once and registered once, cut into blocks of any size.
 *
 * Design: two-level segregated fit: a block of n bytes is found, split, freed and merged with its neighbours in O(1).
 *         The bookkeeping lies outside the range, so that the range may be device memory or memory that others write.
 *         An arena may have further ranges, as several devices have memories: a block is near one of them, or where there is room.
 * Invariants: blocks are multiples of SL_ARENA_UNIT bytes and aligned to it; no two free blocks are neighbours.
 * Threads: every function takes the arena's lock; none blocks for longer than that.
 */
#pragma once

#include <stddef.h>

#include "base/status.h"

#define SL_ARENA_UNIT 512

struct sl_arena;

struct sl_arena_stats {
    size_t capacity_bytes;
    size_t used_bytes; // in blocks handed out, rounded up to units
    size_t
        high_water_bytes; // largest used_bytes since creation or the last sl_arena_reset_high_water(); of several ranges the sum of theirs
    size_t largest_free_bytes;
    size_t n_blocks; // handed out and not yet freed: the leak gauge of the tests
};

/*
 * Manage [base, base + bytes). The arena never touches the range itself and does not own it; it must outlive the arena.
 * SL_ERR_INVALID: base is not aligned to SL_ARENA_UNIT, or bytes is less than one unit.
 */
enum sl_status sl_arena_create(void *base, size_t bytes, struct sl_arena **arena_out, struct sl_error *err);

// The same over memory of its own: `bytes` (rounded up) of this process's address space, touched as they are used.
// SL_ERR_EXHAUSTED: the address space does not have them.
enum sl_status sl_arena_create_mapped(size_t bytes, struct sl_arena **arena_out, struct sl_error *err);

// *more_inout, of which nothing was handed out, becomes the last range of `arena`, and is nulled.
#define SL_ARENA_RANGES 16
void sl_arena_join(struct sl_arena *arena, struct sl_arena **more_inout);
int sl_arena_ranges(const struct sl_arena *arena);

// Frees the bookkeeping, and the memory where it is its own, and nulls *arena. Accepts NULL. Blocks still handed out are a bug of the caller: logged.
void sl_arena_destroy(struct sl_arena **arena);

// What a block of `bytes` takes: an arena that is empty has a block of as many as it was created with.
static inline size_t sl_arena_rounded(size_t bytes) {
    return (bytes + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT;
}

// A block of at least `bytes`, or NULL when no free block is large enough (back-pressure, not logged). Of several ranges in the first that has one.
void *sl_arena_alloc(struct sl_arena *arena, size_t bytes);

// The same in a range, from 0 on, where that has one.
void *sl_arena_alloc_near(struct sl_arena *arena, int range, size_t bytes);

// Return a block of sl_arena_alloc(). NULL is allowed.
void sl_arena_free(struct sl_arena *arena, void *memory);

void *sl_arena_base(const struct sl_arena *arena); // of its first range
void sl_arena_get_stats(struct sl_arena *arena, struct sl_arena_stats *stats_out);
void sl_arena_reset_high_water(struct sl_arena *arena);
