// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures the time of every operation of a device, and compares it with its lower bound and with
 *          predictions.
 *
 * Design: the lower bound is bytes over the measured bandwidth of a copy, or operations over the rate of a large
 *         product with our own kernel; --tflops sets the device's rate if that is higher. An operation is queued
 *         repeatedly until that takes some milliseconds, and the median of --runs such batches is divided by the
 *         count: launch costs are included. Predictions are fractions of the lower bound that were written down
 *         before any measurement, from instruction counts (docs/GPU_KERNELS.md); 0: no prediction.
 *
 * To add one: a function that queues it, and a row in cases[].
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/cli/tool.h"
#include "lab/bench/bench.h"
#include "lab/bench/rig/kernel_costs.h"
#include "lab/bench/rig/kernel_world.h"
#include "lab/result.h"
#include "base/options/config.h"
#include "engine/tensor/drawn.h"

#define BATCH_SECONDS 2e-3
#define MAX_BATCH     100 // devices drop page lists after some operations
#define MAX_RUNS      101
#define PEAK_SIDE     4096 // of the product that measures the peak, at most

struct options {
    const char *device, *tier, *only;
    int64_t rows, slots, hidden, ffn, vocab, heads, kv_heads, head_dim, runs, copy_bytes, threads;
    double tflops, seconds;
    bool json;
};

