// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures the bounds. See peak.h.
 *
 * Design: arithmetic: enough independent sums to hide the latency of the instructions, without memory access.
 *         Reading: wide loads of everything once, with a prefetch of a kilobyte ahead, since hardware prefetching
 *         stops at every page.
 */
#include "lab/bench/rig/peak.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"

#define RUNS            5
#define LOOP_STEPS      4000000 // of 12 multiply-adds: some 15 ms
#define TILE_STEPS      200000  // of 4 tile products: some 5 ms
#define PIECE_BYTES     ((size_t)1 << 20)
#define HUGE_PAGE       ((size_t)2 << 20)
#define AHEAD_BYTES     1024
#define TOUCHED_AT_ONCE 128 // pieces

// --- arithmetic ----------------------------------------------------------------------------------------------------

#if defined(__x86_64__)
#include <immintrin.h>

typedef float float8 __attribute__((vector_size(32)));
typedef float float16 __attribute__((vector_size(64)));

// Twelve sums hide the latency of two multiply-adds per cycle. They are equal: without the empty asm the compiler
// would compute only one of them.
#define FMA_LOOP(type, fma, constraint)                                                                                \
    do {                                                                                                               \
        type s[12], x = (type){0} + 0.999f, y = (type){0} + (float)(begin + 1);                                        \
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) {                                                        \
            s[i] = y;                                                                                                  \
        }                                                                                                              \
        for (int64_t n = 0; n < LOOP_STEPS * (end - begin); n++) {                                                     \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) {                                                    \
                s[i] = (type)fma(s[i], x, y);                                                                          \
                __asm__ volatile("" : constraint(s[i]));                                                               \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 12") for (int i = 1; i < 12; i++) {                                                        \
            s[0] += s[i];                                                                                              \
        }                                                                                                              \
        ((volatile float *)arg)[member] = s[0][0];                                                                     \
    } while (0)

__attribute__((target("avx2,fma"))) static void fma_256(void *arg, int64_t begin, int64_t end, int member) {
    FMA_LOOP(float8, _mm256_fmadd_ps, "+x");
}

__attribute__((target("avx512f"))) static void fma_512(void *arg, int64_t begin, int64_t end, int member) {
    FMA_LOOP(float16, _mm512_fmadd_ps, "+v");
}

__attribute__((target("avx512f,avx512bf16"))) static void pairs_bf16(void *arg, int64_t begin, int64_t end,
                                                                     int member) {
#define DOT_PAIRS(s, x, y) _mm512_dpbf16_ps((__m512)(s), (__m512bh)(x), (__m512bh)(y))
    FMA_LOOP(float16, DOT_PAIRS, "+v");
}

// All eight tiles are whole. Initialized statically: the compiler does not know that the instruction reads the whole
// struct.
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} whole_tiles = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

// Four sums of 16 x 16, as in a kernel: two tiles on either side.
__attribute__((target("amx-tile,amx-bf16"))) static void tiles_bf16(void *arg, int64_t begin, int64_t end, int member) {
    (void)arg;
    (void)member;
    _tile_loadconfig(&whole_tiles);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t n = 0; n < TILE_STEPS * (end - begin); n++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}

static const struct {
    const char *tier, *what;
    bool bf16;     // only for products that may round to bf16
    double flop;   // of a task
    sl_team_fn fn; // arg: float[team]
} loops[] = {
    {"amx", "tile products from registers", true, TILE_STEPS * 4.0 * 2 * 16 * 16 * 32, tiles_bf16},
    {"amx", "AVX-512 multiply-adds from registers", false, LOOP_STEPS * 12.0 * 2 * 16, fma_512},
    {"amx2", "tile products from registers", true, TILE_STEPS * 4.0 * 2 * 16 * 16 * 32, tiles_bf16},
    {"amx2", "AVX-512 multiply-adds from registers", false, LOOP_STEPS * 12.0 * 2 * 16, fma_512},
    {"avx512bf16", "AVX-512 dot products of bf16 pairs from registers", true, LOOP_STEPS * 12.0 * 4 * 16, pairs_bf16},
    {"avx512bf16", "AVX-512 multiply-adds from registers", false, LOOP_STEPS * 12.0 * 2 * 16, fma_512},
    {"avx512vnni", "AVX-512 multiply-adds from registers", false, LOOP_STEPS * 12.0 * 2 * 16, fma_512},
    {"avx512", "AVX-512 multiply-adds from registers", false, LOOP_STEPS * 12.0 * 2 * 16, fma_512},
    {"avx2", "AVX2 multiply-adds from registers", false, LOOP_STEPS * 12.0 * 2 * 8, fma_256},
};
enum { N_LOOPS = sizeof loops / sizeof loops[0] };

