// SPDX-License-Identifier: Apache-2.0
#include "lab/bench/rig/breakdown.h"

#include <stdio.h>

#include "base/clock.h"
#include "lab/result.h"

#define MAX_ROWS 16 // operations, and shapes of products

struct row {
    const char *name;
    int64_t n, k; // size of a product; else 0
    int64_t calls, ns;
    double flop;
};

// State that the entries of a table cannot get as an argument.
static struct {
    struct sl_ops timed;
    const struct sl_ops *ops;
    struct row rows[MAX_ROWS];
    int n_rows;
} breakdown;

static void count(const char *name, int64_t n, int64_t k, int64_t begin_ns, double flop) {
    int i = 0;
    while (i < breakdown.n_rows &&
           (breakdown.rows[i].name != name || breakdown.rows[i].n != n || breakdown.rows[i].k != k)) {
        i++;
    }
    if (i == MAX_ROWS) {
        return; // counts as time of the forward pass itself
    }
    if (i == breakdown.n_rows) {
        breakdown.rows[breakdown.n_rows++] = (struct row){.name = name, .n = n, .k = k};
    }
    breakdown.rows[i].calls++;
    breakdown.rows[i].ns += sl_now_ns() - begin_ns;
    breakdown.rows[i].flop += flop;
}

static void matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    int64_t begin = sl_now_ns();
    breakdown.ops->matmul(stream, w, args);
    int64_t n = args->n_columns > 0 ? args->n_columns : w->n;
    count("matmul", n, w->k, begin, 2.0 * (double)args->m * (double)n * (double)w->k);
}

static void embed(struct sl_stream *stream, const struct sl_matrix *table, const int32_t *ids, int64_t m, float *out) {
    int64_t begin = sl_now_ns();
    breakdown.ops->embed(stream, table, ids, m, out);
    count("embed", 0, 0, begin, 0.0);
}

static void norm(struct sl_stream *stream, const struct sl_norm *what, struct sl_row_vectors x, float *out,
                 int64_t out_stride) {
    int64_t begin = sl_now_ns();
    breakdown.ops->norm(stream, what, x, out, out_stride);
    count("norm", 0, 0, begin, 0.0);
}

static void angles(struct sl_stream *stream, const struct sl_rope *rope, const int64_t *positions, int64_t m,
                   float *cosines, float *sines) {
    int64_t begin = sl_now_ns();
    breakdown.ops->angles(stream, rope, positions, m, cosines, sines);
    count("angles", 0, 0, begin, 0.0);
}

static void rotate(struct sl_stream *stream, const struct sl_rope *rope, const float *cosines, const float *sines,
                   struct sl_row_vectors x) {
    int64_t begin = sl_now_ns();
    breakdown.ops->rotate(stream, rope, cosines, sines, x);
    count("rotate", 0, 0, begin, 0.0);
}

// Returns the operations of q . K and p V for the slots that every row sees, without windows.
static double attend_flop(const struct sl_attend *call) {
    double rows = call->m, group = (double)call->n_heads / call->heads.n, pairs = 0.0;
    for (int h = 0; h < call->heads.n; h++) {
        pairs += group * (rows * call->heads.kv[h].n_slots - rows * (rows - 1.0) / 2.0);
    }
    return 4.0 * call->head_dim * pairs;
}

static void attend(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    int64_t begin = sl_now_ns();
    breakdown.ops->attend(stream, calls, n_calls);
    double flop = 0.0;
    for (int i = 0; i < n_calls; i++) {
        flop += attend_flop(&calls[i]);
    }
    count("attend", 0, 0, begin, flop);
}

const struct sl_ops *sl_breakdown_of(const struct sl_ops *ops) {
    breakdown.ops = ops;
    breakdown.timed = *ops;
    breakdown.timed.matmul = matmul;
    breakdown.timed.embed = embed;
    breakdown.timed.norm = norm;
    breakdown.timed.angles = angles;
    breakdown.timed.rotate = rotate;
    breakdown.timed.attend = attend;
    sl_breakdown_reset();
    return &breakdown.timed;
}

void sl_breakdown_reset(void) {
    breakdown.n_rows = 0;
}

static void print_row(const char *label, const struct row *row, double seconds, bool json) {
    char shape[48] = "", rate[48] = "", test[192];
    double own = (double)row->ns / 1e9;
    if (row->k > 0) {
        snprintf(shape, sizeof shape, " %lld x %lld", (long long)row->n, (long long)row->k);
    }
    if (row->flop > 0.0) {
        snprintf(rate, sizeof rate, ", %.1f GFLOP/s", row->flop / own / 1e9);
    }
    snprintf(test, sizeof test, "%s  %s%s%s", json ? label : "", row->name, shape, rate);
    struct sl_bench_result result = {.bench = "engine",
                                     .test = test,
                                     .value = row->calls > 0 ? own / (double)row->calls * 1e6 : own * 1e6,
                                     .unit = row->calls > 0 ? "us a call" : "us",
                                     .reference = "the time, ms",
                                     .reference_value = 1e3 * seconds,
                                     .ratio_value = 1e3 * own};
    sl_bench_print(&result, json);
}

void sl_breakdown_print(const char *label, double seconds, bool json) {
    struct row rest = {.name = "appends, and the forward pass itself", .ns = (int64_t)(seconds * 1e9)};
    for (int i = 0; i < breakdown.n_rows; i++) {
        print_row(label, &breakdown.rows[i], seconds, json);
        rest.ns -= breakdown.rows[i].ns;
    }
    print_row(label, &rest, seconds, json);
}
