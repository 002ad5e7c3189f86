// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds the forward pass to PyTorch (tools/golden_llama.py): logits of two tiny models, with and without
 *          grouped queries, sharding, tied embeddings and Llama 3's RoPE; and what the demo model says, greedily.
 *
 * Design: every tier, the prompt whole and in chunks. Against PyTorch the error is bounded; between chunk sizes the
 *         bits must be equal.
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/model.h"

#define GOLDEN         "tests/golden/llama/"
#define DEMO           "models/demo"
#define MAX_ERROR      1e-3f
#define MAX_ROWS       512
#define ARENA_BYTES    (64u << 20)
#define MAX_FILE_BYTES (1 << 20)

// --- golden files --------------------------------------------------------------------------------------------------

// Words of a golden file: all are 32 bits wide.
static int32_t *read_words(const char *path, size_t *n_out) {
    FILE *file = fopen(path, "rb");
    int32_t *words = malloc(MAX_FILE_BYTES);
    assert_non_null(file);
    assert_non_null(words);
    *n_out = fread(words, sizeof *words, MAX_FILE_BYTES / sizeof *words, file);
    assert_true(feof(file));
    fclose(file);
    assert_true(*n_out > 2);
    return words;
}

// --- one model on one tier -----------------------------------------------------------------------------------------

struct fixture {
    struct sl_team *team;
    struct sl_model *model;
    struct sl_engine *engine;
    void *memory;
    struct sl_arena *arena;
    struct sl_session *session;
};

static struct fixture fixture_create(const char *folder, const char *tier) {
    struct fixture f = {0};
    struct sl_error err = {0};
    const struct sl_ops *ops;
    assert_int_equal(sl_team_create(2, &f.team, &err), SL_OK);
    assert_int_equal(sl_ops_select(tier, &ops, &err), SL_OK);
    if (sl_model_load(folder, ops, SL_WEIGHT_STORED, f.team, &f.model, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(sl_engine_create(f.model, f.team, MAX_ROWS, &f.engine, &err), SL_OK);
    f.memory = aligned_alloc(SL_ARENA_UNIT, ARENA_BYTES);
    assert_non_null(f.memory);
    assert_int_equal(sl_arena_create(f.memory, ARENA_BYTES, &f.arena, &err), SL_OK);
    return f;
}

// A fresh session in place of the one before.
static void fixture_restart(struct fixture *f, enum sl_kv_format format, enum sl_position_mode positions) {
    struct sl_kv_geometry geometry = sl_model_geometry(sl_model_get_config(f->model));
    struct sl_page_layout layouts[SL_MAX_LAYERS];
    struct sl_error err = {0};
    sl_session_destroy(&f->session);
    for (int l = 0; l < geometry.n_layers; l++) {
        assert_int_equal(sl_page_layout_init(&layouts[l], format, geometry.head_dim, 0, false), SL_OK);
    }
    struct sl_session_config config = {geometry, positions, 4096, layouts, layouts};
    assert_int_equal(sl_session_create(&config, f->arena, &f->session, &err), SL_OK);
}

static void fixture_destroy(struct fixture *f) {
    sl_session_destroy(&f->session);
    sl_arena_destroy(&f->arena);
    free(f->memory);
    sl_engine_destroy(&f->engine);
    sl_model_destroy(&f->model);
    sl_team_destroy(&f->team);
}

// Read the tokens `chunk` at a time; all_logits and last_logits may be NULL.
static void forward(struct fixture *f, const int32_t *tokens, int n, int chunk, float *all_logits, float *last_logits) {
    int64_t n_vocab = sl_model_get_config(f->model)->n_vocab;
    struct sl_error err = {0};
    for (int i = 0; i < n; i += chunk) {
        struct sl_segment segment = {
            .session = f->session,
            .tokens = tokens + i,
            .n_tokens = n - i < chunk ? n - i : chunk,
            .logits = i + chunk >= n ? last_logits : NULL,
            .all_logits = all_logits == NULL ? NULL : all_logits + i * n_vocab,
        };
        if (sl_engine_forward(f->engine, &segment, 1, NULL, &err) != SL_OK) {
            fail_msg("%s", err.text);
        }
    }
    assert_int_equal(f->session->n_tokens, n);
}

// --- logits --------------------------------------------------------------------------------------------------------

static void check_logits(const char *name, const char *tier, enum sl_position_mode positions) {
    char path[128];
    size_t n_words;
    snprintf(path, sizeof path, GOLDEN "%s/golden.bin", name);
    int32_t *words = read_words(path, &n_words);
    int n = words[0], n_vocab = words[1];
    assert_int_equal(n_words, 2 + (size_t)n + (size_t)n * (size_t)n_vocab);
    const int32_t *tokens = words + 2;
    size_t bytes = (size_t)n * (size_t)n_vocab * sizeof(float);
    float *expected = malloc(bytes), *whole = malloc(bytes), *chunked = malloc(bytes);
    assert_true(expected != NULL && whole != NULL && chunked != NULL);
    memcpy(expected, tokens + n, bytes);

    snprintf(path, sizeof path, GOLDEN "%s", name);
    struct fixture f = fixture_create(path, tier);
    assert_int_equal(sl_model_get_config(f.model)->n_vocab, n_vocab);
    fixture_restart(&f, SL_KV_F32, positions);
    forward(&f, tokens, n, n, whole, NULL);
    float worst = 0.0f;
    for (int64_t i = 0; i < (int64_t)n * n_vocab; i++) {
        float error = fabsf(whole[i] - expected[i]);
        worst = error > worst || isnan(error) ? error : worst;
    }
    print_message("%s, %s: largest error of a logit %.2g\n", name, tier, worst);
    assert_true(worst < MAX_ERROR);

    const int chunks[] = {1, 7, 33, 64};
    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
        float *last = malloc((size_t)n_vocab * sizeof(float));
        assert_non_null(last);
        fixture_restart(&f, SL_KV_F32, positions);
        forward(&f, tokens, n, chunks[c], chunked, last);
        assert_memory_equal(chunked, whole, bytes);
        assert_memory_equal(last, whole + (int64_t)(n - 1) * n_vocab, (size_t)n_vocab * sizeof(float));
        free(last);
    }
    fixture_destroy(&f);
    free(chunked);
    free(whole);
    free(expected);
    free(words);
}

static void test_logits_match_pytorch_in_any_chunks(void **state) {
    (void)state;
    for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
        check_logits("mha", *tier, SL_POSITION_ORIGINAL);
        check_logits("gqa", *tier, SL_POSITION_ORIGINAL);
    }
}

