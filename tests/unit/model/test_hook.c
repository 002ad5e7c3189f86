// SPDX-License-Identifier: Apache-2.0
// Purpose: what a hook can do in the forward pass besides reading each layer: replace attention, and get the next layer's query.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "heads_file.h"
#include "engine/model/safetensors.h"
#include "run_model.h"
#include "engine/tensor/cpu/tiers.h"

#define Q_DIM  (GQA_HEADS * GQA_HEAD_DIM)
#define HIDDEN 48
#define N_ROWS 21

// --- the next layer's query ----------------------------------------------------------------------------------------

/*
 * A copy of the model in which no layer changes x: what attention and MLP add is zeroed. `same_norms`: all layers
 * normalize alike too, so that a layer's input after the norm is the next layer's as well.
 */
static struct temp_folder still_folder(bool same_norms) {
    struct temp_folder folder = gqa_folder();
    struct sl_safetensors *tensors;
    struct sl_error err = {0};
    assert_int_equal(sl_safetensors_open(GQA, &tensors, &err), SL_OK);
    size_t n;
    const struct sl_tensor *list = sl_safetensors_list(tensors, &n), *norm = NULL;
    const unsigned char *data = list[0].data;
    for (size_t i = 0; i < n; i++) {
        data = list[i].data < data ? list[i].data : data;
        norm = strcmp(list[i].name, "model.layers.0.input_layernorm.weight") == 0 ? &list[i] : norm;
    }
    assert_non_null(norm);
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", folder.path);
    FILE *file = fopen(path, "r+b");
    uint64_t header_bytes;
    assert_non_null(file);
    assert_int_equal(fread(&header_bytes, 1, 8, file), 8);
    for (size_t i = 0; i < n; i++) {
        bool zero = strstr(list[i].name, "o_proj") != NULL || strstr(list[i].name, "down_proj") != NULL;
        bool is_norm = same_norms && strstr(list[i].name, "input_layernorm") != NULL;
        assert_int_equal(fseek(file, (long)(8 + le64toh(header_bytes)) + (list[i].data - data), SEEK_SET), 0);
        for (size_t j = 0; j < list[i].bytes && (zero || is_norm); j++) {
            assert_int_not_equal(fputc(zero ? 0 : norm->data[j], file), EOF);
        }
    }
    assert_int_equal(fclose(file), 0);
    sl_safetensors_close(&tensors);
    return folder;
}

struct query_log {
    int64_t first_row;
    float q[GQA_LAYERS][N_ROWS][Q_DIM], next_q[GQA_LAYERS][N_ROWS][Q_DIM];
    bool has_next[GQA_LAYERS];
};

static enum sl_status log_queries(void *arg, int segment, int layer, const struct sl_attend *attend) {
    struct query_log *log = arg;
    (void)segment;
    size_t bytes = (size_t)attend->m * Q_DIM * sizeof(float);
    for (int r = 0; r < attend->m; r++) {
        memcpy(log->q[layer][log->first_row + r], attend->q + r * sl_attend_q_stride(attend), Q_DIM * sizeof(float));
    }
    log->has_next[layer] = attend->next_q != NULL;
    if (attend->next_q != NULL) {
        memcpy(log->next_q[layer][log->first_row], attend->next_q, bytes);
    }
    return SL_OK;
}

static struct query_log *read_queries(const char *folder, const char *tier, enum sl_position_mode mode,
                                      const int *chunks, int n_chunks) {
    struct query_log *log = calloc(1, sizeof *log);
    struct watch hook = {.fn = log_queries, .arg = log, .wants.next_q = true};
    struct sl_error err = {0};
    assert_non_null(log);
    struct run_model run = run_start(folder, tier, mode);
    for (int i = 0; i < n_chunks; i++) {
        log->first_row = run.session->n_tokens;
        assert_int_equal(run_read(&run, chunks[i], &hook, &err), SL_OK);
    }
    assert_int_equal(run.session->n_tokens, N_ROWS);
    run_stop(&run);
    return log;
}

static void test_next_q_is_the_next_layers_query_where_a_layer_changes_nothing(void **state) {
    (void)state;
    struct temp_folder folder = still_folder(true);
    for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
        for (enum sl_position_mode mode = SL_POSITION_ORIGINAL; mode <= SL_POSITION_SLOT; mode++) {
            struct query_log *log = read_queries(folder.path, *tier, mode, (int[]){13, 7, 1}, 3);
            for (int l = 0; l < GQA_LAYERS; l++) {
                assert_int_equal(log->has_next[l], l + 1 < GQA_LAYERS);
            }
            assert_memory_equal(log->next_q[0], log->q[1], sizeof log->q[1]);
            assert_memory_equal(log->next_q[1], log->q[2], sizeof log->q[2]);
            assert_memory_not_equal(log->next_q[0], log->q[0], sizeof log->q[0]);
            free(log);
        }
    }
    temp_folder_destroy(&folder);
}

