// SPDX-License-Identifier: Apache-2.0
// sluice-kvstore: keeps capsules and offloaded layers.
#include "kvstore/kvstore.h"
#include "kvstore/memory/eviction.h"

static const struct sl_option options[] = {
    SL_NODE_OPTIONS("kvstore-0", "64"),
    {"scan-threads", 0, SL_OPTION_INT, "0", "N", "threads that search offloaded layers; 0 is one for each processor",
     SL_FIELD(sl_kvstore_config, scan_threads), 0, 1024},
    {"pin", 0, SL_OPTION_FLAG, "no", NULL,
     "give each of them a processor of its own; for a store that shares its processors with none",
     SL_FIELD(sl_kvstore_config, node.pin)},
    {"max-scan-load", 0, SL_OPTION_FLOAT, "0.9", "SHARE",
     "busy share of their time above which the store accepts no further session",
     SL_FIELD(sl_kvstore_config, max_scan_load), 0, 1},
    {"keep", 0, SL_OPTION_DURATION, "60s", "TIME",
     "keep what a job has released for this time, unless there is no other room", SL_FIELD(sl_kvstore_config, keep_ms),
     0, 86400000},
    {"evict", 0, SL_OPTION_STRING, SL_EVICTION_DEFAULT, "POLICY",
     "how to choose the capsule that memory and disk evict: cost (least time to read again for a byte and its age), "
     "lru, ttl, share (of tenants with more than an equal share)",
     SL_FIELD(sl_kvstore_config, evict)},
    {"ttl", 0, SL_OPTION_DURATION, SL_EVICTION_TTL, "TIME",
     "with --evict ttl: evict capsules first that were stored longer ago than this",
     SL_FIELD(sl_kvstore_config, ttl_ms), 0, 31536000000},
    {"disk", 0, SL_OPTION_STRING, "", "DIR", "folder that keeps capsules when memory does not, and over restarts",
     SL_FIELD(sl_kvstore_config, disk)},
    {"disk-bytes", 0, SL_OPTION_SIZE, "0", "SIZE",
     "all that the folder may take; keys take up to a 64th of it in memory, 4M at least, 1G at most",
     SL_FIELD(sl_kvstore_config, disk_bytes)},
    {"tier", 0, SL_OPTION_STRING, "auto", "NAME", "instruction set of the search",
     SL_FIELD(sl_kvstore_config, node.tier)},
};

int main(int argc, char **argv) {
    static const struct sl_program program = {
        .name = "sluice-kvstore",
        .usage = "[options]",
        .summary = "KV store of a Sluice cluster: keeps finished capsules in memory and ships them to workers that can "
                   "use them; keeps the offloaded layers of sessions and searches them for decode workers.",
        SL_OPTIONS(options),
    };
    struct sl_kvstore_config config = {.node = {.check_fn = sl_kvstore_config_check}};
    return sl_node_main(&program, argc, argv, &config.node, sl_kvstore_run);
}
