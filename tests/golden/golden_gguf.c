// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: GGUF files against the folders that they were made from, or that were made of them (tools/golden_gguf.py, whose
 *          folder is the argument): numbers of every type, logits of every family, tokenizers.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model_internal.h"
#include "engine/tensor/weights.h"
#include "tests/unit/model/run_model.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"

#define N_TOKENS  40
#define MAX_VOCAB 64

static const char *made; // the folder of the files

static const struct {
    const char *name;
    bool is_exact; // becomes codes, or is what it is: nothing is rounded
} types[] = {
    {"F32", true},   {"F16", true},   {"BF16", true}, {"Q8_0", true},  {"Q4_0", true},  {"Q4_1", false}, {"Q5_0", true},
    {"Q5_1", false}, {"Q2_K", false}, {"Q3_K", true}, {"Q4_K", false}, {"Q5_K", false}, {"Q6_K", false},
};
#define N_TYPES (sizeof types / sizeof types[0])

static const char *path_of(char path[256], const char *folder, const char *name, const char *suffix) {
    assert_true((size_t)snprintf(path, 256, "%s/%s/%s%s", made, folder, name, suffix) < 256);
    return path;
}

// --- numbers ---------------------------------------------------------------------------------------------------------

static struct sl_tensors *open_tensors(const char *model, struct sl_model_config *config) {
    struct sl_tensors *tensors = NULL;
    struct sl_error err = {0};
    if (sl_model_config_load(model, config, &err) != SL_OK || sl_tensors_open(model, config, &tensors, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return tensors;
}

static void read_numbers(struct sl_tensors *tensors, const char *name, int64_t rows, int64_t columns,
                         enum sl_dtype dtype, struct sl_tensor_source *source_out, struct sl_rows *rows_out) {
    assert_int_equal(sl_tensors_find(tensors, name, 2, rows, columns, source_out, NULL), SL_OK);
    assert_int_equal(sl_tensors_read(tensors, source_out, dtype, NULL, rows_out, NULL), SL_OK);
}

// Checks the rows as the type that products take.
static void check_rows(struct sl_tensors *file, const struct sl_tensor_source *source, const struct sl_rows *should,
                       int64_t rows, int64_t columns, enum sl_dtype widened, bool is_exact) {
    struct sl_rows is;
    enum sl_dtype dtype = sl_sources_type(source, 1, widened, SL_WEIGHT_STORED);
    assert_true(is_exact || dtype == widened);
    assert_int_equal(sl_tensors_read(file, source, dtype, NULL, &is, NULL), SL_OK);
    for (int64_t j = 0; j < rows * columns; j++) {
        const unsigned char *row =
            (const unsigned char *)is.data + (size_t)(j / columns) * sl_dtype_row_bytes(dtype, columns);
        float expected = sl_weight_element(should->data, SL_F32, j), x = sl_weight_element(row, dtype, j % columns);
        float rounded =
            dtype == SL_F16 ? sl_f16_to_f32(sl_f32_to_f16(expected)) : sl_bf16_to_f32(sl_f32_to_bf16(expected));
        assert_true(x == (is_exact ? expected : rounded));
    }
    sl_tensors_release(file, source, &is);
}

static void check_type(const char *name, bool is_exact) {
    static const struct {
        const char *name;
        int64_t rows, columns;
    } matrices[] = {{"model.embed_tokens.weight", 32, 256},
                    {"model.layers.0.self_attn.q_proj.weight", 256, 256},
                    {"model.layers.0.self_attn.k_proj.weight", 128, 256},
                    {"model.layers.0.mlp.down_proj.weight", 256, 256}};
    char path[256];
    struct sl_model_config config;
    struct sl_tensors *folder = open_tensors(path_of(path, "types", name, ""), &config);
    struct sl_tensors *file = open_tensors(path_of(path, "types", name, ".gguf"), &config);
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
        struct sl_tensor_source there, here;
        struct sl_rows should, is;
        int64_t rows = matrices[i].rows, columns = matrices[i].columns;
        read_numbers(folder, matrices[i].name, rows, columns, SL_F32, &there, &should);
        read_numbers(file, matrices[i].name, rows, columns, SL_F32, &here, &is);
        assert_memory_equal(is.data, should.data, (size_t)(rows * columns) * sizeof(float));
        sl_tensors_release(file, &here, &is);
        check_rows(file, &here, &should, rows, columns, SL_F16, is_exact);
        check_rows(file, &here, &should, rows, columns, SL_BF16, is_exact);
    }
    sl_tensors_close(&folder);
    sl_tensors_close(&file);
}

static void test_every_type_gives_the_numbers_of_its_formula(void **state) {
    (void)state;
    for (size_t i = 0; i < N_TYPES; i++) {
        check_type(types[i].name, types[i].is_exact);
    }
}

// --- logits ----------------------------------------------------------------------------------------------------------

// Logits of a prompt, whole.
static void read_prompt(const char *model, int rope_set, float *logits_out) {
    struct run_model f = run_start(model, "reference", SL_POSITION_ORIGINAL);
    int64_t n_vocab = sl_model_get_config(f.model)->n_vocab;
    int32_t tokens[N_TOKENS];
    struct sl_error err = {0};
    assert_true(n_vocab <= MAX_VOCAB);
    f.session->rope_set = rope_set;
    for (int i = 0; i < N_TOKENS; i++) {
        tokens[i] = (int32_t)((i * 37 + 11) % n_vocab);
    }
    struct sl_input segment = {.session = f.session, .tokens = tokens, .n_tokens = N_TOKENS, .all_logits = logits_out};
    if (sl_engine_forward(f.engine, &segment, 1, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    run_stop(&f);
}

static void check_logits(const char *file, const char *folder, int rope_set, float tolerance) {
    static float is[N_TOKENS * MAX_VOCAB], should[N_TOKENS * MAX_VOCAB];
    memset(is, 0, sizeof is);
    memset(should, 0, sizeof should);
    read_prompt(file, rope_set, is);
    read_prompt(folder, rope_set, should);
    float worst = 0.0f, largest = 0.0f;
    for (size_t i = 0; i < sizeof is / sizeof is[0]; i++) {
        worst = fmaxf(worst, isnan(is[i]) ? INFINITY : fabsf(is[i] - should[i]));
        largest = fmaxf(largest, fabsf(should[i]));
    }
    print_message("%s: largest error of a logit %.2g of %.2g\n", file, worst, largest);
    assert_true(worst <= tolerance * largest && largest > 0.0f);
}

static const char *const families[] = {"llama", "mistral", "qwen2", "qwen3", "phi3", "phi3_longrope", "falcon"};
#define N_FAMILIES (sizeof families / sizeof families[0])

// The folders' own are held to Transformers' (golden_models.c).
static void test_logits_of_families_are_those_of_their_folders(void **state) {
    (void)state;
    for (size_t i = 0; i < N_FAMILIES; i++) {
        char file[256], folder[256];
        snprintf(folder, sizeof folder, "tests/golden/families/%s", families[i]);
        for (int set = 0; set < SL_MAX_ROPE_SETS; set++) {
            check_logits(path_of(file, "families", families[i], ".gguf"), folder, set, 1e-6f);
        }
    }
}

// Products with codes round activations to bytes, and offsets of random blocks are as large as what they are taken from: a wrong number changes
// logits by more than half of the largest. tests/kernels hold the rounding itself to its formula.
static void test_logits_of_types_are_those_of_their_numbers(void **state) {
    char file[256], folder[256];
    (void)state;
    for (size_t i = 0; i < N_TYPES; i++) {
        check_logits(path_of(file, "types", types[i].name, ".gguf"),
                     path_of(folder, "types", types[i].name, ".rounded"), 0, 5e-2f);
    }
    check_logits(path_of(file, "types", "mixed", ".gguf"), path_of(folder, "types", "mixed", ".rounded"), 0, 5e-2f);
}

static double weight_error(const char *model, enum sl_weight_format format) {
    const struct sl_ops *ops;
    struct sl_model *loaded = NULL;
    struct sl_error err = {0};
    double error = -1.0;
    assert_int_equal(sl_ops_select("reference", &ops, &err), SL_OK);
    assert_int_equal(sl_model_load(model, ops, SL_WEIGHT_STORED, sl_cpu_caller(), NULL, &loaded, &err), SL_OK);
    assert_int_equal(sl_model_weight_error(loaded, format, NULL, &error, &err), SL_OK);
    sl_model_destroy(&loaded);
    return error;
}

static void test_codes_of_files_are_kept(void **state) {
    char path[256];
    (void)state;
    assert_true(weight_error(path_of(path, "types", "Q8_0", ".gguf"), SL_WEIGHT_INT8) == 0.0);
    assert_true(weight_error(path_of(path, "types", "Q4_0", ".gguf"), SL_WEIGHT_INT4) == 0.0);
    assert_true(weight_error(path_of(path, "types", "Q4_0", ".gguf"), SL_WEIGHT_INT8) == 0.0);
    assert_true(weight_error(path_of(path, "types", "Q3_K", ".gguf"), SL_WEIGHT_INT8) == 0.0);
    assert_true(weight_error(path_of(path, "types", "Q8_0", ".gguf"), SL_WEIGHT_INT4) > 1e-4);
    // of what is rounded anyway, the numbers: once
    assert_true(weight_error(path_of(path, "types", "Q4_K", ".gguf"), SL_WEIGHT_INT4) ==
                weight_error(path_of(path, "types", "Q4_K", ""), SL_WEIGHT_INT4));
}

static struct sl_model *load_reference(const char *path, enum sl_weight_format format) {
    const struct sl_ops *ops;
    struct sl_model *model = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_ops_select("reference", &ops, &err), SL_OK);
    if (sl_model_load(path, ops, format, sl_cpu_caller(), NULL, &model, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return model;
}

// A head that is the embedding has the codes of one that is a tensor of its own. Rows that were made for lookup are counted; a file's codes
// are read where it is mapped.
static void test_tied_heads_are_rounded_once(void **state) {
    const size_t rows_bytes = 32 * 256 * sizeof(uint16_t), head_bytes = 32 * 144;
    (void)state;
    for (int format = SL_WEIGHT_STORED; format <= SL_WEIGHT_INT4; format++) {
        char path[256];
        struct sl_model *tied = load_reference(path_of(path, "types", "tied", ".gguf"), format);
        struct sl_model *untied = load_reference(path_of(path, "types", "untied", ".gguf"), format);
        size_t rows_made = format == SL_WEIGHT_STORED ? 0 : rows_bytes;
        assert_int_equal(tied->head.packed_bytes, untied->head.packed_bytes);
        assert_true(tied->head.packed_bytes >= 32 * 256 / 2);
        assert_memory_equal(tied->head.packed, untied->head.packed, tied->head.packed_bytes);
        assert_int_equal(sl_model_embedding_bytes(untied), rows_made);
        assert_int_equal(sl_model_embedding_bytes(tied), rows_made);
        assert_int_equal(sl_model_memory_bytes(untied), sl_model_memory_bytes(tied));
        assert_int_equal(sl_model_weight_bytes(untied) - sl_model_weight_bytes(tied), head_bytes);
        sl_model_destroy(&tied);
        sl_model_destroy(&untied);
    }
}

static void test_fingerprint_sees_file_and_format(void **state) {
    uint64_t numbers[4];
    char path[256];
    (void)state;
    path_of(path, "types", "Q8_0", ".gguf");
    assert_int_equal(sl_model_fingerprint(path, SL_WEIGHT_STORED, &numbers[0], NULL), SL_OK);
    assert_int_equal(sl_model_fingerprint(path, SL_WEIGHT_INT4, &numbers[1], NULL), SL_OK);
    path_of(path, "types", "Q4_0", ".gguf");
    assert_int_equal(sl_model_fingerprint(path, SL_WEIGHT_STORED, &numbers[2], NULL), SL_OK);
    assert_int_equal(sl_model_fingerprint(path, SL_WEIGHT_STORED, &numbers[3], NULL), SL_OK);
    assert_true(numbers[0] != numbers[1] && numbers[0] != numbers[2] && numbers[2] == numbers[3]);
}

// --- tokenizers ------------------------------------------------------------------------------------------------------

static uint64_t tokenizer_of(const char *model) {
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_chat_template *chat_template = NULL;
    struct sl_error err = {0};
    if (sl_tokenizer_load(model, &tokenizer, &err) != SL_OK ||
        sl_chat_template_load(model, &chat_template, &err) != SL_OK) {
        fail_msg("%s: %s", model, err.text);
    }
    uint64_t fingerprint = sl_tokenizer_fingerprint(tokenizer); // of all that decides which ids a text gets
    sl_chat_template_destroy(&chat_template);
    sl_tokenizer_destroy(&tokenizer);
    return fingerprint;
}

static void test_tokenizers_are_those_of_their_folders(void **state) {
    static const char *const names[] = {"gpt2", "llama3", "qwen2", "falcon"};
    char path[256];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        uint64_t folder = tokenizer_of(path_of(path, "tokenizers", names[i], ""));
        print_message("%s\n", names[i]);
        assert_true(tokenizer_of(path_of(path, "tokenizers", names[i], ".gguf")) == folder);
    }
}

// --- whole models ------------------------------------------------------------------------------------------------------

static bool is_end(const struct sl_model_config *config, int32_t id) {
    for (int i = 0; i < config->ends.n; i++) {
        if (config->ends.ids[i] == id) {
            return true;
        }
    }
    return false;
}

// Compares what decides an answer beside the logits.
static void check_settings(const char *file, const char *folder) {
    struct sl_model_config is, should;
    struct sl_error err = {0};
    if (sl_model_config_load(file, &is, &err) != SL_OK || sl_model_config_load(folder, &should, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(is.n_vocab, should.n_vocab);
    assert_int_equal(is.max_positions, should.max_positions);
    assert_int_equal(is.bos_id, should.bos_id);
    assert_int_equal(is.ends.n, 2); // of the text, by config.json, and of the turn, by the tokenizer
    for (int32_t id = 0; id < is.n_vocab; id++) {
        assert_int_equal(is_end(&is, id), is_end(&should, id));
    }
    assert_true(is.sampling.has_temperature && is.sampling.temperature == should.sampling.temperature);
    assert_true(is.sampling.top_k == 20 && should.sampling.top_k == 20);
    assert_true(is.sampling.top_p == should.sampling.top_p && is.sampling.min_p == should.sampling.min_p);
    assert_true(is.sampling.repetition_penalty == should.sampling.repetition_penalty);
    assert_string_equal(is.sampling.left_out, should.sampling.left_out);
}

// Writes the ids of a chat, as a job has them.
static size_t ids_of(const char *model, int32_t **ids_out) {
    static const struct sl_chat_message messages[] = {{"user", "the In, thing"}, {"assistant", "<|im_end|>then."}};
    const struct sl_chat chat = {.messages = messages, .n_messages = 2};
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_chat_template *chat_template = NULL;
    struct sl_error err = {0};
    char *text = NULL;
    size_t n = 0;
    if (sl_tokenizer_load(model, &tokenizer, &err) != SL_OK ||
        sl_chat_template_load(model, &chat_template, &err) != SL_OK ||
        sl_chat_template_render(chat_template, &chat, &text, &err) != SL_OK ||
        sl_tokenizer_encode(tokenizer, text, strlen(text), true, ids_out, &n, &err) != SL_OK) {
        fail_msg("%s: %s", model, err.text);
    }
    free(text);
    sl_chat_template_destroy(&chat_template);
    sl_tokenizer_destroy(&tokenizer);
    return n;
}

// A folder and a file of one model give the same ids to a chat, the same ends to an answer, and the same tokens: all logits agree, and
// the largest of each position is at the same id.
static void test_folder_and_file_of_every_family_agree(void **state) {
    (void)state;
    for (size_t i = 0; i < N_FAMILIES; i++) {
        static float is[N_TOKENS * MAX_VOCAB], should[N_TOKENS * MAX_VOCAB];
        char file[256], folder[256];
        int32_t *is_ids = NULL, *should_ids = NULL;
        path_of(file, "whole", families[i], ".gguf");
        path_of(folder, "whole", families[i], "");
        check_settings(file, folder);
        assert_true(tokenizer_of(file) == tokenizer_of(folder));
        const size_t n = ids_of(file, &is_ids);
        assert_true(n > 10 && n == ids_of(folder, &should_ids));
        assert_memory_equal(is_ids, should_ids, n * sizeof *is_ids);
        free(is_ids);
        free(should_ids);
        check_logits(file, folder, 0, 1e-6f);
        read_prompt(file, 0, is);
        read_prompt(folder, 0, should);
        for (int row = 0; row < N_TOKENS; row++) {
            int best_is = 0, best_should = 0;
            for (int id = 1; id < MAX_VOCAB; id++) {
                best_is = is[row * MAX_VOCAB + id] > is[row * MAX_VOCAB + best_is] ? id : best_is;
                best_should = should[row * MAX_VOCAB + id] > should[row * MAX_VOCAB + best_should] ? id : best_should;
            }
            assert_int_equal(best_is, best_should);
        }
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_gives_the_numbers_of_its_formula),
        cmocka_unit_test(test_logits_of_families_are_those_of_their_folders),
        cmocka_unit_test(test_logits_of_types_are_those_of_their_numbers),
        cmocka_unit_test(test_codes_of_files_are_kept),
        cmocka_unit_test(test_tied_heads_are_rounded_once),
        cmocka_unit_test(test_fingerprint_sees_file_and_format),
        cmocka_unit_test(test_tokenizers_are_those_of_their_folders),
        cmocka_unit_test(test_folder_and_file_of_every_family_agree),
    };
    made = argc == 2 ? argv[1] : "build/tests/gguf";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
