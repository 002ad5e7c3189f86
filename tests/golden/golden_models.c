// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds the forward pass to PyTorch: logits of a tiny model of every family, with and without grouped queries,
 *          sharding, tied embeddings, biases, windows and every kind of RoPE (tools/golden_families.py and
 *          tools/golden_llama.py, which say what each has); and what the demo model says, greedily.
 *
 * Design: every tier, the prompt whole, in chunks, and in chunks beside another session's. Against PyTorch the error is
 *         bounded; between chunk sizes the bits must be equal. Chunks of 1 are the steps of decode.
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/model/forward.h"
#include "engine/tensor/cpu/tiers.h"
#include "tests/stream.h"

#define GOLDEN         "tests/golden/"
#define DEMO           "models/demo"
#define MAX_ERROR      1e-3f
#define MAX_ROWS       512
#define ARENA_BYTES    (64u << 20)
#define MAX_FILE_BYTES (1 << 20)

// --- golden files --------------------------------------------------------------------------------------------------

static const char *const models[] = {
    "llama/mha",        "llama/gqa",      "families/llama",
    "families/mistral", "families/qwen2", "families/qwen2_window",
    "families/qwen3",   "families/phi3",  "families/phi3_longrope",
    "families/falcon",
};
#define N_MODELS (sizeof models / sizeof models[0])

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
    struct sl_stream *stream;
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
    f.stream = test_stream_open(2);
    assert_int_equal(sl_ops_select(tier, &ops, &err), SL_OK);
    if (sl_model_load(folder, ops, SL_WEIGHT_STORED, f.stream, NULL, &f.model, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(sl_engine_create(f.model, f.stream, MAX_ROWS, &f.engine, &err), SL_OK);
    f.memory = aligned_alloc(SL_ARENA_UNIT, ARENA_BYTES);
    assert_non_null(f.memory);
    assert_int_equal(sl_arena_create(f.memory, ARENA_BYTES, &f.arena, &err), SL_OK);
    return f;
}

// A session for a job of n_positions tokens.
static struct sl_session *make_session(const struct fixture *f, enum sl_kv_format format,
                                       enum sl_position_mode positions, int64_t n_positions) {
    struct sl_session *session;
    struct sl_kv_geometry geometry = sl_model_geometry(sl_model_get_config(f->model));
    struct sl_page_layout layouts[SL_MAX_LAYERS];
    struct sl_error err = {0};
    for (int l = 0; l < geometry.n_layers; l++) {
        assert_int_equal(sl_page_layout_init(&layouts[l], format, geometry.head_dim, 0, false), SL_OK);
    }
    struct sl_session_config config = {geometry, positions, 4096, layouts, layouts};
    assert_int_equal(sl_session_create(&config, f->arena, &session, &err), SL_OK);
    session->rope_set = sl_model_rope_set(sl_model_get_config(f->model), n_positions);
    return session;
}

// A fresh session in place of the one before.
static void fixture_restart(struct fixture *f, enum sl_kv_format format, enum sl_position_mode positions,
                            int64_t n_positions) {
    sl_session_destroy(&f->session);
    f->session = make_session(f, format, positions, n_positions);
}

static void fixture_destroy(struct fixture *f) {
    sl_session_destroy(&f->session);
    sl_arena_destroy(&f->arena);
    free(f->memory);
    sl_engine_destroy(&f->engine);
    sl_model_destroy(&f->model);
    test_stream_close(&f->stream);
}

// Read the tokens `chunk` at a time; all_logits and last_logits may be NULL.
static void forward(struct fixture *f, const int32_t *tokens, int n, int chunk, float *all_logits, float *last_logits) {
    int64_t n_vocab = sl_model_get_config(f->model)->n_vocab;
    struct sl_error err = {0};
    for (int i = 0; i < n; i += chunk) {
        struct sl_input segment = {
            .session = f->session,
            .tokens = tokens + i,
            .n_tokens = n - i < chunk ? n - i : chunk,
            .logits = i + chunk >= n ? last_logits : NULL,
            .all_logits = all_logits == NULL ? NULL : all_logits + i * n_vocab,
        };
        if (sl_engine_forward(f->engine, &segment, 1, &err) != SL_OK) {
            fail_msg("%s", err.text);
        }
    }
    assert_int_equal(f->session->n_tokens, n);
}

// --- logits --------------------------------------------------------------------------------------------------------

// One prompt of a model and what PyTorch says to it.
struct golden {
    int n, n_vocab;
    const int32_t *tokens; // [n]
    const float *logits;   // [n][n_vocab], in the file's words
    float *whole;          // the same as we compute it, read in one go; owned
    size_t bytes;          // of either
};

#define MAX_PROMPTS 4

// The prompts of a golden file; the words are freed by the caller, after them.
static int read_prompts(const char *folder, int32_t **words_out, struct golden *prompts_out) {
    char path[128];
    size_t n_words, at = 0;
    int n_prompts = 0;
    snprintf(path, sizeof path, "%s/golden.bin", folder);
    int32_t *words = *words_out = read_words(path, &n_words);
    for (; at < n_words; n_prompts++) {
        assert_true(n_prompts < MAX_PROMPTS);
        struct golden *g = &prompts_out[n_prompts];
        *g = (struct golden){.n = words[at], .n_vocab = words[at + 1], .tokens = words + at + 2};
        g->bytes = (size_t)g->n * (size_t)g->n_vocab * sizeof(float);
        g->logits = (const float *)(g->tokens + g->n);
        g->whole = malloc(g->bytes);
        assert_non_null(g->whole);
        at += 2 + (size_t)g->n + g->bytes / sizeof *words;
    }
    assert_int_equal(at, n_words);
    return n_prompts;
}

// Against PyTorch, the prompt whole.
static void check_whole(struct fixture *f, const struct golden *g, const char *name, enum sl_position_mode positions) {
    assert_int_equal(sl_model_get_config(f->model)->n_vocab, g->n_vocab);
    fixture_restart(f, SL_KV_F32, positions, g->n);
    forward(f, g->tokens, g->n, g->n, g->whole, NULL);
    float worst = 0.0f;
    for (int64_t i = 0; i < (int64_t)g->n * g->n_vocab; i++) {
        float expected;
        memcpy(&expected, g->logits + i, sizeof expected);
        float error = fabsf(g->whole[i] - expected);
        worst = error > worst || isnan(error) ? error : worst;
    }
    print_message("%s, %d tokens, %s: largest error of a logit %.2g\n", name, g->n, sl_engine_ops(f->engine)->name,
                  worst);
    assert_true(worst < MAX_ERROR);
}

// In chunks of every size, down to the steps of decode: the same bits.
static void check_chunks(struct fixture *f, const struct golden *g, enum sl_position_mode positions) {
    static const int chunks[] = {1, 3, 7, 33, 64};
    float *chunked = malloc(g->bytes), *last = malloc((size_t)g->n_vocab * sizeof(float));
    assert_true(chunked != NULL && last != NULL);
    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
        fixture_restart(f, SL_KV_F32, positions, g->n);
        forward(f, g->tokens, g->n, chunks[c], chunked, last);
        assert_memory_equal(chunked, g->whole, g->bytes);
        assert_memory_equal(last, g->whole + (int64_t)(g->n - 1) * g->n_vocab, (size_t)g->n_vocab * sizeof(float));
    }
    free(last);
    free(chunked);
}

