// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: keydiff: how unlike a key is to the others (Park et al., KeyDiff, section 3).
 *
 *     score_j = -cos(K_j, sum over the head's slots i of K_i / |K_i|)
 *
 * Keys are as pages hold them: rotated, except with slot positions. The host computes; a device's pages come to it.
 */
#include <math.h>
#include <stdlib.h>

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

// Reads the key of a slot; only its page comes from a device.
static void read_unit(const struct sl_score_input *in, const struct sl_kv *kv, uint32_t slot, double *unit_out) {
    uint32_t page = slot / SL_PAGE_SLOTS, j = slot % SL_PAGE_SLOTS;
    struct sl_kv one = *kv;
    one.pages += page;
    one.n_packed = page < kv->n_packed;
    one.n_slots = j + 1;
    float key[SL_MAX_HEAD_DIM];
    in->ops->read_rows(&one, j, j + 1, key, NULL);
    unit_of(key, kv->work->head_dim, unit_out);
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
    double unit[SL_MAX_HEAD_DIM], center[SL_MAX_HEAD_DIM] = {0};
    for (uint32_t j = 0; j < kv->n_slots; j++) {
        read_unit(in, kv, j, unit);
        for (int i = 0; i < d; i++) {
            center[i] += unit[i];
        }
    }
    double length = sqrt(dot(center, center, d));
    for (uint32_t j = 0; j < kv->n_slots; j++) {
        read_unit(in, kv, j, unit);
        scores_out[j] = length > 0 ? (float)(-dot(unit, center, d) / length) : 0;
    }
}

// A device that has memory of its own (its heads are published) gets the scores by a copy. Ends the process where there
// is no memory for them, as read_rows() of a device does.
static void read_scores(const struct sl_score_input *in, struct sl_vectors scores) {
    for (int h = 0; h < in->heads->n; h++) {
        const struct sl_kv *kv = &in->heads->kv[h];
        float *there = scores.at + (size_t)h * scores.stride, *here = there;
        if (in->heads->published != NULL) {
            (void)sl_stream_wait(in->stream, NULL); // a failed device reports its failure again
            here = sl_device_alloc(in->stream->device, SL_MEMORY_SHARED, kv->n_slots * sizeof *here);
            if (here == NULL) {
                abort();
            }
        }
        score_head(in, kv, here);
        if (here != there) {
            sl_stream_copy(in->stream, there, here, kv->n_slots * sizeof *here);
            (void)sl_stream_wait(in->stream, NULL);
            sl_device_free(in->stream->device, SL_MEMORY_SHARED, here);
        }
    }
}

const struct sl_score_method sl_score_keydiff = {.read = read_scores};
