// SPDX-License-Identifier: Apache-2.0
// Purpose: config.json and generation_config.json: what is read, what is implied, what is refused and by which name.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/model.h"
#include "temp_folder.h"

#define REQUIRED                                                                                                       \
    "\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 100, "                     \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"vocab_size\": 300"

static enum sl_status load(const char *config, const char *generation, struct sl_model_config *config_out,
                           struct sl_error *err) {
    struct temp_folder folder = temp_folder_create();
    if (config != NULL) {
        temp_folder_write_text(&folder, "config.json", config);
    }
    if (generation != NULL) {
        temp_folder_write_text(&folder, "generation_config.json", generation);
    }
    enum sl_status status = sl_model_config_load(folder.path, config_out, err);
    temp_folder_destroy(&folder);
    return status;
}

static void assert_refused(const char *config, enum sl_status expected, const char *word) {
    struct sl_model_config c = {.n_layers = -7};
    struct sl_error err = {0};
    enum sl_status status = load(config, NULL, &c, &err);
    if (status != expected || strstr(err.text, word) == NULL) {
        fail_msg("%s: status %d (%s), expected %d naming %s", config, status, err.text, expected, word);
    }
    assert_int_equal(c.n_layers, -7); // outputs only on success
}

static void test_config_of_the_demo_model(void **state) {
    struct sl_model_config c;
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(sl_model_config_load("models/demo", &c, &err), SL_OK);
    assert_string_equal(c.architecture, "llama");
    assert_int_equal(c.n_layers, 6);
    assert_int_equal(c.n_heads, 4);
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.hidden, 256);
    assert_int_equal(c.intermediate, 704);
    assert_int_equal(c.n_vocab, 2048);
    assert_int_equal(c.max_positions, 8192);
    assert_true(c.rope_theta == 1e6);
    assert_true(c.norm_eps == 1e-5f);
    assert_true(c.tied_embeddings);
    assert_int_equal(c.dtype, SL_BF16);
    assert_int_equal(c.bos_id, 2045);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos_ids[0], 2045);
    assert_false(c.rope_llama3.enabled);
}

static void test_config_implies_what_is_not_given(void **state) {
    struct sl_model_config c;
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(load("{" REQUIRED "}", NULL, &c, &err), SL_OK);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.max_positions, 2048);
    assert_true(c.rope_theta == 10000.0);
    assert_true(c.norm_eps == 1e-6f);
    assert_false(c.tied_embeddings);
    assert_int_equal(c.dtype, SL_F32);
    assert_int_equal(c.bos_id, -1);
    assert_int_equal(c.n_eos, 0);
}

static void test_config_generation_file_overrides_special_ids(void **state) {
    struct sl_model_config c;
    struct sl_error err = {0};
    (void)state;
    const char *config = "{" REQUIRED ", \"bos_token_id\": 1, \"eos_token_id\": 2}";
    assert_int_equal(load(config, "{\"eos_token_id\": [7, 9]}", &c, &err), SL_OK);
    assert_int_equal(c.bos_id, 1);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_ids[0], 7);
    assert_int_equal(c.eos_ids[1], 9);
    assert_int_equal(load(config, "{\"do_sample\": true, \"bos_token_id\": null}", &c, &err), SL_OK);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos_ids[0], 2);
    assert_int_equal(load(config, "{\"eos_token_id\": [300]}", &c, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "generation_config.json"));
    assert_int_equal(load(config, "{\"eos_token_id\": ", &c, &err), SL_ERR_INVALID);
}

static void check_llama3(const char *config) {
    struct sl_model_config c;
    struct sl_error err = {0};
    assert_int_equal(load(config, NULL, &c, &err), SL_OK);
    assert_true(c.rope_llama3.enabled);
    assert_true(c.rope_theta == 500000.0);
    assert_true(c.rope_llama3.factor == 8.0);
    assert_true(c.rope_llama3.low_freq_factor == 1.0);
    assert_true(c.rope_llama3.high_freq_factor == 4.0);
    assert_int_equal(c.rope_llama3.original_max_positions, 8192);
}

