// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how fast the engine reads a prompt and writes an answer, beside what this machine can do at all.
 *
 * Design: prefill is arithmetic: its GFLOP/s stand beside those of one large square matmul of our own kernel, and that
 *         beside multiply-adds from registers. Decoding one session is reading: weights and KV cache once a token,
 *         beside a plain sum over a large buffer. A model whose weights fit into a cache may pass 100% of that.
 *         Medians of several runs; the bounds are the best of several.
 */
#include "bench/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "bench/peak.h"
#include "bench/synthetic.h"
#include "engine/model.h"

#define CHUNK         512
#define DECODE_TOKENS 16 // a run
#define MAX_RUNS      101
#define PATH_BYTES    512
#define SQUARE        1536 // of the matmul that gives the GEMM peak

struct options {
    const char *model, *weights, *tier;
    int64_t threads, runs, max_tokens;
    bool json, no_synthetic, pin;
};

static const struct sl_option option_table[] = {
    {"model", 'm', SL_OPTION_STRING, "models/demo", "DIR", "model folder", offsetof(struct options, model), 0, 0},
    {"weights", 0, SL_OPTION_STRING, "stored", "FORMAT", "of both in memory: stored, int8 or int4",
     offsetof(struct options, weights), 0, 0},
    {"no-synthetic", 0, SL_OPTION_FLAG, "no", NULL, "leave out the random model of 135 M parameters",
     offsetof(struct options, no_synthetic), 0, 0},
    {"tier", 0, SL_OPTION_STRING, "auto", "NAME", "kernels to use", offsetof(struct options, tier), 0, 0},
    {"threads", 't', SL_OPTION_INT, "0", "N", "threads; 0: one per processor", offsetof(struct options, threads), 0,
     1024},
    {"pin", 0, SL_OPTION_FLAG, "no", NULL, "give each thread a processor of its own", offsetof(struct options, pin), 0,
     0},
    {"runs", 'r', SL_OPTION_INT, "5", "N", "runs of every measurement", offsetof(struct options, runs), 1, MAX_RUNS},
    {"max-tokens", 0, SL_OPTION_INT, "8192", "N", "leave out longer prompts", offsetof(struct options, max_tokens), 1,
     1 << 20},
    {"json", 0, SL_OPTION_FLAG, "no", NULL, "one JSON object a line", offsetof(struct options, json), 0, 0},
};

static const struct sl_program program = {
    .name = "sluice bench engine",
    .usage = "[options]",
    .summary = "Measure prefill and decode against this machine's arithmetic and memory.",
    .options = option_table,
    .n_options = sizeof option_table / sizeof option_table[0],
};

struct bounds {
    double gemm_gflops, read_gbps;
};

struct bench {
    const struct options *options;
    enum sl_weight_format weights;
    const struct sl_ops *ops;
    struct sl_team *team;
    struct bounds bounds;
    const char *label; // of the model at hand
    struct sl_model *model;
    struct sl_engine *engine;
    void *memory;
    struct sl_arena *arena;
    struct sl_session *session;
    int32_t *tokens; // [max_tokens]
    float *logits;
};

static double seconds_since(int64_t begin_ns) {
    return (double)(sl_now_ns() - begin_ns) / 1e9;
}

// --- bounds --------------------------------------------------------------------------------------------------------