double sl_peak_gflops(struct sl_team *team, const char *tier, bool bf16, const char **what_out) {
    int64_t n_tasks = sl_team_size(team);
    int i = 0;
    while (i < N_LOOPS && (strcmp(loops[i].tier, tier) != 0 || (loops[i].bf16 && !bf16))) {
        i++;
    }
    float *sink = calloc((size_t)n_tasks, sizeof *sink);
    double best = 0.0;
    for (int run = 0; run < RUNS && i < N_LOOPS && sink != NULL; run++) {
        int64_t begin = sl_now_ns();
        sl_team_run(team, n_tasks, 1, loops[i].fn, sink);
        double gflops = (double)n_tasks * loops[i].flop / (double)(sl_now_ns() - begin);
        best = gflops > best ? gflops : best;
    }
    free(sink);
    *what_out = best > 0.0 ? loops[i].what : NULL;
    return best;
}
#else
double sl_peak_gflops(struct sl_team *team, const char *tier, bool bf16, const char **what_out) {
    (void)team;
    (void)tier;
    (void)bf16;
    *what_out = NULL;
    return 0.0;
}
#endif

// --- reading -------------------------------------------------------------------------------------------------------

typedef uint64_t word8 __attribute__((vector_size(64)));

struct read_args {
    const char *buffer;
    word8 *sums; // [pieces]
};

#define READ_LOOP                                                                                                      \
    do {                                                                                                               \
        const struct read_args *a = arg;                                                                               \
        (void)member;                                                                                                  \
        for (int64_t piece = begin; piece < end; piece++) {                                                            \
            const char *bytes = a->buffer + (size_t)piece * PIECE_BYTES;                                               \
            word8 sum[4] = {{0}};                                                                                      \
            for (size_t i = 0; i < PIECE_BYTES; i += sizeof sum) {                                                     \
                _Pragma("GCC unroll 4") for (size_t j = 0; j < 4; j++) {                                               \
                    __builtin_prefetch(bytes + i + j * sizeof sum[0] + AHEAD_BYTES);                                   \
                    sum[j] += *(const word8 *)(const void *)(bytes + i + j * sizeof sum[0]);                           \
                }                                                                                                      \
            }                                                                                                          \
            a->sums[piece] = sum[0] + sum[1] + sum[2] + sum[3];                                                        \
        }                                                                                                              \
    } while (0)

// Reads on any CPU; the compiler lowers the vectors to available instructions.
static void read_pieces(void *arg, int64_t begin, int64_t end, int member) {
    READ_LOOP;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void read_pieces_256(void *arg, int64_t begin, int64_t end, int member) {
    READ_LOOP;
}

__attribute__((target("avx512f"))) static void read_pieces_512(void *arg, int64_t begin, int64_t end, int member) {
    READ_LOOP;
}
#endif

static sl_team_fn widest_reader(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) {
        return read_pieces_512;
    }
    if (__builtin_cpu_supports("avx2")) {
        return read_pieces_256;
    }
#endif
    return read_pieces;
}

static void touch_pieces(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    memset((char *)arg + (size_t)begin * PIECE_BYTES, 1, (size_t)(end - begin) * PIECE_BYTES);
}

static size_t buffer_bytes(void) {
    const size_t wanted = (size_t)2 << 30;
    long pages = sysconf(_SC_AVPHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    size_t free_bytes = pages > 0 && page_bytes > 0 ? (size_t)pages * (size_t)page_bytes : wanted;
    size_t bytes = free_bytes / 4 < wanted ? free_bytes / 4 : wanted;
    return bytes < HUGE_PAGE ? HUGE_PAGE : bytes / HUGE_PAGE * HUGE_PAGE;
}

enum sl_status sl_peak_read_gbps(struct sl_team *team, struct sl_signals *signals, size_t *bytes_out, double *gbps_out,
                                 struct sl_error *err) {
    size_t bytes = buffer_bytes();
    int64_t n_pieces = (int64_t)(bytes / PIECE_BYTES);
    char *buffer = aligned_alloc(HUGE_PAGE, bytes);
    word8 *sums = aligned_alloc(sizeof *sums, (size_t)n_pieces * sizeof *sums);
    if (buffer == NULL || sums == NULL) {
        free(buffer);
        free(sums);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a buffer of %zu bytes", bytes);
    }
    (void)madvise(buffer, bytes, MADV_HUGEPAGE); // as packed weights do
    struct read_args args = {buffer, sums};
    sl_team_fn reader = widest_reader();
    double best = 0.0;
    enum sl_status status = SL_OK;
    for (int64_t at = 0; at < n_pieces && status == SL_OK; at += TOUCHED_AT_ONCE) {
        int64_t n = n_pieces - at < TOUCHED_AT_ONCE ? n_pieces - at : TOUCHED_AT_ONCE;
        sl_team_run(team, n, 1, touch_pieces, buffer + (size_t)at * PIECE_BYTES);
        status = sl_signals_check(signals, err);
    }
    for (int run = 0; run < RUNS && status == SL_OK; run++) {
        int64_t begin = sl_now_ns();
        sl_team_run(team, n_pieces, 1, reader, &args);
        double gbps = (double)bytes / (double)(sl_now_ns() - begin);
        best = gbps > best ? gbps : best;
        status = sl_signals_check(signals, err);
    }
    free(buffer);
    free(sums);
    *bytes_out = bytes;
    *gbps_out = best;
    return status;
}
