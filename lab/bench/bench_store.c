// SPDX-License-Identifier: Apache-2.0
// Purpose: the options of `sluice bench store`, which lab/bench/store runs.
#include "base/options/config.h"
#include "lab/bench/bench.h"
#include "lab/bench/store/store_bench.h"
#include "lab/result.h"

struct options {
    int64_t largest, clients, entries, runs;
    bool json;
};

static const struct sl_option option_table[] = {
    {"largest", 0, SL_OPTION_SIZE, "64M", "SIZE", "of the capsules of 64 KiB, 1 MiB and 64 MiB",
     SL_FIELD(options, largest), 64 << 10, 64 << 20},
    {"clients", 0, SL_OPTION_INT, "8", "N", "measured after one", SL_FIELD(options, clients), 1,
     SL_STORE_BENCH_MAX_CLIENTS},
    {"entries", 0, SL_OPTION_INT, "1000000", "N", "keys in the index when chains are looked up",
     SL_FIELD(options, entries), 1024, 20000000},
    {"runs", 0, SL_OPTION_INT, "5", "N", "of each, by turns", SL_FIELD(options, runs), 1, SL_BENCH_MAX_TURNS},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

struct bench {
    struct options options;
    struct sl_signals signals;
};

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    const struct options *o = &b->options;
    return sl_store_bench_run(
        &(struct sl_store_bench_config){o->largest, o->clients, o->entries, o->runs, o->json, &b->signals}, err);
}

const struct sl_bench sl_bench_store = {
    .name = "sluice bench store",
    .usage = "[options]",
    .summary = "Measure a kvstore against Redis: PUT and GET of capsules; and the look-up of long prompts.",
    SL_OPTIONS(option_table),
    .bytes = sizeof(struct bench),
    .signals = offsetof(struct bench, signals),
    .run = run,
};
