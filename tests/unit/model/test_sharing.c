// SPDX-License-Identifier: Apache-2.0
// Purpose: models that share their packed weights have the bytes that each of them would pack, and only while the files,
// the format and the tier are the same.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sys/stat.h>

#include "engine/model/model.h"
#include "engine/model/model_internal.h"
#include "engine/tensor/cpu/device.h"
#include "engine/tensor/cpu/tiers.h"
#include "engine/tensor/shared_users.h"
#include "engine/tensor/shared_weights.h"
#include "tests/unit/needs_sharing.h"
#include "tests/unit/temp_folder.h"

#define GQA "tests/golden/llama/gqa"
#define MHA "tests/golden/llama/mha" // with a head of its own

static const struct sl_ops *ops_of(const char *tier) {
    const struct sl_ops *ops;
    assert_int_equal(sl_ops_select(tier, &ops, NULL), SL_OK);
    return ops;
}

// A copy of the model for this test alone: other processes on this machine may share the original.
static struct temp_folder copy_model(void) {
    struct temp_folder folder = temp_folder_create();
    temp_folder_copy(&folder, GQA, "config.json");
    temp_folder_copy(&folder, GQA, "model.safetensors");
    return folder;
}

static struct sl_model *load_shared(const struct temp_folder *folder, const struct sl_ops *ops,
                                    enum sl_weight_format format) {
    struct sl_model *model = NULL;
    struct sl_model_progress progress = {0};
    struct sl_error err;
    if (sl_model_load_shared(folder->path, ops, format, sl_cpu_caller(), &progress, &model, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    struct sl_tensor_source spare = {.bytes = 0}; // a head that tied embeddings do not need
    if (model->config.tied_embeddings) {
        (void)sl_tensors_find(model->tensors, "lm_head.weight", 2, model->config.n_vocab, model->config.hidden, &spare,
                              NULL);
    }
    assert_int_equal(atomic_load(&progress.done_bytes) + spare.bytes, atomic_load(&progress.total_bytes));
    return model;
}

static const struct sl_matrix *matrix_of(const struct sl_model *model, int i) {
    const struct sl_model_layer *layer = &model->layers[i / SL_N_LAYER_MATRICES];
    const struct sl_matrix *matrices[] = {&layer->qkv, &layer->o, &layer->up, &layer->down};
    return i == model->config.n_layers * SL_N_LAYER_MATRICES ? &model->head : matrices[i % SL_N_LAYER_MATRICES];
}

static void assert_same_weights(const struct sl_model *a, const struct sl_model *b) {
    for (int i = 0; i <= a->config.n_layers * SL_N_LAYER_MATRICES; i++) {
        const struct sl_matrix *in_a = matrix_of(a, i), *in_b = matrix_of(b, i);
        assert_int_equal(in_a->packed_bytes, in_b->packed_bytes);
        assert_int_equal(in_a->in_two_terms, in_b->in_two_terms);
        assert_int_equal(in_a->packed == NULL, in_b->packed == NULL);
        assert_true(in_a->packed == NULL || memcmp(in_a->packed, in_b->packed, in_a->packed_bytes) == 0);
        assert_true(!sl_matrix_reads_parts(in_b) || in_b->parts[0].data != NULL);
    }
}

static void test_shared_models_have_the_bytes_of_private_ones(void **state) {
    skip_without_sharing();
    struct temp_folder folder = copy_model();
    (void)state;
    for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
        for (int format = SL_WEIGHT_STORED; format <= SL_WEIGHT_INT4; format++) {
            struct sl_model *own = NULL;
            enum sl_weight_format as = (enum sl_weight_format)format;
            assert_int_equal(sl_model_load(folder.path, ops_of(*tier), as, sl_cpu_caller(), NULL, &own, NULL), SL_OK);
            struct sl_model *first = load_shared(&folder, ops_of(*tier), as);
            struct sl_model *second = load_shared(&folder, ops_of(*tier), as);
            assert_false(sl_shared_weights_are_ready(first->shared));
            assert_true(sl_shared_weights_are_ready(second->shared));
            assert_same_weights(own, first);
            assert_same_weights(own, second);
            assert_int_equal(sl_model_memory_bytes(second), sl_model_memory_bytes(own));
            assert_int_equal(sl_model_weight_bytes(second), sl_model_weight_bytes(own));
            sl_model_destroy(&first);
            assert_same_weights(own, second);
            sl_model_destroy(&second);
            sl_model_destroy(&own);
        }
    }
    temp_folder_destroy(&folder);
}

static void test_models_that_differ_do_not_share(void **state) {
    skip_without_sharing();
    struct temp_folder folder = copy_model(), other = copy_model();
    char path[96];
    (void)state;
    struct sl_model *first = load_shared(&folder, ops_of("auto"), SL_WEIGHT_STORED);
    assert_non_null(first->shared);
    struct sl_model *models[] = {load_shared(&folder, ops_of("auto"), SL_WEIGHT_INT8),
                                 load_shared(&folder, ops_of("reference"), SL_WEIGHT_STORED),
                                 load_shared(&other, ops_of("auto"), SL_WEIGHT_STORED)};
    for (size_t i = 0; i < 3; i++) {
        assert_false(sl_shared_weights_are_ready(models[i]->shared));
        sl_model_destroy(&models[i]);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder.path);
    assert_int_equal(chmod(path, 0640), 0); // a change, of whatever
    models[0] = load_shared(&folder, ops_of("auto"), SL_WEIGHT_STORED);
    assert_false(sl_shared_weights_are_ready(models[0]->shared));
    sl_model_destroy(&models[0]);
    sl_model_destroy(&first);
    temp_folder_destroy(&folder);
    temp_folder_destroy(&other);
}

// Copies config.json of a model with a head of its own. Tied: the embedding of the same files is the head.
static void write_config(const struct temp_folder *folder, bool tied) {
    static const char own[] = "\"tie_word_embeddings\": false";
    char text[8192] = "";
    FILE *file = fopen(MHA "/config.json", "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    char *at = strstr(text, own);
    assert_non_null(at);
    if (tied) {
        memcpy(at, "\"tie_word_embeddings\": true ", sizeof own - 1);
    }
    temp_folder_write_text(folder, "config.json", text);
}

static void assert_head_is_own(const struct temp_folder *folder, bool tied) {
    struct sl_model *own = NULL;
    assert_int_equal(sl_model_load(folder->path, ops_of("auto"), SL_WEIGHT_INT8, sl_cpu_caller(), NULL, &own, NULL),
                     SL_OK);
    assert_int_equal(own->config.tied_embeddings, tied);
    struct sl_model *shared = load_shared(folder, ops_of("auto"), SL_WEIGHT_INT8);
    assert_false(sl_shared_weights_are_ready(shared->shared));
    assert_same_weights(own, shared);
    sl_model_destroy(&shared);
    sl_model_destroy(&own);
}

// Two configurations make two models of the same files, whose matrices have the same shapes.
static void test_models_of_the_same_files_and_two_configurations_do_not_share(void **state) {
    skip_without_sharing();
    struct temp_folder folder = temp_folder_create(), other = temp_folder_create();
    static const char *const files[] = {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors", "model.safetensors.index.json"};
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char from[128], to[128];
        temp_folder_copy(&folder, MHA, files[i]);
        snprintf(from, sizeof from, "%s/%s", folder.path, files[i]);
        snprintf(to, sizeof to, "%s/%s", other.path, files[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    write_config(&folder, false);
    write_config(&other, true);
    struct sl_model *first = load_shared(&folder, ops_of("auto"), SL_WEIGHT_INT8);
    assert_non_null(first->shared);
    assert_head_is_own(&other, true);
    write_config(&folder, true); // an edit while the model is in use
    assert_head_is_own(&folder, true);
    write_config(&folder, false);
    struct sl_model *second = load_shared(&folder, ops_of("auto"), SL_WEIGHT_INT8);
    assert_true(sl_shared_weights_are_ready(second->shared));
    sl_model_destroy(&second);
    sl_model_destroy(&first);
    temp_folder_destroy(&other);
    temp_folder_destroy(&folder);
}

// Weights under the right key that are of other matrices, as by a tier that packs in another way.
static void test_a_model_packs_itself_where_shared_weights_do_not_fit(void **state) {
    skip_without_sharing();
    struct temp_folder folder = copy_model();
    struct sl_ops ops = *ops_of("reference");
    (void)state;
    ops.name = ops_of("auto")->name;
    struct sl_model *first = load_shared(&folder, ops_of("auto"), SL_WEIGHT_STORED);
    assert_non_null(first->shared);
    struct sl_model *second = load_shared(&folder, &ops, SL_WEIGHT_STORED);
    assert_null(second->shared);
    assert_true(sl_matrix_reads_parts(&second->head));
    sl_model_destroy(&second);
    sl_model_destroy(&first);
    second = load_shared(&folder, &ops, SL_WEIGHT_STORED); // the other way round: it packs nothing
    first = load_shared(&folder, ops_of("auto"), SL_WEIGHT_STORED);
    assert_null(first->shared);
    assert_non_null(first->head.packed);
    sl_model_destroy(&second);
    sl_model_destroy(&first);
    temp_folder_destroy(&folder);
}

// --- progress --------------------------------------------------------------------------------------------------------

#define KEY  0x5eedU
#define SIDE 96

// Reads the progress as a process that waits does.
static bool read_done(void *arg, int fd) {
    return pread(fd, arg, sizeof(uint64_t), 64) == sizeof(uint64_t);
}

static uint64_t done_bytes(const char *folder) {
    struct sl_shared_list list;
    uint64_t done = 0;
    assert_int_equal(sl_shared_list_open(&list, folder, KEY, NULL), SL_OK);
    int fd = sl_shared_list_find(&list, read_done, &done);
    assert_true(fd >= 0);
    close(fd);
    return done;
}

// Processes that wait see progress while a matrix is packed, and before, while its rows are made.
static void test_progress_moves_within_a_matrix(void **state) {
    (void)state;
    static const float rows[SIDE * SIDE];
    struct temp_folder model_folder = copy_model(), parent = temp_folder_create();
    char folder[96];
    struct sl_tensor_source source;
    struct sl_rows made;
    struct sl_model *model = NULL;
    struct sl_shared_weights *shared = NULL;
    snprintf(folder, sizeof folder, "%s/users", parent.path);
    const struct sl_shared_weights_config config = {
        .folder = folder, .key = KEY, .room_bytes = 1 << 26, .max_matrices = 100, .small_pages = true};
    assert_int_equal(sl_shared_weights_open(&config, &shared, NULL), SL_OK);
    for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
        for (int format = SL_WEIGHT_STORED; format <= SL_WEIGHT_CODES; format++) {
            enum sl_dtype dtype = format == SL_WEIGHT_CODES ? SL_Q8_0 : SL_F32;
            if (format == SL_WEIGHT_CODES && !ops_of(*tier)->keeps_codes) {
                continue;
            }
            struct sl_matrix matrix = {.n = SIDE,
                                       .k = SIDE,
                                       .dtype = dtype,
                                       .format = (enum sl_weight_format)format,
                                       .parts = {{rows, SIDE, dtype}},
                                       .shared = shared};
            uint64_t before = done_bytes(folder);
            assert_int_equal(ops_of(*tier)->pack(sl_cpu_caller(), &matrix, NULL), SL_OK);
            assert_true(matrix.packed == NULL || done_bytes(folder) > before + 1);
            ops_of(*tier)->unpack(&matrix);
        }
    }
    assert_int_equal(
        sl_model_load(model_folder.path, ops_of("auto"), SL_WEIGHT_STORED, sl_cpu_caller(), NULL, &model, NULL), SL_OK);
    assert_int_equal(sl_tensors_find(model->tensors, "model.embed_tokens.weight", 2, model->config.n_vocab,
                                     model->config.hidden, &source, NULL),
                     SL_OK);
    uint64_t before = done_bytes(folder);
    sl_tensors_tell(model->tensors, shared);
    assert_int_equal(sl_tensors_read(model->tensors, &source, SL_BF16, sl_cpu_caller(), &made, NULL), SL_OK);
    assert_true(done_bytes(folder) > before + 1);
    sl_tensors_release(model->tensors, &source, &made);
    sl_model_destroy(&model);
    sl_shared_weights_close(&shared);
    assert_int_equal(rmdir(parent.path), 0);
    temp_folder_destroy(&model_folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_models_have_the_bytes_of_private_ones),
        cmocka_unit_test(test_models_that_differ_do_not_share),
        cmocka_unit_test(test_models_of_the_same_files_and_two_configurations_do_not_share),
        cmocka_unit_test(test_progress_moves_within_a_matrix),
        cmocka_unit_test(test_a_model_packs_itself_where_shared_weights_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