static const struct sl_option option_table[] = {
    SL_DEVICE_OPTION(options, device),
    {"only", 0, SL_OPTION_STRING, "", "TEXT", "measure only operations whose names contain this text",
     SL_FIELD(options, only)},
    {"rows", 0, SL_OPTION_INT, "2048", "N", "new rows: of products, norms, and attention of a prompt",
     SL_FIELD(options, rows), 16, 1 << 20},
    {"slots", 0, SL_OPTION_INT, "16384", "N", "slots of every KV head, the rows' own among them; a multiple of 64",
     SL_FIELD(options, slots), 64, 1 << 22},
    {"hidden-size", 0, SL_OPTION_INT, "4096", "N", "hidden size of the model", SL_FIELD(options, hidden), 32, 1 << 20},
    {"ffn", 0, SL_OPTION_INT, "14336", "N", "width of the model's MLP", SL_FIELD(options, ffn), 32, 1 << 20},
    {"vocab", 0, SL_OPTION_INT, "128256", "N", "vocabulary of the model", SL_FIELD(options, vocab), 1, 1 << 20},
    {"heads", 0, SL_OPTION_INT, "32", "N", "query heads", SL_FIELD(options, heads), 1, 512},
    {"kv-heads", 0, SL_OPTION_INT, "8", "N", "KV heads", SL_FIELD(options, kv_heads), 1, 64},
    {"head-dim", 0, SL_OPTION_INT, "128", "N", "channels of a head", SL_FIELD(options, head_dim), 8, SL_MAX_HEAD_DIM},
    {"copy", 0, SL_OPTION_SIZE, "1G", "SIZE", "size of the copy that measures the bandwidth",
     SL_FIELD(options, copy_bytes), 4096, 1e11},
    {"tflops", 0, SL_OPTION_FLOAT, "0", "X", "rate of the device for bf16 products; 0: our own, measured",
     SL_FIELD(options, tflops), 0, 1e5},
    {"runs", 0, SL_OPTION_INT, "50", "N", "batches of every operation, at most", SL_FIELD(options, runs), 1, MAX_RUNS},
    {"seconds", 0, SL_OPTION_FLOAT, "5", "S", "no further batch of an operation once they have taken that long",
     SL_FIELD(options, seconds), 0, 1e6},
    {"tier", 0, SL_OPTION_STRING, "auto", "NAME", "on processors: kernels to use", SL_FIELD(options, tier)},
    {"threads", 0, SL_OPTION_INT, "0", "N", "threads; 0: one per processor", SL_FIELD(options, threads), 0, 1024},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

struct bench {
    struct options options;
    struct sl_runtime runtime;
    struct sl_world world;
    struct sl_matrix weights; // weights of the current product
    void *scratch;            // scratch of the current product
    double bytes_per_s, flop_per_s;
    bool predicts; // whether predictions are printed: a real device
    struct sl_signals signals;
};

// --- operations ------------------------------------------------------------------------------------------------------

// `arg`: a format of pages, a number of rows, or another parameter of the cost.
typedef void (*queue_fn)(struct bench *b, int arg);
typedef struct sl_cost (*cost_fn)(const struct sl_world *w, int arg);

#define OPS      (b->runtime.ops)
#define STREAM   (b->runtime.stream)
#define VECTORS  ((struct sl_vectors){b->world.of_heads, (size_t)b->world.shape.slots})
#define QUERIES  ((struct sl_vectors){b->world.of_queries, (size_t)b->world.shape.slots})
#define LIST(of) ((struct sl_lists){b->world.of, (size_t)b->world.shape.slots})
#define KEPT     ((struct sl_counts){.host = b->world.kept})
#define NEAREST  ((struct sl_nearest){LIST(evicted), LIST(into), VECTORS})

static void do_matmul(struct bench *b, int m) {
    struct sl_matmul product = {.x = b->world.x,
                                .x_stride = b->weights.k,
                                .m = m > 0 ? m : b->world.shape.rows,
                                .y = b->world.y,
                                .y_stride = sl_matrix_outputs(&b->weights),
                                .reading = m == 0,
                                .scratch = b->scratch};
    OPS->matmul(STREAM, &b->weights, &product);
}

// Multiplies rows of a prompt by our own kernel, even if the device has a library: a library cannot use a matrix's
// first columns alone.
static void do_own_product(struct bench *b, int n_columns) {
    struct sl_matmul product = {.x = b->world.x,
                                .x_stride = b->weights.k,
                                .m = b->world.shape.rows,
                                .y = b->world.y,
                                .y_stride = n_columns,
                                .n_columns = n_columns,
                                .reading = true,
                                .scratch = b->scratch};
    OPS->matmul(STREAM, &b->weights, &product);
}

static void do_norm(struct bench *b, int) {
    const struct sl_world_shape *s = &b->world.shape;
    struct sl_norm norm = {SL_NORM_RMS, s->hidden, 1e-5f, b->world.x, NULL};
    OPS->norm(STREAM, &norm, (struct sl_row_vectors){b->world.x, s->hidden, s->rows, 1}, b->world.y, s->hidden);
}

static void do_rotate(struct bench *b, int) {
    const struct sl_world_shape *s = &b->world.shape;
    struct sl_rope rope = {s->head_dim, s->head_dim, b->world.inv_freq, 1.0};
    struct sl_row_vectors heads = {b->world.y, (int64_t)s->n_heads * s->head_dim, s->rows, s->n_heads};
    OPS->rotate(STREAM, &rope, b->world.cosines, b->world.sines, heads);
}

static void do_angles(struct bench *b, int) {
    const struct sl_world_shape *s = &b->world.shape;
    struct sl_rope rope = {s->head_dim, s->head_dim, b->world.inv_freq, 1.0};
    OPS->angles(STREAM, &rope, b->world.positions, s->rows, b->world.cosines, b->world.sines);
}

static void do_append(struct bench *b, int f) {
    struct sl_attend call = sl_world_attend(&b->world, f, (int)b->world.shape.rows);
    OPS->append(STREAM, &call, 1);
}

// Reads --rows, a question, over pages of a format.
static void do_question(struct bench *b, int f) {
    struct sl_attend call = sl_world_attend(&b->world, f, (int)b->world.shape.rows);
    OPS->attend(STREAM, &call, 1);
}

static struct sl_cost cost_question(const struct sl_world *w, int) {
    return sl_cost_attention(w, 2);
}

static void do_decode(struct bench *b, int f) {
    struct sl_attend call = sl_world_attend(&b->world, f, 1);
    OPS->attend(STREAM, &call, 1);
}

static void do_slots(struct bench *b, int f) {
    struct sl_attend call = sl_world_attend(&b->world, f, 1);
    OPS->attend_slots(STREAM, &call, LIST(keep), KEPT);
}

static void do_fold(struct bench *b, int) {
    struct sl_attend call = sl_world_attend(&b->world, 0, (int)b->world.shape.rows);
    OPS->fold(STREAM, &call, 0, &(struct sl_fold){.sum = 0, .square = 1, .above = -1});
}

static void do_window(struct bench *b, int rows) {
    struct sl_attend call = sl_world_attend(&b->world, 0, (int)b->world.shape.rows);
    OPS->window_sums(STREAM, &call, rows < call.m ? call.m - rows : 0, QUERIES);
}

static void do_quantize(struct bench *b, int f) {
    struct sl_world *w = &b->world;
    OPS->quantize(STREAM, &w->heads_to[f], sl_pages_for(w->shape.slots), w->lists[f]);
}

static void do_read_state(struct bench *b, int f) {
    OPS->read_state(STREAM, &b->world.heads[f], 0, VECTORS);
}

static void do_mean_state(struct bench *b, int f) {
    OPS->mean_state(STREAM, &b->world.heads[f], b->world.shape.slots, VECTORS, (struct sl_vectors){NULL, 0});
}

static void do_pool(struct bench *b, int) {
    const struct sl_world_shape *s = &b->world.shape;
    struct sl_vectors out = {b->world.y, (size_t)s->slots};
    OPS->pool(STREAM, &b->world.heads[0], s->n_heads / s->n_kv_heads, QUERIES, (struct sl_pooling){false, 7, 32}, out);
}

static void do_chance(struct bench *b, int f) {
    OPS->chance(STREAM, &b->world.heads[f], 1, 0, 0, VECTORS);
}

static void do_value_change(struct bench *b, int f) {
    const struct sl_world_shape *s = &b->world.shape;
    struct sl_vectors out = {b->world.y, (size_t)s->slots};
    OPS->value_change(STREAM, &b->world.heads[f], s->n_heads / s->n_kv_heads, QUERIES, false, out);
}

static void do_select(struct bench *b, int f) {
    OPS->select(STREAM, &b->world.heads[f], VECTORS, (struct sl_vectors){NULL, 0}, true, KEPT, LIST(keep));
}

static void do_scan(struct bench *b, int) {
    enum { MOST_HEADS = 64 }; // --kv-heads
    const struct sl_world_shape *s = &b->world.shape;
    struct sl_scan_piece pieces[MOST_HEADS];
    size_t channel_bytes = (size_t)s->slots * 2, channels = (size_t)sl_world_channels(&b->world);
    for (int h = 0; h < s->n_kv_heads; h++) {
        pieces[h] = (struct sl_scan_piece){.layout = {.format = SL_KV_F16,
                                                      .head_dim = (int)channels,
                                                      .capacity = (uint32_t)s->slots,
                                                      .channel_bytes = channel_bytes,
                                                      .bytes = channels * channel_bytes},
                                           .index = (char *)b->world.of_queries + (size_t)h * channels * channel_bytes,
                                           .end = (uint32_t)s->slots};
    }
    const struct sl_scan_call call = {pieces, s->n_kv_heads, 1, b->world.x, (int)channels, VECTORS};
    OPS->scan(STREAM, &call);
}

static void do_gather(struct bench *b, int f) {
    OPS->gather(STREAM, &b->world.heads[f], LIST(keep), KEPT);
}

static void do_nearest(struct bench *b, int f) {
    OPS->nearest(STREAM, &b->world.heads[f], LIST(keep), KEPT, NEAREST);
}

static void do_merge(struct bench *b, int f) {
    OPS->merge(STREAM, &b->world.heads[f], KEPT, NEAREST,
               (struct sl_merge_threshold){0.5f, b->world.threshold, b->world.n_merged});
}

static void do_pick(struct bench *b, int rows) {
    struct sl_pick asked[SL_WORLD_SEQUENCES];
    for (int r = 0; r < rows; r++) {
        asked[r] = (struct sl_pick){SL_MAX_CANDIDATES, 0.8f};
    }
    OPS->pick(STREAM, b->world.logits, b->world.shape.vocab, asked, rows, b->world.picked);
}

// Digests memory of rows of logits as if it were sent.
static void do_digest(struct bench *b, int rows) {
    enum { MOST = 256, PIECE_BYTES = 512 << 10 };
    static const uint32_t piece_bytes = PIECE_BYTES;
    struct sl_digest_piece pieces[MOST];
    size_t bytes = (size_t)rows * (size_t)b->world.shape.vocab * sizeof(float);
    uint32_t last_bytes = (uint32_t)(bytes % PIECE_BYTES), n = 0;
    for (size_t at = 0; at < bytes && n < MOST; at += PIECE_BYTES) {
        bool whole = bytes - at >= PIECE_BYTES;
        pieces[n++] = (struct sl_digest_piece){(char *)b->world.logits + at, whole ? &piece_bytes : &last_bytes, 1};
    }
    OPS->digest(STREAM, pieces, n, (uint64_t *)(void *)b->world.picked);
}

// --- the cases -------------------------------------------------------------------------------------------------------

// The order matters: lists are created first, then used.
static const struct {
    const char *name;
    queue_fn queue;
    cost_fn cost;
    int arg;
    double predicted; // fraction of the lower bound
} cases[] = {
    {"norm", do_norm, sl_cost_norm, 0, 0.80},
    {"angles", do_angles, sl_cost_angles, 0, 0.05},
    {"rotate", do_rotate, sl_cost_rotate, 0, 0.80},
    {"append", do_append, sl_cost_append, 0, 0.50},
    {"attend, a prompt, f16", do_question, cost_question, 0, 0.65},
    {"attend, rows, int8", do_question, cost_question, 1, 0},
    {"attend, rows, int4", do_question, cost_question, 2, 0},
    {"attend, a step, f16", do_decode, sl_cost_pages, 0, 0.85},
    {"attend, a step, int8", do_decode, sl_cost_pages, 1, 0.80},
    {"attend, a step, int4", do_decode, sl_cost_pages, 2, 0.75},
    {"attend, a step, int2", do_decode, sl_cost_pages, 3, 0.60},
    {"attend, a step, int1", do_decode, sl_cost_pages, 4, 0.35},
    {"attend, a step, k8v4", do_decode, sl_cost_pages, 5, 0},
    {"attend, a step, k4v2", do_decode, sl_cost_pages, 6, 0},
    {"attend, a step, k4v3", do_decode, sl_cost_pages, 7, 0},
    {"attend, a step, int3", do_decode, sl_cost_pages, 8, 0},
    {"fold", do_fold, sl_cost_attention, 1, 0.55},
    {"window_sums, 32 rows", do_window, sl_cost_window, 32, 0.05},
    {"quantize to int8", do_quantize, sl_cost_quantize, 1, 0.30},
    {"quantize to int4", do_quantize, sl_cost_quantize, 2, 0.30},
    {"quantize to int1", do_quantize, sl_cost_quantize, 4, 0.30},
    {"read_state", do_read_state, sl_cost_floats_twice, 0, 0.60},
    {"mean_state", do_mean_state, sl_cost_floats_twice, 0, 0.40},
    {"pool", do_pool, sl_cost_floats_twice, 1, 0.40},
    {"value_change", do_value_change, sl_cost_value_change, 0, 0.40},
    {"chance", do_chance, sl_cost_floats_twice, 0, 0.40},
    {"scan, f16", do_scan, sl_cost_scan, 0, 0.10},
    {"select", do_select, sl_cost_select, 0, 0.01},
    {"attend_slots, the kept", do_slots, sl_cost_listed, 0, 0.25},
    {"nearest", do_nearest, sl_cost_nearest, 0, 0.50},
    {"merge", do_merge, sl_cost_gather, 0, 0.05},
    {"gather", do_gather, sl_cost_gather, 0, 0.50},
    {"digest, 64 rows of logits", do_digest, sl_cost_logits, SL_WORLD_SEQUENCES, 0.30},
    {"pick, 64 rows", do_pick, sl_cost_logits, SL_WORLD_SEQUENCES, 0.12},
    {"pick, 1 row", do_pick, sl_cost_logits, 1, 0.002},
};

// Sides of products: the model's columns and depth replace these words.
enum side { HIDDEN, FFN, QKV };
static const struct {
    const char *name;
    enum side n, k;
    bool gated;
    int rows; // 0: --rows
    enum sl_weight_format format;
    double predicted;
} products[] = {
    {"matmul up, bf16", FFN, HIDDEN, true, 0, SL_WEIGHT_STORED, 1.2},
    {"matmul down, bf16", HIDDEN, FFN, false, 0, SL_WEIGHT_STORED, 1.2},
    {"matmul qkv, bf16", QKV, HIDDEN, false, 0, SL_WEIGHT_STORED, 1.15},
    {"matmul up, int8", FFN, HIDDEN, true, 0, SL_WEIGHT_INT8, 0.75},
    {"matmul up, int4", FFN, HIDDEN, true, 0, SL_WEIGHT_INT4, 0.75},
    {"matmul down, 1 row, bf16", HIDDEN, FFN, false, 1, SL_WEIGHT_STORED, 0.80},
    {"matmul qkv, 1 row, bf16", QKV, HIDDEN, false, 1, SL_WEIGHT_STORED, 0.75},
    {"matmul up, 1 row, bf16", FFN, HIDDEN, true, 1, SL_WEIGHT_STORED, 0.85},
    {"matmul up, 8 rows, bf16", FFN, HIDDEN, true, 8, SL_WEIGHT_STORED, 0.80},
    {"matmul up, 16 rows, bf16", FFN, HIDDEN, true, 16, SL_WEIGHT_STORED, 0.80},
    {"matmul down, 64 rows, bf16", HIDDEN, FFN, false, 64, SL_WEIGHT_STORED, 0.70},
    {"matmul qkv, 64 rows, bf16", QKV, HIDDEN, false, 64, SL_WEIGHT_STORED, 0.60},
    {"matmul up, 64 rows, bf16", FFN, HIDDEN, true, 64, SL_WEIGHT_STORED, 0.75},
    {"matmul up, 1 row, int8", FFN, HIDDEN, true, 1, SL_WEIGHT_INT8, 0.80},
    {"matmul up, 1 row, int4", FFN, HIDDEN, true, 1, SL_WEIGHT_INT4, 0.70},
    {"matmul up, 64 rows, int8", FFN, HIDDEN, true, 64, SL_WEIGHT_INT8, 0.50},
    {"matmul up, 64 rows, int4", FFN, HIDDEN, true, 64, SL_WEIGHT_INT4, 0.30},
};
enum { N_CASES = sizeof cases / sizeof cases[0], N_PRODUCTS = sizeof products / sizeof products[0] };

// --- timing ----------------------------------------------------------------------------------------------------------

// Returns the seconds of `n` operations, one after the other.
static enum sl_status time_batch(struct bench *b, queue_fn queue, int arg, int n, double *seconds_out,
                                 struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int f = 0; f < SL_WORLD_FORMATS && status == SL_OK; f++) {
        status = sl_world_publish(&b->world, f, err);
    }
    SL_THEN(status, sl_stream_wait(b->runtime.stream, err));
    int64_t begin = sl_now_ns();
    for (int i = 0; i < n && status == SL_OK; i++) {
        queue(b, arg);
    }
    SL_THEN(status, sl_stream_wait(b->runtime.stream, err));
    *seconds_out = (double)(sl_now_ns() - begin) / 1e9;
    return status;
}

