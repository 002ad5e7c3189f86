// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: compares the eviction policies of a store by replaying a trace against its memory.
 *
 * Design: store_replay.c runs the store's code under the trace's time. The limit is a store that never evicts. Without a
 *         trace the bench draws conversations from --seed.
 */
#include <stdlib.h>
#include <string.h>

#include "lab/bench/bench.h"
#include "lab/bench/rig/synthetic.h"
#include "lab/bench/replay/replay_report.h"
#include "lab/picture.h"
#include "lab/result.h"

struct options {
    const char *trace, *sizes, *geometry, *format, *png;
    int64_t keep_ms, ttl_ms, requests, seed, tenants;
    double token_us;
    bool json;
};

static const struct sl_option option_table[] = {
    {"trace", 0, SL_OPTION_STRING, NULL, "FILE",
     "Mooncake's format (timestamp, input_length, output_length, hash_ids), for example conversation_trace.jsonl of "
     "github.com/kvcache-ai/Mooncake; without it: conversations drawn from --seed",
     SL_FIELD(options, trace)},
    {"store-bytes", 0, SL_OPTION_STRING, "64G,128G,256G,512G,1T", "LIST", "sizes of the store's memory, up to 2T",
     SL_FIELD(options, sizes)},
    {"geometry", 0, SL_OPTION_STRING, "8b", "NAME", "model: 135m, 1b or 8b, with all layers",
     SL_FIELD(options, geometry)},
    {"format", 0, SL_OPTION_STRING, "int8", "FORMAT", "format of full pages: f16, int8 or int4",
     SL_FIELD(options, format)},
    {"token-us", 0, SL_OPTION_FLOAT, "100", "TIME", "microseconds that reading a prompt's first token takes",
     SL_FIELD(options, token_us), 1e-3, 1e6},
    {"keep", 0, SL_OPTION_DURATION, "60s", "TIME", "--keep of the store", SL_FIELD(options, keep_ms), 0, 86400000},
    {"ttl", 0, SL_OPTION_DURATION, SL_EVICTION_TTL, "TIME", "--ttl of the store", SL_FIELD(options, ttl_ms), 0,
     31536000000},
    {"tenant-count", 0, SL_OPTION_INT, "1", "N", "tenants of unequal size that the conversations are divided among",
     SL_FIELD(options, tenants), 1, SL_REPLAY_MAX_TENANTS},
    {"requests", 0, SL_OPTION_INT, "2000", "N", "requests without --trace", SL_FIELD(options, requests), 1, 1000000},
    {"seed", 0, SL_OPTION_INT, "1", "N", "seed of these", SL_FIELD(options, seed), 0, INT32_MAX},
    {"png", 0, SL_OPTION_STRING, NULL, "FILE", "picture of the hit share by size, drawn by matplotlib",
     SL_FIELD(options, png)},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

struct bench {
    struct options options;
    struct sl_signals signals;
    struct sl_replay_report report;
};

static enum sl_status parse_sizes(struct bench *b, struct sl_error *err) {
    char *list = strdup(b->options.sizes), *rest = list;
    enum sl_status status = list ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    for (const char *word; status == SL_OK && (word = strsep(&rest, ",")) != NULL;) {
        if (b->report.n_sizes == SL_REPLAY_MAX_SIZES) {
            status = sl_fail(err, SL_ERR_INVALID, "--store-bytes: at most %d sizes", SL_REPLAY_MAX_SIZES);
        } else if (sl_parse_size(word, &b->report.sizes[b->report.n_sizes]) != SL_OK ||
                   b->report.sizes[b->report.n_sizes] < 1) {
            status = sl_fail(err, SL_ERR_INVALID, "--store-bytes: '%s' is not a size such as 64G", word);
        } else {
            b->report.n_sizes++;
        }
    }
    free(list);
    return status;
}

static enum sl_status check(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    const struct sl_synthetic_geometry *model = sl_synthetic_find(b->options.geometry);
    SL_FAIL_IF(!model, err, SL_ERR_INVALID, "--geometry %s: unknown, expected 135m, 1b or 8b", b->options.geometry);
    b->report.config =
        (struct sl_replay_config){.keep_ms = b->options.keep_ms,
                                  .ttl_ms = b->options.ttl_ms,
                                  .geometry = {model->all_layers, model->config.n_kv_heads, model->config.head_dim},
                                  .ms_per_token = b->options.token_us / 1e3,
                                  .chunk_tokens = SL_REPLAY_CHUNK_TOKENS,
                                  .n_tenants = b->options.tenants};
    SL_FAIL_IF(sl_kv_format_parse(b->options.format, &b->report.config.format) != SL_OK, err, SL_ERR_INVALID,
               "--format %s: unknown, expected f16, int8 or int4", b->options.format);
    size_t bytes;
    SL_TRY(sl_replay_capsule_bytes(&b->report.config, 1, &bytes, err));
    SL_TRY(parse_sizes(b, err));
    return sl_picture_check(b->options.png, err);
}

static enum sl_status check_signals(void *arg, struct sl_error *err) {
    return sl_signals_check(arg, err);
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    struct sl_replay_source source = {b->options.trace, b->options.requests, (uint64_t)b->options.seed};
    b->report.config.check = check_signals;
    b->report.config.arg = &b->signals;
    enum sl_status status = sl_replay_load(&b->report, &source, err);
    SL_THEN(status, sl_replay_all(&b->report, b->options.json, err));
    sl_bench_progress(NULL);
    if ((status == SL_OK || status == SL_ERR_CANCELLED) && !b->options.json) {
        sl_replay_print_table(&b->report);
    }
    SL_THEN(status, b->options.png ? sl_replay_draw(&b->report, b->options.png, err) : SL_OK);
    sl_workload_cleanup(&b->report.workload);
    return status;
}

SL_BENCH(evict, "[options]", "Replay a trace against the memory of a store, for each eviction policy and size.",
         .counts = true, .check = check);
