// SPDX-License-Identifier: Apache-2.0
// Purpose: for tests of lab/train: a model that reads prompts for heads to learn from.
#pragma once

#include "lab/train/example.h"
#include "engine/tensor/cpu/device.h"
#include "engine/tensor/cpu/tiers.h"
#include "tests/unit/temp_folder.h"

#define TEST_TEACHER_ROWS   96
#define TEST_TEACHER_TOKENS 1024 // of the longest prompt, twice

struct test_teacher {
    const struct sl_ops *ops;
    struct sl_model *model;
    const struct sl_model_config *config;
    struct sl_arena *arena;
    struct sl_teacher teacher;
};

static inline struct test_teacher test_teacher_start(const char *folder, const char *tier) {
    struct test_teacher f = {0};
    struct sl_error err = {0};
    struct sl_engine *engine;
    assert_int_equal(sl_ops_select(tier, &f.ops, &err), SL_OK);
    if (sl_model_load(folder, f.ops, SL_WEIGHT_STORED, sl_cpu_caller(), NULL, &f.model, &err) != SL_OK ||
        sl_engine_create(f.model, sl_cpu_caller(), TEST_TEACHER_ROWS, &engine, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    f.config = sl_model_get_config(f.model);
    assert_int_equal(sl_arena_create_mapped((size_t)1 << 30, &f.arena, &err), SL_OK);
    f.teacher = (struct sl_teacher){.engine = engine, .model = f.model, .arena = f.arena, .chunk = TEST_TEACHER_ROWS};
    return f;
}

// Checks that the examples leak nothing.
static inline void test_teacher_stop(struct test_teacher *f) {
    struct sl_arena_stats stats;
    sl_arena_get_stats(f->arena, &stats);
    assert_int_equal(stats.n_blocks, 0);
    sl_arena_destroy(&f->arena);
    sl_engine_destroy(&f->teacher.engine);
    sl_model_destroy(&f->model);
}

static inline struct sl_session *test_teacher_session(struct test_teacher *f, int64_t n_tokens) {
    struct sl_session *session = NULL;
    struct sl_error err = {0};
    struct sl_kv_geometry geometry = sl_model_geometry(f->config);
    assert_int_equal(
        sl_session_create_plain(&geometry, SL_KV_F32, SL_POSITION_ORIGINAL, n_tokens, f->arena, &session, &err), SL_OK);
    session->rope_set = sl_model_rope_set(f->config, n_tokens);
    return session;
}
