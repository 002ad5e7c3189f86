// SPDX-License-Identifier: Apache-2.0
// Purpose: retaining heads: their scores against the formula, and the errors for files that are wrong.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "heads_file.h"
#include "run_model.h"
#include "engine/tensor/cpu/device.h"
#include "engine/tensor/cpu/tiers.h"

#define N_ROWS 40

// --- scores --------------------------------------------------------------------------------------------------------

struct log {
    struct run_model *run;
    int64_t first_row;
    int n_layers_seen;
    bool check;       // against the formula: the session must hold keys before RoPE
    double tolerance; // of a score, by its size
    float importance[GQA_LAYERS][GQA_KV_HEADS][N_ROWS];
};

// W2 silu(W1 [q|k|v]) of one row, in f64.
static double plain_score(int layer, int head, const float *q, float k[][GQA_HEAD_DIM], float v[][GQA_HEAD_DIM]) {
    double score = 0.0;
    for (int i = 0; i < HEADS_HIDDEN; i++) {
        double hidden = 0.0;
        int64_t at = (int64_t)i * GQA_W1_COLUMNS;
        for (int c = 0; c < GQA_HEADS * GQA_HEAD_DIM; c++) {
            hidden += (double)heads_value(layer, 0, at++) * (double)q[c];
        }
        for (int c = 0; c < GQA_KV_HEADS * GQA_HEAD_DIM; c++) {
            hidden += (double)heads_value(layer, 0, at++) * (double)k[c / GQA_HEAD_DIM][c % GQA_HEAD_DIM];
        }
        for (int c = 0; c < GQA_KV_HEADS * GQA_HEAD_DIM; c++) {
            hidden += (double)heads_value(layer, 0, at++) * (double)v[c / GQA_HEAD_DIM][c % GQA_HEAD_DIM];
        }
        score += (double)heads_value(layer, 1, (int64_t)head * HEADS_HIDDEN + i) * hidden / (1.0 + exp(-hidden));
    }
    return score;
}

static enum sl_status log_layer(void *arg, int segment, int layer, const struct sl_attend *attend) {
    struct log *log = arg;
    assert_int_equal(segment, 0);
    assert_non_null(attend->importance);
    for (int h = 0; h < GQA_KV_HEADS; h++) {
        for (int r = 0; r < attend->m; r++) {
            float score = attend->importance[r * attend->heads.n + h];
            log->importance[layer][h][log->first_row + r] = score;
            float k[GQA_KV_HEADS][GQA_HEAD_DIM], v[GQA_KV_HEADS][GQA_HEAD_DIM];
            for (int g = 0; g < GQA_KV_HEADS && log->check; g++) {
                uint32_t slot = attend->heads.kv[g].n_slots - (uint32_t)attend->m + (uint32_t)r;
                log->run->ops->read_rows(&attend->heads.kv[g], slot, slot + 1, k[g], v[g]);
            }
            if (log->check) {
                double expected = plain_score(layer, h, attend->q + r * sl_attend_q_stride(attend), k, v);
                if (!(fabs((double)score - expected) < log->tolerance * (1.0 + fabs(expected)))) {
                    fail_msg("%s layer %d head %d row %d: %g, expected %g", log->run->ops->name, layer, h, r, score,
                             expected);
                }
            }
        }
    }
    log->n_layers_seen++;
    return SL_OK;
}

static void read_logged(struct run_model *run, struct log *log, const int *chunks, int n_chunks) {
    struct sl_error err = {0};
    struct watch hook = {.fn = log_layer, .arg = log, .wants.importance = true};
    log->run = run;
    for (int i = 0; i < n_chunks; i++) {
        log->first_row = run->session->n_tokens;
        if (run_read(run, chunks[i], &hook, &err) != SL_OK) {
            fail_msg("%s", err.text);
        }
    }
    assert_int_equal(run->session->n_tokens, N_ROWS);
    assert_int_equal(log->n_layers_seen, n_chunks * GQA_LAYERS);
}

