// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: calls an operation on all ranks at once. See internal.h.
 *
 * Design: rank 0's stream orders all ranks. The other ranks start an operation after the work that is already in rank
 *         0's stream, and rank 0's stream continues after the work that they have queued. So a thread that waits for
 *         the device, copies, or frees looks only at rank 0's stream.
 */
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "engine/tensor/ranks/internal.h"

#define LOOK_MS 50

// abort() ends the group's kernels, which wait for each other on the devices without a deadline.
void sl_ranks_lose(struct sl_ranks *ranks, int rank, const struct sl_error *why) {
    pthread_mutex_lock(&ranks->word);
    bool is_first = !sl_ranks_is_lost(ranks);
    if (is_first) {
        ranks->why = *why;
        atomic_store(&ranks->lost, rank);
    }
    pthread_mutex_unlock(&ranks->word);
    if (is_first && ranks->group != NULL) {
        ranks->group->ops->abort(ranks->group);
    }
}

static void lose_still(struct sl_ranks *ranks, int rank) {
    struct sl_error why;
    sl_fail(&why, SL_ERR_INTERNAL, "rank %d of %d has got nothing done for %.1f s", rank, ranks->n,
            (double)ranks->vigil.still_ms / 1e3);
    sl_ranks_lose(ranks, rank, &why);
}

static void run_rank(void *arg, int64_t, int64_t, int member) {
    const struct sl_ranks_call *call = arg;
    struct sl_ranks *ranks = call->ranks;
    struct sl_stream *stream = sl_ranks_compute(ranks, member);
    struct sl_ranks_marks *marks = &ranks->marks[ranks->n_calls % SL_RANKS_AHEAD];
    marks->came[member] = (struct sl_mark){0};
    if (member > 0) {
        sl_stream_after(stream, &marks->begun);
    }
    call->run(call, member, stream);
    if (member > 0) {
        marks->done[member] = sl_stream_mark(stream);
    }
}

void sl_ranks_run(const struct sl_ranks_call *call, size_t bytes) {
    struct sl_ranks *ranks = call->ranks;
    int lost;
    if (call->n == 1 && ranks->n > 1) {
        if (!sl_ranks_is_lost(ranks)) {
            call->run(call, 0, sl_ranks_compute(ranks, 0));
        }
        return;
    }
    SL_LOCKED(&ranks->turn);
    struct sl_ranks_marks *marks = &ranks->marks[ranks->n_calls % SL_RANKS_AHEAD];
    // When the second oldest call has begun, the oldest is done. Its marks are needed until then, to find the rank that
    // hangs.
    struct sl_mark *oldest_done = &ranks->marks[(ranks->n_calls + 1) % SL_RANKS_AHEAD].begun;
    if (sl_ranks_wait(ranks, oldest_done, NULL) == SL_OK) {
        struct sl_stream *first = sl_ranks_compute(ranks, 0);
        memcpy(ranks->called, call, bytes);
        marks->begun = sl_stream_mark(first);
        if (sl_team_run_each(ranks->crew, run_rank, ranks->called, &ranks->vigil, &lost) != SL_OK) {
            lose_still(ranks, lost);
        }
        for (int r = 1; r < ranks->n && !sl_ranks_is_lost(ranks); r++) {
            sl_stream_after(first, &marks->done[r]);
        }
        if (!sl_ranks_is_lost(ranks)) { // a hanging thread inside the call may still read its number
            ranks->n_calls++;
        }
    }
}

// Returns the first rank that has not done its work although everything before that work is done.
static int find_still(const struct sl_ranks *ranks) {
    uint64_t n = ranks->n_calls;
    for (uint64_t i = n > SL_RANKS_AHEAD ? n - SL_RANKS_AHEAD : 0; i < n; i++) {
        const struct sl_ranks_marks *marks = &ranks->marks[i % SL_RANKS_AHEAD];
        if (!sl_mark_reached(&marks->begun)) {
            return 0;
        }
        for (int r = 0; r < ranks->n; r++) { // checked first: the other ranks wait for this one in a gather
            if (!sl_mark_reached(&marks->came[r])) {
                return r;
            }
        }
        for (int r = 1; r < ranks->n; r++) {
            if (!sl_mark_reached(&marks->done[r])) {
                return r;
            }
        }
    }
    return 0;
}

// Counts polls instead of reading the clock: a process that was itself suspended must not conclude that a rank hangs.
enum sl_status sl_ranks_wait(struct sl_ranks *ranks, const struct sl_mark *mark, struct sl_error *err) {
    int64_t looks = 0;
    uint64_t seen = 0;
    while (!sl_ranks_is_lost(ranks) && !sl_mark_reached(mark) &&
           !sl_mark_wait_until(mark, sl_deadline_in_ms(LOOK_MS))) {
        uint64_t now = sl_device_progress(&ranks->device);
        looks = now == seen ? looks + 1 : 0;
        seen = now;
        if (looks * LOOK_MS >= ranks->vigil.still_ms) {
            lose_still(ranks, find_still(ranks));
        }
    }
    return sl_ranks_check(ranks, err);
}

enum sl_status sl_ranks_check(const struct sl_ranks *ranks, struct sl_error *err) {
    if (!sl_ranks_is_lost(ranks)) {
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_INTERNAL, "%s", ranks->why.text);
}

enum sl_status sl_ranks_say_whose(int rank, int n, enum sl_status status, const struct sl_error *why,
                                  struct sl_error *err) {
    return status == SL_OK ? SL_OK : sl_fail(err, status, "rank %d of %d: %s", rank, n, why->text);
}
