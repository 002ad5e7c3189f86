// SPDX-License-Identifier: Apache-2.0
// Purpose: how an operation is called on all ranks at once. See internal.h.
#include <string.h>

#include "tensor/ranks/internal.h"

static void run_rank(void *arg, int64_t begin, int64_t end, int member) {
    const struct sl_ranks_call *call = arg;
    (void)begin;
    (void)end;
    call->run(call, member, sl_device_stream(call->ranks->devices[member], SL_STREAM_COMPUTE));
}

void sl_ranks_run(const struct sl_ranks_call *call, size_t bytes) {
    struct sl_ranks *ranks = call->ranks;
    int lost;
    if (call->n == 1 && ranks->n > 1) {
        if (atomic_load(&ranks->lost) < 0) {
            call->run(call, 0, sl_device_stream(ranks->devices[0], SL_STREAM_COMPUTE));
        }
        return;
    }
    pthread_mutex_lock(&ranks->turn);
    if (atomic_load(&ranks->lost) < 0) {
        memcpy(ranks->called, call, bytes);
        if (sl_team_run_each(ranks->crew, run_rank, ranks->called, &ranks->vigil, &lost) != SL_OK) {
            atomic_store(&ranks->lost, lost);
        }
    }
    pthread_mutex_unlock(&ranks->turn);
}
