// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention over listed slots with AVX2; the formula is that of ref_retrieve.c.
 *
 * Design: attend_slots copies the rows of SL_PAGE_SLOTS listed slots side by side, as if they were a page, and then
 *         does what attend does with a page. Tiles, products and softmax are the same, so the list of all slots gives
 *         attend's bits, if there are no more slots than a split has. Rows of packed pages, and keys that must still be
 *         rotated, are copied as f32.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/tensor/cpu/attention/avx2_kv.h"
#include "engine/tensor/cpu/pages/avx2_row.h"
#include "engine/tensor/cpu/attention/heads.h"
#include "engine/tensor/cpu/retrieve/fills.h"

#define BLOCK    32 // query heads that share one copy of the rows
#define MAX_WIDE ((SL_MAX_HEAD_DIM + SL_STRIP - 1) / SL_STRIP * SL_STRIP)

// --- attention over listed slots -------------------------------------------------------------------------------------

struct call {
    struct sl_avx2_call attend;
    struct sl_lists slots;
    struct sl_counts n;
};

struct scratch {
    _Alignas(64) float q[BLOCK * SL_MAX_HEAD_DIM]; // [n_vectors][d]
    float rows[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];   // of listed slots, in the format of `layout`
    float k[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];      // K^T tile
    float v[SL_PAGE_SLOTS * MAX_WIDE];             // V tile
    float scores[BLOCK * SL_PAGE_SLOTS];
    float out[BLOCK * MAX_WIDE];
    float factors[BLOCK];
    struct sl_page_angles of_page;
    struct sl_page_layout layout; // rows[] as the only part of a page
};

// Copies the bytes of n rows in the working format to rows[]; returns false if one of them is packed.
static bool copy_rows(const struct sl_kv *kv, uint32_t part, const uint32_t *slots, int n, struct scratch *s) {
    size_t row_bytes = (size_t)kv->work->head_dim * (size_t)sl_kv_format_bits(kv->work->format) / 8;
    s->layout = *kv->work;
    s->layout.k = s->layout.v = 0;
    for (int j = 0; j < n; j++) {
        uint32_t page = slots[j] / SL_PAGE_SLOTS;
        if (page < kv->n_packed) {
            return false;
        }
        memcpy((char *)s->rows + (size_t)j * row_bytes,
               (const char *)kv->pages[page] + part + slots[j] % SL_PAGE_SLOTS * row_bytes, row_bytes);
    }
    memset((char *)s->rows + (size_t)n * row_bytes, 0, (size_t)(SL_PAGE_SLOTS - n) * row_bytes);
    return true;
}

static void load_keys(const struct call *call, const struct sl_kv *kv, const uint32_t *slots, int n,
                      struct scratch *s) {
    size_t d = (size_t)kv->work->head_dim;
    const struct sl_slot_angles *angles = call->attend.angles;
    if (angles != NULL || !copy_rows(kv, kv->work->k, slots, n, s)) {
        s->layout.k_format = s->layout.v_format = SL_KV_F32;
        for (int j = 0; j < n; j++) {
            float *row = s->rows + (size_t)j * d;
            sl_avx2_read_k_row(kv, slots[j], row);
            if (angles != NULL) {
                sl_avx2_rotate_queries(angles, &s->of_page, slots[j], row, 1, row);
            }
        }
        memset(s->rows + (size_t)n * d, 0, (size_t)(SL_PAGE_SLOTS - n) * d * sizeof *s->rows);
    }
    sl_avx2_fill_keys(&s->layout, s->rows, s->k);
}

static void load_values(const struct sl_kv *kv, const uint32_t *slots, int n, struct scratch *s) {
    if (!copy_rows(kv, kv->work->v, slots, n, s)) {
        s->layout.k_format = s->layout.v_format = SL_KV_F32;
        for (int j = 0; j < n; j++) {
            sl_avx2_read_v_row(kv, slots[j], s->rows + (size_t)j * (size_t)kv->work->head_dim);
        }
    }
    sl_avx2_fill_values(&s->layout, s->rows, n, s->v);
}

