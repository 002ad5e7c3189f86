// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures the costs and savings of searching offloaded layers where they are stored: the scan rate compared
 *          with memory bandwidth, steps of decode over shared memory and TCP, and the bytes that a step transfers.
 *          Cases: keys are sent to the query (pull), the query is sent to the keys (near), and only new rows are
 *          returned (delta).
 *
 * Design: a real kvstore process per transport, filled with random keys and values of one layer. Bytes do not depend
 *         on the transport; the cases "pull", "near" and "delta" report those of the longest prompt. The number of
 *         rows kept from step to step depends on the queries: here they follow a random walk (--drift), and the share
 *         kept is printed with the results.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lab/bench/bench.h"
#include "lab/bench/rig/retrieve_steps.h"
#include "lab/bench/rig/scan_speed.h"
#include "lab/result.h"
#include "base/options/config.h"
#include "engine/runtime/runtime.h"

#define MAX_LENGTHS 8
#define AIM_SCAN    0.8
#define AIM_NEAR    20.0 // factor of fewer bytes than pull at the longest prompt
#define AIM_DELTA   2.0  // factor of fewer bytes than near

struct options {
    const char *tier, *tokens, *transports;
    int64_t heads, group, head_dim, channels, topk, steps, runs;
    double drift;
    bool json;
};

static const struct sl_option option_table[] = {
    {"tokens", 0, SL_OPTION_STRING, "8192,32768,131072", "N,N,...", "lengths of the prompt, ascending",
     SL_FIELD(options, tokens)},
    {"transport", 't', SL_OPTION_STRING, "shm,tcp", "NAME,...", "of the steps", SL_FIELD(options, transports)},
    {"kv-heads", 0, SL_OPTION_INT, "8", "N", "of the layer", SL_FIELD(options, heads), 1, 128},
    {"group", 0, SL_OPTION_INT, "4", "N", "query heads a KV head", SL_FIELD(options, group), 1, 64},
    {"head-dim", 0, SL_OPTION_INT, "128", "N", "of keys and values", SL_FIELD(options, head_dim), 32, 256},
    {"channels", 0, SL_OPTION_INT, "8", "N", "critical channels", SL_FIELD(options, channels), 1, 256},
    {"topk", 0, SL_OPTION_INT, "128", "N", "rows fetched a step and head", SL_FIELD(options, topk), 1, 1 << 16},
    {"steps", 0, SL_OPTION_INT, "200", "N", "steps of a measurement", SL_FIELD(options, steps), 10, 100000},
    {"runs", 0, SL_OPTION_INT, "5", "N", "runs of the scan", SL_FIELD(options, runs), 1, 64},
    {"drift", 0, SL_OPTION_FLOAT, "0.1", "X", "how far a query walks in a step, 0 to 1", SL_FIELD(options, drift), 0,
     1},
    {"tier", 0, SL_OPTION_STRING, "auto", "NAME", "kernels to use", SL_FIELD(options, tier)},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

#define MAX_TRANSPORTS 4

struct bench {
    struct options options;
    int64_t lengths[MAX_LENGTHS];
    int n_lengths;
    char names[128]; // of transports, split
    const char *transports[MAX_TRANSPORTS];
    int n_transports;
    struct sl_signals signals;
    struct sl_runtime computing; // runtime with one thread
    struct sl_store_rig stores[MAX_TRANSPORTS];
};

static void print(const struct bench *b, const char *name, double value, const char *unit) {
    sl_bench_print(&(struct sl_bench_result){.bench = "retrieve", .test = name, .value = value, .unit = unit},
                   b->options.json);
}

// --- options ---------------------------------------------------------------------------------------------------------

static enum sl_status check(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    const struct options *o = &b->options;
    enum sl_status status = sl_store_rig_lengths(o->tokens, b->lengths, MAX_LENGTHS, &b->n_lengths, err);
    snprintf(b->names, sizeof b->names, "%s", o->transports);
    for (char *rest = b->names; rest != NULL && b->n_transports < MAX_TRANSPORTS;) {
        b->transports[b->n_transports++] = strsep(&rest, ",");
    }
    SL_FAIL_IF(o->channels > o->head_dim, err, SL_ERR_INVALID, "--channels %" PRId64 ": keys have %" PRId64,
               o->channels, o->head_dim);
    return status;
}

// --- the scan --------------------------------------------------------------------------------------------------------

static enum sl_status measure_scan(struct bench *b, struct sl_error *err) {
    static const enum sl_kv_format formats[] = {SL_KV_F16, SL_KV_INT8, SL_KV_INT1};
    enum sl_status status = SL_OK;
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        for (int i = 0; i < b->n_lengths && status == SL_OK; i++) {
            struct sl_scan_speed_config config = {.ops = b->computing.ops,
                                                  .team = b->computing.team,
                                                  .format = formats[f],
                                                  .head_dim = (int)b->options.head_dim,
                                                  .n_channels = (int)b->options.channels,
                                                  .n_slots = (uint32_t)b->lengths[i],
                                                  .runs = (int)b->options.runs,
                                                  .signals = &b->signals};
            struct sl_scan_speed speed;
            sl_bench_progress("scan of %" PRId64 " tokens, %s", b->lengths[i], sl_kv_format_name(formats[f]));
            SL_TRY(sl_scan_speed_measure(&config, (uint32_t)b->options.topk, &speed, err));
            char name[96];
            snprintf(name, sizeof name, "scan %s, %" PRId64 " tokens, one thread", sl_kv_format_name(formats[f]),
                     b->lengths[i]);
            sl_bench_print(&(struct sl_bench_result){.bench = "retrieve",
                                                     .test = name,
                                                     .value = speed.scan_gbps,
                                                     .unit = "GB/s",
                                                     .reference = "its reading",
                                                     .reference_value = speed.read_gbps,
                                                     .ratio_value = speed.scan_gbps,
                                                     .paired_ratio = speed.ratio,
                                                     .aim = formats[f] == SL_KV_F16 ? AIM_SCAN : 0},
                           b->options.json);
            snprintf(name, sizeof name, "finding the largest, %s, %" PRId64 " tokens", sl_kv_format_name(formats[f]),
                     b->lengths[i]);
            print(b, name, 100 * speed.select_share, "% of scan");
        }
    }
    return status;
}

