// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures the product of every kind of weights, for one row, few and many, with every tier of this processor:
 *          whether engine/tensor/cpu/tiers.c chooses the fastest.
 *
 * Design: one thread computes, and its CPU time is measured, which other programs hardly change. Tiers take turns, and
 *         the best run of each counts. The first rows are compared with those of tier "reference": a tier that rounds x
 *         or the weights differs by more than sums in another order do.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/options/config.h"
#include "client/cli/tool.h"
#include "engine/tensor/cpu/tiers.h"
#include "engine/tensor/drawn.h"
#include "engine/tensor/weights.h"
#include "lab/bench/bench.h"

#define MOST_TIERS  8
#define LEAST_RUNS  3
#define COMPARED    4    // rows
#define ROUNDS_FROM 1e-4 // relative to the largest y; sums in another order differ by less
#define FASTER      1.1  // times as fast: less is noise

struct options {
    const char *only;
    int64_t size;
    double seconds;
    bool json;
};

static const struct sl_option option_table[] = {
    {"only", 0, SL_OPTION_STRING, "", "TEXT", "measure only kinds of weights whose names contain this text",
     SL_FIELD(options, only)},
    {"size", 0, SL_OPTION_INT, "2048", "N", "rows and columns of the matrix; a multiple of 256",
     SL_FIELD(options, size), 256, 1 << 14},
    {"seconds", 0, SL_OPTION_FLOAT, "0.3", "S", "time of every cell, for all tiers together",
     SL_FIELD(options, seconds), 0, 1e3},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object for each tier of a cell", SL_FIELD(options, json)},
};