// Computes query heads [begin, begin + n_vectors) of a KV head.
static void attend_block(const struct call *call, int head, int begin, int n_vectors) {
    const struct sl_attend *args = &call->attend.args;
    const struct sl_kv *kv = &args->heads.kv[head];
    int d = args->head_dim, n_strips = sl_avx2_n_strips(d);
    size_t wide = (size_t)n_strips * SL_STRIP, first_head = (size_t)(head * call->attend.group + begin);
    struct scratch s;
    struct sl_avx2_softmax states[BLOCK];
    s.of_page.page = -1;
    s.layout = *kv->work;
    s.layout.k = s.layout.v = 0;
    sl_avx2_load_queries(&call->attend, head, begin, n_vectors, &s.of_page, s.q);
    memset(s.out, 0, (size_t)n_vectors * wide * sizeof *s.out);
    for (int v = 0; v < n_vectors; v++) {
        states[v] = (struct sl_avx2_softmax){-INFINITY, 0.0f};
    }
    const struct sl_avx2_product qk = {s.q, (size_t)d, s.k, (size_t)d, s.scores, SL_PAGE_SLOTS, NULL};
    const struct sl_avx2_product pv = {s.scores, SL_PAGE_SLOTS, s.v, SL_PAGE_SLOTS, s.out, wide, s.factors};
    for (uint32_t at = 0; at < sl_count(call->n, head); at += SL_PAGE_SLOTS) {
        uint32_t left = sl_count(call->n, head) - at;
        int n = left < SL_PAGE_SLOTS ? (int)left : SL_PAGE_SLOTS;
        load_keys(call, kv, sl_list(call->slots, head) + at, n, &s);
        load_values(kv, sl_list(call->slots, head) + at, n, &s);
        sl_avx2_multiply(&qk, 0, n_vectors, (n + SL_STRIP - 1) / SL_STRIP, 0, (size_t)d);
        for (int v = 0; v < n_vectors; v++) {
            sl_avx2_mask(s.scores + v * SL_PAGE_SLOTS, (struct sl_range){0, n});
            s.factors[v] = sl_avx2_softmax_add(&states[v], s.scores + v * SL_PAGE_SLOTS, s.scores + v * SL_PAGE_SLOTS);
        }
        sl_avx2_multiply(&pv, 0, n_vectors, n_strips, 0, (size_t)n);
    }
    for (int v = 0; v < n_vectors; v++) {
        float *out = args->out + (first_head + (size_t)v) * (size_t)d;
        float sum = sl_count(call->n, head) > 0 ? states[v].sum : 1.0f; // without slots the output is zeros
        for (int i = 0; i < d; i += 8) {
            _mm256_storeu_ps(out + i,
                             _mm256_div_ps(_mm256_load_ps(s.out + (size_t)v * wide + (size_t)i), _mm256_set1_ps(sum)));
        }
        if (args->lse != NULL) {
            args->lse[first_head + (size_t)v] = states[v].max + logf(states[v].sum);
        }
    }
}

static void attend_tasks(void *arg, int64_t begin, int64_t end, int) {
    const struct call *call = arg;
    int group = call->attend.group, n_blocks = (group + BLOCK - 1) / BLOCK;
    for (int64_t task = begin; task < end; task++) {
        int first = (int)(task % n_blocks) * BLOCK;
        attend_block(call, (int)(task / n_blocks), first, group - first < BLOCK ? group - first : BLOCK);
    }
}

static void attend_slots(struct sl_stream *stream, const struct sl_attend *args, struct sl_lists slots,
                         struct sl_counts n) {
    struct sl_slot_angles angles;
    struct call call = {.slots = slots, .n = n};
    assert(args->m == 1);
    sl_avx2_call_init(&call.attend, args, &angles);
    sl_stream_run(stream, (int64_t)args->heads.n * ((call.attend.group + BLOCK - 1) / BLOCK), 1, attend_tasks, &call);
}

void sl_avx2_retrieve_fill(struct sl_ops *ops) {
    ops->attend_slots = attend_slots;
}