// Two prompts in the same calls, in chunks of different sizes: the same bits.
static void check_together(struct fixture *f, const struct golden *a, const struct golden *b) {
    const struct golden *prompts[2] = {a, b};
    const int chunks[2] = {7, 3};
    struct sl_session *sessions[2];
    float *logits[2];
    struct sl_error err = {0};
    for (int s = 0; s < 2; s++) {
        sessions[s] = make_session(f, SL_KV_F32, SL_POSITION_ORIGINAL, prompts[s]->n);
        logits[s] = malloc(prompts[s]->bytes);
        assert_non_null(logits[s]);
    }
    for (;;) {
        struct sl_input segments[2];
        int n_segments = 0;
        for (int s = 0; s < 2; s++) {
            int64_t at = sessions[s]->n_tokens, left = prompts[s]->n - at;
            if (left > 0) {
                segments[n_segments++] = (struct sl_input){.session = sessions[s],
                                                           .tokens = prompts[s]->tokens + at,
                                                           .n_tokens = left < chunks[s] ? (int)left : chunks[s],
                                                           .all_logits = logits[s] + at * prompts[s]->n_vocab};
            }
        }
        if (n_segments == 0) {
            break;
        }
        assert_int_equal(sl_engine_forward(f->engine, segments, n_segments, &err), SL_OK);
    }
    for (int s = 0; s < 2; s++) {
        assert_memory_equal(logits[s], prompts[s]->whole, prompts[s]->bytes);
        sl_session_destroy(&sessions[s]);
        free(logits[s]);
    }
}

