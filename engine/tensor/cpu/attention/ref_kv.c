// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention over pages in plain C: append, attend; and products of rows and keys, for the other files
 *         (ref_kv.h).
 *
 * Design: attend is the running softmax of ref_softmax.h over the pages in slot order. A row's state is separate from
 *         the other rows' states, so a result does not depend on the other rows of the call. attend_before does the
 *         same and does not divide the state by its sum.
 */
#include <assert.h>
#include <string.h>

#include "engine/tensor/cpu/attention/append.h"
#include "engine/tensor/cpu/attention/fills.h"
#include "engine/tensor/cpu/pages/kv_page.h"
#include "engine/tensor/cpu/attention/ref_kv.h"
#include "engine/tensor/cpu/attention/ref_kv_slots.h"
#include "engine/tensor/cpu/attention/ref_softmax.h"

#define ROW_BLOCK 16 // rows that share one reading of a page

void sl_ref_read_keys(const struct sl_attend *args, const struct sl_kv *kv, uint32_t page, int n_rows, float *keys) {
    sl_ref_read_k(sl_kv_page_layout(kv, page), kv->pages[page], n_rows, keys);
    for (int j = 0; args->rope != NULL && j < n_rows; j++) {
        sl_ref_rotate_row(args->rope, (int64_t)page * SL_PAGE_SLOTS + j, keys + (size_t)j * (size_t)args->head_dim);
    }
}

