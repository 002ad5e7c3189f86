// SPDX-License-Identifier: Apache-2.0
// Purpose: the training examples of retaining heads: features are the heads' later inputs, labels are computed from the queries and keys of
// a pass.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/tensor/cpu/tiers.h"
#include "engine/tensor/half.h"
#include "tests/unit/lab/train/teacher.h"
#include "tests/unit/model/watch.h"

#define DEMO "models/demo"

// --- the labels, again -----------------------------------------------------------------------------------------------

struct query_log {
    float *q; // [n_layers][n_tokens][q_dim]
    int64_t n_tokens, n_read;
};

static enum sl_status log_queries(void *arg, int segment, int layer, const struct sl_attend *attend) {
    struct query_log *log = arg;
    int64_t q_dim = (int64_t)attend->n_heads * attend->head_dim;
    (void)segment;
    for (int r = 0; r < attend->m; r++) {
        memcpy(log->q + ((layer * log->n_tokens) + log->n_read + r) * q_dim, attend->q + r * sl_attend_q_stride(attend),
               (size_t)q_dim * sizeof(float));
    }
    return SL_OK;
}

// Read everything in one session and compare every label. Returns how many tokens have none.
static int64_t assert_labels(struct test_teacher *f, const int32_t *tokens, int64_t n_tokens, int64_t n_prompt,
                             const struct sl_example *example, double tolerance) {
    const struct sl_model_config *c = f->config;
    struct query_log log = {.n_tokens = n_tokens};
    int64_t q_dim = (int64_t)c->n_heads * c->head_dim, n_without = 0;
    log.q = calloc((size_t)(c->n_layers * n_tokens * q_dim), sizeof(float));
    float *k = calloc((size_t)(n_tokens * c->head_dim), sizeof(float));
    assert_true(log.q != NULL && k != NULL);
    struct sl_session *session = test_teacher_session(f, n_tokens);
    struct watch hook = {.fn = log_queries, .arg = &log};
    struct sl_error err = {0};
    while (session->n_tokens < n_tokens) {
        log.n_read = session->n_tokens;
        int64_t left = n_tokens - log.n_read;
        struct sl_input segment = {.session = session,
                                   .tokens = tokens + log.n_read,
                                   .n_tokens = (int)(left < TEST_TEACHER_ROWS ? left : TEST_TEACHER_ROWS)};
        assert_int_equal(watch_forward(f->teacher.engine, &segment, 1, &hook, &err), SL_OK);
    }
    for (int l = 0; l < c->n_layers; l++) {
        int64_t window = c->window_layers[l / 64] >> (l % 64) & 1 ? c->window : 0;
        for (int h = 0; h < c->n_kv_heads; h++) {
            const struct sl_layer *layer = &session->layers[l];
            struct sl_kv kv = {layer->heads[h].pages, 0, layer->heads[h].n_slots, &layer->work, &layer->packed};
            f->ops->read_rows(&kv, 0, (uint32_t)n_tokens, k, NULL);
            for (int64_t t = 0; t < n_prompt; t++) {
                double most = -INFINITY;
                for (int64_t r = n_prompt - 1; r < n_tokens; r++) {
                    for (int g = 0; g < c->n_heads / c->n_kv_heads && (window == 0 || t > r - window); g++) {
                        const float *q =
                            log.q + (l * n_tokens + r) * q_dim + (h * (c->n_heads / c->n_kv_heads) + g) * c->head_dim;
                        double logit = 0;
                        for (int i = 0; i < c->head_dim; i++) {
                            logit += (double)q[i] * (double)k[t * c->head_dim + i];
                        }
                        most = fmax(most, logit / sqrt(c->head_dim));
                    }
                }
                double label = (double)example->labels[((int64_t)l * c->n_kv_heads + h) * n_prompt + t];
                if (most == -INFINITY) {
                    assert_true(t < example->first[l]);
                    assert_true(label == -INFINITY);
                    n_without++;
                } else if (!(fabs(label - most) < tolerance * (1 + fabs(most))) || t < example->first[l]) {
                    fail_msg("layer %d, head %d, token %lld: %g, expected %g", l, h, (long long)t, label, most);
                }
            }
        }
    }
    sl_session_destroy(&session);
    free(log.q);
    free(k);
    return n_without;
}

