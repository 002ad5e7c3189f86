// SPDX-License-Identifier: Apache-2.0
// What a sequence holds, from its first chunk to its last token. See sequence.h.
#include "runner/sequence.h"

#include <stdlib.h>

#include "base/log.h"

static bool has_offloaded(const struct sl_plan *plan) {
    bool any = false;
    for (int layer = 0; layer < plan->geometry.n_layers; layer++) {
        any |= sl_plan_is_offloaded(plan, layer);
    }
    return any;
}

static struct sl_pass_wants wants_of(const struct sl_compressor *compressor, bool writing) {
    struct sl_compressor_wants wants = sl_compressor_wants(compressor, writing);
    return (struct sl_pass_wants){.lse = wants.lse, .importance = wants.importance};
}

enum sl_status sl_sequence_open(const struct sl_sequence_config *config, struct sl_sequence *sequence_out,
                                struct sl_error *err) {
    const struct sl_plan *plan = config->plan;
    const struct sl_runtime *runtime = config->runtime;
    struct sl_sequence s = {.plan = malloc(sizeof *s.plan), .offload = config->offload, .outbound = config->outbound};
    if (!s.plan) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "sequence: out of memory");
    }
    *s.plan = *plan;
    enum sl_status status = sl_compressor_create(plan, runtime->ops, runtime->stream, &s.compressor, err);
    if (status == SL_OK && !config->offload && has_offloaded(plan)) {
        status =
            sl_fail(err, SL_ERR_INVALID, "sequence: the plan has offloaded layers, and there is nowhere to put them");
    }
    if (status == SL_OK) {
        status = sl_sequence_estimate(&s, config->estimate_errors, err);
    }
    if (status == SL_OK && !config->resumed) {
        status = sl_plan_create_session(plan, config->extra_slots, config->arena, &s.session, err);
    }
    if (status != SL_OK) {
        sl_sequence_close(&s);
        return status;
    }
    s.session = config->resumed ? config->resumed : s.session;
    *sequence_out = s;
    return SL_OK;
}

// --- writing ---------------------------------------------------------------------------------------------------------

static enum sl_status open_retrieval(struct sl_sequence *s, const struct sl_runtime *runtime,
                                     const struct sl_writing *writing, struct sl_error *err) {
    s->wants.next_q = sl_retriever_wants_next_q(&s->plan->recipe);
    if (!writing->is_remote) {
        if (!runtime->device->ops->one_memory && s->plan->recipe.retrieve == SL_RETRIEVE_NEAR) {
            sl_log_info("retrieve",
                        "searched=host reason=\"retrieve=near: keys are searched where they lie; pull has the "
                        "device score them\"");
        }
        enum sl_status status = sl_mirror_open(runtime, s->session, &s->searched, err);
        return status == SL_OK ? sl_retrieval_open_local(s->plan, runtime->ops, runtime->stream, s->session,
                                                         s->searched.session, writing->n_read, &s->retrieval, err)
                               : status;
    }
    struct sl_retriever_config config = {
        .plan = s->plan,
        .ops = runtime->ops,
        .stream = runtime->stream,
        .arena = s->session->arena,
        .session = s->session,
        .source = s->retrieval.source,
        .n_prompt = sl_plan_offloaded_slots(s->plan, writing->n_read),
        .resident_only = true,
        .deadline_ms = writing->deadline_ms,
        .lost_ms = writing->lost_ms,
        .on_fallback = writing->on_fallback,
        .arg = writing->arg,
    };
    return sl_retriever_create(&config, &s->retrieval.retriever, err);
}

enum sl_status sl_sequence_begin_writing(struct sl_sequence *s, const struct sl_runtime *runtime,
                                         const struct sl_writing *writing, struct sl_error *err) {
    s->writing = true;
    s->plan = malloc(sizeof *s->plan);
    if (!s->plan) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "sequence: out of memory");
    }
    *s->plan = *writing->plan;
    if (sl_recipe_offloads(&s->plan->recipe)) {
        return open_retrieval(s, runtime, writing, err);
    }
    enum sl_status status = sl_compressor_create(s->plan, runtime->ops, runtime->stream, &s->compressor, err);
    if (status != SL_OK) {
        return status;
    }
    if (!sl_compressor_steps(s->compressor)) {
        sl_compressor_destroy(&s->compressor);
        return SL_OK;
    }
    status = sl_sequence_estimate(s, writing->estimate_errors, err);
    if (status == SL_OK) {
        sl_stream_hold(runtime->stream);
        status = sl_compressor_begin_steps(s->compressor, s->session, writing->n_read, err);
        status = sl_stream_let_go_after(runtime->stream, status, err);
    }
    return status;
}

enum sl_status sl_sequence_estimate(struct sl_sequence *s, bool wanted, struct sl_error *err) {
    enum sl_status status = sl_compressor_estimate(s->compressor, wanted, err);
    s->wants = wants_of(s->compressor, s->writing);
    return status;
}

// --- the end ---------------------------------------------------------------------------------------------------------

struct sl_session *sl_sequence_take_session(struct sl_sequence *s) {
    struct sl_session *session = s->session;
    s->session = NULL;
    return session;
}

void sl_sequence_close(struct sl_sequence *s) {
    sl_retrieval_close(&s->retrieval); // before the sessions that it knows; ends what is being asked
    sl_mirror_close(&s->searched);
    sl_compressor_destroy(&s->compressor);
    sl_session_destroy(&s->session);
    free(s->plan);
    *s = (struct sl_sequence){0};
}