static enum sl_status measure_gemm(struct bench *b, struct sl_error *err) {
    size_t count = (size_t)SQUARE * SQUARE;
    float *block = aligned_alloc(64, 3 * count * sizeof(float));
    if (block == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    for (size_t i = 0; i < 3 * count; i++) {
        block[i] = (float)(i % 17) * 0.1f - 0.8f;
    }
    struct sl_matrix w = {.n = SQUARE, .k = SQUARE, .dtype = SL_F32, .parts = {{block, SQUARE}}};
    struct sl_matmul product = {
        .x = block + count, .x_stride = SQUARE, .m = SQUARE, .y = block + 2 * count, .y_stride = SQUARE};
    enum sl_status status = b->ops->pack(b->team, &w, err);
    for (int64_t run = 0; run < b->options->runs && status == SL_OK; run++) {
        int64_t begin = sl_now_ns();
        b->ops->matmul(b->team, &w, &product);
        double gflops = 2e-9 * SQUARE * SQUARE * SQUARE / seconds_since(begin);
        b->bounds.gemm_gflops = gflops > b->bounds.gemm_gflops ? gflops : b->bounds.gemm_gflops;
    }
    b->ops->unpack(&w);
    free(block);
    return status;
}

static enum sl_status measure_bounds(struct bench *b, struct sl_error *err) {
    sl_bench_progress("bounds of this machine");
    double peak = sl_peak_gflops(b->team);
    enum sl_status status = measure_gemm(b, err);
    if (status == SL_OK) {
        status = sl_peak_read_gbps(b->team, &b->bounds.read_gbps, err);
    }
    if (status != SL_OK) {
        return status;
    }
    struct sl_bench_result gemm = {"engine",
                                   "matmul f32 1536 x 1536 x 1536",
                                   b->bounds.gemm_gflops,
                                   "GFLOP/s",
                                   peak > 0.0 ? "multiply-adds from registers, GFLOP/s" : NULL,
                                   peak,
                                   b->bounds.gemm_gflops,
                                   0.0};
    struct sl_bench_result reading = {"engine", "reading memory", b->bounds.read_gbps, "GB/s", NULL, 0.0, 0.0, 0.0};
    sl_bench_print(&gemm, b->options->json);
    sl_bench_print(&reading, b->options->json);
    return SL_OK;
}

// --- what a model costs --------------------------------------------------------------------------------------------

// Multiply-adds of the layers' matrices for one token: each weight once.
static double layer_weights(const struct sl_model_config *c) {
    double q_dim = (double)c->n_heads * c->head_dim, kv_dim = (double)c->n_kv_heads * c->head_dim;
    double layer = c->hidden * (2.0 * q_dim + 2.0 * kv_dim) + 3.0 * c->hidden * (double)c->intermediate;
    return c->n_layers * layer;
}

// Reading n tokens causally and one row of logits: two operations a multiply-add, q.K and p.V over n(n+1)/2 pairs.
static double prefill_gflop(const struct sl_model_config *c, double n) {
    double attention = 2.0 * c->n_layers * c->n_heads * c->head_dim * n * (n + 1.0) / 2.0;
    return 2e-9 * (layer_weights(c) * n + attention + (double)c->hidden * c->n_vocab);
}

// Weights (the head's among them) and the KV cache of `depth` tokens, once.
static double decode_gigabytes(const struct bench *b, double depth) {
    const struct sl_model_config *c = sl_model_get_config(b->model);
    double weights = (double)sl_model_memory_bytes(b->model);
    double cache = 2.0 * 2.0 * c->n_layers * c->n_kv_heads * c->head_dim * depth; // K and V in f16
    return (weights + cache) / 1e9;
}

// --- runs ----------------------------------------------------------------------------------------------------------

static enum sl_status restart_session(struct bench *b, struct sl_error *err) {
    struct sl_kv_geometry geometry = sl_model_geometry(sl_model_get_config(b->model));
    struct sl_page_layout layouts[SL_MAX_LAYERS];
    sl_session_destroy(&b->session);
    for (int l = 0; l < geometry.n_layers; l++) {
        enum sl_status status = sl_page_layout_init(&layouts[l], SL_KV_F16, geometry.head_dim, 0, false);
        if (status != SL_OK) {
            return sl_fail(err, status, "no page layout for head_dim %d", geometry.head_dim);
        }
    }
    struct sl_session_config config = {geometry, SL_POSITION_ORIGINAL,
                                       b->options->max_tokens + DECODE_TOKENS * MAX_RUNS, layouts, layouts};
    return sl_session_create(&config, b->arena, &b->session, err);
}

// Read the next n tokens chunk by chunk.
static enum sl_status prefill(struct bench *b, int64_t n, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int64_t i = 0; i < n && status == SL_OK; i += CHUNK) {
        int count = (int)(n - i < CHUNK ? n - i : CHUNK);
        struct sl_segment segment = {b->session, b->tokens + i, count, i + count == n ? b->logits : NULL, NULL};
        status = sl_engine_forward(b->engine, &segment, 1, NULL, err);
    }
    return status;
}

