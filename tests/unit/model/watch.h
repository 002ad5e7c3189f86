// SPDX-License-Identifier: Apache-2.0
// Purpose: for tests of the forward pass: its loop with something to see or to do in every layer.
#pragma once

#include "engine/model/forward.h"

struct watch {
    // Behind the attention of every input; a status other than SL_OK ends the pass. May be NULL.
    enum sl_status (*fn)(void *arg, int input, int layer, const struct sl_attend *attend);
    // In place of ops->attend; NULL: ops->attend.
    enum sl_status (*attend_fn)(void *arg, int layer, const struct sl_attend *attends, int n_inputs);
    void *arg;
    struct sl_pass_wants wants;
};

// `watch` NULL: sl_engine_forward().
static inline enum sl_status watch_forward(struct sl_engine *engine, struct sl_input *inputs, int n_inputs,
                                           const struct watch *watch, struct sl_error *err) {
    struct sl_pass pass;
    if (watch == NULL) {
        return sl_engine_forward(engine, inputs, n_inputs, err);
    }
    enum sl_status status = sl_pass_begin(sl_engine_activations(engine), inputs, n_inputs, watch->wants, &pass, err);
    for (int layer = 0; status == SL_OK && layer < inputs[0].session->geometry.n_layers; layer++) {
        sl_pass_project(&pass, layer);
        status = sl_pass_append(&pass, err);
        if (status == SL_OK && watch->attend_fn != NULL) {
            status = watch->attend_fn(watch->arg, layer, pass.attends, n_inputs);
        } else if (status == SL_OK) {
            sl_engine_ops(engine)->attend(sl_engine_stream(engine), pass.attends, n_inputs);
        }
        for (int i = 0; i < n_inputs && status == SL_OK && watch->fn != NULL; i++) {
            status = watch->fn(watch->arg, i, layer, &pass.attends[i]);
        }
        if (status == SL_OK) {
            sl_pass_finish(&pass);
        }
    }
    return status == SL_OK ? sl_pass_end(&pass, err) : status;
}
