// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention over pages in plain C: append, attend; and how rows meet keys, for the other files (ref_kv.h).
 *
 * Design: attend is the running softmax: pages in slot order; with the page's scores s_j and the state (max, sum, out)
 *
 *              max' = max(max, max_j s_j)      c = exp(max - max')
 *              sum  = sum c + sum_j exp(s_j - max')
 *              out  = out c + sum_j exp(s_j - max') V_j          at the end: out / sum, lse = max' + log(sum)
 *
 *         A row's state never meets another row's, so a result does not depend on the other rows of the call.
 */
#include <assert.h>
#include <string.h>

#include "engine/cpu/kv_page.h"
#include "engine/cpu/ref_kv.h"
#include "engine/cpu/ref_kv_slots.h"
#include "engine/cpu/tier.h"

#define ROW_BLOCK 16 // rows that share one reading of a page

static void write_row(const struct sl_page_layout *layout, char *part, uint32_t slot, const float *row) {
    size_t first = (size_t)slot * (size_t)layout->head_dim;
    for (int i = 0; i < layout->head_dim; i++) {
        switch (layout->format) {
        case SL_KV_F32:
            ((float *)part)[first + (size_t)i] = row[i];
            break;
        case SL_KV_BF16:
            ((uint16_t *)part)[first + (size_t)i] = sl_f32_to_bf16(row[i]);
            break;
        default: // the only other working format
            ((uint16_t *)part)[first + (size_t)i] = sl_f32_to_f16_saturated(row[i]);
            break;
        }
    }
}

static void append(const struct sl_kv *kv, const float *k, const float *v, int64_t stride, int m,
                   const int64_t *positions) {
    const struct sl_page_layout *layout = kv->work;
    for (int r = 0; r < m; r++) {
        char *page = kv->pages[(kv->n_slots + (uint32_t)r) / SL_PAGE_SLOTS];
        uint32_t slot = (kv->n_slots + (uint32_t)r) % SL_PAGE_SLOTS;
        write_row(layout, page + layout->k, slot, k + r * stride);
        write_row(layout, page + layout->v, slot, v + r * stride);
        if (layout->has_positions) {
            sl_page_positions(layout, page)[slot] = (int32_t)positions[r];
        }
        for (int plane = 0; plane < layout->n_states; plane++) {
            sl_page_state(layout, page, plane)[slot] = 0.0f;
        }
    }
}

static void rotate(const struct sl_rope *rope, int64_t position, float *row) {
    float cosines[SL_MAX_HEAD_DIM / 2], sines[SL_MAX_HEAD_DIM / 2];
    int half = rope->head_dim / 2;
    sl_rope_angles(rope, position, cosines, sines);
    for (int i = 0; i < half; i++) {
        float a = row[i], b = row[i + half];
        row[i] = a * cosines[i] - b * sines[i];
        row[i + half] = b * cosines[i] + a * sines[i];
    }
}

void sl_ref_read_keys(const struct sl_attend *args, const struct sl_kv *kv, uint32_t page, int n_rows, float *keys) {
    sl_ref_read_k(sl_kv_page_layout(kv, page), kv->pages[page], n_rows, keys);
    for (int j = 0; args->rope != NULL && j < n_rows; j++) {
        rotate(args->rope, (int64_t)page * SL_PAGE_SLOTS + j, keys + (size_t)j * (size_t)args->head_dim);
    }
}

void sl_ref_read_query(const struct sl_attend *args, const struct sl_kv *kv, int row, int head, float *query) {
    size_t d = (size_t)args->head_dim;
    memcpy(query, args->q + ((size_t)row * (size_t)args->n_heads + (size_t)head) * d, d * sizeof *query);
    if (args->rope != NULL) {
        rotate(args->rope, (int64_t)kv->n_slots - args->m + row, query);
    }
}

void sl_ref_score_keys(const struct sl_attend *args, const float *query, const float *keys, int n, double *scores) {
    for (int j = 0; j < n; j++) {
        double dot = 0.0;
        for (int i = 0; i < args->head_dim; i++) {
            dot += (double)query[i] * (double)keys[(size_t)j * (size_t)args->head_dim + (size_t)i];
        }
        scores[j] = dot * (double)args->scale;
    }
}

struct softmax {
    double max, sum;
    double out[SL_MAX_HEAD_DIM];
};

static void softmax_add(struct softmax *s, const double *scores, const float *values, int n, int d) {
    double max = s->max;
    for (int j = 0; j < n; j++) {
        max = scores[j] > max ? scores[j] : max;
    }
    double c = exp(s->max - max); // 0 for the first page: max was minus infinity
    s->max = max;
    s->sum *= c;
    for (int i = 0; i < d; i++) {
        s->out[i] *= c;
    }
    for (int j = 0; j < n; j++) {
        double p = exp(scores[j] - max);
        s->sum += p;
        for (int i = 0; i < d; i++) {
            s->out[i] += p * (double)values[(size_t)j * (size_t)d + (size_t)i];
        }
    }
}

// Task: one query head and a block of rows.
static void attend_task(const struct sl_attend *args, int head, int row_begin, int row_end) {
    const struct sl_kv *kv = &args->kv[head / (args->n_heads / args->n_kv_heads)];
    int d = args->head_dim, n_rows = row_end - row_begin;
    float keys[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM], values[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    float queries[ROW_BLOCK][SL_MAX_HEAD_DIM];
    struct softmax states[ROW_BLOCK];
    for (int r = 0; r < n_rows; r++) {
        sl_ref_read_query(args, kv, row_begin + r, head, queries[r]);
        states[r].max = -INFINITY;
        states[r].sum = 0.0;
        memset(states[r].out, 0, (size_t)d * sizeof states[r].out[0]);
    }
    for (uint32_t page = 0; page < sl_pages_for(kv->n_slots); page++) {
        int n_page = sl_attend_visible(args, kv, row_end - 1, page); // the last row sees the most
        if (n_page == 0) {
            break;
        }
        sl_ref_read_keys(args, kv, page, n_page, keys);
        sl_ref_read_v(sl_kv_page_layout(kv, page), kv->pages[page], n_page, values);
        for (int r = 0; r < n_rows; r++) {
            double scores[SL_PAGE_SLOTS];
            int n = sl_attend_visible(args, kv, row_begin + r, page);
            if (n > 0) {
                sl_ref_score_keys(args, queries[r], keys, n, scores);
                softmax_add(&states[r], scores, values, n, d);
            }
        }
    }
    for (int r = 0; r < n_rows; r++) {
        float *out = args->out + ((size_t)(row_begin + r) * (size_t)args->n_heads + (size_t)head) * (size_t)d;
        for (int i = 0; i < d; i++) {
            out[i] = (float)(states[r].out[i] / states[r].sum);
        }
        if (args->lse != NULL) {
            args->lse[(size_t)head * (size_t)args->m + (size_t)(row_begin + r)] =
                (float)(states[r].max + log(states[r].sum));
        }
    }
}

static void attend_tasks(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct sl_attend *args = arg;
    int64_t n_blocks = (args->m + ROW_BLOCK - 1) / ROW_BLOCK;
    for (int64_t t = begin; t < end; t++) {
        int row = (int)(t % n_blocks) * ROW_BLOCK;
        attend_task(args, (int)(t / n_blocks), row, row + ROW_BLOCK < args->m ? row + ROW_BLOCK : args->m);
    }
}

static void attend(struct sl_team *team, const struct sl_attend *args) {
    int64_t n_blocks = (args->m + ROW_BLOCK - 1) / ROW_BLOCK;
    struct sl_attend copy = *args;
    sl_team_run(team, args->n_heads * n_blocks, 1, attend_tasks, &copy);
}

void sl_ref_kv_fill(struct sl_ops *ops) {
    ops->append = append;
    ops->attend = attend;
    ops->fold = sl_ref_fold;
    ops->window_sums = sl_ref_window_sums;
    sl_ref_kv_slots_fill(ops);
}
