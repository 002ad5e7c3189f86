// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the KV store: keeps finished capsules in memory under a byte budget, finds the longest stored prefix of a
 *          prompt and ships it to whoever holds a grant for it; and keeps the offloaded layers of sessions and searches
 *          them where they lie.
 *
 * Design: everything arrives like at a decode worker, in leased inbound transfers (node/inbound.h), and shares one memory
 *         (kvstore/memory/room.h).
 *         Capsules: a keeper thread shelves what has arrived (kvstore/capsules/arrivals.h) and ends pins that nobody renews
 *         (pins.h). Handlers of Fetch send from the shelf; a pinned capsule is not evicted.
 *         What memory cannot keep is found on disk, if the store has one (kvstore/disk/disk.h).
 *         Offloaded layers: a builder thread makes segments of what has arrived and appends them to annexes
 *         (kvstore/annexes/annexes.h); scanning threads answer what decode workers ask about them (kvstore/annexes/questions.h).
 */
#pragma once

#include "node/node.h"

struct sl_kvstore_config {
    struct sl_node_config node; // first: the option table counts on it
    int64_t scan_threads;       // 0: one for each processor
    const char *disk;           // folder; "": none
    int64_t disk_bytes;
    int64_t keep_ms;      // what a job has let go of stays so long unless there is no other room
    double max_scan_load; // above it no annex is opened
};

// The whole life of a worker: open, serve until SIGTERM, close.
enum sl_status sl_kvstore_run(const struct sl_kvstore_config *config, struct sl_error *err);
