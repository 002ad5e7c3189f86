// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: selects the b largest of many scores with AVX2: a few of 128k, in the time of one read over them.
 *
 * Design: scores that cannot be among the b are skipped 32 at a time, by comparison with a floor. The first floor is a
 *         score that, by a sample, about twice as many should exceed. Candidates, in ascending order of their index,
 *         are collected in a buffer. When it is full, the best b of them stay, and the least of these is the new floor:
 *         later scores have a higher index, so they lose against equals. In the end the reference selects among the
 *         candidates, which are in the order of all scores. If the sample's floor was too high, there are fewer than b
 *         candidates, and the reference selects among all scores. It does so too when there are few scores, or when b
 *         is large.
 */
#include <math.h>

#include "engine/tensor/cpu/attention/avx2_kv.h"
#include "engine/tensor/cpu/evict/fills.h"
#include "engine/tensor/cpu/evict/select.h"

#define SAMPLE     1024 // at most; with few scores every 16th
#define CANDIDATES 8192
#define GROUP      32 // scores compared at a time
#define LEAST      2048

struct candidates {
    uint32_t n;
    float scores[CANDIDATES];
    uint32_t index[CANDIDATES], keep[CANDIDATES];
};

// Returns a score below the b largest, as estimated from a sample of the n, one score of each stretch.
static float guess_floor(const float *scores, uint32_t n, uint32_t b, struct candidates *c) {
    uint32_t sample = n / 16 < SAMPLE ? n / 16 : SAMPLE;
    uint32_t stretch = n / sample, wanted = 2 * (uint32_t)((uint64_t)b * sample / n) + 10;
    // at a different position of each stretch, so that a period of the text does not matter
    for (uint32_t i = 0; i < sample; i++) {
        c->scores[i] = scores[i * stretch + i * 0x9e3779b1u % stretch];
    }
    sl_ref_select(c->scores, sample, wanted, c->keep);
    float least = INFINITY;
    for (uint32_t i = 0; i < wanted; i++) {
        float score = c->scores[c->keep[i]];
        least = score < least || isnan(score) ? score : least; // NaN stays: no score is above it
    }
    return nextafterf(least, -INFINITY); // so that the sample's score itself is above
}

// Keeps the best b. Returns the least of them.
static float shrink(struct candidates *c, uint32_t b) {
    float least = INFINITY;
    sl_ref_select(c->scores, c->n, b, c->keep);
    for (uint32_t i = 0; i < b; i++) { // keep[i] >= i
        c->scores[i] = c->scores[c->keep[i]];
        c->index[i] = c->index[c->keep[i]];
        least = c->scores[i] < least ? c->scores[i] : least;
    }
    c->n = b;
    return least;
}

// Sets bit i where scores[i] > floor.
static uint32_t compare_group(const float *scores, float floor) {
    const __m256 f = _mm256_set1_ps(floor);
    uint32_t above = 0;
    SL_UNROLL
    for (int t = 0; t < GROUP / 8; t++) {
        __m256 is_above = _mm256_cmp_ps(_mm256_loadu_ps(scores + 8 * t), f, _CMP_GT_OQ);
        above |= (uint32_t)_mm256_movemask_ps(is_above) << 8 * t;
    }
    return above;
}

static void collect(const float *scores, uint32_t n, uint32_t b, float floor, struct candidates *c) {
    c->n = 0;
    for (uint32_t j = 0; j < n; j += GROUP) {
        uint32_t above;
        if (n - j >= GROUP) {
            above = compare_group(scores + j, floor);
        } else {
            float rest[GROUP];
            for (uint32_t i = 0; i < GROUP; i++) {
                rest[i] = j + i < n ? scores[j + i] : -INFINITY; // above no floor
            }
            above = compare_group(rest, floor);
        }
        if (c->n > CANDIDATES - GROUP) {
            floor = shrink(c, b); // candidates of this group that are not above the new floor do no harm
        }
        for (; above != 0; above &= above - 1) {
            uint32_t index = j + (uint32_t)__builtin_ctz(above);
            c->scores[c->n] = scores[index];
            c->index[c->n++] = index;
        }
    }
}

static void select_best(const float *scores, uint32_t n, uint32_t b, uint32_t *keep_out) {
    struct candidates c;
    if (n < LEAST || b > CANDIDATES / 2 || b > n / 8) {
        sl_ref_select(scores, n, b, keep_out);
        return;
    }
    collect(scores, n, b, guess_floor(scores, n, b, &c), &c);
    if (c.n < b) {
        sl_ref_select(scores, n, b, keep_out);
        return;
    }
    sl_ref_select(c.scores, c.n, b, c.keep);
    for (uint32_t i = 0; i < b; i++) {
        keep_out[i] = c.index[c.keep[i]];
    }
}

static void select_slots(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors scores,
                         struct sl_vectors ties, bool newest, struct sl_counts kept, struct sl_lists keep_out) {
    const struct sl_select_call call = {heads, scores, ties, newest, kept, keep_out, select_best};
    sl_select_heads(stream, &call);
}

void sl_avx2_select_fill(struct sl_ops *ops) {
    ops->select = select_slots;
    ops->host.select = select_best;
}