// The tensor's f32 elements.
static void read_f32(const struct sl_safetensors *tensors, const char *name, int n_dims, int64_t rows, int64_t columns,
                     float *out) {
    const struct sl_tensor *tensor;
    struct sl_error err = {0};
    if (sl_safetensors_find(tensors, name, n_dims, rows, columns, &tensor, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(tensor->dtype, SL_F32);
    memcpy(out, tensor->data, tensor->bytes);
}

// x is the embedding in every layer: next_q of layer 0 is W_q(1) on x as layer 0 (and not layer 1) normalizes it.
static void test_next_q_projects_this_layers_normalized_input(void **state) {
    (void)state;
    static float embedding[160 * HIDDEN], norm[HIDDEN], w_q[Q_DIM * HIDDEN];
    struct temp_folder folder = still_folder(false);
    struct sl_safetensors *tensors;
    struct sl_error err = {0};
    assert_int_equal(sl_safetensors_open(folder.path, &tensors, &err), SL_OK);
    read_f32(tensors, "model.embed_tokens.weight", 2, 160, HIDDEN, embedding);
    read_f32(tensors, "model.layers.0.input_layernorm.weight", 1, HIDDEN, 0, norm);
    read_f32(tensors, "model.layers.1.self_attn.q_proj.weight", 2, Q_DIM, HIDDEN, w_q);
    sl_safetensors_close(&tensors);
    struct query_log *log = read_queries(folder.path, "auto", SL_POSITION_SLOT, (int[]){N_ROWS}, 1); // without RoPE
    double off = 0.0;
    for (int r = 0; r < N_ROWS; r++) {
        const float *x = embedding + (int64_t)run_token(r) * HIDDEN;
        double squares = 0.0;
        for (int i = 0; i < HIDDEN; i++) {
            squares += (double)x[i] * (double)x[i];
        }
        for (int j = 0; j < Q_DIM; j++) {
            double q = 0.0;
            for (int i = 0; i < HIDDEN; i++) {
                q += (double)x[i] / sqrt(squares / HIDDEN + 1e-5) * (double)norm[i] * (double)w_q[j * HIDDEN + i];
            }
            assert_true(fabs(q - (double)log->next_q[0][r][j]) < 1e-4 * (1.0 + fabs(q)));
            off += fabs(q - (double)log->q[1][r][j]);
        }
    }
    assert_true(off / (N_ROWS * Q_DIM) > 0.05); // the two norms differ: it is not simply the next layer's query
    free(log);
    temp_folder_destroy(&folder);
}

static void test_next_q_is_the_same_bits_for_every_chunk_size(void **state) {
    (void)state;
    struct query_log *whole = read_queries(GQA, "auto", SL_POSITION_ORIGINAL, (int[]){N_ROWS}, 1);
    struct query_log *cut = read_queries(GQA, "auto", SL_POSITION_ORIGINAL, (int[]){1, 9, 10, 1}, 4);
    assert_memory_equal(whole->next_q, cut->next_q, sizeof whole->next_q);
    free(whole);
    free(cut);
}

// In a call of two segments each sees its own rows: those of the second do not begin where the first one's do.
static enum sl_status log_second(void *arg, int segment, int layer, const struct sl_attend *attend) {
    return segment == 1 ? log_queries(arg, segment, layer, attend) : SL_OK;
}

static void test_next_q_of_a_segment_is_of_its_own_rows(void **state) {
    (void)state;
    struct query_log *alone = read_queries(GQA, "auto", SL_POSITION_ORIGINAL, (int[]){N_ROWS}, 1);
    struct query_log *second = calloc(1, sizeof *second);
    struct watch hook = {.fn = log_second, .arg = second, .wants.next_q = true};
    struct sl_error err = {0};
    int32_t tokens[N_ROWS + 7];
    assert_non_null(second);
    for (int i = 0; i < N_ROWS + 7; i++) {
        tokens[i] = run_token(i);
    }
    for (enum sl_position_mode mode = SL_POSITION_ORIGINAL; mode <= SL_POSITION_SLOT; mode++) {
        struct run_model run = run_start(GQA, "auto", SL_POSITION_ORIGINAL);
        struct sl_session *first = run_session(&run, mode);
        struct sl_input segments[] = {{.session = first, .tokens = tokens + 7, .n_tokens = 11},
                                      {.session = run.session, .tokens = tokens, .n_tokens = N_ROWS}};
        assert_int_equal(watch_forward(run.engine, segments, 2, &hook, &err), SL_OK);
        assert_memory_equal(alone->next_q, second->next_q, sizeof alone->next_q);
        sl_session_destroy(&first);
        run_stop(&run);
    }
    free(alone);
    free(second);
}

// --- another attention ---------------------------------------------------------------------------------------------

struct attend_log {
    const struct sl_ops *ops;
    int n_segments, n_attended, n_seen, fail_at_layer;
    bool double_out;
};

static enum sl_status attend_instead(void *arg, int layer, const struct sl_attend *attends, int n_segments) {
    struct attend_log *log = arg;
    const struct sl_attend *attend = &attends[n_segments - 1];
    assert_int_equal(n_segments, log->n_segments);
    assert_int_equal(log->n_attended * n_segments, log->n_seen); // before fn
    log->n_attended++;
    if (layer == log->fail_at_layer) {
        return SL_ERR_CANCELLED;
    }
    log->ops->attend(NULL, attends, n_segments);
    for (int64_t i = 0; i < (int64_t)attend->m * Q_DIM && log->double_out; i++) {
        attend->out[i] *= 2.0f;
    }
    return SL_OK;
}

static enum sl_status see_layer(void *arg, int segment, int layer, const struct sl_attend *attend) {
    struct attend_log *log = arg;
    (void)segment, (void)layer, (void)attend;
    log->n_seen++;
    assert_int_equal(log->n_attended, (log->n_seen + log->n_segments - 1) / log->n_segments);
    return SL_OK;
}

static void read_logits(struct attend_log *log, bool instead, float *logits) {
    struct run_model run = run_start(GQA, "auto", SL_POSITION_ORIGINAL);
    struct sl_error err = {0};
    struct watch hook = {.fn = see_layer, .arg = log, .attend_fn = attend_instead};
    int32_t tokens[N_ROWS];
    log->ops = run.ops;
    log->fail_at_layer = -1;
    log->n_segments = 1;
    for (int i = 0; i < N_ROWS; i++) {
        tokens[i] = run_token(i);
    }
    struct sl_input segment = {.session = run.session, .tokens = tokens, .n_tokens = N_ROWS, .logits = logits};
    assert_int_equal(watch_forward(run.engine, &segment, 1, instead ? &hook : NULL, &err), SL_OK);
    run_stop(&run);
}

static void test_attend_fn_takes_the_place_of_attention(void **state) {
    (void)state;
    float plain[160], same[160], doubled[160];
    struct attend_log log = {0};
    read_logits(&log, false, plain);
    assert_int_equal(log.n_attended, 0);
    read_logits(&log, true, same);
    assert_int_equal(log.n_attended, GQA_LAYERS);
    assert_int_equal(log.n_seen, GQA_LAYERS);
    assert_memory_equal(plain, same, sizeof plain);
    log = (struct attend_log){.double_out = true};
    read_logits(&log, true, doubled); // what it writes is what goes on
    assert_memory_not_equal(plain, doubled, sizeof plain);
}

// Both segments come in one call, before either is handed to fn.
static void test_attend_fn_is_called_once_a_layer_for_all_segments(void **state) {
    (void)state;
    float plain[2][160], hooked[2][160];
    int32_t tokens[N_ROWS];
    for (int i = 0; i < N_ROWS; i++) {
        tokens[i] = run_token(i);
    }
    for (int with_hook = 0; with_hook <= 1; with_hook++) {
        struct run_model run = run_start(GQA, "auto", SL_POSITION_ORIGINAL);
        struct attend_log log = {.ops = run.ops, .n_segments = 2, .fail_at_layer = -1};
        struct watch hook = {.fn = see_layer, .arg = &log, .attend_fn = attend_instead};
        struct sl_session *first = run_session(&run, SL_POSITION_ORIGINAL);
        float(*logits)[160] = with_hook ? hooked : plain;
        struct sl_input segments[] = {
            {.session = first, .tokens = tokens + 7, .n_tokens = 11, .logits = logits[0]},
            {.session = run.session, .tokens = tokens, .n_tokens = N_ROWS, .logits = logits[1]}};
        struct sl_error err = {0};
        assert_int_equal(watch_forward(run.engine, segments, 2, with_hook ? &hook : NULL, &err), SL_OK);
        assert_int_equal(log.n_attended, with_hook * GQA_LAYERS);
        assert_int_equal(log.n_seen, with_hook * 2 * GQA_LAYERS);
        sl_session_destroy(&first);
        run_stop(&run);
    }
    assert_memory_equal(plain, hooked, sizeof plain);
}

static void test_attend_fn_that_fails_ends_the_pass(void **state) {
    (void)state;
    struct run_model run = run_start(GQA, "auto", SL_POSITION_ORIGINAL);
    struct attend_log log = {.ops = run.ops, .n_segments = 1, .fail_at_layer = 1};
    struct watch hook = {.fn = see_layer, .arg = &log, .attend_fn = attend_instead};
    struct sl_error err = {0};
    assert_int_equal(run_read(&run, 5, &hook, &err), SL_ERR_CANCELLED);
    assert_int_equal(log.n_attended, 2);
    assert_int_equal(log.n_seen, 1);
    assert_int_equal(run.session->n_tokens, 0);
    run_stop(&run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_next_q_is_the_next_layers_query_where_a_layer_changes_nothing),
        cmocka_unit_test(test_next_q_projects_this_layers_normalized_input),
        cmocka_unit_test(test_next_q_is_the_same_bits_for_every_chunk_size),
        cmocka_unit_test(test_next_q_of_a_segment_is_of_its_own_rows),
        cmocka_unit_test(test_attend_fn_takes_the_place_of_attention),
        cmocka_unit_test(test_attend_fn_is_called_once_a_layer_for_all_segments),
        cmocka_unit_test(test_attend_fn_that_fails_ends_the_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
