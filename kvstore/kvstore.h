// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the KV store: keeps finished capsules in memory under a byte budget, finds the longest stored prefix of a
 *          prompt, and ships it to a worker that holds a grant for it. It also keeps the offloaded layers of sessions
 *          and searches them in place.
 *
 * Design: everything arrives as at a decode worker, in leased inbound transfers (net/node/inbound.h), and shares one memory
 *         (kvstore/memory/room.h).
 *         Capsules: a keeper thread caches what has arrived (kvstore/capsules/arrivals.h) and ends pins that were not
 *         renewed (pins.h). Handlers of Fetch send from the capsule cache; a pinned capsule is not evicted. A store
 *         with a disk finds there what memory cannot keep (kvstore/disk/disk.h). Offloaded layers: a builder thread
 *         makes segments of what has arrived and appends them to remote KVs (kvstore/remote_kv/remote_kv_table.h);
 *         scanning threads answer questions of decode workers (kvstore/remote_kv/questions.h).
 */
#pragma once

#include "net/node/node.h"

struct sl_kvstore_config {
    struct sl_node_config node; // first: the option table relies on it
    int64_t scan_threads;       // 0: one per processor
    const char *disk;           // folder; "": none
    int64_t disk_bytes;
    int64_t keep_ms;      // released KV stays this long unless there is no other room
    double max_scan_load; // above it no remote KV is opened
    const char *evict;    // name of a policy (kvstore/memory/eviction.h)
    int64_t ttl_ms;       // for policy ttl
};

// Checks the options that a kvstore alone has. SL_ERR_INVALID names the option.
enum sl_status sl_kvstore_config_check(const struct sl_node_config *config, struct sl_error *err);

// Runs a worker: opens it, serves until SIGTERM, closes it. config: the `node` of a struct sl_kvstore_config.
enum sl_status sl_kvstore_run(const struct sl_node_config *config, struct sl_error *err);
