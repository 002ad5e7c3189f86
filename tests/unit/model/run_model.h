// SPDX-License-Identifier: Apache-2.0
// Purpose: for tests of the forward pass: a model with an engine and one session of f32 pages.
#pragma once

#include <stdlib.h>

#include "engine/tensor/cpu/device.h"
#include "engine/tensor/cpu/tiers.h"
#include "watch.h"

#define RUN_ROWS        64
#define RUN_ARENA_BYTES (1 << 20)

struct run_model {
    const struct sl_ops *ops;
    struct sl_model *model;
    struct sl_engine *engine;
    void *memory;
    struct sl_arena *arena;
    struct sl_session *session;
};

static inline struct sl_session *run_session(struct run_model *f, enum sl_position_mode mode) {
    struct sl_page_layout layouts[SL_MAX_LAYERS];
    struct sl_session *session = NULL;
    struct sl_error err = {0};
    const struct sl_model_config *c = sl_model_get_config(f->model);
    for (int l = 0; l < c->n_layers; l++) {
        assert_int_equal(sl_page_layout_init(&layouts[l], SL_KV_F32, c->head_dim, 0, false), SL_OK);
    }
    struct sl_session_config config = {sl_model_geometry(c), mode, 256, layouts, layouts};
    assert_int_equal(sl_session_create(&config, f->arena, &session, &err), SL_OK);
    return session;
}

static inline struct run_model run_start(const char *folder, const char *tier, enum sl_position_mode mode) {
    struct run_model f = {0};
    struct sl_error err = {0};
    assert_int_equal(sl_ops_select(tier, &f.ops, &err), SL_OK);
    if (sl_model_load(folder, f.ops, SL_WEIGHT_STORED, sl_cpu_caller(), NULL, &f.model, &err) != SL_OK ||
        sl_engine_create(f.model, sl_cpu_caller(), RUN_ROWS, &f.engine, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    f.memory = aligned_alloc(SL_ARENA_UNIT, RUN_ARENA_BYTES);
    assert_non_null(f.memory);
    assert_int_equal(sl_arena_create(f.memory, RUN_ARENA_BYTES, &f.arena, &err), SL_OK);
    f.session = run_session(&f, mode);
    return f;
}

static inline void run_stop(struct run_model *f) {
    struct sl_arena_stats stats;
    sl_session_destroy(&f->session);
    sl_arena_get_stats(f->arena, &stats);
    assert_int_equal(stats.n_blocks, 0);
    sl_arena_destroy(&f->arena);
    free(f->memory);
    sl_engine_destroy(&f->engine);
    sl_model_destroy(&f->model);
}

// Token i of the prompt that every test reads.
static inline int32_t run_token(int64_t i) {
    return (int32_t)((i * 37 + 11) % 160);
}

// The next n tokens, with a hook.
static inline enum sl_status run_read(struct run_model *f, int n, const struct watch *hook, struct sl_error *err) {
    int32_t tokens[RUN_ROWS];
    for (int i = 0; i < n; i++) {
        tokens[i] = run_token(f->session->n_tokens + i);
    }
    struct sl_input segment = {.session = f->session, .tokens = tokens, .n_tokens = n};
    return watch_forward(f->engine, &segment, 1, hook, err);
}
