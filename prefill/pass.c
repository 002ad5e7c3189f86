// SPDX-License-Identifier: Apache-2.0
#include "prefill/pass.h"

#include "base/locked.h"

// ---- shipping -------------------------------------------------------------------------------------------------------

// Ships every layer that has become final. `all`: the prompt has been read; waits until all layers are being sent.
static void ship_final(struct sl_prefill_job *job, bool all) {
    if (job->here) {
        return;
    }
    const struct sl_runtime *runtime = &job->prefill->node->runtime;
    struct sl_session *session = sl_reader_session(job->reader);
    struct sl_error err = {0};
    enum sl_status status = SL_OK;
    sl_stream_hold(runtime->stream);
    for (int layer; status == SL_OK && (layer = sl_reader_take_final(job->reader)) >= 0;) {
        status = sl_outbound_layer(&job->outbound, runtime, session, layer, &err);
    }
    SL_THEN(status, sl_outbound_flush(&job->outbound, runtime, all, &err));
    status = sl_stream_release_after(runtime->stream, status, &err);
    sl_reader_fail(job->reader, status, &err);
}

// ---- offloaded layers -----------------------------------------------------------------------------------------------

static void note_peak(struct sl_prefill_job *job) {
    struct sl_session_stats stats;
    sl_session_get_stats(sl_reader_session(job->reader), &stats);
    size_t bytes = stats.resident_bytes + sl_offload_arena_bytes(job->offload);
    job->offload_peak_bytes = bytes > job->offload_peak_bytes ? bytes : job->offload_peak_bytes;
}

// Attends for the jobs whose slots of this layer are in kvstores.
static void attend_offloaded(struct sl_prefill_pass *pass) {
    const struct sl_pass *at = &pass->reading.pass;
    for (int i = 0; i < pass->n; i++) {
        struct sl_prefill_job *job = pass->jobs[i];
        if (!job->offload || sl_reader_status(job->reader, NULL) != SL_OK) {
            continue;
        }
        if (sl_plan_is_offloaded(&job->plan, at->layer)) {
            const struct sl_runtime *runtime = &job->prefill->node->runtime;
            struct sl_error err = {0};
            enum sl_status status = sl_offload_attend(job->offload, at->layer, &at->attends[i], &err);
            if (status != SL_OK) {
                sl_reader_fail(job->reader, status, &err);
                // The result is unused, but must not be uninitialized memory
                runtime->ops->attend(runtime->stream, &at->attends[i], 1);
            }
        }
        note_peak(job);
    }
}

// ---- the pass -------------------------------------------------------------------------------------------------------

enum sl_status sl_prefill_pass_begin(struct sl_prefill_pass *pass, struct sl_activations *activations,
                                     struct sl_prefill_job *const *jobs, int n, struct sl_error *err) {
    struct sl_reader *readers[SL_READING_MAX_PROMPTS];
    pass->n = n;
    for (int i = 0; i < n; i++) {
        pass->jobs[i] = jobs[i];
        readers[i] = jobs[i]->reader;
    }
    return sl_reading_begin(&pass->reading, &jobs[0]->prefill->node->runtime, activations, readers, n, err);
}

bool sl_prefill_pass_layer(struct sl_prefill_pass *pass) {
    struct sl_stream *stream = pass->reading.runtime->stream;
    sl_stream_hold(stream); // one hold for local and offloaded attention
    bool more = sl_reading_attend(&pass->reading);
    if (more) {
        attend_offloaded(pass);
        more = sl_reading_layer(&pass->reading);
    }
    struct sl_error err = {0};
    enum sl_status status = sl_stream_release(stream, &err);
    for (int i = 0; i < pass->n; i++) {
        sl_reader_fail(pass->jobs[i]->reader, status, &err);
        if (more && sl_reader_status(pass->jobs[i]->reader, NULL) == SL_OK) {
            ship_final(pass->jobs[i], false);
        }
    }
    return more && status == SL_OK;
}

// Wakes the handler after the first chunk only. Later it looks by itself (see follow()): to wake it for every chunk, and
// the coordinator with it, would take processors from the computation.
static void report(struct sl_prefill_job *job) {
    const struct sl_session *session = sl_reader_session(job->reader);
    size_t peak_bytes = sl_reader_peak_bytes(job->reader);
    struct sl_session_stats stats;
    sl_session_get_stats(session, &stats);
    SL_LOCKED(&job->mutex);
    if (job->n_done == 0) {
        pthread_cond_signal(&job->changed);
    }
    job->n_done = sl_reader_get_progress(job->reader).done;
    job->resident_bytes = stats.resident_bytes;
    job->peak_bytes = peak_bytes > job->offload_peak_bytes ? peak_bytes : job->offload_peak_bytes;
}

enum sl_status sl_prefill_end_chunk(struct sl_prefill_job *job, struct sl_error *err) {
    struct sl_session *session = sl_reader_session(job->reader);
    if (sl_reader_status(job->reader, NULL) == SL_OK && sl_reader_is_done(job->reader)) {
        ship_final(job, true);
    }
    enum sl_status status = sl_reader_status(job->reader, err);
    SL_THEN_IF(status, job->offload, sl_offload_step(job->offload, session, err));
    if (status == SL_OK) {
        size_t taken = session->taken_bytes + (job->offload ? sl_offload_arena_bytes(job->offload) : 0);
        sl_ledger_reconcile(job->prefill->node->ledger, &job->promised_bytes, job->memory_bytes, taken);
        report(job);
    } else if (err->status == SL_OK) {
        sl_fail(err, status, "job %s: %s", job->id, sl_status_text(status));
    }
    return status;
}

enum sl_status sl_prefill_pass_end(struct sl_prefill_pass *pass, struct sl_error *err) {
    return sl_reading_end(&pass->reading, err);
}