static void test_importance_is_the_formula_on_projections_before_rope(void **state) {
    (void)state;
    struct temp_folder folder = gqa_folder();
    for (enum sl_dtype dtype = SL_F32; dtype <= SL_BF16; dtype++) {
        heads_write(&folder, (struct heads_file){.dtype = dtype});
        for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
            struct run_model run = run_start(folder.path, *tier, SL_POSITION_SLOT); // holds keys before RoPE
            // with bf16 weights a tier may round what it multiplies them by to 8 bits: engine/tensor/ops.h, Precision
            struct log log = {.check = true, .tolerance = dtype == SL_BF16 ? 3e-2 : 1e-4};
            read_logged(&run, &log, (int[]){N_ROWS - 3, 3}, 2);
            float least = INFINITY, most = -INFINITY;
            for (int r = 0; r < N_ROWS; r++) {
                least = fminf(least, log.importance[1][1][r]);
                most = fmaxf(most, log.importance[1][1][r]);
            }
            assert_true(most - least > 0.1f); // rows differ: there is something to get wrong
            run_stop(&run);
        }
    }
    temp_folder_destroy(&folder);
}

// The first layer's projections are the same in both modes of position; only what is rotated in place differs.
static void test_importance_is_scored_before_keys_are_rotated(void **state) {
    (void)state;
    struct temp_folder folder = gqa_folder();
    heads_write(&folder, (struct heads_file){.dtype = SL_F32});
    struct run_model rotated_run = run_start(folder.path, "auto", SL_POSITION_ORIGINAL);
    struct run_model plain_run = run_start(folder.path, "auto", SL_POSITION_SLOT);
    struct log rotated = {0}, plain = {.check = true, .tolerance = 1e-4};
    read_logged(&rotated_run, &rotated, (int[]){20, 20}, 2);
    read_logged(&plain_run, &plain, (int[]){20, 20}, 2);
    assert_memory_equal(rotated.importance[0], plain.importance[0], sizeof plain.importance[0]);
    run_stop(&rotated_run);
    run_stop(&plain_run);
    temp_folder_destroy(&folder);
}

static void test_importance_is_the_same_bits_for_every_chunk_size(void **state) {
    (void)state;
    struct temp_folder folder = gqa_folder();
    heads_write(&folder, (struct heads_file){.dtype = SL_BF16});
    struct run_model whole_run = run_start(folder.path, "auto", SL_POSITION_ORIGINAL);
    struct run_model cut_run = run_start(folder.path, "auto", SL_POSITION_ORIGINAL);
    struct log whole = {0}, cut = {0};
    read_logged(&whole_run, &whole, (int[]){N_ROWS}, 1);
    read_logged(&cut_run, &cut, (int[]){1, 16, 7, 15, 1}, 5);
    assert_memory_equal(whole.importance, cut.importance, sizeof whole.importance);
    run_stop(&whole_run);
    run_stop(&cut_run);
    temp_folder_destroy(&folder);
}

// Two segments in a call: each sees its own rows, laid out for its own length.
struct pair_log {
    float importance[2][GQA_LAYERS][GQA_KV_HEADS][N_ROWS];
};

static enum sl_status log_pair(void *arg, int segment, int layer, const struct sl_attend *attend) {
    struct pair_log *log = arg;
    for (int h = 0; h < GQA_KV_HEADS; h++) {
        for (int r = 0; r < attend->m; r++) {
            log->importance[segment][layer][h][r] = attend->importance[r * GQA_KV_HEADS + h];
        }
    }
    return SL_OK;
}

static void test_importance_of_a_segment_does_not_know_its_neighbours(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct temp_folder folder = gqa_folder();
    heads_write(&folder, (struct heads_file){.dtype = SL_F32});
    struct run_model run = run_start(folder.path, "auto", SL_POSITION_ORIGINAL);
    struct sl_session *other = run_session(&run, SL_POSITION_SLOT);
    int32_t tokens[N_ROWS];
    for (int i = 0; i < N_ROWS; i++) {
        tokens[i] = run_token(i);
    }
    struct pair_log both = {0}, alone = {0};
    struct watch hook = {.fn = log_pair, .arg = &both, .wants.importance = true};
    struct sl_input segments[] = {{.session = other, .tokens = tokens + 5, .n_tokens = 9},
                                  {.session = run.session, .tokens = tokens, .n_tokens = N_ROWS}};
    assert_int_equal(watch_forward(run.engine, segments, 2, &hook, &err), SL_OK);
    struct run_model again = run_start(folder.path, "auto", SL_POSITION_ORIGINAL);
    hook.arg = &alone;
    segments[1].session = again.session;
    assert_int_equal(watch_forward(again.engine, &segments[1], 1, &hook, &err), SL_OK);
    assert_memory_equal(both.importance[1], alone.importance[0], sizeof alone.importance[0]);
    sl_session_destroy(&other);
    run_stop(&run);
    run_stop(&again);
    temp_folder_destroy(&folder);
}

