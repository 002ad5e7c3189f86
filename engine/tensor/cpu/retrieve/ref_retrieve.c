// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention over listed slots of an offloaded layer in plain C (TailorKV, section 4.2).
 *
 * Design: attend_slots takes the listed slots SL_PAGE_SLOTS at a time through the softmax of attend, so that the list
 *         of all slots gives attend's bits. A head without slots gives zeros and an lse of minus infinity.
 */
#include <assert.h>
#include <math.h>

#include "engine/tensor/cpu/attention/heads.h"
#include "engine/tensor/cpu/pages/kv_page.h"
#include "engine/tensor/cpu/attention/ref_kv.h"
#include "engine/tensor/cpu/attention/ref_kv_slots.h"
#include "engine/tensor/cpu/attention/ref_softmax.h"
#include "engine/tensor/cpu/retrieve/fills.h"

// --- attention over listed slots -------------------------------------------------------------------------------------

struct call {
    struct sl_attend args;
    struct sl_lists slots;
    struct sl_counts n;
};

// A task is one query head.
static void attend_head(const struct call *call, int head) {
    const struct sl_attend *args = &call->args;
    int kv_head = head / (args->n_heads / args->heads.n), d = args->head_dim;
    const struct sl_kv *kv = &args->heads.kv[kv_head];
    const uint32_t *slots = sl_list(call->slots, kv_head);
    uint32_t n_slots = sl_count(call->n, kv_head);
    float query[SL_MAX_HEAD_DIM], keys[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM], values[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    struct sl_ref_softmax s;
    sl_ref_softmax_init(&s, d);
    sl_ref_read_query(args, kv, 0, head, query);
    for (uint32_t first = 0; first < n_slots; first += SL_PAGE_SLOTS) {
        int n = n_slots - first < SL_PAGE_SLOTS ? (int)(n_slots - first) : SL_PAGE_SLOTS;
        for (int j = 0; j < n; j++) {
            uint32_t slot = slots[first + (uint32_t)j];
            assert(slot < kv->n_slots);
            sl_ref_read_k_row(kv, slot, keys + j * d);
            sl_ref_read_v_row(kv, slot, values + j * d);
            if (args->rope != NULL) {
                sl_ref_rotate_row(args->rope, slot, keys + j * d);
            }
        }
        double scores[SL_PAGE_SLOTS];
        sl_ref_score_keys(args, query, keys, n, scores);
        sl_ref_softmax_add(&s, scores, values, n, d);
    }
    for (int i = 0; i < d; i++) {
        args->out[(size_t)head * (size_t)d + (size_t)i] = n_slots > 0 ? (float)(s.out[i] / s.sum) : 0.0f;
    }
    if (args->lse != NULL) {
        args->lse[head] = (float)(s.max + log(s.sum));
    }
}

static void attend_heads(void *arg, int64_t begin, int64_t end, int) {
    for (int64_t head = begin; head < end; head++) {
        attend_head(arg, (int)head);
    }
}

static void attend_slots(struct sl_stream *stream, const struct sl_attend *args, struct sl_lists slots,
                         struct sl_counts n) {
    assert(args->m == 1);
    struct call call = {*args, slots, n};
    sl_stream_run(stream, args->n_heads, 1, attend_heads, &call);
}

static void mean_query(struct sl_stream *stream, const struct sl_attend *args, const float *q, float *means_out) {
    int group = args->n_heads / args->heads.n, d = args->head_dim;
    (void)stream; // too little work for a team: one row
    assert(args->m == 1);
    for (int h = 0; h < args->heads.n; h++, q += group * d, means_out += d) {
        for (int c = 0; c < d; c++) {
            float sum = 0.0f;
            for (int g = 0; g < group; g++) {
                sum += q[g * d + c];
            }
            means_out[c] = sum / (float)group;
        }
    }
}

void sl_ref_retrieve_fill(struct sl_ops *ops) {
    ops->mean_query = mean_query;
    ops->attend_slots = attend_slots;
}
