// SPDX-License-Identifier: Apache-2.0
// Purpose: random geometries of attention, and its column statistics computed densely in f64, for check_stats.c.
#pragma once

#include "tests/kernels/kv_fixture.h"

#define MAX_SLOTS   1024
#define GUARD_BYTES (SL_MAX_STATES * SL_PAGE_SLOTS * sizeof(float)) // after a packed page: 0, and never written

// --- a random geometry -----------------------------------------------------------------------------------------------

struct shape {
    enum sl_kv_format work, packed;
    int group, n_kv_heads, d, m, n_states, n_packed_states;
    bool slot_positions;
    uint32_t n_slots[MAX_KV_HEADS], n_packed[MAX_KV_HEADS];
    int64_t window;
};

struct setup {
    struct cache cache;
    struct sl_rope rope;
    struct sl_attend args;
    int64_t *positions;
};

static inline struct shape random_shape(uint64_t *seed) {
    static const int groups[] = {1, 2, 4, 5, 1, 2, 4, 7}, rows[] = {1, 1, 2, 64, 65, 130};
    static const int sizes[] = {128, 64, 96, 64};
    struct shape a = {.work = (enum sl_kv_format)(next_random(seed) % 3),
                      .packed = SL_KV_INT4,
                      .group = groups[next_random(seed) % 8],
                      .n_kv_heads = 1 + (int)(next_random(seed) % 3),
                      .d = sizes[next_random(seed) % 4],
                      .m = next_random(seed) % 2 ? 1 + (int)(next_random(seed) % 130) : rows[next_random(seed) % 6],
                      .n_states = 3 + (int)(next_random(seed) % 2),
                      .n_packed_states = (int)(next_random(seed) % 4),
                      .slot_positions = next_random(seed) % 2};
    for (int h = 0; h < a.n_kv_heads; h++) {
        a.n_slots[h] = (uint32_t)a.m + (uint32_t)(next_random(seed) % 3 ? next_random(seed) % 400 : 0);
        uint32_t full = a.n_slots[h] / SL_PAGE_SLOTS;
        a.n_packed[h] = next_random(seed) % 2 ? 0 : (uint32_t)(next_random(seed) % (full + 1));
    }
    if (!a.slot_positions && next_random(seed) % 2) {
        a.window = 1 + (int64_t)(next_random(seed) % (next_random(seed) % 2 ? 60 : 1000));
    }
    return a;
}

// The same for an emulated device, as far as it can be waited for.
static inline struct shape shape_for(const char *name, uint64_t *seed) {
    static const enum sl_kv_format packed[] = {SL_KV_INT4, SL_KV_INT3, SL_KV_INT2};
    struct shape a = random_shape(seed);
    if (strcmp(name, "avx512vnni") == 0) { // it has another way for some
        a.packed = packed[*seed % 3];
    }
    if (is_emulated(name)) {
        a.m = 1 + a.m % 20;
        a.n_kv_heads = 1 + a.n_kv_heads % 2;
        for (int h = 0; h < a.n_kv_heads; h++) {
            a.n_slots[h] = (uint32_t)a.m + a.n_slots[h] % 150;
            if (next_random(seed) % 4 ==
                0) { // a second block of tensor cores' 256 slots, of which some rows see nothing
                a.n_slots[h] = 257 + (uint32_t)(next_random(seed) % (uint64_t)a.m);
            }
            uint32_t full = a.n_slots[h] / SL_PAGE_SLOTS;
            a.n_packed[h] = a.n_packed[h] < full ? a.n_packed[h] : full;
        }
    }
    return a;
}

// Returns the number of trials.
static inline int trials(const char *name, int n) {
    return is_emulated(name) ? (n + 2) / 3 : n;
}