static void test_config_reads_all_spellings_of_rope_scaling(void **state) {
#define LLAMA3                                                                                                         \
    "\"factor\": 8, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192"
    (void)state;
    check_llama3("{" REQUIRED ", \"rope_theta\": 500000, \"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}}");
    check_llama3("{" REQUIRED ", \"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"llama3\", " LLAMA3 "}}");
    check_llama3("{" REQUIRED ", \"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"llama3\", " LLAMA3 "}}");
    struct sl_model_config c;
    struct sl_error err = {0};
    assert_int_equal(load("{" REQUIRED ", \"rope_scaling\": null}", NULL, &c, &err), SL_OK);
    assert_false(c.rope_llama3.enabled);
    assert_refused("{" REQUIRED ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}}", SL_ERR_UNSUPPORTED,
                   "yarn");
    assert_refused("{" REQUIRED ", \"rope_scaling\": {\"rope_type\": \"llama3\"}}", SL_ERR_INVALID, "factor");
    assert_refused("{" REQUIRED ", \"rope_scaling\": 8}", SL_ERR_INVALID, "rope_scaling");
}

static void test_config_refuses_by_name_what_is_not_computed(void **state) {
    (void)state;
    assert_refused("{\"architectures\": [\"MixtralForCausalLM\"]}", SL_ERR_UNSUPPORTED, "MixtralForCausalLM");
    assert_refused("{}", SL_ERR_UNSUPPORTED, "architectures");
    assert_refused("{" REQUIRED ", \"hidden_act\": \"gelu\"}", SL_ERR_UNSUPPORTED, "gelu");
    assert_refused("{" REQUIRED ", \"attention_bias\": true}", SL_ERR_UNSUPPORTED, "attention_bias");
    assert_refused("{" REQUIRED ", \"mlp_bias\": true}", SL_ERR_UNSUPPORTED, "mlp_bias");
    assert_refused("{" REQUIRED ", \"torch_dtype\": \"float8_e4m3fn\"}", SL_ERR_UNSUPPORTED, "float8_e4m3fn");
    assert_refused("{" REQUIRED ", \"quantization_config\": {}}", SL_ERR_UNSUPPORTED, "quantization_config");
    assert_refused("{" REQUIRED ", \"head_dim\": 12}", SL_ERR_UNSUPPORTED, "head_dim");
}

static void test_config_refuses_malformed_files(void **state) {
    (void)state;
    assert_refused(NULL, SL_ERR_NOT_FOUND, "config.json");
    assert_refused("{" REQUIRED, SL_ERR_INVALID, "config.json");
    assert_refused("[1]", SL_ERR_INVALID, "config.json");
    assert_refused("{" REQUIRED ", \"vocab_size\": 9}", SL_ERR_INVALID, "config.json"); // twice
    assert_refused("{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64}", SL_ERR_INVALID,
                   "num_hidden_layers");
    assert_refused("{" REQUIRED ", \"num_key_value_heads\": 3}", SL_ERR_INVALID, "num_key_value_heads");
    assert_refused("{" REQUIRED ", \"num_key_value_heads\": 0}", SL_ERR_INVALID, "num_key_value_heads");
    assert_refused("{" REQUIRED ", \"num_key_value_heads\": 2.5}", SL_ERR_INVALID, "num_key_value_heads");
    assert_refused("{" REQUIRED ", \"max_position_embeddings\": 99999999999}", SL_ERR_INVALID,
                   "max_position_embeddings");
    assert_refused("{" REQUIRED ", \"rms_norm_eps\": -1}", SL_ERR_INVALID, "rms_norm_eps");
    assert_refused("{" REQUIRED ", \"rope_theta\": \"big\"}", SL_ERR_INVALID, "rope_theta");
    assert_refused("{" REQUIRED ", \"tie_word_embeddings\": 1}", SL_ERR_INVALID, "tie_word_embeddings");
    assert_refused("{" REQUIRED ", \"hidden_act\": 3}", SL_ERR_INVALID, "hidden_act");
    assert_refused("{" REQUIRED ", \"eos_token_id\": -1}", SL_ERR_INVALID, "eos_token_id");
    assert_refused("{" REQUIRED ", \"eos_token_id\": [1,2,3,4,5,6,7,8,9]}", SL_ERR_UNSUPPORTED, "eos_token_id");
}

// --- sluice_profile.json -------------------------------------------------------------------------------------------

static enum sl_status load_profile(const char *profile, struct sl_model_config *config_out, struct sl_error *err) {
    struct temp_folder folder = temp_folder_create();
    temp_folder_write_text(&folder, "config.json", "{" REQUIRED "}"); // two layers
    temp_folder_write_text(&folder, "sluice_profile.json", profile);
    enum sl_status status = sl_model_config_load(folder.path, config_out, err);
    temp_folder_destroy(&folder);
    return status;
}

