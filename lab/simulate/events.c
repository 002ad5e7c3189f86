// SPDX-License-Identifier: Apache-2.0
// Purpose: see events.h. A binary heap.
#include "lab/simulate/events.h"

#include "base/array.h"

#include <stdlib.h>

static bool before(const struct sl_sim_event *a, const struct sl_sim_event *b) {
    return a->at_s < b->at_s || (a->at_s == b->at_s && a->number < b->number);
}

void sl_sim_at(struct sl_sim_events *events, double at_s, void (*run_fn)(void *arg, double at_s, uint64_t tag),
               void *arg, uint64_t tag) {
    if (!SL_GROW(events->heap, events->n, events->n_allocated)) {
        events->out_of_memory = true;
        return;
    }
    struct sl_sim_event event = {at_s, events->n_ever++, run_fn, arg, tag};
    size_t i = events->n++;
    for (; i > 0 && before(&event, &events->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        events->heap[i] = events->heap[(i - 1) / 2];
    }
    events->heap[i] = event;
}

bool sl_sim_run_next(struct sl_sim_events *events, double until_s) {
    if (events->n == 0 || events->heap[0].at_s >= until_s) {
        return false;
    }
    struct sl_sim_event first = events->heap[0], last = events->heap[--events->n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < events->n; i = child) {
        child += child + 1 < events->n && before(&events->heap[child + 1], &events->heap[child]);
        if (!before(&events->heap[child], &last)) {
            break;
        }
        events->heap[i] = events->heap[child];
    }
    events->heap[i] = last;
    events->now_s = first.at_s;
    first.run_fn(first.arg, first.at_s, first.tag);
    return true;
}

void sl_sim_events_cleanup(struct sl_sim_events *events) {
    free(events->heap);
    *events = (struct sl_sim_events){0};
}
