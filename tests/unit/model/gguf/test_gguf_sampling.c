// SPDX-License-Identifier: Apache-2.0
// Purpose: sampling settings in a GGUF file's metadata.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <limits.h>

#include "engine/model/model.h"
#include "tests/gguf_file.h"
#include "tests/unit/temp_folder.h"

#define LLAMA                                                                                                          \
    "s general.architecture llama\nu llama.block_count 1\nu llama.embedding_length 32\nu llama.feed_forward_length "   \
    "64\n"                                                                                                             \
    "u llama.attention.head_count 2\nu llama.attention.head_count_kv 1\nu llama.context_length 128\n"                  \
    "f llama.attention.layer_norm_rms_epsilon 1e-5\n"
#define EMBEDDING "t token_embd.weight 8 32 8\n"

static struct gguf_file file;

static void write_file(const struct temp_folder *folder, const char *text) {
    gguf_file_make(&file, text, strlen(text));
    temp_folder_write(folder, "x.gguf", file.bytes, file.n);
}

static void path_in(const struct temp_folder *folder, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s/x.gguf", folder->path);
}

#define SAMPLING(rest) LLAMA "f general.sampling.temp 0.6\n" rest EMBEDDING

// Converters take these over from generation_config.json.
static void test_gguf_takes_sampling_from_metadata(void **state) {
    struct temp_folder folder = temp_folder_create();
    struct sl_model_config config;
    struct sl_error err;
    char path[PATH_MAX];
    (void)state;
    path_in(&folder, path);
    write_file(&folder, SAMPLING("u general.sampling.top_k 20\nf general.sampling.top_p 0.95\n"
                                 "f general.sampling.penalty_repeat 1.05\nf general.sampling.min_p 0\n"));
    assert_int_equal(sl_model_config_load(path, &config, &err), SL_OK);
    const struct sl_model_sampling *s = &config.sampling;
    assert_true(s->has_temperature && s->temperature == 0.6f && s->top_k == 20 && s->top_p == 0.95f);
    assert_true(s->repetition_penalty == 1.05f);
    assert_string_equal(s->left_out, "");
    write_file(&folder, SAMPLING("s general.sampling.sequence top_k;temperature\nu general.sampling.mirostat 2\n"
                                 "f general.sampling.min_p 0.05\nf general.sampling.penalty_repeat 1.1\n"
                                 "u general.sampling.penalty_last_n 64\n"));
    assert_int_equal(sl_model_config_load(path, &config, &err), SL_OK);
    assert_true(s->min_p == 0.05f);
    assert_string_equal(s->left_out, "sequence, penalty_last_n, mirostat");
    // a penalty of no token, and a window of no penalty
    write_file(&folder, SAMPLING("f general.sampling.penalty_repeat 1.1\nu general.sampling.penalty_last_n 0\n"));
    assert_int_equal(sl_model_config_load(path, &config, &err), SL_OK);
    assert_true(s->repetition_penalty == 0 && s->left_out[0] == '\0');
    write_file(&folder, SAMPLING("u general.sampling.penalty_last_n 64\n"));
    assert_int_equal(sl_model_config_load(path, &config, &err), SL_OK);
    assert_string_equal(s->left_out, "");
    temp_folder_destroy(&folder);
}

static void test_gguf_refuses_sampling_out_of_bounds(void **state) {
    static const char *const wrong[][2] = {
        {"f general.sampling.temp nan\n", "general.sampling.temp"},
        {"f general.sampling.temp inf\n", "sampling.temp"},
        {"f general.sampling.temp -1\n", ".gguf: general.sampling.temp must be"},
        {"f general.sampling.temp 1e30\n", "sampling.temp"},
        {"s general.sampling.top_k many\n", "top_k"},
        {"F general.sampling.top_p 1,0.5\n", "top_p"},
        {"f general.sampling.top_k 4e9\n", "top_k"},
        {"f general.sampling.penalty_repeat -2\n", "sampling.penalty_repeat"},
    };
    struct temp_folder folder = temp_folder_create();
    char path[PATH_MAX], text[1024];
    (void)state;
    path_in(&folder, path);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct sl_model_config config;
        struct sl_error err = {0};
        snprintf(text, sizeof text, LLAMA "%s" EMBEDDING, wrong[i][0]);
        write_file(&folder, text);
        enum sl_status status = sl_model_config_load(path, &config, &err);
        if (status != SL_ERR_INVALID || !strstr(err.text, wrong[i][1])) {
            fail_msg("%s: status %d: %s", wrong[i][0], status, err.text);
        }
    }
    temp_folder_destroy(&folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf_takes_sampling_from_metadata),
        cmocka_unit_test(test_gguf_refuses_sampling_out_of_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
