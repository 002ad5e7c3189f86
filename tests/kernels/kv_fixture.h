// SPDX-License-Identifier: Apache-2.0
// Purpose: head sets of random pages in ordinary memory, for the checks of the operations on KV pages.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/tensor/cpu/pages/kv_page.h"
#include "engine/tensor/half.h"
#include "engine/tensor/rope_angles.h"
#include "tests/kernels/tested.h"
#include "tests/one_head.h"
#include "tests/stream.h"

static inline uint64_t next_random(uint64_t *state) { // splitmix64
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline float random_float(uint64_t *state) { // (-2, 2)
    return ((float)(next_random(state) >> 40) * 0x1p-24f - 0.5f) * 4.0f;
}

static inline void *take(size_t bytes) {
    void *block = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    assert_non_null(block);
    memset(block, 0xff, bytes); // NaN everywhere: no op may depend on what was never written
    return block;
}

static inline float *random_floats(size_t count, uint64_t seed) {
    float *x = take(count * sizeof *x);
    for (size_t i = 0; i < count; i++) {
        x[i] = random_float(&seed);
    }
    return x;
}

// Skips checks of what only the CPU computes, by ops->host and the tiers' own functions: a device uses the reference's, which was checked.
#define PROCESSORS_ONLY()                                                                                              \
    do {                                                                                                               \
        if (is_device(tested()[0])) {                                                                                  \
            skip();                                                                                                    \
        }                                                                                                              \
    } while (0)

static inline bool has_packed_pages(const struct sl_attend *args) {
    bool any = false;
    for (int h = 0; h < args->heads.n; h++) {
        any = any || args->heads.kv[h].n_packed > 0;
    }
    return any;
}

static inline bool is_tiled(const char *name) {
    return strcmp(name, "amx") == 0 || strcmp(name, "amx2") == 0;
}

/*
 * u, by which part of itself a number is off that is rounded to bf16 (or f16), where a tier rounds queries, keys, weights and
 * values; else 0. Tiers amx and avx512bf16 do, but not where pages are f32, or heads no whole steps of tiles. Tensor cores round queries and
 * weights to the format of the pages, of codes before and after they take up a scale. A score is then off by e <= (2u + u^2) scale sum |q_i K_i|.
 * Tier amx2 rounds weights and values alike, but not queries and keys: score_rounding_of().
 */
static inline double rounding_of(const char *name, const struct sl_attend *args) {
    const struct sl_kv *kv = args->heads.kv;
    enum sl_kv_format format = kv->work->format;
    int d = args->head_dim;
    if (format == SL_KV_F32) {
        return 0;
    } else if (is_tiled(name) || strcmp(name, "avx512bf16") == 0) {
        return d % 32 == 0 ? 0x1p-9 : 0;
    }
    bool rotated = args->rope != NULL && args->rope->rotary_dim != d; // in part: not by them
    bool tensor_cores = is_device(name) && !rotated && (d == 64 || d == 96 || d == 128);
    return !tensor_cores ? 0 : format == SL_KV_BF16 ? 0x1p-9 : 0x1p-12;
}

// The u of queries and keys.
static inline double score_rounding_of(const char *name, const struct sl_attend *args) {
    double u = rounding_of(name, args);
    bool in_two_terms = strcmp(name, "amx2") == 0 && args->rope == NULL && !has_packed_pages(args);
    return in_two_terms && u > 0 ? 0x1p-16 : u;
}

// Returns true where tier avx512vnni multiplies codes of keys, or of values, as integers (attention/integer/avx512vnni_rows.h).
static inline bool by_integers(const char *name, const struct sl_attend *args, bool keys) {
    const struct sl_page_layout *layout = args->heads.kv->packed;
    const enum sl_kv_format format = keys ? layout->k_format : layout->v_format;
    return strcmp(name, "avx512vnni") == 0 && has_packed_pages(args) && args->head_dim % SL_PAGE_SLOTS == 0 &&
           !(keys && args->rope != NULL) && (format == SL_KV_INT3 || format == SL_KV_INT2);
}

/*
 * Returns how far a product of n rows of codes and numbers of up to `largest` is off then: half a step of the codes' sum, where the numbers of
 * random_float() have scales of at most 4 by the largest code, but for their rounding to f16.
 */
static inline double integer_error(int n, double largest) {
    return n * 4.0 * (1 + 0x1p-11) * largest / (2 * 32512);
}

// The roundings of attention: see rounding_of() and score_rounding_of(); keys, values: whether integer_error() is added.
struct roundings {
    double u, score_u;
    bool keys, values;
};

static inline struct roundings roundings_of(const char *name, const struct sl_attend *args) {
    return (struct roundings){rounding_of(name, args), score_rounding_of(name, args), by_integers(name, args, true),
                              by_integers(name, args, false)};
}

// Returns true where scores are off by more than the sums of f32.
static inline bool rounds_scores(const struct roundings *r) {
    return r->u > 0 || r->keys;
}

// Returns a b, in partial sums that the compiler makes vectors of.
static inline double dot_f64(const double *a, const double *b, int d) {
    double sums[8] = {0}, sum = 0;
    int i = 0;
    for (; i + 8 <= d; i += 8) {
        for (int k = 0; k < 8; k++) {
            sums[k] += a[i + k] * b[i + k];
        }
    }
    for (; i < d; i++) {
        sum += a[i] * b[i];
    }
    for (int k = 0; k < 8; k++) {
        sum += sums[k];
    }
    return sum;
}

// Adds p v to out, and p |v| factor to bound.
static inline void add_value(double *restrict out, double *restrict bound, const float *restrict v, int d, double p,
                             double factor) {
    for (int i = 0; i < d; i++) {
        out[i] += p * (double)v[i];
    }
    for (int i = 0; i < d && factor > 0; i++) {
        bound[i] += p * fabs((double)v[i]) * factor;
    }
}

// The e of a query and n keys.
static inline double score_error(const double *q, const double *keys, uint32_t n, int d, double scale, double u) {
    double most = 0;
    for (uint32_t j = 0; j < n && u > 0; j++) {
        double sum = 0;
        for (int i = 0; i < d; i++) {
            sum += fabs(q[i] * keys[(size_t)j * (size_t)d + (size_t)i]);
        }
        most = fmax(most, sum * scale);
    }
    return (2 * u + u * u) * most;
}

// The e of a query and n keys, however they are multiplied.
static inline double score_error_by(const struct roundings *by, const double *q, const double *keys, uint32_t n, int d,
                                    double scale) {
    double largest = 0;
    for (int i = 0; i < d; i++) {
        largest = fmax(largest, fabs(q[i]) * scale);
    }
    return score_error(q, keys, n, d, scale, by->score_u) + (by->keys ? integer_error(d, largest) : 0);
}

// Returns the relative error of a weight exp(s - lse), when s and lse are off by e, and lse by the rounding of weights.
static inline double weight_error(double e, double u) {
    return exp(2 * e) * (1 + u) - 1;
}

// Returns how far the sum of a row's weights may be from 1. A device's statistics do not round; the lse that they take was rounded.
static inline double sum_tolerance(const char *name, const struct sl_attend *args, double tolerance) {
    double u = rounding_of(name, args);
    return u > 0 ? (is_device(name) ? 8 * u : u) : within(name, tolerance);
}

// --- fixture ---------------------------------------------------------------------------------------------------------

static const enum sl_kv_format code_formats[] = {
#define X(name, ...) SL_KV_##name,
    SL_KV_CODE_FORMATS(X)
#undef X
#define X(word, wire, ...) (enum sl_kv_format) wire,
        SL_KV_PAIRS(X)
#undef X
};
#define N_CODE_FORMATS (sizeof code_formats / sizeof code_formats[0])

#define MAX_KV_HEADS 4
#define MAX_PAGES    256

struct cache {
    struct sl_page_layout work, packed;
    struct sl_kv kv[MAX_KV_HEADS];
    void *pages[MAX_KV_HEADS][MAX_PAGES];
    int n_heads, d;
};

static inline int64_t position_of(uint32_t slot) {
    return 3 * (int64_t)slot + 1;
}

// Adds to the bounds of an output how far its products with values are off, for the largest weight of each page.
static inline void add_integer_errors(const struct roundings *by, const double *most, uint32_t n_slots, int d,
                                      double *bounds) {
    for (uint32_t page = 0; by->values && page < sl_pages_for(n_slots); page++) {
        for (int i = 0; i < d; i++) {
            bounds[i] += integer_error(SL_PAGE_SLOTS, most[page]);
        }
    }
}

// n_slots[h] appended rows per head, the first n_packed[h] pages quantized to `packed`.
static inline void cache_fill(struct cache *c, const struct sl_ops *ops, enum sl_kv_format work,
                              enum sl_kv_format packed, int n_heads, int d, int n_states, const uint32_t *n_slots,
                              const uint32_t *n_packed) {
    memset(c, 0, sizeof *c);
    c->n_heads = n_heads;
    c->d = d;
    assert_int_equal(sl_page_layout_init(&c->work, work, d, n_states, true), SL_OK);
    assert_int_equal(sl_page_layout_init(&c->packed, packed, d, packed == work ? n_states : 0, true), SL_OK);
    for (int h = 0; h < n_heads; h++) {
        uint32_t n_pages = sl_pages_for(n_slots[h]);
        assert_true(n_pages <= MAX_PAGES);
        for (uint32_t p = 0; p < n_pages; p++) {
            c->pages[h][p] = take(c->work.bytes);
        }
        c->kv[h] = (struct sl_kv){c->pages[h], 0, 0, &c->work, &c->packed};
        float *k = random_floats((size_t)n_slots[h] * (size_t)d, 100 + (uint64_t)h);
        float *v = random_floats((size_t)n_slots[h] * (size_t)d, 200 + (uint64_t)h);
        int64_t *positions = take(n_slots[h] * sizeof *positions);
        for (uint32_t j = 0; j < n_slots[h]; j++) {
            positions[j] = position_of(j);
        }
        append_rows(ops, &c->kv[h], k, v, d, (int)n_slots[h], positions);
        c->kv[h].n_slots = n_slots[h];
        for (uint32_t p = 0; p < n_packed[h]; p++) {
            void *page = take(c->packed.bytes);
            ops->host.quantize(&c->work, c->pages[h][p], &c->packed, page);
            free(c->pages[h][p]);
            c->pages[h][p] = page;
        }
        c->kv[h].n_packed = n_packed[h];
        free(k);
        free(v);
        free(positions);
    }
}

static inline void cache_free(struct cache *c) {
    for (int h = 0; h < c->n_heads; h++) {
        for (int p = 0; p < MAX_PAGES; p++) {
            free(c->pages[h][p]);
        }
    }
}

/*
 * Positions as eviction leaves them: the last m slots of all heads hold the same, which become positions_out[m]; before
 * them every head has gaps of its own.
 */
static inline void store_positions(struct cache *c, int m, int64_t *positions_out) {
    const int64_t last = 100000;
    uint64_t seed = 77;
    for (int h = 0; h < c->n_heads; h++) {
        struct sl_kv *kv = &c->kv[h];
        int64_t position = last;
        for (uint32_t j = kv->n_slots; j-- > 0;) {
            void *page = kv->pages[j / SL_PAGE_SLOTS];
            sl_page_positions(sl_kv_page_layout(kv, j / SL_PAGE_SLOTS), page)[j % SL_PAGE_SLOTS] = (int32_t)position;
            position -= j + (uint32_t)m > kv->n_slots ? 1 : 1 + (int64_t)(next_random(&seed) % 5);
        }
    }
    for (int r = 0; r < m; r++) {
        positions_out[r] = last - m + 1 + r;
    }
}

// The first slot whose position is in the row's window, the way engine/tensor/ops.h says it.
static inline uint32_t first_in_window(const struct sl_attend *args, const struct sl_kv *kv, int row) {
    uint32_t first = 0;
    if (args->window > 0) {
        int64_t *positions = take(kv->n_slots * sizeof *positions);
        tier("reference")->read_positions(kv, positions);
        while (positions[first] <= args->positions[row] - args->window) {
            first++;
        }
        free(positions);
    }
    return first;
}

static inline const double *inverse_frequencies(int d) {
    static double inv_freq[SL_MAX_HEAD_DIM / 2];
    for (int i = 0; i < d / 2; i++) {
        inv_freq[i] = pow(10000.0, -2.0 * i / d);
    }
    return inv_freq;
}
