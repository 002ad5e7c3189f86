// SPDX-License-Identifier: Apache-2.0
// Purpose: the kinds of weights that check_matmul.c multiplies, and the times of their products (--time).
#pragma once

#include <math.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "engine/tensor/weights.h"
#include "tests/kernels/dense_fixture.h"
#include "tests/stream.h"

static const struct {
    enum sl_dtype dtype;
    enum sl_weight_format format;
    const char *name;
} kinds[] = {
    {SL_F32, SL_WEIGHT_STORED, "f32"},        {SL_F16, SL_WEIGHT_STORED, "f16"},
    {SL_BF16, SL_WEIGHT_STORED, "bf16"},      {SL_F32, SL_WEIGHT_INT8, "int8"},
    {SL_BF16, SL_WEIGHT_INT4, "int4"},        {SL_Q8_0, SL_WEIGHT_INT8, "q8_0"},
    {SL_Q4_0, SL_WEIGHT_INT4, "q4_0"},        {SL_Q4_0, SL_WEIGHT_INT8, "q4_0 as int8"},
    {SL_Q8_0, SL_WEIGHT_CODES, "q8_0 codes"}, {SL_Q4_0, SL_WEIGHT_CODES, "q4_0 codes"},
    {SL_Q4_1, SL_WEIGHT_CODES, "q4_1"},       {SL_Q5_0, SL_WEIGHT_CODES, "q5_0"},
    {SL_Q5_1, SL_WEIGHT_CODES, "q5_1"},       {SL_Q2_K, SL_WEIGHT_CODES, "q2_k"},
    {SL_Q3_K, SL_WEIGHT_CODES, "q3_k"},       {SL_Q4_K, SL_WEIGHT_CODES, "q4_k"},
    {SL_Q5_K, SL_WEIGHT_CODES, "q5_k"},       {SL_Q6_K, SL_WEIGHT_CODES, "q6_k"},
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

// Returns true where the tier multiplies matrices of this kind.
static bool supports(const struct sl_ops *ops, size_t kind) {
    return kinds[kind].format != SL_WEIGHT_CODES || ops->keeps_codes;
}

// Returns the time in ns. A team of one measures its thread's CPU time, which other programs hardly change.
static int64_t time_ns(const struct sl_stream *stream) {
    struct timespec t;
    if (sl_stream_threads(stream) > 1) {
        return sl_now_ns();
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static double seconds_of_matmul(const struct sl_ops *ops, struct sl_stream *stream, const struct sl_matrix *w,
                                const float *x, int64_t m, float *y) {
    double best = HUGE_VAL;
    void *scratch = aligned_alloc(64, (ops->matmul_scratch(w, m) + 127) / 64 * 64);
    assert_non_null(scratch);
    int64_t end = sl_now_ns() + 40000000;
    for (int run = 0; run < 5 || (run < 200 && sl_now_ns() < end); run++) {
        int64_t begin = time_ns(stream);
        struct sl_matmul args = {.x = x, .x_stride = w->k, .m = m, .y = y, .y_stride = w->n, .scratch = scratch};
        ops->matmul(stream, w, &args);
        double seconds = (double)(time_ns(stream) - begin) / 1e9;
        best = seconds < best ? seconds : best;
    }
    free(scratch);
    return best;
}

static void time_kind(const struct sl_ops *ops, struct sl_stream *stream, size_t kind, int64_t n, int64_t k) {
    const int64_t rows[] = {1, 4, 8, 16, 32, 128, 512};
    bool is_reference = strcmp(ops->name, "reference") == 0;
    void *owner;
    if (!supports(ops, kind)) {
        return;
    }
    float *x = random_floats(512 * k, 1), *y = random_floats(512 * n, 2);
    struct sl_matrix w = random_matrix(n, k, kinds[kind].dtype, 9, &owner);
    w.format = kinds[kind].format;
    w.parts[0].dtype = w.dtype;
    assert_int_equal(ops->pack(stream, &w, NULL), SL_OK);
    double bytes = w.packed_bytes != 0 ? (double)w.packed_bytes : (double)(n * k) * (w.dtype == SL_F32 ? 4 : 2);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && !(is_reference && rows[i] > 1); i++) {
        double seconds = seconds_of_matmul(ops, stream, &w, x, rows[i], y);
        printf("matmul %-9s %-4s m=%-3ld n=%ld k=%ld: %9.1f us %7.1f GFLOP/s %6.1f GB/s of weights\n", ops->name,
               kinds[kind].name, (long)rows[i], (long)n, (long)k, seconds * 1e6,
               2e-9 * (double)(rows[i] * n * k) / seconds, bytes / seconds / 1e9);
    }
    ops->unpack(&w);
    free(owner);
    free(x);
    free(y);
}

// Arguments: a tier, or none for all, and the size of a team (0: of all processors).
static void print_times(const char *only, int n_threads) {
    const int64_t shapes[][2] = {{2048, 2048}, {2048, 8192}, {8192, 2048}}; // n, k
    struct sl_stream *stream = NULL;
    stream = test_stream_open(n_threads);
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            for (size_t kind = 0; kind < N_KINDS && (only == NULL || strcmp(only, *name) == 0); kind++) {
                time_kind(tier(*name), stream, kind, shapes[s][0], shapes[s][1]);
            }
        }
    }
    test_stream_close(&stream);
}