static enum sl_status time_one(struct bench *b, queue_fn queue, int arg, double *median_out, struct sl_error *err) {
    double seconds[MAX_RUNS], once, spent = 0.0;
    size_t runs = 0;
    enum sl_status status = time_batch(b, queue, arg, 1, &once, err); // one-time work is done here
    SL_THEN(status, time_batch(b, queue, arg, 1, &once, err));
    double fit = once > 0.0 ? BATCH_SECONDS / once : MAX_BATCH;
    int batch = fit < 1.0 ? 1 : fit > MAX_BATCH ? MAX_BATCH : (int)fit;
    while (status == SL_OK && runs < (size_t)b->options.runs && (runs == 0 || spent < b->options.seconds)) {
        status = time_batch(b, queue, arg, batch, &seconds[runs], err);
        spent += seconds[runs];
        seconds[runs++] /= batch;
    }
    if (status == SL_OK) {
        *median_out = sl_bench_median(seconds, runs);
    }
    return status;
}

static void print(const struct bench *b, const char *name, double seconds, struct sl_cost cost, double predicted) {
    bool moves = cost.bytes > 0.0;
    struct sl_bench_result result = {.bench = "kernels",
                                     .test = name,
                                     .value = seconds * 1e6,
                                     .unit = "us",
                                     .reference = moves ? "copy, GB/s" : "product, TFLOP/s",
                                     .reference_value = moves ? b->bytes_per_s / 1e9 : b->flop_per_s / 1e12,
                                     .ratio_value = moves ? cost.bytes / seconds / 1e9 : cost.flop / seconds / 1e12,
                                     .aim = b->predicts ? predicted : 0.0};
    sl_bench_print(&result, b->options.json);
}