static enum sl_status bench_prefill(struct bench *b, int64_t n, struct sl_error *err) {
    double seconds[MAX_RUNS];
    size_t runs = (size_t)(n > 4096 && b->options->runs > 3 ? 3 : b->options->runs);
    for (size_t run = 0; run < runs; run++) {
        sl_bench_progress("%s: prefill of %" PRId64 " tokens, run %zu of %zu", b->label, n, run + 1, runs);
        enum sl_status status = restart_session(b, err);
        int64_t begin = sl_now_ns();
        status = status == SL_OK ? prefill(b, n, err) : status;
        if (status != SL_OK) {
            return status;
        }
        seconds[run] = seconds_since(begin);
    }
    double median = sl_bench_median(seconds, runs);
    char test[128];
    snprintf(test, sizeof test, "%s: prefill, %" PRId64 " tokens", b->label, n);
    struct sl_bench_result result = {
        "engine",
        test,
        (double)n / median,
        "tokens/s",
        "GEMM peak, GFLOP/s",
        b->bounds.gemm_gflops,
        prefill_gflop(sl_model_get_config(b->model), (double)n) / median,
        0.0,
    };
    sl_bench_print(&result, b->options->json);
    return SL_OK;
}

static enum sl_status bench_decode(struct bench *b, int64_t depth, struct sl_error *err) {
    double seconds[MAX_RUNS];
    size_t runs = (size_t)b->options->runs;
    sl_bench_progress("%s: filling a cache of %" PRId64 " tokens", b->label, depth);
    enum sl_status status = restart_session(b, err);
    status = status == SL_OK ? prefill(b, depth, err) : status;
    for (size_t run = 0; run < runs && status == SL_OK; run++) {
        sl_bench_progress("%s: decode at %" PRId64 ", run %zu of %zu", b->label, depth, run + 1, runs);
        int64_t begin = sl_now_ns();
        for (int i = 0; i < DECODE_TOKENS && status == SL_OK; i++) {
            struct sl_segment segment = {b->session, b->tokens + i, 1, b->logits, NULL};
            status = sl_engine_forward(b->engine, &segment, 1, NULL, err);
        }
        seconds[run] = seconds_since(begin) / DECODE_TOKENS;
    }
    if (status != SL_OK) {
        return status;
    }
    double median = sl_bench_median(seconds, runs);
    char test[128];
    snprintf(test, sizeof test, "%s: decode at %" PRId64 " tokens", b->label, depth);
    struct sl_bench_result result = {
        "engine",
        test,
        1.0 / median,
        "tokens/s",
        "reading, GB/s",
        b->bounds.read_gbps,
        decode_gigabytes(b, (double)depth + DECODE_TOKENS * (double)runs / 2.0) / median,
        0.0,
    };
    sl_bench_print(&result, b->options->json);
    return SL_OK;
}

// --- models --------------------------------------------------------------------------------------------------------