// Kinds of weights: types of files, and formats that --weights makes of them.
static const struct {
    const char *name;
    enum sl_dtype dtype;
    enum sl_weight_format format;
} kinds[] = {
    {"bf16", SL_BF16, SL_WEIGHT_STORED}, {"f16", SL_F16, SL_WEIGHT_STORED},  {"f32", SL_F32, SL_WEIGHT_STORED},
    {"int8", SL_BF16, SL_WEIGHT_INT8},   {"int4", SL_BF16, SL_WEIGHT_INT4},  {"Q8_0", SL_Q8_0, SL_WEIGHT_CODES},
    {"Q4_0", SL_Q4_0, SL_WEIGHT_CODES},  {"Q4_1", SL_Q4_1, SL_WEIGHT_CODES}, {"Q5_0", SL_Q5_0, SL_WEIGHT_CODES},
    {"Q5_1", SL_Q5_1, SL_WEIGHT_CODES},  {"Q4_K", SL_Q4_K, SL_WEIGHT_CODES}, {"Q5_K", SL_Q5_K, SL_WEIGHT_CODES},
    {"Q6_K", SL_Q6_K, SL_WEIGHT_CODES},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static const int row_counts[] = {1, 4, 16, 512}; // a step, steps of several answers, a prompt
enum { N_COUNTS = sizeof row_counts / sizeof row_counts[0], MOST_ROWS = 512 };

struct tier {
    const struct sl_ops *ops;
    struct sl_matrix w;
    void *scratch;
    double seconds, error; // of the current cell
};

struct bench {
    struct options options;
    int n_tiers;
    struct tier tiers[MOST_TIERS];
    unsigned char *stored;
    float *x, *y; // [MOST_ROWS][size]
    float *expected;
    struct sl_signals signals;
};

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Fills x with what activations may be, and the weights with bytes of which any two are a normal f16, bf16 or a half of
// an f32: subnormal numbers would take more time than those of models.
static void fill(struct bench *b) {
    size_t n = (size_t)b->options.size;
    for (size_t i = 0; i < n * n * sizeof(float); i++) {
        b->stored[i] = (unsigned char)(0x20 | (sl_drawn_weight(i) & 31));
    }
    for (size_t i = 0; i < MOST_ROWS * n; i++) {
        b->x[i] = sl_bf16_to_f32(sl_drawn_weight(i)) * (1.0f + 1.0f / 300.0f); // not a bf16
    }
}

static void release(struct bench *b) {
    for (int t = 0; t < b->n_tiers; t++) {
        if (b->tiers[t].w.packed != NULL) {
            b->tiers[t].ops->unpack(&b->tiers[t].w);
        }
        free(b->tiers[t].scratch);
        b->tiers[t].scratch = NULL;
    }
}

static enum sl_status pack(struct bench *b, int kind, struct sl_error *err) {
    int64_t n = b->options.size;
    for (int t = 0; t < b->n_tiers; t++) {
        struct tier *tier = &b->tiers[t];
        tier->w = (struct sl_matrix){.n = n,
                                     .k = n,
                                     .dtype = kinds[kind].dtype,
                                     .format = kinds[kind].format,
                                     .parts = {{b->stored, n, kinds[kind].dtype}}};
        SL_TRY(sl_signals_check(&b->signals, err));
        SL_TRY(tier->ops->pack(NULL, &tier->w, err));
        size_t bytes = tier->ops->matmul_scratch(&tier->w, MOST_ROWS);
        tier->scratch = aligned_alloc(64, (bytes + 127) / 64 * 64);
        SL_FAIL_IF(tier->scratch == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    }
    return SL_OK;
}

// Returns the CPU seconds of a product of the first rows of x.
static double multiply(struct bench *b, const struct tier *tier, int rows, bool reading) {
    struct sl_matmul product = {.x = b->x,
                                .x_stride = b->options.size,
                                .m = rows,
                                .y = b->y,
                                .y_stride = b->options.size,
                                .reading = reading,
                                .scratch = tier->scratch};
    double begin = cpu_seconds();
    tier->ops->matmul(NULL, &tier->w, &product);
    return cpu_seconds() - begin;
}

// Returns the largest difference of the compared rows, relative to the largest of them.
static double error_of(const struct bench *b, int rows) {
    double error = 0.0, largest = 0.0;
    for (int64_t i = 0; i < rows * b->options.size; i++) {
        error = fmax(error, fabs((double)b->y[i] - (double)b->expected[i]));
        largest = fmax(largest, fabs((double)b->expected[i]));
    }
    return error / largest;
}

// Measures a cell: tier 0 is the reference, and is not timed.
static enum sl_status measure(struct bench *b, int rows, struct sl_error *err) {
    int compared = rows < COMPARED ? rows : COMPARED;
    bool reading = rows == MOST_ROWS;
    multiply(b, &b->tiers[0], compared, reading);
    memcpy(b->expected, b->y, (size_t)(compared * b->options.size) * sizeof *b->y);
    for (int t = 1; t < b->n_tiers; t++) {
        b->tiers[t].seconds = multiply(b, &b->tiers[t], rows, reading);
        b->tiers[t].error = error_of(b, compared);
    }
    double begin = cpu_seconds();
    for (int run = 0; run < LEAST_RUNS || cpu_seconds() - begin < b->options.seconds; run++) {
        for (int t = 1; t < b->n_tiers; t++) {
            SL_TRY(sl_signals_check(&b->signals, err));
            b->tiers[t].seconds = fmin(b->tiers[t].seconds, multiply(b, &b->tiers[t], rows, reading));
        }
    }
    return SL_OK;
}

static void print(const struct bench *b, int kind, int rows, const struct sl_ops *chosen) {
    int fastest = 1, used = 0; // the reference, if SLUICE_TIER names it
    for (int t = 1; t < b->n_tiers; t++) {
        fastest = b->tiers[t].seconds < b->tiers[fastest].seconds ? t : fastest;
        used = b->tiers[t].ops == chosen ? t : used;
    }
    for (int t = 1; t < b->n_tiers && b->options.json; t++) {
        printf("{\"bench\": \"tiers\", \"case\": \"%s, rows %d\", \"tier\": \"%s\", \"value\": %.1f, \"unit\": \"us\", "
               "\"error\": %.1e, \"chosen\": %s}\n",
               kinds[kind].name, rows, b->tiers[t].ops->name, 1e6 * b->tiers[t].seconds, b->tiers[t].error,
               t == used ? "true" : "false");
    }
    if (!b->options.json) {
        printf("%-8s %5d", kinds[kind].name, rows);
        for (int t = 1; t < b->n_tiers; t++) {
            printf(" %10.1f%c%c", 1e6 * b->tiers[t].seconds, b->tiers[t].error > ROUNDS_FROM ? '~' : ' ',
                   t == used ? '*' : ' ');
        }
        double ratio = b->tiers[used].seconds / b->tiers[fastest].seconds;
        if (ratio > FASTER) {
            printf(" %s is %.2f times as fast", b->tiers[fastest].ops->name, ratio);
        }
        printf("\n");
    }
    fflush(stdout);
}

static enum sl_status measure_kind(struct bench *b, int kind, struct sl_error *err) {
    const struct sl_ops *chosen;
    bool wide = kinds[kind].format == SL_WEIGHT_STORED && kinds[kind].dtype != SL_BF16;
    SL_TRY((wide ? sl_ops_select_wide : sl_ops_select)("auto", &chosen, err));
    enum sl_status status = pack(b, kind, err);
    for (int i = 0; i < N_COUNTS && status == SL_OK; i++) {
        status = measure(b, row_counts[i], err);
        if (status == SL_OK) {
            print(b, kind, row_counts[i], chosen);
        }
    }
    release(b);
    return status;
}

static enum sl_status open_tiers(struct bench *b, struct sl_error *err) {
    for (const char *const *name = sl_ops_tiers(); *name != NULL && b->n_tiers < MOST_TIERS; name++) {
        SL_TRY(sl_ops_select(*name, &b->tiers[b->n_tiers++].ops, err));
    }
    SL_FAIL_IF(b->n_tiers < 2, err, SL_ERR_UNSUPPORTED, "this processor has tier reference alone");
    if (!b->options.json) {
        printf("us of one thread for [rows][%d] x [%d][%d]; *: auto's tier; ~: differs from plain C by more than %g\n\n"
               "%-8s %5s",
               (int)b->options.size, (int)b->options.size, (int)b->options.size, ROUNDS_FROM, "weights", "rows");
        for (int t = 1; t < b->n_tiers; t++) {
            printf(" %10s  ", b->tiers[t].ops->name);
        }
        printf("\n");
    }
    return SL_OK;
}

static enum sl_status check(void *bench, struct sl_error *err) {
    const struct options *o = &((const struct bench *)bench)->options;
    SL_FAIL_IF(o->size % SL_MAX_BLOCK != 0, err, SL_ERR_INVALID, "--size: a multiple of %d", SL_MAX_BLOCK);
    return SL_OK;
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    size_t n = (size_t)b->options.size;
    b->stored = malloc(n * n * sizeof(float)); // enough for every type
    b->x = aligned_alloc(64, MOST_ROWS * n * sizeof *b->x);
    b->y = aligned_alloc(64, MOST_ROWS * n * sizeof *b->y);
    b->expected = malloc(COMPARED * n * sizeof *b->expected);
    bool enough = b->stored != NULL && b->x != NULL && b->y != NULL && b->expected != NULL;
    enum sl_status status = enough ? open_tiers(b, err) : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    if (status == SL_OK) {
        fill(b);
    }
    for (int kind = 0; kind < N_KINDS && status == SL_OK; kind++) {
        status = strstr(kinds[kind].name, b->options.only) != NULL ? measure_kind(b, kind, err) : SL_OK;
    }
    free(b->stored);
    free(b->x);
    free(b->y);
    free(b->expected);
    return status;
}

SL_BENCH(tiers, "[options]",
         "Time every tier of this processor for every kind of weights, and name the one that is used.", .check = check);
