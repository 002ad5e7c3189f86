// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures how fast the engine reads prompts and writes answers, compared with this machine's limits.
 *
 * Design: prefill is arithmetic: its GFLOP/s are compared with the best of our own matmul on large matrices of the
 *         model's type, and that with the peak rate of its instructions. Decoding is memory reads: the weights once
 *         per step and the KV cache of every session, compared with a plain sum over a large buffer right before each
 *         run: on a shared machine it halves and doubles within seconds. A model that fits into a cache may exceed 100%
 *         of that. lab/bench/rig/cell.h defines the cells. A figure is the median of its runs: up to --runs, but no
 *         more once they have taken --seconds; bounds are the best of several runs.
 *         The models and their cells are data: sl_synthetic_geometries[], plan[] and its aims. Random models are
 *         written to disk, mapped, and unlinked immediately, so that no file remains however the process ends.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "lab/bench/bench.h"
#include "lab/bench/rig/breakdown.h"
#include "lab/bench/rig/cell.h"
#include "lab/bench/rig/peak.h"
#include "lab/bench/rig/synthetic.h"
#include "lab/result.h"
#include "base/options/config.h"

#define CHUNK         512
#define DECODE_STEPS  16 // per run
#define MAX_RUNS      101
#define QUICK_TOKENS  2048
#define QUICK_SECONDS 2.0
#define SIDE          4096 // n and k of the matmul that measures the GEMM peak
#define GEMM_SECONDS  2.0  // for each number of rows

struct options {
    const char *model, *models, *weights, *tier, *device, *keep;
    int64_t threads, ranks, runs, max_tokens;
    double seconds;
    bool pin, quick, breakdown, json;
};

