// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the disk below the shelf: capsules stay there when memory wants their place, and when the store ends.
 *
 * Design: a thread of its own writes what the shelf has taken in, from where it lies, soon after it came. So an eviction
 *         gives its memory back at once, without a copy and without waiting for the disk, and a store that is killed loses
 *         only what the thread had not come to. What is evicted before that, and what comes while the queue is full, is
 *         dropped and counted.
 *         A capsule that is found is read back into the arena, shelved and pinned, as if it had never left; it stays on disk
 *         too. One is read back at a time: the disk is one, and whoever waited for the same capsule finds it on the shelf.
 *         When the disk fails, the store goes on without it, and its thread opens the folder anew after a pause: pause_ms at first, twice as
 *         long after each failure, max_pause_ms at most; after max_pause_ms without a failure it begins with pause_ms again. What is
 *         there is found out by looking, as at a start: a failure may have left anything. Both are said in the log, and in the
 *         statistics. When others have filled the disk, capsules are dropped until there is room, and those that are there are found.
 *         While the thread stands still in a call, as its pulse tells, nobody else asks the disk.
 *         What nobody will ask for any more is not found from then on, and its file is removed by the same thread, in its turn behind what
 *         was offered before, and when the store ends. One that is killed before, or whose disk fails, has the file still: it goes as what
 *         was used longest ago.
 * Speed: 64 MiB come back at 1.3 GB/s cold and 2.4 GB/s from the page cache (2 cores of a Sapphire Rapids, virtual disk);
 *        a prompt of 7.8k tokens, models/demo, 24 MB of capsule: 660 ms to its first token read anew, 36 to 180 from disk.
 * Threads: any number may offer and recall.
 */
#pragma once

#include "base/pulse.h"
#include "kvstore/memory/room.h"

struct sl_disk;

struct sl_disk_config {
    const char *folder;
    int64_t bytes;
    size_t max_offers; // waiting to be written
    int64_t silent_ms; // a reading that takes longer is waited for by nobody else
    int64_t pause_ms, max_pause_ms;
    struct sl_pulse *pulse; // of the disk's thread, made by sl_disk_open(): the caller's, outlives the disk
    struct sl_shelf *shelf;
    struct sl_room *room;
};

// SL_ERR_INVALID, SL_ERR_IO, SL_ERR_PRECONDITION: the folder cannot be used; err names it and the remedy.
enum sl_status sl_disk_open(const struct sl_disk_config *config, struct sl_disk **disk_out, struct sl_error *err);

// Write what is on the shelf and not yet on disk, last used first, until the deadline; then stop. Accepts NULL.
void sl_disk_close(struct sl_disk **disk, int64_t deadline_ns);

/*
 * This capsule has been shelved, or used: it will be written, or counted as used if it is there. Never blocks. disk may be
 * NULL, here and below: nothing happens.
 */
void sl_disk_offer(struct sl_disk *disk, const struct sl_capsule_id *key);
// Nobody will ask for this capsule, whole, any more: it is not found here, and its file goes soon. Never blocks. False: it is not on disk now.
bool sl_disk_forget(struct sl_disk *disk, const struct sl_capsule_id *key);

/*
 * The capsule for the longest of these prefixes (longest first), from the shelf or read back to it, pinned
 * (sl_shelf_unpin()); *at_out is which prefix it is. NULL: there is none, it was damaged, it does not fit, or another was
 * still being read at the deadline, or for silent_ms. A reading that has begun goes on beyond the deadline: who asks again finds it in
 * memory.
 */
struct sl_stored *sl_disk_recall(struct sl_disk *disk, const struct sl_prefix *prefixes, size_t n_prefixes,
                                 int64_t deadline_ns, size_t *at_out);

struct sl_disk_stats {
    int64_t n_capsules, bytes; // on disk
    int64_t n_hits;            // read back
    int64_t n_dropped;         // never written: evicted too soon, too many at once, too large, or no room
    int64_t n_failures;        // and attempts to use it again that failed
    int64_t pause_ms;          // behind the last of them
    bool is_silent;            // its thread stands still, or a reading
    char failure[384];         // why the disk is not used now; "" while it is
};
void sl_disk_get_stats(struct sl_disk *disk, struct sl_disk_stats *stats_out);