static struct sl_example read_example(struct test_teacher *f, const int32_t *tokens, int64_t n_tokens,
                                      int64_t n_prompt) {
    struct sl_example example;
    struct sl_error err = {0};
    if (sl_example_read(&f->teacher, tokens, n_tokens, n_prompt, &example, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return example;
}

static void test_labels_are_the_largest_logit_of_answer_and_group(void **state) {
    (void)state;
    static const char *const folders[] = {"tests/golden/llama/gqa",
                                          "tests/golden/families/qwen2",
                                          "tests/golden/families/qwen3",
                                          "tests/golden/families/phi3_longrope",
                                          "tests/golden/families/falcon",
                                          "tests/golden/families/mistral",
                                          "tests/golden/families/qwen2_window"};
    static const struct { int n_prompt, n_answer; } cases[] = {{2, 1}, {2, 0}, {30, 5}, {9, 3}, {TEST_TEACHER_ROWS, 4}};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        struct test_teacher f = test_teacher_start(folders[i], "auto");
        int64_t n_without = 0;
        for (size_t j = 0; j < sizeof cases / sizeof cases[0]; j++) {
            int32_t tokens[128];
            int64_t n_tokens = cases[j].n_prompt + cases[j].n_answer;
            for (int t = 0; t < n_tokens; t++) {
                tokens[t] = (t * 37 + 11) % 64;
            }
            struct sl_example example = read_example(&f, tokens, n_tokens, cases[j].n_prompt);
            n_without += assert_labels(&f, tokens, n_tokens, cases[j].n_prompt, &example, 1e-4);
            sl_example_cleanup(&example);
        }
        assert_int_equal(n_without > 0, f.config->window > 0);
        test_teacher_stop(&f);
    }
}

// In chunks that cut the prompt and the answer: of the demo model, whose prompts are longer than a block of slots.
static void test_labels_of_the_demo_model_in_chunks(void **state) {
    (void)state;
    struct test_teacher f = test_teacher_start(DEMO, "auto");
    int32_t tokens[700];
    for (int t = 0; t < 700; t++) {
        tokens[t] = (t * 37 + 11) % 2000;
    }
    f.teacher.chunk = TEST_TEACHER_ROWS;
    struct sl_example whole = read_example(&f, tokens, 700, 683);
    assert_int_equal(assert_labels(&f, tokens, 700, 683, &whole, 1e-4), 0);
    f.teacher.chunk = 57;
    struct sl_example cut = read_example(&f, tokens, 700, 683);
    int64_t n = (int64_t)whole.n_layers * 683;
    assert_memory_equal(whole.labels, cut.labels, (size_t)(n * whole.n_kv_heads) * sizeof(float));
    assert_memory_equal(whole.features, cut.features, (size_t)(n * whole.n_columns) * sizeof(uint16_t));
    sl_example_cleanup(&whole);
    sl_example_cleanup(&cut);
    test_teacher_stop(&f);
}

static void test_a_prompt_of_one_token_teaches_nothing(void **state) {
    (void)state;
    struct test_teacher f = test_teacher_start("tests/golden/llama/gqa", "auto");
    struct sl_example example = {0};
    struct sl_error err = {0};
    int32_t tokens[] = {1, 2, 3};
    assert_int_equal(sl_example_read(&f.teacher, tokens, 3, 1, &example, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "2 or more"));
    tokens[1] = 1 << 20;
    assert_int_equal(sl_example_read(&f.teacher, tokens, 3, 2, &example, &err), SL_ERR_RANGE); // the engine's word
    assert_null(example.features);
    test_teacher_stop(&f);
}

// --- the features ----------------------------------------------------------------------------------------------------

struct importance_log {
    float scores[2][2][64]; // [layer][KV head][row]
};

static enum sl_status log_importance(void *arg, int segment, int layer, const struct sl_attend *attend) {
    struct importance_log *log = arg;
    (void)segment;
    for (int h = 0; h < attend->heads.n; h++) {
        for (int r = 0; r < attend->m; r++) {
            log->scores[layer][h][r] = attend->importance[r * attend->heads.n + h];
        }
    }
    return SL_OK;
}

// Writes the heads as engines load them, in f32.
static void write_heads(const struct temp_folder *folder, struct sl_heads *heads) {
    const struct sl_heads_shape *s = sl_heads_get_shape(heads);
    const struct sl_heads_state *state = sl_heads_get_state(heads);
    char header[4096];
    size_t used = (size_t)snprintf(header, sizeof header, "{"), at = 0;
    float *file = calloc(1, 8 + sizeof header + state->n * sizeof(float)),
          *data = file + 2 + sizeof header / sizeof(float);
    assert_non_null(file);
    for (int i = 0; i < 2 * s->n_layers; i++) {
        int rows = i % 2 == 0 ? s->n_hidden : s->n_kv_heads, columns = i % 2 == 0 ? s->n_columns : s->n_hidden;
        size_t from = i % 2 == 0 ? sl_heads_w1_offset(s, i / 2) : sl_heads_w2_offset(s, i / 2);
        size_t n = (size_t)rows * (size_t)columns;
        memcpy(data + at, state->parameters + from, n * sizeof(float));
        used += (size_t)snprintf(header + used, sizeof header - used,
                                 "%s\"layers.%d.w%d\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[%zu,%zu]}",
                                 i > 0 ? "," : "", i / 2, i % 2 + 1, rows, columns, at * sizeof(float),
                                 (at + n) * sizeof(float));
        at += n;
    }
    assert_true(used + 2 < sizeof header);
    memset(header + used, ' ', sizeof header - used);
    header[used] = '}';
    uint64_t length = htole64(sizeof header);
    memcpy(file, &length, sizeof length);
    memcpy(file + 2, header, sizeof header);
    temp_folder_write(folder, "retaining_heads.safetensors", file, sizeof length + sizeof header + at * sizeof(float));
    free(file);
}

// A model with heads whose W1 picks columns and whose W2 weighs them scores silu of those very features. With biases
// (qwen2) and norms of heads (qwen3) the place where both are taken matters.
static void test_features_are_what_heads_score(void **state) {
    (void)state;
    enum { ROWS = 40, PICKED = 5 };
    static const char *const folders[] = {"tests/golden/families/qwen2", "tests/golden/families/qwen3",
                                          "tests/golden/families/falcon"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        struct temp_folder folder = temp_folder_create();
        temp_folder_copy(&folder, folders[i], "config.json");
        temp_folder_copy(&folder, folders[i], "model.safetensors");
        struct sl_model_config config;
        struct sl_error err = {0};
        assert_int_equal(sl_model_config_load(folder.path, &config, &err), SL_OK);
        struct sl_heads_shape shape = sl_heads_shape_of(&config, PICKED);
        const int picked[PICKED] = {0, shape.n_columns / 3, shape.n_columns / 2, shape.n_columns - 9,
                                    shape.n_columns - 1};
        const struct sl_ops *ops;
        struct sl_heads *heads;
        assert_int_equal(sl_ops_select("auto", &ops, &err), SL_OK);
        assert_int_equal(sl_heads_create(&shape, ops, NULL, 0, 0, &heads, &err), SL_OK);
        float *parameters = sl_heads_get_state(heads)->parameters;
        for (int l = 0; l < shape.n_layers; l++) {
            for (int r = 0; r < PICKED; r++) {
                parameters[sl_heads_w1_offset(&shape, l) + (size_t)(r * shape.n_columns + picked[r])] = 1;
                for (int h = 0; h < shape.n_kv_heads; h++) {
                    parameters[sl_heads_w2_offset(&shape, l) + (size_t)(h * PICKED + r)] = (float)(1 << r) + (float)h;
                }
            }
        }
        write_heads(&folder, heads);

        int32_t tokens[ROWS];
        for (int t = 0; t < ROWS; t++) {
            tokens[t] = (t * 37 + 11) % 64;
        }
        struct test_teacher f = test_teacher_start(folder.path, "reference");
        assert_int_equal(f.config->retaining_hidden, PICKED);
        struct sl_example example = read_example(&f, tokens, ROWS, ROWS);
        struct importance_log log;
        struct sl_session *session = test_teacher_session(&f, ROWS);
        struct sl_input segment = {.session = session, .tokens = tokens, .n_tokens = ROWS};
        struct watch hook = {.fn = log_importance, .arg = &log, .wants.importance = true};
        assert_int_equal(watch_forward(f.teacher.engine, &segment, 1, &hook, &err), SL_OK);
        for (int l = 0; l < shape.n_layers; l++) {
            for (int t = 0; t < ROWS; t++) {
                const uint16_t *features = example.features + ((int64_t)l * ROWS + t) * shape.n_columns;
                for (int h = 0; h < shape.n_kv_heads; h++) {
                    double score = 0, size = 0;
                    for (int r = 0; r < PICKED; r++) {
                        double x = (double)sl_bf16_to_f32(features[picked[r]]);
                        score += ((1 << r) + h) * x / (1 + exp(-x));
                        size += ((1 << r) + h) * fabs(x);
                    }
                    assert_true(fabs(score - (double)log.scores[l][h][t]) < 0.006 * size); // bf16: 2^-8
                }
            }
        }
        sl_session_destroy(&session);
        sl_example_cleanup(&example);
        test_teacher_stop(&f);
        sl_heads_destroy(&heads);
        temp_folder_destroy(&folder);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_labels_are_the_largest_logit_of_answer_and_group),
        cmocka_unit_test(test_labels_of_the_demo_model_in_chunks),
        cmocka_unit_test(test_a_prompt_of_one_token_teaches_nothing),
        cmocka_unit_test(test_features_are_what_heads_score),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
