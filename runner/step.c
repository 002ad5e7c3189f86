// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the life of KV, in one loop. See step.h.
 *
 *     for each layer
 *         project, append                  every token's key and value join their sequence's pages
 *         ask for all offloaded            requests are under way before anybody waits
 *         attend to all resident           one call for all sequences
 *         attend to all offloaded          replies, or tiles that are read back
 *         for each sequence                evict, pack, ship what is final
 *         finish                           output projection and MLP
 *
 * Invariants: no layer is evicted from before all of the step has attended to it; no layer is packed before its last
 *             eviction, or shipped before it is packed.
 */
#include "runner/step.h"

#include <assert.h>

#include "node/outbound.h"
#include "offload/prefill/offload.h"

static void spoil(struct sl_sequence *s, enum sl_status status) {
    if (status != SL_OK && s->status == SL_OK) {
        s->status = status;
    }
}

// Whether the sequence's slots of this layer are elsewhere.
static bool is_offloaded(const struct sl_sequence *s, int layer) {
    return s->offload ? sl_plan_is_offloaded(s->plan, layer)
                      : s->retrieval.retriever && sl_retriever_serves(s->retrieval.retriever, layer);
}

// --- attention -------------------------------------------------------------------------------------------------------

static void ask_offloaded(struct sl_sequence *const *sequences, const struct sl_pass *pass) {
    for (int i = 0; i < pass->n_inputs; i++) {
        struct sl_sequence *s = sequences[i];
        if (s->retrieval.retriever && s->status == SL_OK) {
            spoil(s, sl_retriever_ask(s->retrieval.retriever, pass->layer, &pass->attends[i], &s->err));
        }
    }
}

// Those whose slots are here; of a spoiled sequence all: nobody will read it, but numbers must be there.
static void attend_resident(const struct sl_runtime *runtime, struct sl_sequence *const *sequences,
                            const struct sl_pass *pass) {
    struct sl_attend resident[SL_STEP_MAX_SEQUENCES];
    int n = 0;
    for (int i = 0; i < pass->n_inputs; i++) {
        if (sequences[i]->status != SL_OK || !is_offloaded(sequences[i], pass->layer)) {
            resident[n++] = pass->attends[i];
        }
    }
    if (n > 0) {
        runtime->ops->attend(runtime->stream, resident, n);
    }
}

static void attend_offloaded(const struct sl_runtime *runtime, struct sl_sequence *const *sequences,
                             const struct sl_pass *pass) {
    for (int i = 0; i < pass->n_inputs; i++) {
        struct sl_sequence *s = sequences[i];
        if (s->status != SL_OK || !is_offloaded(s, pass->layer)) {
            continue;
        }
        spoil(s, s->offload ? sl_offload_attend(s->offload, pass->layer, &pass->attends[i], &s->err)
                            : sl_retriever_attend(s->retrieval.retriever, pass->layer, &pass->attends[i], &s->err));
        if (s->status != SL_OK) {
            runtime->ops->attend(runtime->stream, &pass->attends[i], 1);
        }
    }
}

// --- behind the attention of a layer -----------------------------------------------------------------------------------

static void note_peak(struct sl_sequence *s) {
    struct sl_session_stats stats;
    sl_session_get_stats(s->session, &stats);
    size_t bytes = stats.resident_bytes + (s->offload ? sl_offload_arena_bytes(s->offload) : 0);
    s->peak_bytes = bytes > s->peak_bytes ? bytes : s->peak_bytes;
}

static enum sl_status evict_and_pack(struct sl_sequence *s, int layer, const struct sl_attend *attend) {
    if (s->writing) {
        return s->compressor ? sl_compressor_step(s->compressor, s->session, layer, attend, &s->err) : SL_OK;
    }
    note_peak(s);
    return sl_compressor_layer(s->compressor, s->session, layer, attend, s->last, &s->final[layer], &s->err);
}

// Every layer that is final and has no layer before it that is not; all of them where `all`, which waits.
static enum sl_status ship_final(const struct sl_runtime *runtime, struct sl_sequence *s, bool all) {
    int n_layers = s->session->geometry.n_layers;
    enum sl_status status = SL_OK;
    for (; status == SL_OK && s->n_handed < n_layers && s->final[s->n_handed]; s->n_handed++) {
        status = s->outbound ? sl_outbound_layer(s->outbound, runtime, s->session, s->n_handed, &s->err) : SL_OK;
    }
    return status == SL_OK && s->outbound ? sl_outbound_flush(s->outbound, runtime, all, &s->err) : status;
}

