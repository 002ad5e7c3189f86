// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: column statistics of attention in plain C: fold, window_sums. With p[r][g][j] = exp(scale q[r][g] . K_j -
 *          lse[g][r]) for the slots j that row r sees (v_r of them), 0 for the others:
 *
 *              abar[r][j] = 1/G sum_g p[r][g][j]
 *              sum[j] += sum_r abar[r][j]    square[j] += sum_r abar[r][j]^2    above[j] += #{r: abar[r][j] > 1/v_r}
 *     or       sum[j] = max(sum[j], max_{r,g} p[r][g][j])
 *
 * Design: a page's statistics over all rows are summed in f64 and added to its state once.
 */
#include <assert.h>
#include <math.h>

#include "engine/tensor/cpu/attention/fills.h"
#include "engine/tensor/cpu/attention/heads.h"
#include "engine/tensor/cpu/pages/kv_page.h"
#include "engine/tensor/cpu/attention/ref_kv.h"

struct stats_call {
    struct sl_attend args;
    int first_row;
    struct sl_fold what;        // of fold
    struct sl_vectors sums_out; // of window_sums
};

// weights[j] = exp(scale q . K_j - lse) for the slots of a page that the row sees
static void page_weights(const struct sl_attend *args, const struct sl_kv *kv, int row, int head, const float *keys,
                         struct sl_range seen, double *weights) {
    float query[SL_MAX_HEAD_DIM];
    double lse = (double)args->lse[(size_t)head * (size_t)args->m + (size_t)row];
    sl_ref_read_query(args, kv, row, head, query);
    sl_ref_score_keys(args, query, keys + (size_t)seen.begin * (size_t)args->head_dim, seen.end - seen.begin,
                      weights + seen.begin);
    for (int j = seen.begin; j < seen.end; j++) {
        weights[j] = exp(weights[j] - lse);
    }
}

static void add_to_plane(const struct sl_page_layout *layout, void *page, int plane, bool largest, const double *values,
                         int n) {
    if (plane < 0 || plane >= layout->n_states) {
        return; // the statistic is not wanted, or a packed page has dropped its state
    }
    float *state = sl_page_state(layout, page, plane);
    for (int j = 0; j < n; j++) {
        state[j] = largest ? fmaxf(state[j], (float)values[j]) : (float)((double)state[j] + values[j]);
    }
}

static void fold_page(const struct stats_call *call, int kv_head, uint32_t page) {
    const struct sl_attend *args = &call->args;
    const struct sl_kv *kv = &args->heads.kv[kv_head];
    int group = args->n_heads / args->heads.n, n_page = sl_attend_visible(args, kv, args->m - 1, page).end;
    float keys[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    bool largest = call->what.largest;
    double sums[SL_PAGE_SLOTS] = {0}, squares[SL_PAGE_SLOTS] = {0}, above[SL_PAGE_SLOTS] = {0};
    sl_ref_read_keys(args, kv, page, n_page, keys);
    for (int r = call->first_row; r < args->m; r++) {
        struct sl_range seen = sl_attend_visible(args, kv, r, page);
        double mean[SL_PAGE_SLOTS] = {0}, weights[SL_PAGE_SLOTS];
        int64_t visible = (int64_t)kv->n_slots - args->m + r + 1 - sl_attend_first(args, kv, r);
        // a row that sees one slot never exceeds the mean, not even by rounding
        double even = visible > 1 ? 1.0 / (double)visible : INFINITY;
        for (int head = kv_head * group; seen.begin < seen.end && head < (kv_head + 1) * group; head++) {
            page_weights(args, kv, r, head, keys, seen, weights);
            for (int j = seen.begin; j < seen.end; j++) {
                mean[j] += weights[j] / group;
                sums[j] = largest ? fmax(sums[j], weights[j]) : sums[j];
            }
        }
        for (int j = seen.begin; j < seen.end; j++) {
            sums[j] += largest ? 0 : mean[j];
            squares[j] += mean[j] * mean[j];
            above[j] += mean[j] > even ? 1.0 : 0.0;
        }
    }
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    add_to_plane(layout, kv->pages[page], call->what.sum, largest, sums, n_page);
    add_to_plane(layout, kv->pages[page], call->what.square, false, squares, n_page);
    add_to_plane(layout, kv->pages[page], call->what.above, false, above, n_page);
}

// A task is all pages of one KV head.
static void fold_tasks(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct stats_call *call = arg;
    for (int64_t h = begin; h < end; h++) {
        const struct sl_kv *kv = &call->args.heads.kv[h];
        for (uint32_t page = 0; page < sl_pages_for(kv->n_slots); page++) {
            if (sl_kv_page_layout(kv, page)->n_states > 0) {
                fold_page(call, (int)h, page);
            }
        }
    }
}

void sl_ref_fold(struct sl_stream *stream, const struct sl_attend *args, int first_row, const struct sl_fold *what) {
    assert(args->lse != NULL && first_row >= 0);
    struct stats_call call = {.args = *args, .first_row = first_row, .what = *what};
    sl_stream_run(stream, args->heads.n, 1, fold_tasks, &call);
}

// A task is all slots of one query head.
static void window_tasks(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct stats_call *call = arg;
    const struct sl_attend *args = &call->args;
    for (int64_t head = begin; head < end; head++) {
        const struct sl_kv *kv = &args->heads.kv[head / (args->n_heads / args->heads.n)];
        float *out = sl_vector(call->sums_out, (int)head);
        for (uint32_t page = 0; page < sl_pages_for(kv->n_slots); page++) {
            float keys[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
            double sums[SL_PAGE_SLOTS] = {0}, weights[SL_PAGE_SLOTS];
            int n_page = sl_attend_visible(args, kv, args->m - 1, page).end;
            sl_ref_read_keys(args, kv, page, n_page, keys);
            for (int r = call->first_row; r < args->m; r++) {
                struct sl_range seen = sl_attend_visible(args, kv, r, page);
                if (seen.begin < seen.end) {
                    page_weights(args, kv, r, (int)head, keys, seen, weights);
                }
                for (int j = seen.begin; j < seen.end; j++) {
                    sums[j] += weights[j];
                }
            }
            for (int j = 0; j < n_page; j++) {
                out[(size_t)page * SL_PAGE_SLOTS + (size_t)j] = (float)sums[j];
            }
        }
    }
}

void sl_ref_window_sums(struct sl_stream *stream, const struct sl_attend *args, int first_row,
                        struct sl_vectors sums_out) {
    assert(args->lse != NULL && first_row >= 0);
    struct stats_call call = {.args = *args, .first_row = first_row, .sums_out = sums_out};
    sl_stream_run(stream, args->n_heads, 1, window_tasks, &call);
}

void sl_ref_stats_fill(struct sl_ops *ops) {
    ops->fold = sl_ref_fold;
    ops->window_sums = sl_ref_window_sums;
}
