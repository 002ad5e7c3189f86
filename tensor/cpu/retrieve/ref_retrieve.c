// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what retrieval from an offloaded layer needs, in plain C: attention over listed slots, and the statistics and
 *          scores of single channels of the keys (TailorKV, section 4.2).
 *
 * Design: attend_slots takes the listed slots SL_PAGE_SLOTS at a time through the softmax of attend, so that the list of
 *         all slots gives attend's bits. A head without slots gives zeros and an lse of minus infinity.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "tensor/cpu/attention/kv_page.h"
#include "tensor/cpu/attention/ref_kv.h"
#include "tensor/cpu/attention/ref_kv_slots.h"
#include "tensor/cpu/attention/ref_softmax.h"
#include "tensor/cpu/retrieve/fills.h"

// --- attention over listed slots -------------------------------------------------------------------------------------

struct call {
    struct sl_attend args;
    const uint32_t *const *slots;
    const uint32_t *n_slots;
};

// Task: one query head.
static void attend_head(const struct call *call, int head) {
    const struct sl_attend *args = &call->args;
    int kv_head = head / (args->n_heads / args->n_kv_heads), d = args->head_dim;
    const struct sl_kv *kv = &args->kv[kv_head];
    const uint32_t *slots = call->slots[kv_head];
    uint32_t n_slots = call->n_slots[kv_head];
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

static void attend_heads(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    for (int64_t head = begin; head < end; head++) {
        attend_head(arg, (int)head);
    }
}

static void attend_slots(struct sl_team *team, const struct sl_attend *args, const uint32_t *const *slots,
                         const uint32_t *n_slots) {
    assert(args->m == 1);
    struct call call = {*args, slots, n_slots};
    sl_team_run(team, args->n_heads, 1, attend_heads, &call);
}

// --- channels --------------------------------------------------------------------------------------------------------

// absmax_out[c] = max over slots j in [begin, end) of |K_j[c]|
static void channel_absmax(const struct sl_kv *kv, uint32_t begin, uint32_t end, float *absmax_out) {
    int d = kv->work->head_dim;
    float row[SL_MAX_HEAD_DIM];
    memset(absmax_out, 0, (size_t)d * sizeof *absmax_out);
    for (uint32_t j = begin; j < end; j++) {
        sl_ref_read_k_row(kv, j, row);
        for (int c = 0; c < d; c++) {
            absmax_out[c] = fmaxf(absmax_out[c], fabsf(row[c]));
        }
    }
}

// scores_out[j - begin] = sum_i q[channels[i]] K_j[channels[i]]
static void channel_scores(const struct sl_kv *kv, const float *q, const int *channels, int n_channels, uint32_t begin,
                           uint32_t end, float *scores_out) {
    float row[SL_MAX_HEAD_DIM];
    for (uint32_t j = begin; j < end; j++) {
        double sum = 0.0;
        sl_ref_read_k_row(kv, j, row);
        for (int i = 0; i < n_channels; i++) {
            assert(channels[i] >= 0 && channels[i] < kv->work->head_dim);
            sum += (double)q[channels[i]] * (double)row[channels[i]];
        }
        scores_out[j - begin] = (float)sum;
    }
}

void sl_ref_retrieve_fill(struct sl_ops *ops) {
    ops->attend_slots = attend_slots;
    ops->channel_absmax = channel_absmax;
    ops->channel_scores = channel_scores;
}
