// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reads the capsules of documents back from the disk to memory, one at a time, before a question needs them.
 *
 * Design: a read may take seconds, so a thread of its own does it, and no call waits for it. A capsule that was not read
 *         back (it is damaged, the disk fails, or no block of its size is free) is tried again after a pause, each time
 *         twice as long: making room for it may have evicted other capsules.
 * Threads: one of its own; the functions from any.
 */
#pragma once

#include "kvstore/disk/disk.h"
#include "kvstore/memory/protected.h"

struct sl_disk_reader;

// Starts the thread. All must outlive it. pause_ms: after the first failure of a capsule. SL_ERR_EXHAUSTED.
enum sl_status sl_read_back_create(struct sl_disk *disk, struct sl_capsule_cache *capsule_cache,
                                   struct sl_protected *protected, int64_t pause_ms, struct sl_disk_reader **reader_out,
                                   struct sl_error *err);
void sl_read_back_destroy(struct sl_disk_reader **reader); // waits for a read that has begun; accepts NULL, nulls

// Offers a whole capsule, and never blocks. False: it has a pause now, so the caller offers the next. True: it is being
// read, or another one is. reader may be NULL: true.
bool sl_read_back_offer(struct sl_disk_reader *reader, const struct sl_prefix *whole);