static bool is_asked_for(const struct bench *b, const char *name) {
    return strstr(name, b->options.only) != NULL;
}

// --- ceilings --------------------------------------------------------------------------------------------------------

// Copies from device to device: counts bytes read and written.
static enum sl_status measure_copy(struct bench *b, struct sl_error *err) {
    struct sl_device *device = b->runtime.device;
    size_t bytes = (size_t)b->options.copy_bytes;
    void *from = sl_device_alloc(device, SL_MEMORY_DEVICE, bytes),
         *to = sl_device_alloc(device, SL_MEMORY_DEVICE, bytes);
    enum sl_status status = from != NULL && to != NULL
                                ? SL_OK
                                : sl_fail(err, SL_ERR_EXHAUSTED, "--copy %zu: no room for twice that", bytes);
    double best = 0.0;
    for (int i = 0; i < 5 && status == SL_OK; i++) {
        int64_t begin = sl_now_ns();
        sl_stream_copy(b->runtime.stream, to, from, bytes);
        status = sl_stream_wait(b->runtime.stream, err);
        SL_THEN(status, sl_signals_check(&b->signals, err));
        double rate = 2e9 * (double)bytes / (double)(sl_now_ns() - begin);
        best = rate > best ? rate : best;
    }
    sl_device_free(device, SL_MEMORY_DEVICE, from);
    sl_device_free(device, SL_MEMORY_DEVICE, to);
    b->bytes_per_s = best;
    if (status == SL_OK) {
        sl_bench_print_value("kernels", "copy", best / 1e9, "GB/s", b->options.json);
    }
    return status;
}

