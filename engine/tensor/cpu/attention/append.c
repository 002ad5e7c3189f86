// SPDX-License-Identifier: Apache-2.0
// Purpose: writes new rows into their pages, in one loop of the team over the rows of all KV heads of all calls.
#include "engine/tensor/cpu/attention/append.h"

#include "engine/tensor/cpu/pages/kv_page.h"

#define GRAIN 8 // rows of KV heads that a task appends; a step of one session has too few to be worth waking a team

struct step {
    const struct sl_attend *calls;
    sl_write_row_fn write_row;
};

// Appends rows [first, end) of one KV head.
static void append_run(const struct step *step, const struct sl_attend *call, int64_t head, int64_t first,
                       int64_t end) {
    const struct sl_kv *kv = &call->heads.kv[head];
    const struct sl_page_layout *layout = kv->work;
    int64_t stride = call->kv_stride != 0 ? call->kv_stride : (int64_t)call->heads.n * layout->head_dim;
    for (int64_t r = first; r < end; r++) {
        uint32_t j = kv->n_slots - (uint32_t)call->m + (uint32_t)r, slot = j % SL_PAGE_SLOTS;
        char *page = kv->pages[j / SL_PAGE_SLOTS];
        int64_t at = r * stride + head * layout->head_dim;
        step->write_row(layout, page + layout->k, slot, call->k + at);
        step->write_row(layout, page + layout->v, slot, call->v + at);
        if (layout->has_positions) {
            sl_page_positions(layout, page)[slot] = (int32_t)call->positions[r];
        }
        for (int plane = 0; plane < layout->n_states; plane++) {
            sl_page_state(layout, page, plane)[slot] = 0.0f;
        }
    }
}

// Tasks: a row of a KV head, by call, then head, then row.
static void append_tasks(void *arg, int64_t begin, int64_t end, int member) {
    const struct step *step = arg;
    const struct sl_attend *call = step->calls;
    (void)member;
    for (int64_t task = begin, first = 0; task < end;) { // first: the first task of the call
        int64_t m = call->m, r = (task - first) % (m > 0 ? m : 1), left = end - task;
        if (task >= first + m * call->heads.n) {
            first += m * call->heads.n;
            call++;
            continue;
        }
        int64_t count = left < m - r ? left : m - r;
        append_run(step, call, (task - first) / m, r, r + count);
        task += count;
    }
}

void sl_append_rows(struct sl_stream *stream, const struct sl_attend *calls, int n_calls, sl_write_row_fn write_row) {
    struct step step = {calls, write_row};
    int64_t n_tasks = 0;
    for (int i = 0; i < n_calls; i++) {
        n_tasks += (int64_t)calls[i].m * calls[i].heads.n;
    }
    sl_stream_run(stream, n_tasks, GRAIN, append_tasks, &step);
}