// Pages as the shape says, packed ones with n_packed_states planes; attention has run, so that lse is there.
static inline void setup_open(struct setup *s, const struct sl_ops *ops, const struct shape *a) {
    static const uint32_t none[MAX_KV_HEADS];
    struct cache *c = &s->cache;
    cache_fill(c, ops, a->work, a->work, a->n_kv_heads, a->d, a->n_states, a->n_slots, none);
    assert_int_equal(sl_page_layout_init(&c->packed, a->packed, a->d, a->n_packed_states, true), SL_OK);
    for (int h = 0; h < a->n_kv_heads; h++) {
        for (uint32_t p = 0; p < a->n_packed[h]; p++) {
            char *page = take(c->packed.bytes + GUARD_BYTES);
            memset(page + c->packed.bytes, 0, GUARD_BYTES);
            ops->host.quantize(&c->work, c->pages[h][p], &c->packed, page);
            free(c->pages[h][p]);
            c->pages[h][p] = page;
        }
        c->kv[h].n_packed = a->n_packed[h];
    }
    int n_heads = a->group * a->n_kv_heads;
    size_t n_out = (size_t)a->m * (size_t)n_heads * (size_t)a->d;
    s->rope = (struct sl_rope){a->d, a->d, inverse_frequencies(a->d), 1.0};
    s->positions = take((size_t)a->m * sizeof *s->positions);
    store_positions(c, a->m, s->positions);
    s->args = (struct sl_attend){.q = random_floats(n_out, 7),
                                 .m = a->m,
                                 .n_heads = n_heads,
                                 .head_dim = a->d,
                                 .scale = 1.0f / sqrtf((float)a->d),
                                 .heads = {c->kv, a->n_kv_heads},
                                 .rope = a->slot_positions ? &s->rope : NULL,
                                 .window = a->window,
                                 .positions = s->positions,
                                 .out = take(n_out * sizeof(float)),
                                 .lse = take((size_t)a->m * (size_t)n_heads * sizeof(float))};
    ops->attend(NULL, &s->args, 1);
}

static inline void setup_close(struct setup *s) {
    free((void *)s->args.q);
    free(s->args.out);
    free(s->args.lse);
    free(s->positions);
    cache_free(&s->cache);
}

// --- what is expected, in f64 ----------------------------------------------------------------------------------------

struct expected {
    double largest[MAX_KV_HEADS][MAX_SLOTS]; // weight of any row and query head
    double sum[MAX_KV_HEADS][MAX_SLOTS], square[MAX_KV_HEADS][MAX_SLOTS];
    double above_least[MAX_KV_HEADS][MAX_SLOTS], above_most[MAX_KV_HEADS][MAX_SLOTS];
    double *heads; // [H][MAX_SLOTS]
    double slack;  // by what part of itself a weight may be off
};

static inline void rotate_f64(const struct sl_rope *rope, int64_t position, double *x) {
    int half = rope->head_dim / 2;
    for (int i = 0; i < half; i++) {
        double angle = (double)position * rope->inv_freq[i];
        double a = x[i], b = x[i + half];
        x[i] = (a * cos(angle) - b * sin(angle)) * rope->scale;
        x[i + half] = (b * cos(angle) + a * sin(angle)) * rope->scale;
    }
}

// weights[n] = softmax of the query at the n keys
static inline void softmax_f64(const double *q, const double *keys, uint32_t n, int d, double scale, double *weights) {
    double max = -INFINITY, sum = 0;
    for (uint32_t j = 0; j < n; j++) {
        weights[j] = dot_f64(q, keys + (size_t)j * (size_t)d, d) * scale;
        max = fmax(max, weights[j]);
    }
    for (uint32_t j = 0; j < n; j++) {
        weights[j] = exp(weights[j] - max);
        sum += weights[j];
    }
    for (uint32_t j = 0; j < n; j++) {
        weights[j] /= sum;
    }
}

static inline double *keys_f64(const struct sl_attend *args, const struct sl_kv *kv) {
    size_t d = (size_t)args->head_dim;
    float *k = take((size_t)kv->n_slots * d * sizeof *k);
    double *keys = take((size_t)kv->n_slots * d * sizeof *keys);
    tier("reference")->read_rows(kv, 0, kv->n_slots, k, NULL);
    for (uint32_t j = 0; j < kv->n_slots; j++) {
        for (size_t i = 0; i < d; i++) {
            keys[j * d + i] = (double)k[j * d + i];
        }
        if (args->rope != NULL) {
            rotate_f64(args->rope, j, keys + j * d);
        }
    }
    free(k);
    return keys;
}

