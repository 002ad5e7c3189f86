// SPDX-License-Identifier: Apache-2.0
#include "engine/runner/writer.h"

#include <stdlib.h>

#include "base/log.h"

static enum sl_status open_retrieval(struct sl_writer *w, const struct sl_runtime *runtime,
                                     const struct sl_writer_config *config, struct sl_error *err) {
    struct sl_retriever_config retriever = {.plan = w->plan,
                                            .ops = runtime->ops,
                                            .stream = runtime->stream,
                                            .arena = w->session->arena,
                                            .session = w->session,
                                            .n_prompt = sl_plan_offloaded_slots(w->plan, config->n_read)};
    w->wants.next_q = sl_retriever_wants_next_q(&w->plan->recipe);
    if (!config->is_remote) {
        if (!runtime->device->ops->one_memory && w->plan->recipe.retrieve == SL_RETRIEVE_NEAR) {
            sl_log_info("retrieve",
                        "searched=host reason=\"retrieve=near: keys are searched where they lie; pull has the "
                        "device score them\"");
        }
        SL_TRY(sl_mirror_open(runtime, w->session, &w->searched, err));
        return sl_retrieval_open_local(&retriever, w->searched.session, &w->retrieval, err);
    }
    retriever.source = w->retrieval.source;
    retriever.resident_only = true;
    retriever.deadline_ms = config->deadline_ms;
    retriever.lost_ms = config->lost_ms;
    retriever.on_fallback = config->on_fallback;
    retriever.arg = config->arg;
    return sl_retriever_create(&retriever, &w->retrieval.retriever, err);
}

enum sl_status sl_writer_open(struct sl_writer *w, const struct sl_runtime *runtime,
                              const struct sl_writer_config *config, struct sl_error *err) {
    w->plan = malloc(sizeof *w->plan);
    SL_FAIL_IF(!w->plan, err, SL_ERR_EXHAUSTED, "writer: out of memory");
    *w->plan = *config->plan;
    if (sl_recipe_offloads(&w->plan->recipe)) {
        return open_retrieval(w, runtime, config, err);
    }
    SL_TRY(sl_compressor_create(w->plan, runtime->ops, runtime->stream, &w->compressor, err));
    if (!sl_compressor_steps(w->compressor)) {
        sl_compressor_destroy(&w->compressor);
        return SL_OK;
    }
    SL_TRY(sl_writer_estimate(w, config->estimate_errors, err));
    sl_stream_hold(runtime->stream);
    enum sl_status status = sl_compressor_begin_steps(w->compressor, w->session, config->n_read, err);
    return sl_stream_release_after(runtime->stream, status, err);
}

enum sl_status sl_writer_estimate(struct sl_writer *w, bool wanted, struct sl_error *err) {
    enum sl_status status = sl_compressor_estimate(w->compressor, wanted, err);
    struct sl_compressor_wants wants = sl_compressor_wants(w->compressor, true);
    w->wants = (struct sl_pass_wants){.lse = wants.lse, .importance = wants.importance};
    return status;
}

// --- the end ---------------------------------------------------------------------------------------------------------

struct sl_session *sl_writer_take_session(struct sl_writer *w) {
    struct sl_session *session = w->session;
    w->session = NULL;
    return session;
}

void sl_writer_close(struct sl_writer *w) {
    sl_retrieval_close(&w->retrieval); // before the sessions that it uses; ends pending requests
    sl_mirror_close(&w->searched);
    sl_compressor_destroy(&w->compressor);
    sl_session_destroy(&w->session);
    free(w->plan);
    *w = (struct sl_writer){0};
}