static void free_weights(struct bench *b, void *stored) {
    b->runtime.ops->unpack(&b->weights);
    sl_device_free(b->runtime.device, SL_MEMORY_DEVICE, b->scratch);
    b->scratch = NULL;
    free(stored);
}

// Makes a matrix of [n][k] random bf16 weights (a GPU is faster with constant ones) in b->weights, until
// free_weights().
static enum sl_status make_weights(struct bench *b, int64_t n, int64_t k, bool gated, enum sl_weight_format format,
                                   void **stored_out, struct sl_error *err) {
    SL_TRY(sl_signals_check(&b->signals, err));
    bool draws = b->runtime.ops->draw != NULL && format == SL_WEIGHT_STORED;
    uint16_t *stored = draws ? NULL : malloc((size_t)n * (size_t)k * sizeof *stored);
    SL_FAIL_IF(!draws && stored == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    for (int64_t i = 0; i < n * k && !draws; i++) {
        stored[i] = sl_drawn_weight((uint64_t)i);
    }
    b->weights = (struct sl_matrix){.n = n,
                                    .k = k,
                                    .dtype = SL_BF16,
                                    .format = format,
                                    .parts = {{stored, n}},
                                    .activation = gated ? SL_ACT_SILU : SL_ACT_NONE,
                                    .gated = gated};
    enum sl_status status = draws ? b->runtime.ops->draw(b->runtime.stream, &b->weights, false, 0, err)
                                  : b->runtime.ops->pack(b->runtime.stream, &b->weights, err);
    size_t scratch = b->runtime.ops->matmul_scratch(&b->weights, b->options.rows);
    if (status == SL_OK && scratch > 0) {
        b->scratch = sl_device_alloc(b->runtime.device, SL_MEMORY_DEVICE, scratch);
        status =
            b->scratch != NULL ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no room for %zu bytes of scratch", scratch);
    }
    SL_TRY_OR(status, free_weights(b, stored));
    *stored_out = stored;
    return SL_OK;
}

static enum sl_status measure_product(struct bench *b, struct sl_error *err) {
    if (b->options.tflops > 0.0) {
        b->flop_per_s = b->options.tflops * 1e12;
        return SL_OK;
    }
    int64_t side = b->options.hidden < PEAK_SIDE ? b->options.hidden : PEAK_SIDE;
    void *stored;
    double seconds;
    SL_TRY(make_weights(b, side + 1, side, false, SL_WEIGHT_STORED, &stored, err));
    enum sl_status status = time_one(b, do_own_product, (int)side, &seconds, err);
    free_weights(b, stored);
    if (status == SL_OK) {
        b->flop_per_s = 2.0 * (double)b->options.rows * (double)side * (double)side / seconds;
        sl_bench_print_value("kernels", "product of bf16", b->flop_per_s / 1e12, "TFLOP/s", b->options.json);
    }
    return status;
}

// --- all -------------------------------------------------------------------------------------------------------------

static int64_t side_of(const struct bench *b, enum side side) {
    const struct options *o = &b->options;
    return side == HIDDEN ? o->hidden : side == FFN ? o->ffn : (o->heads + 2 * o->kv_heads) * o->head_dim;
}

static enum sl_status bench_product(struct bench *b, int i, struct sl_error *err) {
    int64_t n = side_of(b, products[i].n) * (products[i].gated ? 2 : 1), k = side_of(b, products[i].k);
    int64_t m = products[i].rows > 0 ? products[i].rows : b->options.rows;
    void *stored;
    double seconds = 0.0;
    SL_TRY(make_weights(b, n, k, products[i].gated, products[i].format, &stored, err));
    enum sl_status status = time_one(b, do_matmul, products[i].rows, &seconds, err);
    if (status == SL_OK) {
        struct sl_cost cost = {.bytes = (double)b->weights.packed_bytes}; // few rows: weights are read
        if (m > 64) {
            cost = (struct sl_cost){.flop = 2.0 * (double)m * (double)n * (double)k};
        }
        print(b, products[i].name, seconds, cost, products[i].predicted);
    }
    free_weights(b, stored);
    return status;
}

static enum sl_status bench_all(struct bench *b, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int i = 0; i < N_PRODUCTS && status == SL_OK; i++) {
        bool has_room = products[i].rows <= b->options.rows; // x and y
        status = is_asked_for(b, products[i].name) && has_room ? bench_product(b, i, err) : SL_OK;
    }
    static const queue_fn makes_lists[] = {do_select, do_question, do_nearest}; // whichever operations are selected
    for (size_t i = 0; i < sizeof makes_lists / sizeof makes_lists[0] && status == SL_OK; i++) {
        makes_lists[i](b, 0);
        status = sl_signals_check(&b->signals, err);
    }
    for (int i = 0; i < N_CASES && status == SL_OK; i++) {
        double seconds = 0.0;
        if (is_asked_for(b, cases[i].name)) {
            status = time_one(b, cases[i].queue, cases[i].arg, &seconds, err);
        }
        if (status == SL_OK && seconds > 0.0) {
            print(b, cases[i].name, seconds, cases[i].cost(&b->world, cases[i].arg), cases[i].predicted);
        }
    }
    return status;
}

