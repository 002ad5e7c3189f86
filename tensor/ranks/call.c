// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how an operation is called on all ranks at once. See internal.h.
 *
 * Design: behind every operation rank 0's stream is behind all of them, so whoever waits for the device, copies, or frees goes by
 *         it alone: the others begin behind what is in it, and it goes on behind what they have queued.
 */
#include <string.h>

#include "tensor/ranks/internal.h"

static void run_rank(void *arg, int64_t begin, int64_t end, int member) {
    const struct sl_ranks_call *call = arg;
    struct sl_ranks *ranks = call->ranks;
    struct sl_stream *stream = sl_ranks_compute(ranks, member);
    (void)begin;
    (void)end;
    if (member > 0) {
        sl_stream_after(stream, &ranks->begun);
    }
    call->run(call, member, stream);
    ranks->done[member] = sl_stream_mark(stream);
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
    pthread_mutex_lock(&ranks->turn);
    if (!sl_ranks_is_lost(ranks)) {
        struct sl_stream *first = sl_ranks_compute(ranks, 0);
        memcpy(ranks->called, call, bytes);
        ranks->begun = sl_stream_mark(first);
        if (sl_team_run_each(ranks->crew, run_rank, ranks->called, &ranks->vigil, &lost) != SL_OK) {
            atomic_store(&ranks->lost, lost);
        }
        for (int r = 1; r < ranks->n && !sl_ranks_is_lost(ranks); r++) {
            sl_stream_after(first, &ranks->done[r]);
        }
    }
    pthread_mutex_unlock(&ranks->turn);
}

const void *sl_ranks_bring(struct sl_ranks *ranks, int rank, struct sl_stream *stream, const void *x, size_t bytes) {
    struct sl_ranks_block *block = &ranks->brought[rank];
    if (!ranks->apart || rank == 0) {
        return x;
    }
    if (bytes > block->bytes) {
        sl_device_free(ranks->devices[rank], SL_MEMORY_DEVICE, block->at);
        block->at = sl_device_alloc(ranks->devices[rank], SL_MEMORY_DEVICE, bytes);
        block->bytes = block->at != NULL ? bytes : 0;
    }
    if (block->at == NULL) {
        return x;
    }
    sl_stream_copy(stream, block->at, x, bytes);
    return block->at;
}

enum sl_status sl_ranks_check(const struct sl_ranks *ranks, struct sl_error *err) {
    int lost = atomic_load(&ranks->lost);
    return lost < 0 ? SL_OK
                    : sl_fail(err, SL_ERR_INTERNAL, "rank %d of %d has got nothing done for %.1f s", lost, ranks->n,
                              (double)ranks->vigil.still_ms / 1e3);
}

enum sl_status sl_ranks_say_whose(const struct sl_ranks *ranks, int rank, enum sl_status status,
                                  const struct sl_error *why, struct sl_error *err) {
    return status == SL_OK ? SL_OK : sl_fail(err, status, "rank %d of %d: %s", rank, ranks->n, why->text);
}