static void check_logits(const char *name, const char *tier, enum sl_position_mode positions) {
    struct golden prompts[MAX_PROMPTS];
    int32_t *words;
    char folder[128];
    snprintf(folder, sizeof folder, GOLDEN "%s", name);
    int n_prompts = read_prompts(folder, &words, prompts);
    struct fixture f = fixture_create(folder, tier);
    for (int i = 0; i < n_prompts; i++) {
        check_whole(&f, &prompts[i], name, positions);
        check_chunks(&f, &prompts[i], positions);
    }
    if (positions == SL_POSITION_ORIGINAL) {
        check_together(&f, &prompts[0], &prompts[n_prompts - 1]);
    }
    fixture_destroy(&f);
    for (int i = 0; i < n_prompts; i++) {
        free(prompts[i].whole);
    }
    free(words);
}

static void test_logits_match_pytorch_in_any_chunks(void **state) {
    (void)state;
    for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
        for (size_t i = 0; i < N_MODELS; i++) {
            check_logits(models[i], *tier, SL_POSITION_ORIGINAL);
        }
    }
}

// While nothing is evicted a token's slot is its position: rotating at every use must give what rotating once gives,
// with grouped queries, yarn's scale, half of every head, and either set of longrope.
static void test_slot_positions_match_pytorch_too(void **state) {
    (void)state;
    for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
        check_logits("llama/gqa", *tier, SL_POSITION_SLOT);
        check_logits("families/qwen2", *tier, SL_POSITION_SLOT);
        check_logits("families/phi3_longrope", *tier, SL_POSITION_SLOT);
    }
}

// A decode step of two sessions and a prefill chunk of a third in one call: the bits of three calls.
static void test_batching_changes_no_bits(void **state) {
    const int32_t tokens[] = {5, 9, 2, 77, 31, 8, 120, 64, 3, 3, 90};
    enum { N = sizeof tokens / sizeof tokens[0] };
    (void)state;
    for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
        struct fixture f = fixture_create(GOLDEN "llama/mha", *tier);
        struct sl_session *sessions[3];
        float alone[3][128], together[3][128], all[N][128];
        const int lengths[3] = {1, N, 1}, offsets[3] = {4, 0, 6};
        struct sl_error err = {0};
        for (int pass = 0; pass < 2; pass++) {
            struct sl_input segments[3];
            for (int s = 0; s < 3; s++) {
                fixture_restart(&f, SL_KV_F16, SL_POSITION_ORIGINAL, 16);
                forward(&f, tokens, 3 + s, 3 + s, NULL, NULL);
                sessions[s] = f.session;
                f.session = NULL;
                segments[s] = (struct sl_input){.session = sessions[s],
                                                .tokens = tokens + offsets[s],
                                                .n_tokens = lengths[s],
                                                .logits = pass == 0 ? alone[s] : together[s],
                                                .all_logits = s == 1 ? all[0] : NULL};
            }
            for (int s = 0; s < 3 && pass == 0; s++) {
                assert_int_equal(sl_engine_forward(f.engine, &segments[s], 1, &err), SL_OK);
            }
            if (pass == 1) {
                assert_int_equal(sl_engine_forward(f.engine, segments, 3, &err), SL_OK);
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
    snprintf(path, sizeof path, GOLDEN "llama/demo/%s.bin", name);
    int32_t *words = read_words(path, &n_words);
    int n_prompt = words[0], n_output = words[1];
    const int32_t *prompt = words + 2, *output = prompt + n_prompt;
    assert_int_equal(n_words, 2 + (size_t)n_prompt + (size_t)n_output);
    int32_t n_vocab = sl_model_get_config(f->model)->n_vocab;
    float *logits = malloc((size_t)n_vocab * sizeof(float));
    assert_non_null(logits);

    fixture_restart(f, SL_KV_F16, SL_POSITION_ORIGINAL, n_prompt + n_output);
    forward(f, prompt, n_prompt, 500, NULL, logits);
    for (int i = 0; i < n_output; i++) {
        int32_t token = argmax(logits, n_vocab);
        struct sl_input segment = {.session = f->session, .tokens = &token, .n_tokens = 1, .logits = logits};
        struct sl_error err = {0};
        assert_int_equal(token, output[i]);
        assert_int_equal(sl_engine_forward(f->engine, &segment, 1, &err), SL_OK);
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