static const struct sl_option option_table[] = {
    {"models", 0, SL_OPTION_STRING, "135m,1b,8b", "LIST",
     "random models: " SL_GEOMETRY_HELP ", separated by commas; or none", SL_FIELD(options, models)},
    {"model", 'm', SL_OPTION_MODEL, NULL, "MODEL", "measure this model folder, too", SL_FIELD(options, model)},
    {"weights", 0, SL_OPTION_STRING, "stored", "FORMAT", "stored, int8 or int4", SL_FIELD(options, weights)},
    {"keep-models", 0, SL_OPTION_STRING, NULL, "DIR", "keep the random models there, and use those that are there",
     SL_FIELD(options, keep)},
    {"tier", 0, SL_OPTION_STRING, "auto", "NAME", "kernels to use", SL_FIELD(options, tier)},
    {"threads", 0, SL_OPTION_INT, "0", "N", "threads; 0: one per processor", SL_FIELD(options, threads), 0, 1024},
    SL_DEVICE_OPTION(options, device),
    {"ranks", 0, SL_OPTION_INT, "1", "N", "measure N ranks with the same threads, in turns with one rank",
     SL_FIELD(options, ranks), 1, SL_MAX_RANKS},
    {"pin", 0, SL_OPTION_FLAG, "no", NULL, "give each thread a processor of its own", SL_FIELD(options, pin)},
    {"runs", 0, SL_OPTION_INT, "5", "N", "runs of every cell, at most", SL_FIELD(options, runs), 1, MAX_RUNS},
    {"seconds", 0, SL_OPTION_FLOAT, "30", "S", "no further run of a cell once its runs have taken that long",
     SL_FIELD(options, seconds), 0, 1e6},
    {"max-tokens", 0, SL_OPTION_INT, "16384", "N", "leave out longer prompts and greater depths",
     SL_FIELD(options, max_tokens), 1, 1 << 20},
    {"quick", 0, SL_OPTION_FLAG, "no", NULL, "as --max-tokens 2048 --seconds 2, where these are larger",
     SL_FIELD(options, quick)},
    {"breakdown", 0, SL_OPTION_FLAG, "no", NULL, "below every cell: the share of every operation",
     SL_FIELD(options, breakdown)},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

// The cells of every model, prompts first and ascending, and the share of the bound that a random one should reach.
static const struct {
    const char *cell;
    double aim;
} plan[] = {
    {"prefill:512", 0},    {"prefill:2048", 0.70}, {"prefill:8192", 0},  {"prefill:16384", 0.60}, {"decode:512", 0.85},
    {"decode:4096", 0.85}, {"decode:16384", 0.85}, {"decode:512x16", 0}, {"decode:4096x16", 0},
};
enum { N_PLAN = sizeof plan / sizeof plan[0] };

// Aim for the throughput of 16 sessions of the 1b model, as a multiple of batch 1, with weights as stored. At greater
// depths reading the caches prevents it: at 4096 they are as large as the weights.
#define BATCH_AIM       10.0
#define BATCH_AIM_DEPTH 512

struct bench {
    struct options options;
    enum sl_weight_format weights;
    unsigned chosen;             // geometries
    struct sl_runtime computing; // runtime of the bounds; a model's runtime may have timed operations
    struct sl_signals signals;
    double gemm_gflops[SL_BF16 + 1][SL_WEIGHT_INT4 + 1]; // 0: not measured yet
    double read_gbps;
    // the current model
    const char *label;
    bool random;
    struct sl_rig rig, ranks; // ranks: open if there are several
    struct {
        int64_t depth;
        double tokens_per_s;
    } alone[N_PLAN]; // decode cells of one session
    int n_alone;
};

static double larger(double a, double b) {
    return a > b ? a : b;
}

// --- bounds --------------------------------------------------------------------------------------------------------

// Multiplies m rows by a packed matrix for a while; returns the best GFLOP/s.
static double time_matmul(struct bench *b, const struct sl_matrix *w, const struct sl_matmul *product) {
    double best = 0.0, spent = 0.0;
    for (int64_t run = 0; run < b->options.runs + 1 && spent < GEMM_SECONDS && sl_signals_received(&b->signals) == 0;
         run++) {
        int64_t begin = sl_now_ns();
        b->computing.ops->matmul(b->computing.stream, w, product);
        double seconds = (double)(sl_now_ns() - begin) / 1e9;
        best = larger(best, 2e-9 * (double)product->m * SIDE * SIDE / seconds);
        spent += seconds;
    }
    return best;
}

static enum sl_status measure_gemm(struct bench *b, enum sl_dtype dtype, double *gflops_out, struct sl_error *err) {
    static const int64_t rows[] = {CHUNK, 4 * CHUNK};
    size_t weights = (size_t)SIDE * SIDE, activations = 4 * CHUNK * (size_t)SIDE;
    struct sl_matrix w = {.n = SIDE, .k = SIDE, .dtype = dtype, .format = b->weights};
    void *stored = malloc(weights * (dtype == SL_F32 ? 4 : 2));
    float *x = aligned_alloc(64, activations * sizeof *x), *y = aligned_alloc(64, activations * sizeof *y);
    void *scratch = NULL;
    enum sl_status status =
        stored == NULL || x == NULL || y == NULL ? sl_fail(err, SL_ERR_EXHAUSTED, "out of memory") : SL_OK;
    if (status == SL_OK) {
        memset(stored, 0x3f, weights * (dtype == SL_F32 ? 4 : 2)); // 0.7 or so as f32 and bf16, 1.8 as f16
        for (size_t i = 0; i < activations; i++) {
            x[i] = (float)(i % 17) * 0.1f - 0.8f;
        }
        w.parts[0] = (struct sl_rows){stored, SIDE, dtype};
        status = b->computing.ops->pack(b->computing.stream, &w, err);
    }
    if (status == SL_OK) {
        size_t bytes = b->computing.ops->matmul_scratch(&w, 4 * CHUNK);
        scratch = aligned_alloc(64, (bytes + 64) / 64 * 64);
        status = scratch != NULL ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    double best = 0.0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && status == SL_OK; i++) {
        if (i > 0 && 2e-9 * (double)rows[i] * SIDE * SIDE > GEMM_SECONDS * best) {
            break; // so slow that more rows would not help
        }
        struct sl_matmul product = {
            .x = x, .x_stride = SIDE, .m = rows[i], .y = y, .y_stride = SIDE, .scratch = scratch};
        best = larger(best, time_matmul(b, &w, &product));
    }
    b->computing.ops->unpack(&w);
    free(stored);
    free(x);
    free(y);
    free(scratch);
    *gflops_out = best;
    return status;
}

// Returns the GEMM peak for weights stored as `dtype`; measures and prints it on the first call.
static enum sl_status find_gemm_peak(struct bench *b, enum sl_dtype dtype, struct sl_error *err) {
    static const char *const names[] = {[SL_F32] = "f32", [SL_F16] = "f16", [SL_BF16] = "bf16"};
    double *peak = &b->gemm_gflops[dtype][b->weights];
    if (*peak > 0.0) {
        return SL_OK;
    }
    const char *what;
    bool stored = b->weights == SL_WEIGHT_STORED;
    sl_bench_progress("GEMM peak");
    SL_TRY(measure_gemm(b, dtype, peak, err));
    SL_TRY(sl_signals_check(&b->signals, err));
    double instructions = sl_peak_gflops(b->computing.team, b->computing.ops->name, !stored || dtype == SL_BF16, &what);
    char test[96], reference[96];
    snprintf(test, sizeof test, "GEMM peak: matmul of %s, %d x %d", stored ? names[dtype] : b->options.weights, SIDE,
             SIDE);
    snprintf(reference, sizeof reference, "%s, GFLOP/s", what != NULL ? what : "");
    struct sl_bench_result result = {.bench = "engine",
                                     .test = test,
                                     .value = *peak,
                                     .unit = "GFLOP/s",
                                     .reference = what != NULL ? reference : NULL,
                                     .reference_value = instructions};
    sl_bench_print(&result, b->options.json);
    return SL_OK;
}

static enum sl_status find_read_bound(struct bench *b, struct sl_error *err) {
    size_t bytes = 0;
    sl_bench_progress("read bandwidth");
    SL_TRY(sl_peak_read_gbps(b->computing.team, &b->signals, &bytes, &b->read_gbps, err));
    char test[96];
    snprintf(test, sizeof test, "read bound: a sum over %.2f GB", (double)bytes / 1e9);
    sl_bench_print_value("engine", test, b->read_gbps, "GB/s", b->options.json);
    return SL_OK;
}

// --- what a cell costs ---------------------------------------------------------------------------------------------

// Returns how many slots n adjacent tokens from position `depth` on see, summed over tokens and layers.
static double visible_slots(const struct sl_model_config *c, double depth, double n) {
    double sum = 0.0;
    for (int l = 0; l < c->n_layers; l++) {
        bool is_window = (c->window_layers[l / 64] >> (l % 64) & 1) != 0;
        double window = is_window && c->window > 0 ? (double)c->window : depth + n;
        double growing =
            depth >= window ? 0.0 : (window - depth < n ? window - depth : n); // tokens that see all earlier ones
        sum += growing * depth + growing * (growing + 1.0) / 2.0 + (n - growing) * window;
    }
    return sum;
}

// Returns the operations of reading n tokens and one row of logits: two per multiply-add, q.K and p.V of visible slots.
static double prefill_gflop(const struct sl_model *model, double n) {
    const struct sl_model_config *c = sl_model_get_config(model);
    double attention = 2.0 * c->n_heads * c->head_dim * visible_slots(c, 0.0, n);
    double head = (double)c->hidden * c->n_vocab;
    return 2e-9 * ((double)sl_model_layer_weights(model) * n + attention + head);
}

// Returns the gigabytes of a run of steps: per step the weights once, and the f16 K and V that every session sees.
static double decode_gigabytes(const struct sl_rig *rig) {
    const struct sl_model_config *c = rig->runtime.config;
    double steps = (double)rig->config.n_steps;
    double cache = 2.0 * 2.0 * c->n_kv_heads * c->head_dim * visible_slots(c, (double)rig->cell.n, steps);
    size_t weights = sl_model_memory_bytes(rig->runtime.model) - sl_model_embedding_bytes(rig->runtime.model);
    return ((double)weights * steps + rig->cell.batch * cache) / 1e9;
}

// --- memory --------------------------------------------------------------------------------------------------------

static void print_memory(const struct bench *b, const char *what, double mb, const char *reference, double of_mb) {
    char test[128];
    snprintf(test, sizeof test, "%s: %s", b->label, what);
    struct sl_bench_result result = {
        .bench = "engine", .test = test, .value = mb, .unit = "MB", .reference = reference, .reference_value = of_mb};
    sl_bench_print(&result, b->options.json);
}

// Prints resident memory beyond the packed weights, the cell's KV cache within it, and resident file mappings.
static enum sl_status bench_memory(struct bench *b, struct sl_error *err) {
    struct sl_arena_stats cache;
    double own = sl_bench_process_status(getpid(), "RssAnon") * 1024 / 1e6;
    double mapped = sl_bench_process_status(getpid(), "RssFile") * 1024 / 1e6;
    SL_FAIL_IF(own < 0 || mapped < 0, err, SL_ERR_UNSUPPORTED, "/proc/self/status has no RssAnon and RssFile");
    sl_arena_get_stats(b->rig.arena, &cache);
    double weights = (double)sl_model_memory_bytes(b->rig.runtime.model) / 1e6, over = own - weights;
    double cache_mb = (double)cache.high_water_bytes / 1e6;
    if (over < 0.0) { // a tier that reads weights from the mapping
        over = own;
    }
    print_memory(b, "memory over the weights", over, "weights in memory, MB", weights);
    print_memory(b, "  of it the KV cache", cache_mb, "memory over the weights, MB", over);
    print_memory(b, "  of it activations and all else", over - cache_mb, "memory over the weights, MB", over);
    print_memory(b, "beside it pages of files (embedding, code)", mapped, NULL, 0.0);
    return SL_OK;
}

// --- cells ---------------------------------------------------------------------------------------------------------

// Writes medians; those of ranks are 0 if there is only one rank. spent_out: sum over all runs of one rank.
static enum sl_status time_cell(struct bench *b, double *median_out, double *of_ranks_out, double *spent_out,
                                struct sl_error *err) {
    double seconds[MAX_RUNS], of_ranks[MAX_RUNS] = {0}, read_gbps[MAX_RUNS], spent = 0.0;
    size_t runs = 0, bytes;
    enum sl_status status = sl_rig_warm_up(&b->rig, err);
    status = status == SL_OK && b->options.ranks > 1 ? sl_rig_warm_up(&b->ranks, err) : status;
    sl_breakdown_reset();
    while (status == SL_OK && runs < (size_t)b->options.runs && (runs == 0 || spent < b->options.seconds)) {
        sl_bench_progress("%s: %s, run %zu of %" PRId64 " at most", b->label, b->rig.cell.name, runs + 1,
                          b->options.runs);
        if (!b->rig.cell.prefill) {
            status = sl_peak_read_gbps(b->computing.team, &b->signals, &bytes, &read_gbps[runs], err);
        }
        SL_THEN(status, sl_rig_run(&b->rig, &seconds[runs], err));
        SL_THEN(status, b->options.ranks > 1 ? sl_rig_run(&b->ranks, &of_ranks[runs], err) : SL_OK);
        spent += seconds[runs++];
    }
    if (status == SL_OK) {
        *spent_out = spent;
        *median_out = sl_bench_median(seconds, runs);
        *of_ranks_out = sl_bench_median(of_ranks, runs);
        b->read_gbps = b->rig.cell.prefill ? b->read_gbps : sl_bench_median(read_gbps, runs);
    }
    return status;
}

static void print_prefill(const struct bench *b, const char *test, double seconds, double aim) {
    const struct sl_model_config *c = b->rig.runtime.config;
    struct sl_bench_result result = {.bench = "engine",
                                     .test = test,
                                     .value = (double)sl_rig_tokens(&b->rig) / seconds,
                                     .unit = "tokens/s",
                                     .reference = "GEMM peak, GFLOP/s",
                                     .reference_value = b->gemm_gflops[c->dtype][b->weights],
                                     .ratio_value =
                                         prefill_gflop(b->rig.runtime.model, (double)b->rig.cell.n) / seconds,
                                     .aim = aim};
    sl_bench_print(&result, b->options.json);
}

static void print_decode(struct bench *b, const char *test, double seconds, double aim) {
    const struct sl_cell *cell = &b->rig.cell;
    double tokens_per_s = (double)sl_rig_tokens(&b->rig) / seconds;
    struct sl_bench_result result = {.bench = "engine",
                                     .test = test,
                                     .value = tokens_per_s,
                                     .unit = "tokens/s",
                                     .reference = "read bound, GB/s",
                                     .reference_value = b->read_gbps,
                                     .ratio_value = decode_gigabytes(&b->rig) / seconds,
                                     .aim = aim};
    sl_bench_print(&result, b->options.json);
    if (cell->batch == 1) {
        b->alone[b->n_alone].depth = cell->n;
        b->alone[b->n_alone++].tokens_per_s = tokens_per_s;
    }
    for (int i = 0; i < b->n_alone && cell->batch > 1; i++) {
        if (b->alone[i].depth == cell->n) {
            bool has_aim = b->random && strcmp(b->label, "1b") == 0 && b->weights == SL_WEIGHT_STORED &&
                           cell->n <= BATCH_AIM_DEPTH;
            result.reference = "batch 1, tokens/s";
            result.reference_value = b->alone[i].tokens_per_s;
            result.ratio_value = tokens_per_s;
            result.as_factor = true;
            result.aim = has_aim ? BATCH_AIM : 0.0;
            sl_bench_print(&result, b->options.json);
        }
    }
}

static void print_ranks(const struct bench *b, const char *test, double one, double of_ranks) {
    char name[192];
    double tokens = (double)sl_rig_tokens(&b->rig);
    snprintf(name, sizeof name, "%s by %" PRId64 " ranks", test, b->options.ranks);
    struct sl_bench_result result = {.bench = "engine",
                                     .test = name,
                                     .value = tokens / of_ranks,
                                     .unit = "tokens/s",
                                     .reference = "one rank, tokens/s",
                                     .reference_value = tokens / one};
    sl_bench_print(&result, b->options.json);
}

static enum sl_status bench_cell(struct bench *b, const struct sl_cell *cell, double aim, bool shows_memory,
                                 struct sl_error *err) {
    char test[128];
    double seconds = 0.0, of_ranks = 0.0, spent = 0.0;
    snprintf(test, sizeof test, "%s: %s", b->label, cell->name);
    sl_bench_progress("%s", test);
    enum sl_status status = sl_rig_open_cell(&b->rig, cell, err);
    status = status == SL_OK && b->options.ranks > 1 ? sl_rig_open_cell(&b->ranks, cell, err) : status;
    SL_THEN(status, time_cell(b, &seconds, &of_ranks, &spent, err));
    if (status == SL_OK && cell->prefill) {
        print_prefill(b, test, seconds, aim);
    } else if (status == SL_OK) {
        print_decode(b, test, seconds, aim);
    }
    if (status == SL_OK && b->options.ranks > 1) {
        print_ranks(b, test, seconds, of_ranks);
    }
    if (status == SL_OK && b->options.breakdown) {
        sl_breakdown_print(test, spent, b->options.json);
    }
    SL_THEN(status, shows_memory && b->options.ranks == 1 ? bench_memory(b, err)
                                                          : SL_OK); // otherwise the process holds two models
    sl_rig_close_cell(&b->rig);
    sl_rig_close_cell(&b->ranks);
    return status;
}

// --- ranks ---------------------------------------------------------------------------------------------------------

#define BARRIERS 20000

// Prints the overhead of an operation, and the memory of each rank.
static void bench_ranks(const struct bench *b) {
    const struct sl_device *device = b->ranks.runtime.device;
    char test[128];
    int64_t begin = sl_now_ns();
    for (int i = 0; i < BARRIERS; i++) {
        sl_ranks_barrier(b->ranks.runtime.stream);
    }
    double us = (double)(sl_now_ns() - begin) / 1e3 / BARRIERS;
    snprintf(test, sizeof test, "%s: a barrier of %d ranks", b->label, sl_ranks_count(device));
    sl_bench_print_value("engine", test, us, "us", b->options.json);
    const struct sl_model *model = b->rig.runtime.model;
    double all = (double)(sl_model_memory_bytes(model) - sl_model_embedding_bytes(model)) / 1e6;
    for (int r = 0; r < sl_ranks_count(device); r++) {
        snprintf(test, sizeof test, "weights of rank %d", r);
        print_memory(b, test, (double)sl_ranks_weight_bytes(device, r) / 1e6, "weights of one rank, MB", all);
    }
}

// --- models --------------------------------------------------------------------------------------------------------

static enum sl_status open_model(struct bench *b, const char *dir, struct sl_error *err) {
    struct sl_rig_config config = {
        .model_dir = dir,
        .device = b->options.device,
        .host_reader = "this bench", // its bounds are those of CPUs
        .weights = b->weights,
        .tier = b->options.tier,
        .ops = b->options.breakdown ? sl_breakdown_of(b->computing.ops) : NULL,
        .team = b->computing.team,
        .chunk = CHUNK,
        .n_steps = DECODE_STEPS,
        .signals = &b->signals,
    };
    sl_bench_progress("%s: loading", b->label);
    enum sl_status status = sl_rig_open(&config, &b->rig, err);
    if (status == SL_OK && b->options.ranks > 1) {
        config.team = NULL;
        config.ranks = (int)b->options.ranks;
        config.threads = sl_team_size(b->computing.team);
        config.pin = b->options.pin;
        status = sl_rig_open(&config, &b->ranks, err);
        if (status == SL_OK) {
            bench_ranks(b);
        }
    }
    return status == SL_OK ? sl_signals_check(&b->signals, err) : status;
}

// Writes cell i of the plan, if the current model may be asked for it.
static bool find_cell(const struct bench *b, int i, struct sl_cell *cell_out) {
    const struct sl_model_config *c = b->rig.runtime.config;
    struct sl_error err;
    return i < N_PLAN && sl_cell_parse(plan[i].cell, cell_out, &err) == SL_OK && cell_out->n <= b->options.max_tokens &&
           cell_out->n + (cell_out->prefill ? 0 : DECODE_STEPS) <= c->max_positions;
}

// Runs the cells of the model that open_model() has loaded.
static enum sl_status bench_model(struct bench *b, struct sl_error *err) {
    enum sl_status status = find_gemm_peak(b, b->rig.runtime.config->dtype, err);
    b->n_alone = 0;
    for (int i = 0; i < N_PLAN && status == SL_OK; i++) {
        struct sl_cell cell, next;
        if (find_cell(b, i, &cell)) {
            bool longest_prompt = cell.prefill && !(find_cell(b, i + 1, &next) && next.prefill);
            status = bench_cell(b, &cell, b->random ? plan[i].aim : 0.0, longest_prompt, err);
        }
    }
    return status;
}

// Writes the folder of a random model that is kept: --keep-models's NAME, created if missing.
static enum sl_status keep_model(struct bench *b, int geometry, char *dir_out, size_t dir_bytes, struct sl_error *err) {
    char path[PATH_MAX];
    int length = snprintf(dir_out, dir_bytes, "%s/%s", b->options.keep, sl_synthetic_geometries[geometry].name);
    SL_FAIL_IF(length < 0 || (size_t)length >= dir_bytes, err, SL_ERR_INVALID, "--keep-models %s: the path is too long",
               b->options.keep);
    SL_FAIL_IF((mkdir(b->options.keep, 0777) != 0 && errno != EEXIST) || (mkdir(dir_out, 0777) != 0 && errno != EEXIST),
               err, SL_ERR_IO, "--keep-models: cannot make %s: %s", dir_out, strerror(errno));
    snprintf(path, sizeof path, "%s/config.json", dir_out);
    return access(path, F_OK) == 0 ? SL_OK
                                   : sl_synthetic_write(&sl_synthetic_geometries[geometry].config, SL_SYNTHETIC_WRITTEN,
                                                        &b->signals, dir_out, err);
}

static enum sl_status bench_random(struct bench *b, int geometry, struct sl_error *err) {
    char dir[SL_SYNTHETIC_PATH_BYTES];
    bool kept = b->options.keep != NULL;
    b->label = sl_synthetic_geometries[geometry].name;
    b->random = true;
    SL_TRY(kept ? keep_model(b, geometry, dir, sizeof dir, err)
                : sl_synthetic_create(&sl_synthetic_geometries[geometry].config, SL_SYNTHETIC_WRITTEN, &b->signals, dir,
                                      err));
    enum sl_status status = open_model(b, dir, err);
    if (!kept) {
        sl_synthetic_remove(dir);
    }
    SL_THEN(status, bench_model(b, err));
    sl_rig_close(&b->rig);
    sl_rig_close(&b->ranks);
    return status;
}

// Parses a list such as "135m,1b" into bits of geometries[].
static enum sl_status parse_models(const char *list, unsigned *geometries_out, struct sl_error *err) {
    unsigned chosen = 0;
    for (const char *name = list; strcmp(list, "none") != 0;) {
        size_t length = strcspn(name, ",");
        int i = 0;
        while (i < SL_N_GEOMETRIES && (strlen(sl_synthetic_geometries[i].name) != length ||
                                       strncmp(sl_synthetic_geometries[i].name, name, length) != 0)) {
            i++;
        }
        SL_FAIL_IF(i == SL_N_GEOMETRIES, err, SL_ERR_INVALID, "--models %s: expected a list of %s; or none", list,
                   SL_GEOMETRY_HELP);
        chosen |= 1u << i;
        if (name[length] == '\0') {
            break;
        }
        name += length + 1;
    }
    *geometries_out = chosen;
    return SL_OK;
}

static enum sl_status bench_all(struct bench *b, struct sl_error *err) {
    struct sl_runtime_config config = {
        .tier = b->options.tier, .threads = (int)b->options.threads, .pin = b->options.pin};
    enum sl_status status = sl_runtime_open(&config, &b->computing, err);
    if (status == SL_OK) {
        sl_team_pin_caller(b->computing.team);
    }
    if (status == SL_OK && !b->options.json) {
        printf("tier %s, %d threads, weights %s, KV f16\n", b->computing.ops->name, sl_team_size(b->computing.team),
               b->options.weights);
    }
    SL_THEN(status, find_read_bound(b, err));
    if (status == SL_OK && b->options.model != NULL) {
        b->label = b->options.model;
        status = open_model(b, b->options.model, err);
        SL_THEN(status, bench_model(b, err));
        sl_rig_close(&b->rig);
        sl_rig_close(&b->ranks);
    }
    for (int i = 0; i < SL_N_GEOMETRIES && status == SL_OK; i++) {
        status = b->chosen & 1u << i ? bench_random(b, i, err) : SL_OK;
    }
    sl_runtime_close(&b->computing);
    return status;
}

static enum sl_status check(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    enum sl_status status = sl_weight_format_parse(b->options.weights, &b->weights, err);
    SL_FAIL_IF(status == SL_OK && b->options.breakdown && b->options.ranks > 1, err, SL_ERR_INVALID,
               "--breakdown: of one rank; leave out --ranks");
    return status == SL_OK ? parse_models(b->options.models, &b->chosen, err) : status;
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    if (b->options.quick) {
        b->options.max_tokens = b->options.max_tokens < QUICK_TOKENS ? b->options.max_tokens : QUICK_TOKENS;
        b->options.seconds = b->options.seconds < QUICK_SECONDS ? b->options.seconds : QUICK_SECONDS;
    }
    return bench_all(b, err);
}

SL_BENCH(engine, "[options]", "Measure prefill and decode against this machine's arithmetic and memory.",
         .check = check);
