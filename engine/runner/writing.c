// SPDX-License-Identifier: Apache-2.0
#include "engine/runner/writing.h"

#include <assert.h>

enum sl_status sl_writing_begin(struct sl_writing *writing, const struct sl_runtime *runtime,
                                struct sl_activations *activations, struct sl_writer *const *writers, int n,
                                struct sl_error *err) {
    assert(n >= 1 && n <= SL_WRITING_MAX_ANSWERS);
    struct sl_input *inputs = sl_activations_inputs(activations);
    SL_FAIL_IF(n > sl_activations_rows(activations), err, SL_ERR_RANGE,
               "%d answers in a pass, the engine was made for %d rows", n, sl_activations_rows(activations));
    writing->runtime = runtime;
    writing->writers = writers;
    writing->n = n;
    writing->next_layer = 0;
    writing->status = SL_OK;
    struct sl_pass_wants wants = {0};
    for (int i = 0; i < n; i++) {
        inputs[i] = writers[i]->input;
        wants.lse |= writers[i]->wants.lse;
        wants.importance |= writers[i]->wants.importance;
        wants.next_q |= writers[i]->wants.next_q;
    }
    sl_stream_hold(runtime->stream);
    enum sl_status status = sl_pass_begin(activations, inputs, n, wants, &writing->pass, err);
    return sl_stream_release_after(runtime->stream, status, err);
}

// ---- a layer --------------------------------------------------------------------------------------------------------

static bool all_failed(const struct sl_writing *writing) {
    int n_failed = 0;
    for (int i = 0; i < writing->n; i++) {
        n_failed += writing->writers[i]->status != SL_OK;
    }
    return n_failed == writing->n;
}

static bool retrieves(const struct sl_writer *w, int layer) {
    return w->status == SL_OK && w->retrieval.retriever && sl_retriever_serves(w->retrieval.retriever, layer);
}

static void ask_offloaded(struct sl_writing *writing) {
    for (int i = 0; i < writing->n; i++) {
        struct sl_writer *w = writing->writers[i];
        if (w->retrieval.retriever && w->status == SL_OK) {
            w->status =
                sl_retriever_ask(w->retrieval.retriever, writing->pass.layer, &writing->pass.attends[i], &w->err);
        }
    }
}

// Attends. The results of a failed writer are not used, but its rows must hold numbers.
static void attend(struct sl_writing *writing) {
    const struct sl_runtime *runtime = writing->runtime;
    const struct sl_attend *attends = writing->pass.attends;
    bool is_resident[SL_WRITING_MAX_ANSWERS];
    int layer = writing->pass.layer;
    for (int i = 0; i < writing->n; i++) {
        is_resident[i] = !retrieves(writing->writers[i], layer);
    }
    sl_pass_attend_some(&writing->pass, is_resident);
    for (int i = 0; i < writing->n; i++) {
        struct sl_writer *w = writing->writers[i];
        if (is_resident[i]) {
            continue;
        }
        w->status = sl_retriever_attend(w->retrieval.retriever, layer, &attends[i], &w->err);
        if (w->status != SL_OK) {
            runtime->ops->attend(runtime->stream, &attends[i], 1);
        }
    }
}

static void evict(struct sl_writing *writing) {
    for (int i = 0; i < writing->n; i++) {
        struct sl_writer *w = writing->writers[i];
        if (w->status == SL_OK && w->compressor) {
            w->status =
                sl_compressor_step(w->compressor, w->session, writing->pass.layer, &writing->pass.attends[i], &w->err);
        }
    }
}

bool sl_writing_layer(struct sl_writing *writing) {
    const struct sl_runtime *runtime = writing->runtime;
    if (writing->status != SL_OK || writing->next_layer == runtime->config->n_layers || all_failed(writing)) {
        return false;
    }
    if (runtime->progress_counter) {
        sl_progress_counter_tick(runtime->progress_counter);
    }
    sl_stream_hold(runtime->stream);
    sl_pass_project(&writing->pass, writing->next_layer);
    enum sl_status status = sl_pass_append(&writing->pass, &writing->err);
    if (status == SL_OK) {
        ask_offloaded(writing);
        attend(writing);
        evict(writing);
    }
    if (status == SL_OK && !all_failed(writing)) {
        sl_pass_finish(&writing->pass);
    }
    writing->next_layer++;
    writing->status = sl_stream_release_after(runtime->stream, status, &writing->err);
    return writing->status == SL_OK && !all_failed(writing);
}

// ---- the end --------------------------------------------------------------------------------------------------------

enum sl_status sl_writing_end(struct sl_writing *writing, struct sl_error *err) {
    if (writing->status != SL_OK && err) {
        *err = writing->err;
    }
    if (writing->status != SL_OK || all_failed(writing)) {
        return writing->status;
    }
    assert(writing->next_layer == writing->runtime->config->n_layers);
    sl_stream_hold(writing->runtime->stream);
    enum sl_status status = sl_pass_end(&writing->pass, err);
    return sl_stream_release_after(writing->runtime->stream, status, err);
}

enum sl_status sl_writing_pass(const struct sl_runtime *runtime, struct sl_writer *const *writers, int n,
                               struct sl_error *err) {
    struct sl_writing writing;
    SL_TRY(sl_writing_begin(&writing, runtime, sl_engine_activations(runtime->engine), writers, n, err));
    while (sl_writing_layer(&writing)) {
    }
    return sl_writing_end(&writing, err);
}

enum sl_status sl_writing_step(const struct sl_runtime *runtime, struct sl_writer *writer, struct sl_error *err) {
    enum sl_status status = sl_writing_pass(runtime, &writer, 1, err);
    return status == SL_OK ? sl_writer_status(writer, err) : status;
}
