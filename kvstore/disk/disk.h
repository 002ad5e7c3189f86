// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the disk tier below the capsule cache: keeps capsules that memory evicts, and keeps them when the store
 * ends.
 *
 * Design: a separate thread writes what the capsule cache has taken in, directly from its memory, soon after it came.
 *         So an eviction frees its memory at once, without a copy and without waiting for the disk. A store that is
 *         killed loses only what the thread had not written yet. A capsule that is evicted before that, or comes while
 *         the queue is full, is not written; it is counted as dropped.
 *         A capsule that is found is read back into the arena, cached and pinned, as if it had never left; it stays on
 *         disk too. One is read back at a time, as there is one disk; a second caller for the same capsule finds it on
 *         the capsule cache. When the disk fails, the store goes on without it. The thread opens the folder again after
 *         a pause: pause_ms at first, twice as long after each failure, max_pause_ms at most; after max_pause_ms
 *         without a failure it starts with pause_ms again. It then scans the folder as at a start, because a failure
 *         may have left anything. The log and the statistics report both. When other programs have filled the disk,
 *         capsules are dropped until there is room; those on disk are still found. While the thread is stalled in a
 *         call, as its progress counter tells, no other thread uses the disk. A forgotten capsule is not found any
 *         more. The same thread removes its file, in its turn after earlier offers, or when the store ends. A store
 *         that is killed before, or whose disk fails, still has the file; it is evicted as least recently used.
 * Speed: 64 MiB come back at 1.3 GB/s cold and 2.4 GB/s from the page cache (2 cores of a Sapphire Rapids, virtual
 *        disk); a prompt of 7.8k tokens, models/demo, 24 MB of capsule: 660 ms to its first token when prefilled again,
 *        36 to 180 ms from disk.
 * Threads: any number may offer and recall.
 */
#pragma once

#include "base/progress_counter.h"
#include "kvstore/disk/index.h"
#include "kvstore/memory/room.h"

struct sl_disk;

struct sl_disk_config {
    const char *folder;
    int64_t bytes;
    size_t max_offers; // waiting to be written
    int64_t silent_ms; // if a read takes longer, other threads do not wait for it
    int64_t pause_ms, max_pause_ms;
    // of the disk's thread, initialized by sl_disk_open(); owned by the caller, outlives the
    struct sl_progress_counter *progress_counter;
    // disk
    struct sl_capsule_cache *capsule_cache;
    struct sl_room *room;
    struct sl_protected *protected; // capsules that are not evicted; outlives the disk. NULL: none
    // Holds what is offered and is not in the capsule cache: segments of documents. NULL: it is not there. May be NULL.
    struct sl_stored *(*hold_fn)(void *arg, const struct sl_capsule_id *key);
    void *arg;
};

// Opens the folder. SL_ERR_INVALID, SL_ERR_IO, SL_ERR_PRECONDITION: it cannot be used; err names it and the remedy.
enum sl_status sl_disk_open(const struct sl_disk_config *config, struct sl_disk **disk_out, struct sl_error *err);

// Writes what is in the capsule cache and not yet on disk, most recently used first, until the deadline; then stops.
// Accepts NULL.
void sl_disk_close(struct sl_disk **disk, int64_t deadline_ns);

/*
 * Reports that this capsule was cached or used: it will be written, or counted as used if it is on disk. Never blocks.
 * disk may be NULL, here and below: nothing happens.
 */
void sl_disk_offer(struct sl_disk *disk, const struct sl_capsule_id *key);
// Forgets this whole capsule: it is not found here any more, and its file is removed soon. Never blocks. False: it is
// not on disk now.
bool sl_disk_forget(struct sl_disk *disk, const struct sl_capsule_id *key);

// Finds this whole capsule. False: it is not there, or the disk is not used now. Never blocks.
bool sl_disk_get(struct sl_disk *disk, const struct sl_capsule_id *key, struct sl_disk_entry *entry_out);
// Returns the bytes that this whole capsule takes on disk; 0: as above.
static inline int64_t sl_disk_holds(struct sl_disk *disk, const struct sl_capsule_id *key) {
    struct sl_disk_entry entry;
    return sl_disk_get(disk, key, &entry) ? (int64_t)entry.head.body_bytes : 0;
}
// Returns whether this whole capsule is on disk and has a prefix with this hash. Never blocks.
bool sl_disk_begins_with(struct sl_disk *disk, const struct sl_capsule_id *key, const struct sl_hash128 *prefix_hash);
bool sl_disk_answers(struct sl_disk *disk); // false: it is not used now, or its thread is stalled

// The disk's copy of a capsule that is in memory, as DiskCopy of proto/sluice/v1/worker.proto.
enum sl_disk_copy { SL_DISK_NONE, SL_DISK_WAITING, SL_DISK_WRITTEN, SL_DISK_NO_ROOM, SL_DISK_FAILED };
#define SL_DISK_AGAIN_MS 60000
/*
 * Returns whether a capsule that should be on disk is there. While it is not, its first offer may have been dropped, or the
 * disk was full: offers it at once and then every SL_DISK_AGAIN_MS. The caller holds the capsule. Never blocks.
 */
enum sl_disk_copy sl_disk_keep(struct sl_disk *disk, struct sl_stored *stored);

/*
 * Returns the capsule for the longest of these prefixes (longest first), from the capsule cache or read back to it,
 * pinned (sl_capsule_cache_unpin()); *at_out is the index of that prefix. NULL: there is none, it was damaged, it does
 * not fit, or another one was still being read at the deadline, or for silent_ms. A read that has begun goes on beyond
 * the deadline: the next call finds the capsule in memory.
 */
struct sl_stored *sl_disk_recall(struct sl_disk *disk, const struct sl_prefix *prefixes, size_t n_prefixes,
                                 int64_t deadline_ns, size_t *at_out);

/*
 * Reads this whole capsule into a block of the arena, and does not cache it; the caller owns *capsule_out. SL_ERR_NOT_FOUND:
 * it is not there, or it was damaged and is removed. SL_ERR_EXHAUSTED: no room. SL_ERR_DEADLINE: as above. SL_ERR_IO.
 */
enum sl_status sl_disk_read(struct sl_disk *disk, const struct sl_capsule_id *key, int64_t deadline_ns,
                            struct sl_capsule_bytes *capsule_out, struct sl_error *err);

struct sl_disk_stats {
    int64_t n_capsules, bytes; // on disk
    int64_t n_hits;            // read back
    int64_t n_dropped;         // never written: evicted too soon, too many at once, too large, or no room
    int64_t n_failures;        // including failed attempts to use it again
    int64_t pause_ms;          // after the last failure
    bool is_silent;            // its thread is stalled, or a read
    char failure[384];         // why the disk is not used now; "" while it is
};
void sl_disk_get_stats(struct sl_disk *disk, struct sl_disk_stats *stats_out);
