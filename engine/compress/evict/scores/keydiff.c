// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: keydiff: how unlike a key is to the others (Park et al., KeyDiff, section 3).
 *
 *     score_j = -cos(K_j, sum over the head's slots i of K_i / |K_i|)
 *
 * Keys are as pages hold them: rotated, except with slot positions. The host computes; a device's pages come to it.
 */
#include <math.h>

#include "engine/compress/evict/scores/score.h"

// Writes K_j / |K_j|, or zeros for a key of no length.
static void unit_of(const float *key, int d, double *unit_out) {
    double squares = 0;
    for (int i = 0; i < d; i++) {
        squares += (double)key[i] * (double)key[i];
    }
    for (int i = 0; i < d; i++) {
        unit_out[i] = squares > 0 ? (double)key[i] / sqrt(squares) : 0;
    }
}

// Reads the keys of a page, which alone comes from a device. Returns how many there are.
static int read_page(const struct sl_score_input *in, const struct sl_kv *kv, uint32_t page) {
    struct sl_kv one = *kv;
    uint32_t n_left = kv->n_slots - page * SL_PAGE_SLOTS;
    one.pages += page;
    one.n_packed = page < kv->n_packed;
    one.n_slots = n_left < SL_PAGE_SLOTS ? n_left : SL_PAGE_SLOTS;
    in->ops->read_rows(&one, 0, one.n_slots, in->keys, NULL);
    return (int)one.n_slots;
}

static double dot(const double *a, const double *b, int d) {
    double sum = 0;
    for (int i = 0; i < d; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

// scores_out: [kv->n_slots] memory of the host
static void score_head(const struct sl_score_input *in, const struct sl_kv *kv, float *scores_out) {
    int d = kv->work->head_dim;
    uint32_t n_pages = sl_pages_for(kv->n_slots);
    double unit[SL_MAX_HEAD_DIM], center[SL_MAX_HEAD_DIM] = {0};
    for (uint32_t page = 0; page < n_pages; page++) {
        for (int j = 0, n = read_page(in, kv, page); j < n; j++) {
            unit_of(in->keys + j * d, d, unit);
            for (int i = 0; i < d; i++) {
                center[i] += unit[i];
            }
        }
    }
    double length = sqrt(dot(center, center, d));
    for (uint32_t page = 0; page < n_pages; page++) {
        for (int j = 0, n = read_page(in, kv, page); j < n; j++) {
            unit_of(in->keys + j * d, d, unit);
            *scores_out++ = length > 0 ? (float)(-dot(unit, center, d) / length) : 0;
        }
    }
}

// A device that has memory of its own (its heads are published) gets the scores by a copy.
void sl_score_read_keydiff(const struct sl_score_input *in, struct sl_vectors scores) {
    bool copies = in->heads->published != NULL;
    if (copies) {
        (void)sl_stream_wait(in->stream, NULL); // a failed device reports its failure again
    }
    for (int h = 0; h < in->heads->n; h++) {
        const struct sl_kv *kv = &in->heads->kv[h];
        float *there = scores.at + (size_t)h * scores.stride;
        score_head(in, kv, copies ? in->shared : there);
        if (copies) {
            sl_stream_copy(in->stream, there, in->shared, kv->n_slots * sizeof *there);
            (void)sl_stream_wait(in->stream, NULL);
        }
    }
}