static enum sl_status all_final(const struct sl_runtime *runtime, struct sl_sequence *s) {
    for (int layer = 0; layer < s->session->geometry.n_layers; layer++) {
        s->final[layer] = true;
    }
    return ship_final(runtime, s, true);
}

// The prompt has been read: recipes that decide when they have seen every layer do so now.
static enum sl_status end_reading(const struct sl_runtime *runtime, struct sl_sequence *s) {
    enum sl_status status = sl_compressor_end(s->compressor, s->session, &s->err);
    return status == SL_OK ? all_final(runtime, s) : status;
}

enum sl_status sl_step_finish_reading(const struct sl_runtime *runtime, struct sl_sequence *s) {
    enum sl_status status = SL_OK;
    sl_stream_hold(runtime->stream);
    for (int layer = 0; status == SL_OK && layer < s->session->geometry.n_layers; layer++) {
        status = sl_compressor_finish_layer(s->compressor, s->session, layer, &s->err);
    }
    spoil(s, status == SL_OK ? all_final(runtime, s) : status);
    spoil(s, sl_stream_let_go(runtime->stream, s->status == SL_OK ? &s->err : NULL));
    return s->status;
}

// --- the step --------------------------------------------------------------------------------------------------------

static struct sl_pass_wants wants_of_all(struct sl_sequence *const *sequences, int n) {
    struct sl_pass_wants wants = {0};
    for (int i = 0; i < n; i++) {
        wants.lse |= sequences[i]->wants.lse;
        wants.importance |= sequences[i]->wants.importance;
        wants.next_q |= sequences[i]->wants.next_q;
        assert(sequences[i]->writing == sequences[0]->writing); // bits must not depend on who else steps
    }
    wants.reading = !sequences[0]->writing;
    return wants;
}

static bool all_spoiled(struct sl_sequence *const *sequences, int n) {
    int n_spoiled = 0;
    for (int i = 0; i < n; i++) {
        n_spoiled += sequences[i]->status != SL_OK;
    }
    return n_spoiled == n;
}

static enum sl_status step(const struct sl_runtime *runtime, struct sl_sequence *const *sequences, int n,
                           struct sl_error *err) {
    struct sl_input inputs[SL_STEP_MAX_SEQUENCES];
    struct sl_pass pass;
    assert(n >= 1 && n <= SL_STEP_MAX_SEQUENCES);
    for (int i = 0; i < n; i++) {
        inputs[i] = sequences[i]->input;
    }
    enum sl_status status = sl_pass_begin(runtime->engine, inputs, n, wants_of_all(sequences, n), &pass, err);
    for (int layer = 0; status == SL_OK && layer < runtime->config->n_layers; layer++) {
        if (runtime->pulse) {
            sl_pulse_tick(runtime->pulse);
        }
        sl_pass_project(&pass, layer);
        status = sl_pass_append(&pass, err);
        if (status != SL_OK) {
            return status;
        }
        ask_offloaded(sequences, &pass);
        attend_resident(runtime, sequences, &pass);
        attend_offloaded(runtime, sequences, &pass);
        for (int i = 0; i < n; i++) {
            struct sl_sequence *s = sequences[i];
            if (s->status == SL_OK) {
                spoil(s, evict_and_pack(s, layer, &pass.attends[i]));
            }
            if (s->status == SL_OK) {
                spoil(s, ship_final(runtime, s, false));
            }
        }
        if (all_spoiled(sequences, n)) {
            return SL_OK; // nobody is left to go on for
        }
        sl_pass_finish(&pass);
    }
    status = status == SL_OK ? sl_pass_end(&pass, err) : status;
    if (status != SL_OK) {
        return status;
    }
    for (int i = 0; i < n; i++) {
        if (sequences[i]->last && sequences[i]->status == SL_OK) {
            spoil(sequences[i], end_reading(runtime, sequences[i]));
        }
    }
    return SL_OK;
}

enum sl_status sl_step(const struct sl_runtime *runtime, struct sl_sequence *const *sequences, int n,
                       struct sl_error *err) {
    sl_stream_hold(runtime->stream); // others open their sequences between steps
    enum sl_status status = step(runtime, sequences, n, err);
    return sl_stream_let_go_after(runtime->stream, status, err);
}