// --- steps -----------------------------------------------------------------------------------------------------------

struct way {
    const char *name, *words;
};
static const struct way ways[] = {
    {"pull", "retrieve=pull,keep=0"},
    {"near", "retrieve=near,keep=0"},
    {"delta", "retrieve=near"}, // keeps as many rows as a step finds
};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

struct shape {
    int sinks, recent, topk, channels;
};

static enum sl_status run_way(const struct bench *b, struct sl_store_rig *store, const struct way *way,
                              const struct shape *shape, int64_t n_tokens, struct sl_retrieve_steps *steps_out,
                              struct sl_error *err) {
    char recipe[256];
    snprintf(recipe, sizeof recipe, "full,place=offload/1,scope=sinks:%d+recent:%d,topk=%d,channels=%d,%s",
             shape->sinks, shape->recent, shape->topk, shape->channels, way->words);
    struct sl_retrieve_steps_config config = {.store = store,
                                              .ops = b->computing.ops,
                                              .stream = b->computing.stream,
                                              .recipe = recipe,
                                              .n_heads = (int)b->options.heads,
                                              .group = (int)b->options.group,
                                              .head_dim = (int)b->options.head_dim,
                                              .n_tokens = n_tokens,
                                              .n_steps = (int)b->options.steps,
                                              .drift = b->options.drift};
    return sl_retrieve_steps_run(&config, steps_out, err);
}

static void print_latency(const struct bench *b, const char *transport, const char *way, int64_t n_tokens,
                          const struct sl_retrieve_steps *steps) {
    char name[96];
    const double values[] = {steps->p50_us, steps->p99_us, steps->store_us};
    static const char *const whats[] = {"p50", "p99", "search"};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s over %s, %" PRId64 " tokens, %s", way, transport, n_tokens, whats[i]);
        print(b, name, values[i], "us/layer");
    }
}