static enum sl_status check(void *bench, struct sl_error *err) {
    const struct options *o = &((const struct bench *)bench)->options;
    SL_FAIL_IF(o->slots % SL_PAGE_SLOTS != 0 || o->slots < o->rows, err, SL_ERR_INVALID,
               "--slots %" PRId64 ": a multiple of %d, at least --rows", o->slots, SL_PAGE_SLOTS);
    SL_FAIL_IF(o->heads % o->kv_heads != 0 || o->head_dim % 8 != 0 || o->hidden % SL_WEIGHT_GROUP != 0 ||
                   o->ffn % SL_WEIGHT_GROUP != 0,
               err, SL_ERR_INVALID,
               "--heads must be a multiple of --kv-heads, --head-dim of 8, --hidden-size and --ffn of %d",
               SL_WEIGHT_GROUP);
    struct sl_device_choice device;
    return sl_device_choice_parse(o->device, &device, err);
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    const struct options *o = &b->options;
    const struct sl_world_shape shape = {.rows = o->rows,
                                         .slots = o->slots,
                                         .hidden = o->hidden,
                                         .ffn = o->ffn,
                                         .vocab = o->vocab,
                                         .n_heads = (int)o->heads,
                                         .n_kv_heads = (int)o->kv_heads,
                                         .head_dim = (int)o->head_dim,
                                         .kept = 0.2};
    struct sl_runtime_config config = {.tier = o->tier, .device = o->device, .threads = (int)o->threads};
    SL_TRY(sl_runtime_open(&config, &b->runtime, err));
    b->predicts = strcmp(b->runtime.ops->name, "cuda") == 0;
    if (!o->json) {
        printf("device %s: %" PRId64 " rows, %" PRId64
               " slots of %d KV heads; shares are of the floor, aims what was predicted\n",
               b->runtime.ops->name, o->rows, o->slots, shape.n_kv_heads);
    }
    enum sl_status status = sl_world_open(&b->runtime, &shape, &b->signals, &b->world, err);
    SL_THEN(status, measure_copy(b, err));
    SL_THEN(status, measure_product(b, err));
    SL_THEN(status, bench_all(b, err));
    sl_world_close(&b->world);
    sl_runtime_close(&b->runtime);
    return status;
}

SL_BENCH(kernels, "[options]", "Time every operation of a device beside the least that it could take.", .check = check);