static enum sl_status open_model(struct bench *b, const char *dir, struct sl_error *err) {
    enum sl_status status = sl_model_load(dir, b->ops, b->weights, b->team, &b->model, err);
    if (status == SL_OK) {
        status = sl_engine_create(b->model, b->team, CHUNK, &b->engine, err);
    }
    if (status != SL_OK) {
        return status;
    }
    const struct sl_model_config *c = sl_model_get_config(b->model);
    size_t slots = (size_t)b->options->max_tokens + DECODE_TOKENS * MAX_RUNS + SL_PAGE_SLOTS;
    size_t bytes = slots * (size_t)c->n_layers * (size_t)c->n_kv_heads * (size_t)c->head_dim * 4;
    bytes += bytes / 8; // arena units
    bytes = (bytes + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT;
    b->memory = aligned_alloc(SL_ARENA_UNIT, bytes);
    b->tokens = calloc((size_t)b->options->max_tokens + DECODE_TOKENS, sizeof *b->tokens);
    b->logits = calloc((size_t)c->n_vocab, sizeof *b->logits);
    if (b->memory == NULL || b->tokens == NULL || b->logits == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for a cache of %zu bytes", bytes);
    }
    for (int64_t i = 0; i < b->options->max_tokens + DECODE_TOKENS; i++) {
        b->tokens[i] = (int32_t)((uint64_t)i * 2654435761u % (uint64_t)c->n_vocab);
    }
    return sl_arena_create(b->memory, bytes, &b->arena, err);
}

static void close_model(struct bench *b) {
    sl_session_destroy(&b->session);
    sl_arena_destroy(&b->arena);
    free(b->memory);
    free(b->tokens);
    free(b->logits);
    b->memory = NULL;
    b->tokens = NULL;
    b->logits = NULL;
    sl_engine_destroy(&b->engine);
    sl_model_destroy(&b->model);
}

static enum sl_status bench_model(struct bench *b, const char *dir, const char *label, struct sl_error *err) {
    static const int64_t prompts[] = {512, 2048, 8192}, depths[] = {512, 4096};
    b->label = label;
    enum sl_status status = open_model(b, dir, err);
    int64_t limit = status == SL_OK ? sl_model_get_config(b->model)->max_positions : 0;
    limit = limit < b->options->max_tokens ? limit : b->options->max_tokens;
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0] && status == SL_OK; i++) {
        status = prompts[i] <= limit ? bench_prefill(b, prompts[i], err) : SL_OK;
    }
    for (size_t i = 0; i < sizeof depths / sizeof depths[0] && status == SL_OK; i++) {
        bool fits = depths[i] + DECODE_TOKENS * b->options->runs <= limit;
        status = fits ? bench_decode(b, depths[i], err) : SL_OK;
    }
    close_model(b);
    return status;
}

static enum sl_status bench_synthetic(struct bench *b, struct sl_error *err) {
    const struct sl_model_config config = {
        .n_layers = 30,
        .n_heads = 9,
        .n_kv_heads = 3,
        .head_dim = 64,
        .hidden = 576,
        .intermediate = 1536,
        .n_vocab = 49152,
        .max_positions = 16384,
        .rope_theta = 10000.0,
        .norm_eps = 1e-5f,
        .tied_embeddings = true,
        .dtype = SL_BF16,
    };
    char dir[PATH_BYTES];
    sl_bench_progress("writing a random model");
    enum sl_status status = sl_synthetic_create(&config, dir, sizeof dir, err);
    if (status != SL_OK) {
        return status;
    }
    status = bench_model(b, dir, "135M random", err);
    sl_synthetic_remove(dir);
    return status;
}

int sl_bench_engine(int argc, char **argv) {
    struct options options = {0};
    struct bench b = {.options = &options};
    struct sl_error err = {0};
    int first;
    enum sl_status status = sl_config_parse(&program, argc, argv, &options, &first, &err);
    if (status == SL_ERR_CANCELLED) {
        return 0;
    }
    if (status == SL_OK && first < argc) {
        status = sl_fail(&err, SL_ERR_INVALID, "unexpected argument: %s", argv[first]);
    }
    if (status == SL_OK) {
        status = sl_weight_format_parse(options.weights, &b.weights, &err);
    }
    if (status != SL_OK) {
        fprintf(stderr, "%s: %s\n", program.name, err.text);
        return 2;
    }
    status = sl_ops_select(options.tier, &b.ops, &err);
    if (status == SL_OK) {
        status = sl_team_create((int)options.threads, &b.team, &err);
    }
    if (status == SL_OK && options.pin) {
        status = sl_team_pin(b.team, &err);
        sl_team_pin_caller(b.team);
    }
    if (status == SL_OK) {
        status = measure_bounds(&b, &err);
    }
    if (status == SL_OK) {
        status = bench_model(&b, options.model, options.model, &err);
    }
    if (status == SL_OK && !options.no_synthetic) {
        status = bench_synthetic(&b, &err);
    }
    sl_team_destroy(&b.team);
    sl_bench_progress(NULL);
    if (status != SL_OK) {
        fprintf(stderr, "%s: %s\n", program.name, err.text);
        return 1;
    }
    return 0;
}