// Prints the bytes of a step, for all offloaded heads of the layer; each mode is compared with the one that it
// improves on.
static void print_bytes(const struct bench *b, const char *suffix, const struct sl_retrieve_steps steps[N_WAYS],
                        bool aims) {
    static const double aim[N_WAYS] = {0, AIM_NEAR, AIM_DELTA};
    for (int w = 0; w < N_WAYS; w++) {
        char name[96];
        snprintf(name, sizeof name, "%s%s", ways[w].name, suffix);
        struct sl_bench_result result = {
            .bench = "retrieve", .test = name, .value = steps[w].bytes, .unit = "bytes/step"};
        if (w > 0) { // factor of fewer bytes
            result.reference = w == 1 ? "fewer than pull" : "fewer than near";
            result.reference_value = steps[w].bytes;
            result.ratio_value = steps[w - 1].bytes;
            result.aim = aims ? aim[w] : 0;
            result.as_factor = true;
        }
        sl_bench_print(&result, b->options.json);
    }
    char name[96];
    snprintf(name, sizeof name, "rows kept from step to step%s", suffix);
    print(b, name, 100 * steps[2].kept, "%");
}

static enum sl_status measure_length(struct bench *b, int t, int64_t n_tokens, struct sl_error *err) {
    const struct options *o = &b->options;
    bool longest = n_tokens == b->lengths[b->n_lengths - 1];
    struct sl_store_filling filling = {.n_offloaded_heads = (int)o->heads,
                                       .head_dim = (int)o->head_dim,
                                       .n_tokens = n_tokens,
                                       .segment_tokens = 512,
                                       .rows = SL_KV_F16,
                                       .scan = SL_KV_F16};
    double seconds;
    enum sl_status status = sl_store_rig_fill(&b->stores[t], &filling, &b->signals, &seconds, err);
    struct sl_retrieve_steps steps[N_WAYS];
    struct shape shape = {8, 56, (int)o->topk, (int)o->channels};
    for (int w = 0; w < N_WAYS && status == SL_OK; w++) {
        sl_bench_progress("%s over %s, %" PRId64 " tokens", ways[w].name, b->transports[t], n_tokens);
        status = run_way(b, &b->stores[t], &ways[w], &shape, n_tokens, &steps[w], err);
        if (status == SL_OK) {
            print_latency(b, b->transports[t], ways[w].name, n_tokens, &steps[w]);
        }
    }
    if (status != SL_OK || t > 0) {
        return status; // bytes were printed with the first transport
    }
    char suffix[48] = "";
    if (!longest) {
        snprintf(suffix, sizeof suffix, ", %" PRId64 " tokens", n_tokens);
    }
    print_bytes(b, suffix, steps, longest);
    if (longest) { // the paper's larger configuration
        shape = (struct shape){64, 64, 896, 12};
        for (int w = 0; w < N_WAYS && status == SL_OK; w++) {
            status = run_way(b, &b->stores[t], &ways[w], &shape, n_tokens, &steps[w], err);
        }
        if (status == SL_OK) {
            print_bytes(b, ", 128(+896)", steps, false);
        }
    }
    return status;
}

// --- the whole -------------------------------------------------------------------------------------------------------

static enum sl_status start_stores(struct bench *b, struct sl_error *err) {
    int64_t tokens = b->lengths[b->n_lengths - 1], d = b->options.head_dim;
    char arena[32]; // pages and key indexes, and the arriving segment
    snprintf(arena, sizeof arena, "%" PRId64 "M", (tokens * b->options.heads * d * 7 >> 20) + 256);
    enum sl_status status = SL_OK;
    for (int t = 0; t < b->n_transports && status == SL_OK; t++) {
        status = sl_store_rig_start(&b->stores[t], b->transports[t], arena, stderr, err);
    }
    return status;
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    enum sl_status status = start_stores(b, err); // forks: before this process has threads
    if (status == SL_OK) {
        sl_rpc_init();
        status =
            sl_runtime_open(&(struct sl_runtime_config){.tier = b->options.tier, .threads = 1}, &b->computing, err);
    }
    SL_THEN(status, measure_scan(b, err));
    for (int t = 0; t < b->n_transports && status == SL_OK; t++) {
        status = sl_store_rig_connect(&b->stores[t], b->transports[t], err);
        for (int i = 0; i < b->n_lengths && status == SL_OK; i++) {
            status = measure_length(b, t, b->lengths[i], err);
        }
        sl_store_rig_close(&b->stores[t]);
    }
    for (int t = 0; t < b->n_transports; t++) {
        sl_store_rig_close(&b->stores[t]);
    }
    sl_runtime_close(&b->computing);
    return status;
}

SL_BENCH(retrieve, "[options]",
         "Measure retrieval from offloaded layers: scan speed, latency over each transport, bytes a step.",
         .check = check);