// While nothing is evicted a token's slot is its position: rotating at every use must give what rotating once gives.
static void test_slot_positions_match_pytorch_too(void **state) {
    (void)state;
    for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
        check_logits("gqa", *tier, SL_POSITION_SLOT);
    }
}

// A decode step of two sessions and a prefill chunk of a third in one call: the bits of three calls.
static void test_batching_changes_no_bits(void **state) {
    const int32_t tokens[] = {5, 9, 2, 77, 31, 8, 120, 64, 3, 3, 90};
    enum { N = sizeof tokens / sizeof tokens[0] };
    (void)state;
    for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
        struct fixture f = fixture_create(GOLDEN "mha", *tier);
        struct sl_session *sessions[3];
        float alone[3][128], together[3][128], all[N][128];
        const int lengths[3] = {1, N, 1}, offsets[3] = {4, 0, 6};
        struct sl_error err = {0};
        for (int pass = 0; pass < 2; pass++) {
            struct sl_segment segments[3];
            for (int s = 0; s < 3; s++) {
                fixture_restart(&f, SL_KV_F16, SL_POSITION_ORIGINAL);
                forward(&f, tokens, 3 + s, 3 + s, NULL, NULL);
                sessions[s] = f.session;
                f.session = NULL;
                segments[s] = (struct sl_segment){sessions[s], tokens + offsets[s], lengths[s],
                                                  pass == 0 ? alone[s] : together[s], s == 1 ? all[0] : NULL};
            }
            for (int s = 0; s < 3 && pass == 0; s++) {
                assert_int_equal(sl_engine_forward(f.engine, &segments[s], 1, NULL, &err), SL_OK);
            }
            if (pass == 1) {
                assert_int_equal(sl_engine_forward(f.engine, segments, 3, NULL, &err), SL_OK);
            }
            assert_memory_equal(all[N - 1], pass == 0 ? alone[1] : together[1], sizeof alone[1]);
            for (int s = 0; s < 3; s++) {
                assert_int_equal(sessions[s]->n_tokens, 3 + s + lengths[s]);
                sl_session_destroy(&sessions[s]);
            }
        }
        assert_memory_equal(alone, together, sizeof alone);
        fixture_destroy(&f);
    }
}

// --- the demo model ------------------------------------------------------------------------------------------------

static int32_t argmax(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

static void check_demo(struct fixture *f, const char *name) {
    char path[128];
    size_t n_words;
    snprintf(path, sizeof path, GOLDEN "demo/%s.bin", name);
    int32_t *words = read_words(path, &n_words);
    int n_prompt = words[0], n_output = words[1];
    const int32_t *prompt = words + 2, *output = prompt + n_prompt;
    assert_int_equal(n_words, 2 + (size_t)n_prompt + (size_t)n_output);
    int32_t n_vocab = sl_model_get_config(f->model)->n_vocab;
    float *logits = malloc((size_t)n_vocab * sizeof(float));
    assert_non_null(logits);

    fixture_restart(f, SL_KV_F16, SL_POSITION_ORIGINAL);
    forward(f, prompt, n_prompt, 500, NULL, logits);
    for (int i = 0; i < n_output; i++) {
        int32_t token = argmax(logits, n_vocab);
        struct sl_segment segment = {f->session, &token, 1, logits, NULL};
        struct sl_error err = {0};
        assert_int_equal(token, output[i]);
        assert_int_equal(sl_engine_forward(f->engine, &segment, 1, NULL, &err), SL_OK);
    }
    free(logits);
    free(words);
}

static void test_demo_model_answers_as_in_pytorch(void **state) {
    (void)state;
    struct fixture f = fixture_create(DEMO, "auto");
    check_demo(&f, "magic");
    check_demo(&f, "code");
    check_demo(&f, "late");
    fixture_destroy(&f);
}

static void test_demo_model_answers_on_the_reference_tier(void **state) {
    (void)state;
    struct fixture f = fixture_create(DEMO, "reference");
    check_demo(&f, "magic");
    fixture_destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_match_pytorch_in_any_chunks),
        cmocka_unit_test(test_slot_positions_match_pytorch_too),
        cmocka_unit_test(test_batching_changes_no_bits),
        cmocka_unit_test(test_demo_model_answers_as_in_pytorch),
        cmocka_unit_test(test_demo_model_answers_on_the_reference_tier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