static inline struct expected *expect(const char *name, const struct sl_attend *args, int first_row) {
    struct expected *e = calloc(1, sizeof *e);
    assert_non_null(e);
    int d = args->head_dim, group = args->n_heads / args->heads.n;
    e->heads = calloc((size_t)args->n_heads * MAX_SLOTS, sizeof(double));
    const struct roundings by = roundings_of(name, args);
    double weights[MAX_SLOTS], mean[MAX_SLOTS], q[SL_MAX_HEAD_DIM];
    for (int h = 0; h < args->heads.n; h++) {
        const struct sl_kv *kv = &args->heads.kv[h];
        assert_true(kv->n_slots <= MAX_SLOTS);
        double *keys = keys_f64(args, kv);
        for (int r = first_row; r < args->m; r++) {
            uint32_t n = kv->n_slots - (uint32_t)args->m + (uint32_t)r + 1, first = first_in_window(args, kv, r);
            uint32_t n_seen = n - first;
            double slack = 0; // of this row
            memset(mean, 0, sizeof mean);
            for (int head = h * group; head < (h + 1) * group; head++) {
                for (int i = 0; i < d; i++) {
                    q[i] = (double)args->q[((size_t)r * (size_t)args->n_heads + (size_t)head) * (size_t)d + (size_t)i];
                }
                if (args->rope != NULL) {
                    rotate_f64(args->rope, n - 1, q);
                }
                softmax_f64(q, keys + first * (size_t)d, n_seen, d, (double)args->scale, weights + first);
                if (rounds_scores(&by)) {
                    double error = score_error_by(&by, q, keys + first * (size_t)d, n_seen, d, (double)args->scale);
                    slack = fmax(slack, weight_error(error, by.u));
                }
                for (uint32_t j = first; j < n; j++) {
                    mean[j] += weights[j] / group;
                    e->largest[h][j] = fmax(e->largest[h][j], weights[j]);
                    e->heads[(size_t)head * MAX_SLOTS + j] += weights[j];
                }
            }
            for (uint32_t j = first; j < n; j++) {
                e->sum[h][j] += mean[j];
                e->square[h][j] += mean[j] * mean[j];
                e->above_least[h][j] += n_seen > 1 && mean[j] * n_seen > (1.0 + 2e-5) * (1.0 + slack);
                e->above_most[h][j] +=
                    n_seen > 1 && mean[j] * n_seen > (1.0 - 2e-5) / (1.0 + slack); // one slot: 1 is not above 1
            }
            e->slack = fmax(e->slack, slack);
        }
        free(keys);
    }
    return e;
}

static inline void expected_free(struct expected *e) {
    free(e->heads);
    free(e);
}

static inline void assert_close(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance * (1.0 + fabs(want)))) {
        fail_msg("got %.9g, expected %.9g", got, want);
    }
}

static inline void assert_close_or_rounded(double got, double want, double tolerance, double slack) {
    if (!(fabs(got - want) <= tolerance * (1.0 + fabs(want)) + slack * fabs(want))) {
        fail_msg("got %.9g, expected %.9g", got, want);
    }
}

// --- state -----------------------------------------------------------------------------------------------------------

static inline float *state_of(const struct sl_kv *kv, uint32_t slot, int plane) { // NULL: the page has no such plane
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, slot / SL_PAGE_SLOTS);
    return plane < layout->n_states
               ? sl_page_state(layout, kv->pages[slot / SL_PAGE_SLOTS], plane) + slot % SL_PAGE_SLOTS
               : NULL;
}

static inline void set_states(const struct setup *s, float value) {
    for (int h = 0; h < s->args.heads.n; h++) {
        for (uint32_t j = 0; j < s->args.heads.kv[h].n_slots; j++) {
            for (int plane = 0; plane < SL_MAX_STATES; plane++) {
                float *state = state_of(&s->args.heads.kv[h], j, plane);
                if (state != NULL) {
                    *state = value;
                }
            }
        }
    }
}

// All planes of all slots of all heads, NaN where a page has none; the count is returned.
static inline size_t copy_states(const struct setup *s, float *out) {
    size_t n = 0;
    for (int h = 0; h < s->args.heads.n; h++) {
        for (uint32_t j = 0; j < s->args.heads.kv[h].n_slots; j++) {
            for (int plane = 0; plane < SL_MAX_STATES; plane++) {
                float *state = state_of(&s->args.heads.kv[h], j, plane);
                out[n++] = state != NULL ? *state : NAN;
            }
        }
    }
    return n;
}
#define MAX_STATES_COPIED (MAX_KV_HEADS * MAX_SLOTS * SL_MAX_STATES)