static void test_config_reads_the_profile(void **state) {
    struct sl_model_config c;
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(load("{" REQUIRED "}", NULL, &c, &err), SL_OK);
    assert_false(c.has_profile);
    assert_int_equal(load_profile("{\"version\": 1, \"dense_preference\": [0.1, 0.7], \"threshold\": 0.2, "
                                  "\"dense_layers\": [1], \"n_prompts\": 4}",
                                  &c, &err),
                     SL_OK);
    assert_true(c.has_profile);
    assert_int_equal(c.dense_layers[0], 2);
    assert_int_equal(c.dense_layers[1], 0);
    assert_int_equal(load_profile("{\"version\": 1, \"dense_preference\": [0, 0], \"threshold\": 0, "
                                  "\"dense_layers\": []}",
                                  &c, &err),
                     SL_OK);
    assert_true(c.has_profile);
    assert_int_equal(c.dense_layers[0], 0);
}

static void test_config_refuses_malformed_profiles_by_field(void **state) {
    static const struct {
        const char *text, *field;
        enum sl_status status;
    } wrong[] = {
        {"{", "sluice_profile.json", SL_ERR_INVALID},
        {"[]", "sluice_profile.json", SL_ERR_INVALID},
        {"{\"dense_preference\": [0, 1], \"threshold\": 0.2, \"dense_layers\": [0]}", "version", SL_ERR_INVALID},
        {"{\"version\": 2, \"dense_layers\": [0]}", "version", SL_ERR_UNSUPPORTED},
        {"{\"version\": \"1\"}", "version", SL_ERR_INVALID},
        {"{\"version\": 1, \"dense_preference\": [0, 1], \"dense_layers\": [0]}", "threshold", SL_ERR_INVALID},
        {"{\"version\": 1, \"dense_preference\": [0, 1], \"threshold\": -1, \"dense_layers\": [0]}", "threshold",
         SL_ERR_INVALID},
        {"{\"version\": 1, \"threshold\": 0.2, \"dense_layers\": [0]}", "dense_preference", SL_ERR_INVALID},
        {"{\"version\": 1, \"dense_preference\": [0, 1, 0], \"threshold\": 0.2, \"dense_layers\": [0]}",
         "dense_preference must be 2", SL_ERR_INVALID},
        {"{\"version\": 1, \"dense_preference\": [0, null], \"threshold\": 0.2, \"dense_layers\": [0]}",
         "dense_preference", SL_ERR_INVALID},
        {"{\"version\": 1, \"dense_preference\": [0, 1], \"threshold\": 0.2}", "dense_layers", SL_ERR_INVALID},
        {"{\"version\": 1, \"dense_preference\": [0, 1], \"threshold\": 0.2, \"dense_layers\": 0}", "dense_layers",
         SL_ERR_INVALID},
        {"{\"version\": 1, \"dense_preference\": [0, 1], \"threshold\": 0.2, \"dense_layers\": [2]}", "between 0 and 1",
         SL_ERR_INVALID},
        {"{\"version\": 1, \"dense_preference\": [0, 1], \"threshold\": 0.2, \"dense_layers\": [-1]}", "dense_layers",
         SL_ERR_INVALID},
        {"{\"version\": 1, \"dense_preference\": [0, 1], \"threshold\": 0.2, \"dense_layers\": [0.5]}", "dense_layers",
         SL_ERR_INVALID},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct sl_model_config c = {.n_layers = -7};
        struct sl_error err = {0};
        enum sl_status status = load_profile(wrong[i].text, &c, &err);
        if (status != wrong[i].status || strstr(err.text, wrong[i].field) == NULL ||
            strstr(err.text, "sluice_profile.json") == NULL) {
            fail_msg("%s: status %d (%s), expected %d naming %s", wrong[i].text, status, err.text, wrong[i].status,
                     wrong[i].field);
        }
        assert_int_equal(c.n_layers, -7);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_of_the_demo_model),
        cmocka_unit_test(test_config_implies_what_is_not_given),
        cmocka_unit_test(test_config_generation_file_overrides_special_ids),
        cmocka_unit_test(test_config_reads_all_spellings_of_rope_scaling),
        cmocka_unit_test(test_config_refuses_by_name_what_is_not_computed),
        cmocka_unit_test(test_config_refuses_malformed_files),
        cmocka_unit_test(test_config_reads_the_profile),
        cmocka_unit_test(test_config_refuses_malformed_profiles_by_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
