// SPDX-License-Identifier: Apache-2.0
// Operations on a job that its handler and the engine's thread share, and the transfer of a job between them.
#include <stdlib.h>

#include "base/locked.h"
#include "prefill/internal.h"
#include "proto/sluice/v1/worker.pb-c.h"

void sl_prefill_job_unref(struct sl_prefill_job *job) {
    if (atomic_fetch_sub(&job->n_refs, 1) == 1) {
        pthread_cond_destroy(&job->changed);
        pthread_mutex_destroy(&job->mutex);
        free(job);
    }
}

void sl_prefill_join(struct sl_prefill *prefill, struct sl_prefill_job *job) {
    pthread_mutex_lock(&prefill->loop.mutex);
    job->next = NULL;
    atomic_fetch_add(&prefill->node->engine.n_waiting, 1);
    *prefill->inbox_end = job;
    prefill->inbox_end = &job->next;
    pthread_mutex_unlock(&prefill->loop.mutex);
    sl_prefill_wake(prefill);
}

void sl_prefill_wake(struct sl_prefill *prefill) {
    SL_WITH_LOCK(&prefill->loop.mutex, pthread_cond_signal(&prefill->loop.changed));
    if (prefill->host.wake_fn) {
        prefill->host.wake_fn(prefill->host.arg);
    }
}

enum sl_status sl_prefill_send_progress(struct sl_rpc_call *call, const struct sl_prefill_job *job, int64_t n_done,
                                        int64_t n_reused, size_t resident_bytes) {
    Sluice__V1__PrefillProgress progress = SLUICE__V1__PREFILL_PROGRESS__INIT;
    progress.tokens_done = n_done;
    progress.tokens_total = sl_plan_read_tokens(&job->plan);
    progress.tokens_reused = n_reused;
    progress.resident_bytes = (int64_t)resident_bytes;
    progress.restoring = job->restoring;
    Sluice__V1__PrefillEvent event = SLUICE__V1__PREFILL_EVENT__INIT;
    event.what_case = SLUICE__V1__PREFILL_EVENT__WHAT_PREFILL;
    event.prefill = &progress;
    return sl_rpc_call_send(call, &event.base);
}
