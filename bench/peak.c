// SPDX-License-Identifier: Apache-2.0
// Purpose: measuring the bounds. See peak.h.
#include "bench/peak.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define RUNS         5
#define FMA_STEPS    4000000 // of 12 sums of 8: some 15 ms
#define BUFFER_BYTES ((size_t)512 << 20)
#define PIECE_BYTES  ((size_t)1 << 20)

typedef uint64_t word4 __attribute__((vector_size(32)));

#if defined(__x86_64__)
#include <immintrin.h>
#define WIDE __attribute__((target("avx2,fma")))

// Twelve independent sums hide the latency of two multiply-adds a cycle.
WIDE static void fma_loop(void *arg, int64_t begin, int64_t end, int member) {
    float *sink = arg; // [n_tasks][16]
    (void)member;
    for (int64_t task = begin; task < end; task++) {
        __m256 a = _mm256_set1_ps(0.5f), b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a, k = a, l = a;
        const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps((float)(task + 1));
        for (int64_t n = 0; n < FMA_STEPS; n++) {
            a = _mm256_fmadd_ps(a, x, y), b = _mm256_fmadd_ps(b, x, y), c = _mm256_fmadd_ps(c, x, y);
            d = _mm256_fmadd_ps(d, x, y), e = _mm256_fmadd_ps(e, x, y), f = _mm256_fmadd_ps(f, x, y);
            g = _mm256_fmadd_ps(g, x, y), h = _mm256_fmadd_ps(h, x, y), i = _mm256_fmadd_ps(i, x, y);
            j = _mm256_fmadd_ps(j, x, y), k = _mm256_fmadd_ps(k, x, y), l = _mm256_fmadd_ps(l, x, y);
            // the twelve are equal: without this the compiler would compute one of them
            __asm__ volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e), "+x"(f));
            __asm__ volatile("" : "+x"(g), "+x"(h), "+x"(i), "+x"(j), "+x"(k), "+x"(l));
        }
        _mm256_storeu_ps(sink + 16 * task, a + b + c + d + e + f);
        _mm256_storeu_ps(sink + 16 * task + 8, g + h + i + j + k + l);
    }
}

double sl_peak_gflops(struct sl_team *team) {
    int64_t n_tasks = sl_team_size(team);
    float *sink = calloc((size_t)n_tasks, 16 * sizeof *sink);
    double best = 0.0;
    __builtin_cpu_init();
    if (sink == NULL || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        free(sink);
        return 0.0;
    }
    for (int run = 0; run < RUNS; run++) {
        int64_t begin = sl_now_ns();
        sl_team_run(team, n_tasks, 1, fma_loop, sink);
        double gflops = (double)n_tasks * FMA_STEPS * 12 * 16 / (double)(sl_now_ns() - begin);
        best = gflops > best ? gflops : best;
    }
    free(sink);
    return best;
}
#else
#define WIDE

double sl_peak_gflops(struct sl_team *team) {
    (void)team;
    return 0.0;
}
#endif

struct read_args {
    const char *buffer;
    word4 *sums; // [pieces]
};

WIDE static void read_pieces(void *arg, int64_t begin, int64_t end, int member) {
    const struct read_args *a = arg;
    (void)member;
    for (int64_t piece = begin; piece < end; piece++) {
        const word4 *words = (const word4 *)(a->buffer + (size_t)piece * PIECE_BYTES);
        word4 sum[4] = {{0}};
        for (size_t i = 0; i < PIECE_BYTES / sizeof *words; i += 4) {
            sum[0] += words[i];
            sum[1] += words[i + 1];
            sum[2] += words[i + 2];
            sum[3] += words[i + 3];
        }
        a->sums[piece] = sum[0] + sum[1] + sum[2] + sum[3];
    }
}

static void touch_pieces(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    memset((char *)arg + (size_t)begin * PIECE_BYTES, 1, (size_t)(end - begin) * PIECE_BYTES);
}

enum sl_status sl_peak_read_gbps(struct sl_team *team, double *gbps_out, struct sl_error *err) {
    int64_t n_pieces = (int64_t)(BUFFER_BYTES / PIECE_BYTES);
    char *buffer = aligned_alloc(PIECE_BYTES, BUFFER_BYTES);
    word4 *sums = aligned_alloc(sizeof *sums, (size_t)n_pieces * sizeof *sums);
    if (buffer == NULL || sums == NULL) {
        free(buffer);
        free(sums);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a buffer of %zu bytes", BUFFER_BYTES);
    }
    struct read_args args = {buffer, sums};
    double best = 0.0;
    sl_team_run(team, n_pieces, 1, touch_pieces, buffer);
    for (int run = 0; run < RUNS; run++) {
        int64_t begin = sl_now_ns();
        sl_team_run(team, n_pieces, 1, read_pieces, &args);
        double gbps = (double)BUFFER_BYTES / (double)(sl_now_ns() - begin);
        best = gbps > best ? gbps : best;
    }
    free(buffer);
    free(sums);
    *gbps_out = best;
    return SL_OK;
}