static enum sl_status expect_none(void *arg, int segment, int layer, const struct sl_attend *attend) {
    (void)arg, (void)segment, (void)layer;
    assert_null(attend->importance);
    assert_null(attend->next_q);
    return SL_OK;
}

static void test_importance_is_there_only_when_wanted(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct temp_folder folder = gqa_folder();
    heads_write(&folder, (struct heads_file){.dtype = SL_F32});
    struct run_model run = run_start(folder.path, "auto", SL_POSITION_ORIGINAL);
    assert_int_equal(run_read(&run, 4, &(struct watch){.fn = expect_none}, &err), SL_OK);
    run_stop(&run);
    temp_folder_destroy(&folder);
}

static void test_importance_without_heads_names_the_file_and_the_tool(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct log log = {0};
    struct run_model run = run_start(GQA, "auto", SL_POSITION_ORIGINAL);
    struct watch hook = {.fn = log_layer, .arg = &log, .wants.importance = true};
    assert_int_equal(sl_model_get_config(run.model)->retaining_hidden, 0);
    assert_int_equal(run_read(&run, 4, &hook, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, HEADS_FILE));
    assert_non_null(strstr(err.text, "tools/convert_retaining_heads.py"));
    assert_int_equal(run.session->n_tokens, 0);
    assert_int_equal(run.session->layers[0].heads[0].n_slots, 0);
    assert_int_equal(log.n_layers_seen, 0);
    run_stop(&run);
}

// --- files ---------------------------------------------------------------------------------------------------------

// Checks that the configuration, the model and the fingerprint refuse a folder with such a file.
static void assert_refused(struct heads_file file, enum sl_status expected, const char *word, const char *second) {
    struct temp_folder folder = gqa_folder();
    struct sl_model_config config = {.n_layers = -7};
    struct sl_model *model = NULL;
    const struct sl_ops *ops;
    uint64_t fingerprint = 7;
    struct sl_error err = {0};
    heads_write(&folder, file);
    assert_int_equal(sl_ops_select("auto", &ops, &err), SL_OK);
    assert_int_equal(sl_model_config_load(folder.path, &config, &err), expected);
    assert_int_equal(config.n_layers, -7);
    if (strstr(err.text, HEADS_FILE) == NULL || strstr(err.text, word) == NULL || strstr(err.text, second) == NULL) {
        fail_msg("\"%s\" does not name %s and %s", err.text, word, second);
    }
    assert_int_equal(sl_model_load(folder.path, ops, SL_WEIGHT_STORED, sl_cpu_caller(), NULL, &model, &err), expected);
    assert_null(model);
    assert_int_equal(sl_model_fingerprint(folder.path, SL_WEIGHT_STORED, &fingerprint, &err), expected);
    assert_int_equal(fingerprint, 7);
    temp_folder_destroy(&folder);
}

static void test_heads_that_do_not_fit_are_refused_by_name(void **state) {
    (void)state;
    assert_refused((struct heads_file){.leave_out = "layers.0.w1"}, SL_ERR_INVALID, "layers.0.w1", "missing");
    assert_refused((struct heads_file){.leave_out = "layers.2.w2"}, SL_ERR_INVALID, "layers.2.w2", "[2, 21]");
    assert_refused((struct heads_file){.n_layers = 2}, SL_ERR_INVALID, "layers.2.w1", "[21, 160]");
    assert_refused((struct heads_file){.n_layers = 4}, SL_ERR_UNSUPPORTED, "layers.3.w1", "layers.0 to .2");
    assert_refused((struct heads_file){.misshape = "layers.1.w1"}, SL_ERR_INVALID, "layers.1.w1", "expected [21, 160]");
    assert_refused((struct heads_file){.narrow = "layers.0.w1"}, SL_ERR_INVALID, "layers.0.w1", "expected [21, 160]");
    assert_refused((struct heads_file){.misshape = "layers.0.w2"}, SL_ERR_INVALID, "layers.0.w2", "expected [2, 21]");
    assert_refused((struct heads_file){.extra = "layers.0.b1"}, SL_ERR_UNSUPPORTED, "layers.0.b1", "w1 and");
    assert_refused((struct heads_file){.extra = "layers.00.w1"}, SL_ERR_UNSUPPORTED, "layers.00.w1", "w1 and");
    assert_refused((struct heads_file){.dtype_name = "I32"}, SL_ERR_UNSUPPORTED, "layers.0.w1", "expected F32");
    assert_refused((struct heads_file){.cut = 3}, SL_ERR_INVALID, "truncated", "");
}