void sl_ref_read_query(const struct sl_attend *args, const struct sl_kv *kv, int row, int head, float *query) {
    size_t d = (size_t)args->head_dim;
    memcpy(query, args->q + row * sl_attend_q_stride(args) + (int64_t)head * args->head_dim, d * sizeof *query);
    if (args->rope != NULL) {
        sl_ref_rotate_row(args->rope, (int64_t)kv->n_slots - args->m + row, query);
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

// Return the index of row `row` of query head `head` in struct sl_softmax's [m][H][d] and [H][m].
static size_t out_index(const struct sl_attend *args, int row, int head) {
    return (size_t)row * (size_t)sl_attend_out_stride(args) + (size_t)head * (size_t)args->head_dim;
}

static size_t row_index(const struct sl_attend *args, int row, int head) {
    return (size_t)head * (size_t)args->m + (size_t)row;
}

static void load_softmax(const struct sl_attend *args, int row, int head, struct sl_ref_softmax *s) {
    const struct sl_softmax *from = args->before;
    sl_ref_softmax_init(s, args->head_dim);
    if (from == NULL || from->max[row_index(args, row, head)] == -INFINITY) {
        return;
    }
    s->max = (double)from->max[row_index(args, row, head)];
    s->sum = (double)from->sum[row_index(args, row, head)];
    for (int i = 0; i < args->head_dim; i++) {
        s->out[i] = (double)from->out[out_index(args, row, head) + (size_t)i];
    }
}

static void store_softmax(const struct sl_attend *args, int row, int head, const struct sl_ref_softmax *s,
                          const struct sl_softmax *to) {
    to->max[row_index(args, row, head)] = (float)s->max;
    to->sum[row_index(args, row, head)] = (float)s->sum;
    for (int i = 0; i < args->head_dim; i++) {
        to->out[out_index(args, row, head) + (size_t)i] = (float)s->out[i];
    }
}

static void write_row(const struct sl_attend *args, int row, int head, const struct sl_ref_softmax *s) {
    float *out = args->out + out_index(args, row, head);
    for (int i = 0; i < args->head_dim; i++) {
        out[i] = (float)(s->out[i] / s->sum);
    }
    if (args->lse != NULL) {
        args->lse[row_index(args, row, head)] = (float)(s->max + log(s->sum));
    }
}

// A loop over the rows of calls. With `unfinished`, all slots of kv come before the rows, and sums are not divided.
struct attend_call {
    const struct sl_attend *calls;
    int n_calls, n_blocks; // n_blocks: blocks of a query head of the longest call
    const struct sl_softmax *unfinished;
};

// Returns the slots of the page that the row sees.
static struct sl_range visible(const struct attend_call *step, const struct sl_attend *args, const struct sl_kv *kv,
                               int row, uint32_t page) {
    return step->unfinished != NULL ? sl_slots_in_page(0, kv->n_slots, page) : sl_attend_visible(args, kv, row, page);
}

// Computes one query head and a block of rows.
static void attend_block(const struct attend_call *step, const struct sl_attend *args, int head, int row_begin,
                         int row_end) {
    const struct sl_kv *kv = &args->heads.kv[head / (args->n_heads / args->heads.n)];
    int d = args->head_dim, n_rows = row_end - row_begin;
    float keys[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM], values[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    float queries[ROW_BLOCK][SL_MAX_HEAD_DIM];
    struct sl_ref_softmax states[ROW_BLOCK];
    for (int r = 0; r < n_rows; r++) {
        sl_ref_read_query(args, kv, row_begin + r, head, queries[r]);
        load_softmax(args, row_begin + r, head, &states[r]);
    }
    uint32_t first_page = sl_attend_first(args, kv, row_begin) / SL_PAGE_SLOTS; // the first row's window begins first
    for (uint32_t page = first_page; page < sl_pages_for(kv->n_slots); page++) {
        int n_page = visible(step, args, kv, row_end - 1, page).end; // the last row sees the most slots
        if (n_page == 0) {
            break;
        }
        sl_ref_read_keys(args, kv, page, n_page, keys);
        sl_ref_read_v(sl_kv_page_layout(kv, page), kv->pages[page], n_page, values);
        for (int r = 0; r < n_rows; r++) {
            double scores[SL_PAGE_SLOTS];
            struct sl_range seen = visible(step, args, kv, row_begin + r, page);
            if (seen.begin < seen.end) {
                size_t at = (size_t)seen.begin * (size_t)d;
                if (page % (SL_ATTEND_SPLIT / SL_PAGE_SLOTS) == 0) {
                    sl_ref_softmax_round(&states[r], d);
                }
                sl_ref_score_keys(args, queries[r], keys + at, seen.end - seen.begin, scores);
                sl_ref_softmax_add(&states[r], scores, values + at, seen.end - seen.begin, d);
            }
        }
    }
    for (int r = 0; r < n_rows; r++) {
        if (step->unfinished != NULL) {
            store_softmax(args, row_begin + r, head, &states[r], step->unfinished);
        } else {
            write_row(args, row_begin + r, head, &states[r]);
        }
    }
}

// A task is a block of rows of a query head of a call. A task past the rows of a shorter call does nothing.
static void attend_tasks(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct attend_call *step = arg;
    for (int64_t t = begin; t < end; t++) {
        const struct sl_attend *args = &step->calls[t % step->n_calls];
        int row = (int)(t / step->n_calls % step->n_blocks) * ROW_BLOCK;
        int64_t head = t / step->n_calls / step->n_blocks;
        if (row < args->m && head < args->n_heads) {
            attend_block(step, args, (int)head, row, row + ROW_BLOCK < args->m ? row + ROW_BLOCK : args->m);
        }
    }
}

static void run_calls(struct sl_stream *stream, struct attend_call *step) {
    int64_t n_heads = 0;
    for (int i = 0; i < step->n_calls; i++) {
        const struct sl_attend *args = &step->calls[i];
        assert(args->before == NULL || (args->rope == NULL && args->window <= 0));
        int n_blocks = (args->m + ROW_BLOCK - 1) / ROW_BLOCK;
        step->n_blocks = n_blocks > step->n_blocks ? n_blocks : step->n_blocks;
        n_heads = args->n_heads > n_heads ? args->n_heads : n_heads;
    }
    sl_stream_run(stream, n_heads * step->n_blocks * step->n_calls, 1, attend_tasks, step);
}

static void append(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    sl_append_rows(stream, calls, n_calls, sl_ref_write_row);
}

static void attend(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    struct attend_call step = {.calls = calls, .n_calls = n_calls};
    run_calls(stream, &step);
}

static void attend_before(struct sl_stream *stream, const struct sl_attend *args,
                          const struct sl_softmax *before_inout) {
    struct sl_attend call = *args;
    call.before = before_inout;
    struct attend_call step = {.calls = &call, .n_calls = 1, .unfinished = before_inout};
    run_calls(stream, &step);
}

// Operations read the host's lists when they are queued, and on the CPU they also finish then.
static enum sl_status publish(struct sl_stream *stream, struct sl_kv_heads *heads_inout, struct sl_error *err) {
    (void)stream;
    (void)err;
    heads_inout->published = heads_inout->kv;
    return SL_OK;
}

void sl_ref_kv_fill(struct sl_ops *ops) {
    ops->publish = publish;
    ops->append = append;
    ops->attend = attend;
    ops->attend_before = attend_before;
    sl_ref_kv_slots_fill(ops);
}
