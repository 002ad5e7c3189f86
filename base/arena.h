// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: manages all KV memory of a worker: one range of bytes, allocated once and registered once, cut into blocks
 *          of any size.
 *
 * Design: two-level segregated fit: a block of n bytes is found, split, freed and merged with its neighbors in O(1).
 *         The bookkeeping lies outside the range, so that the range may be device memory or memory that other processes
 *         write. An arena may have further ranges, one for each device memory: the caller asks for a block near one of
 *         them, or in any range with room.
 * Invariants: blocks are multiples of SL_ARENA_UNIT bytes and aligned to it; no two free blocks are neighbors.
 * Threads: every function takes the arena's lock; none blocks for any other reason.
 */
#pragma once

#include <stddef.h>

#include "base/status.h"

#define SL_ARENA_UNIT 512

struct sl_arena;

struct sl_arena_stats {
    size_t capacity_bytes;
    size_t used_bytes; // bytes of allocated blocks, rounded up to units
    size_t
        // Largest used_bytes since creation or the last sl_arena_reset_high_water(); with several ranges, the sum of
        // theirs
        high_water_bytes;
    size_t largest_free_bytes;
    size_t n_blocks; // allocated and not yet freed: the leak gauge of the tests
};

/*
 * Creates an arena over [base, base + bytes). The arena never touches the range itself and does not own it; it must
 * outlive the arena. SL_ERR_INVALID: base is not aligned to SL_ARENA_UNIT, or bytes is less than one unit.
 */
enum sl_status sl_arena_create(void *base, size_t bytes, struct sl_arena **arena_out, struct sl_error *err);

// Creates an arena that owns its memory: `bytes` (rounded up) of this process's address space, backed by memory when
// first touched. SL_ERR_EXHAUSTED: the address space has no room for them.
enum sl_status sl_arena_create_mapped(size_t bytes, struct sl_arena **arena_out, struct sl_error *err);

// Appends *more_inout, which must have no allocated blocks, to `arena` as its last range, and nulls it.
#define SL_ARENA_RANGES 16
void sl_arena_join(struct sl_arena *arena, struct sl_arena **more_inout);
int sl_arena_ranges(const struct sl_arena *arena);

// Frees the bookkeeping, and the memory if the arena owns it, and nulls *arena. Accepts NULL. Logs blocks that are
// still allocated, which is a bug of the caller.
void sl_arena_destroy(struct sl_arena **arena);

// Returns the size of the block that an allocation of `bytes` takes. An empty arena can allocate one block as large as
// itself.
static inline size_t sl_arena_rounded(size_t bytes) {
    return (bytes + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT;
}

// Returns a block of at least `bytes` from the first range that has one, or NULL when no free block is large enough
// (back-pressure, not logged).
void *sl_arena_alloc(struct sl_arena *arena, size_t bytes);

// Returns a block like sl_arena_alloc(), from range number `range` (from 0 on) if that has one.
void *sl_arena_alloc_near(struct sl_arena *arena, int range, size_t bytes);

// Frees a block of sl_arena_alloc(). Accepts NULL.
void sl_arena_free(struct sl_arena *arena, void *memory);

// Returns the size of the largest free block if these blocks of sl_arena_alloc() were freed too; sorts memories[n].
size_t sl_arena_largest_if_freed(struct sl_arena *arena, void **memories, size_t n);

void *sl_arena_base(const struct sl_arena *arena); // the start of its first range
void sl_arena_get_stats(struct sl_arena *arena, struct sl_arena_stats *stats_out);
void sl_arena_reset_high_water(struct sl_arena *arena);