static void test_heads_with_values_that_are_not_finite_are_refused(void **state) {
    (void)state;
    const char *names[] = {"layers.1.w1", "layers.2.w2"};
    for (size_t i = 0; i < 2; i++) {
        for (enum sl_dtype dtype = SL_F32; dtype <= SL_BF16; dtype++) {
            struct temp_folder folder = gqa_folder();
            struct sl_model_config config;
            struct sl_model *model = NULL;
            const struct sl_ops *ops;
            struct sl_error err = {0};
            heads_write(&folder, (struct heads_file){.dtype = dtype, .not_finite = names[i]});
            assert_int_equal(sl_ops_select("auto", &ops, &err), SL_OK);
            assert_int_equal(sl_model_config_load(folder.path, &config, &err), SL_OK); // reads no values
            assert_int_equal(sl_model_load(folder.path, ops, SL_WEIGHT_STORED, sl_cpu_caller(), NULL, &model, &err),
                             SL_ERR_INVALID);
            assert_non_null(strstr(err.text, names[i]));
            assert_non_null(strstr(err.text, "[1, 2]"));
            assert_null(model);
            temp_folder_destroy(&folder);
        }
    }
}

static void test_config_tells_whether_there_are_heads(void **state) {
    (void)state;
    struct temp_folder folder = gqa_folder();
    struct sl_model_config config;
    struct sl_error err = {0};
    assert_int_equal(sl_model_config_load(folder.path, &config, &err), SL_OK);
    assert_int_equal(config.retaining_hidden, 0);
    heads_write(&folder, (struct heads_file){.dtype = SL_F16});
    assert_int_equal(sl_model_config_load(folder.path, &config, &err), SL_OK);
    assert_int_equal(config.retaining_hidden, HEADS_HIDDEN);
    temp_folder_destroy(&folder);
}

// --- fingerprints --------------------------------------------------------------------------------------------------

static uint64_t fingerprint(const struct temp_folder *folder) {
    uint64_t value = 0;
    struct sl_error err = {0};
    if (sl_model_fingerprint(folder->path, SL_WEIGHT_STORED, &value, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return value;
}

static void test_fingerprint_covers_heads_and_profile_where_they_are(void **state) {
    (void)state;
    struct temp_folder folder = gqa_folder();
    uint64_t bare = fingerprint(&folder);
    assert_true(bare ==
                0x6e80cbc4c582b29cu); // what it was before heads and profiles were known: stored capsules live on

    heads_write(&folder, (struct heads_file){.dtype = SL_F16});
    uint64_t f16 = fingerprint(&folder);
    heads_write(&folder, (struct heads_file){.dtype = SL_BF16});
    uint64_t bf16 = fingerprint(&folder);
    assert_true(f16 != bare && bf16 != bare && f16 != bf16);

#define PROFILE(threshold, dense)                                                                                      \
    "{\"version\": 1, \"dense_preference\": [0.7, 0.1, 0.1], \"threshold\": " threshold ", \"dense_layers\": " dense "}"
    temp_folder_write_text(&folder, "sluice_profile.json", PROFILE("0.2", "[0]"));
    uint64_t dense_0 = fingerprint(&folder);
    temp_folder_write_text(&folder, "sluice_profile.json", PROFILE("0.2", "[0, 2]"));
    uint64_t dense_02 = fingerprint(&folder);
    temp_folder_write_text(&folder, "sluice_profile.json", PROFILE("0.2", "[]"));
    uint64_t dense_none = fingerprint(&folder);
    assert_true(dense_0 != bf16 && dense_02 != bf16 && dense_none != bf16);
    assert_true(dense_0 != dense_02 && dense_0 != dense_none);
    temp_folder_write_text(&folder, "sluice_profile.json", PROFILE("0.3", "[0]")); // how the layers were found
    assert_true(fingerprint(&folder) == dense_0);
    temp_folder_destroy(&folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_importance_is_the_formula_on_projections_before_rope),
        cmocka_unit_test(test_importance_is_scored_before_keys_are_rotated),
        cmocka_unit_test(test_importance_is_the_same_bits_for_every_chunk_size),
        cmocka_unit_test(test_importance_of_a_segment_does_not_know_its_neighbours),
        cmocka_unit_test(test_importance_is_there_only_when_wanted),
        cmocka_unit_test(test_importance_without_heads_names_the_file_and_the_tool),
        cmocka_unit_test(test_heads_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(test_heads_with_values_that_are_not_finite_are_refused),
        cmocka_unit_test(test_config_tells_whether_there_are_heads),
        cmocka_unit_test(test_fingerprint_covers_heads_and_profile_where_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
