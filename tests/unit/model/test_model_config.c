// SPDX-License-Identifier: Apache-2.0
// Purpose: config.json and generation_config.json: what is read, what is implied, what is refused and by which name.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>

#include "engine/model/families.h"
#include "engine/model/model.h"
#include "tests/unit/temp_folder.h"

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

// A clone without Git LFS has pointers in the place of large files.
static void test_config_names_a_git_lfs_pointer(void **state) {
    (void)state;
    static const char *const names[] = {"x.gguf", "config.json"};
    struct temp_folder folder = temp_folder_create();
    for (int i = 0; i < 2; i++) {
        struct sl_model_config c;
        struct sl_error err = {0};
        temp_folder_write_text(&folder, names[i], "version https://git-lfs.github.com/spec/v1\nsize 2\n");
        assert_int_equal(sl_model_config_load(folder.path, &c, &err), SL_ERR_INVALID);
        assert_non_null(strstr(err.text, names[i]));
        assert_non_null(strstr(err.text, "is a Git LFS pointer"));
    }
    temp_folder_destroy(&folder);
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
    assert_string_equal(c.family->name, "llama");
    assert_int_equal(c.n_layers, 8);
    assert_int_equal(c.n_heads, 4);
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.hidden, 256);
    assert_int_equal(c.intermediate, 704);
    assert_int_equal(c.n_vocab, 2048);
    assert_int_equal(c.max_positions, 32768);
    assert_true(c.rope_theta == 1e6);
    assert_true(c.norm_eps == 1e-5f);
    assert_true(c.tied_embeddings);
    assert_int_equal(c.dtype, SL_BF16);
    assert_int_equal(c.bos_id, 2045);
    assert_int_equal(c.ends.n, 2); // of the documents, and <|im_end|>
    assert_true(c.ends.ids[0] == 2045 && c.ends.ids[1] == 2047);
    assert_int_equal(c.n_listed_ends, 1);
    assert_int_equal(c.rope.kind, SL_ROPE_DEFAULT);
    assert_true(c.sampling.has_temperature && c.sampling.temperature == 0); // its file says do_sample false
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
    assert_int_equal(c.ends.n, 0);
}

static void test_config_generation_file_adds_special_ids(void **state) {
    struct sl_model_config c;
    struct sl_error err = {0};
    (void)state;
    const char *config = "{" REQUIRED ", \"bos_token_id\": 1, \"eos_token_id\": 2}";
    assert_int_equal(load(config, "{\"eos_token_id\": [7, 9]}", &c, &err), SL_OK);
    assert_int_equal(c.bos_id, 1);
    assert_int_equal(c.ends.n, 3); // of both
    assert_true(c.ends.ids[0] == 7 && c.ends.ids[1] == 9 && c.ends.ids[2] == 2);
    assert_int_equal(c.n_listed_ends, 2);
    assert_int_equal(load(config, "{\"do_sample\": true, \"bos_token_id\": null}", &c, &err), SL_OK);
    assert_int_equal(c.ends.n, 1);
    assert_int_equal(c.ends.ids[0], 2);
    assert_int_equal(load(config, "{\"eos_token_id\": [300]}", &c, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "generation_config.json"));
    assert_int_equal(load(config, "{\"eos_token_id\": ", &c, &err), SL_ERR_INVALID);
}

static struct sl_model_sampling sampling_of(const char *generation) {
    struct sl_model_config c;
    struct sl_error err = {0};
    if (load("{" REQUIRED "}", generation, &c, &err) != SL_OK) {
        fail_msg("%s: %s", generation, err.text);
    }
    return c.sampling;
}

static void test_config_takes_the_models_sampling(void **state) {
    (void)state;
    struct sl_model_sampling s = sampling_of(
        "{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, \"repetition_penalty\": 1.05, "
        "\"max_new_tokens\": 2048, \"min_p\": 0.25, \"num_beams\": 1, \"bad_words_ids\": []}");
    assert_true(s.has_temperature && s.temperature == 0.6f && s.top_k == 20 && s.top_p == 0.95f);
    assert_true(s.repetition_penalty == 1.05f && s.min_p == 0.25f);
    assert_string_equal(s.left_out, ""); // what is named, and asks for nothing
    char text[128], cut[16];
    assert_string_equal(sl_model_sampling_text(&s, text, sizeof text),
                        "temperature 0.6, top_k 20, top_p 0.95, repetition_penalty 1.05, min_p 0.25");
    assert_string_equal(sl_model_sampling_text(&s, cut, sizeof cut), "temperature 0.6");

    s = sampling_of("{\"temperature\": 0.7, \"top_k\": -1}"); // it need not say that it draws
    assert_true(s.has_temperature && s.temperature == 0.7f && s.top_k == 0);
    s = sampling_of("{\"do_sample\": true}"); // at what Transformers draws at
    assert_true(s.has_temperature && s.temperature == 1);
    s = sampling_of("{\"do_sample\": false, \"temperature\": 0.7, \"repetition_penalty\": 1.5}");
    assert_true(s.has_temperature && s.temperature == 0 && s.repetition_penalty == 1.5f);
    s = sampling_of("{\"eos_token_id\": 2, \"temperature\": null, \"do_sample\": null}");
    assert_true(!s.has_temperature && s.top_k == 0 && s.top_p == 0 && s.repetition_penalty == 0);
    assert_string_equal(sl_model_sampling_text(&s, text, sizeof text), "");
}

static void test_config_names_sampling_that_is_not_done(void **state) {
    (void)state;
    struct sl_model_sampling s = sampling_of("{\"presence_penalty\": 0.5, \"typical_p\": 1.0, \"suppress_tokens\": "
                                             "[3], \"num_beams\": 4, \"sequence\": \"top_k\"}");
    assert_string_equal(s.left_out, "presence_penalty, suppress_tokens, num_beams, sequence");
}

static void test_config_refuses_sampling_out_of_bounds(void **state) {
    static const char *const wrong[][2] = {
        {"{\"temperature\": -0.1}", "temperature"},
        {"{\"temperature\": 1e9}", "temperature"},
        {"{\"temperature\": \"hot\"}", "temperature"},
        {"{\"temperature\": [1]}", "temperature"},
        {"{\"top_k\": -2}", "top_k"},
        {"{\"top_k\": 2147483648}", "top_k"},
        {"{\"top_k\": 1.5}", "top_k"},
        {"{\"top_p\": 0}", "top_p"},
        {"{\"top_p\": 1.01}", "top_p"},
        {"{\"top_p\": true}", "top_p"},
        {"{\"repetition_penalty\": 0}", "repetition"},
        {"{\"repetition_penalty\": 1e3}", "repetition"},
        {"{\"min_p\": 1.5}", "min_p"},
        {"{\"do_sample\": 1}", "do_sample"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct sl_model_config c;
        struct sl_error err = {0};
        enum sl_status status = load("{" REQUIRED "}", wrong[i][0], &c, &err);
        if (status != SL_ERR_INVALID || !strstr(err.text, wrong[i][1]) || !strstr(err.text, "generation_config.json")) {
            fail_msg("%s: status %d: %s", wrong[i][0], status, err.text);
        }
    }
}

static void test_config_sampling_can_be_turned_off(void **state) {
    struct sl_model_sampling s = {.has_temperature = true, .temperature = 1, .top_k = 5, .left_out = "min_p"};
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(sl_model_sampling_choose("auto", &s, &err), SL_OK);
    assert_int_equal(s.top_k, 5);
    assert_int_equal(sl_model_sampling_choose("maybe", &s, &err), SL_ERR_INVALID);
    assert_int_equal(s.top_k, 5);
    assert_int_equal(sl_model_sampling_choose("none", &s, &err), SL_OK);
    assert_true(!s.has_temperature && s.top_k == 0 && s.left_out[0] == '\0');
}

static void check_llama3(const char *config) {
    struct sl_model_config c;
    struct sl_error err = {0};
    assert_int_equal(load(config, NULL, &c, &err), SL_OK);
    assert_int_equal(c.rope.kind, SL_ROPE_LLAMA3);
    assert_true(c.rope_theta == 500000.0);
    assert_true(c.rope.factor == 8.0);
    assert_true(c.rope.low_turns == 1.0);
    assert_true(c.rope.high_turns == 4.0);
    assert_int_equal(c.rope.original_max_positions, 8192);
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
    assert_int_equal(c.rope.kind, SL_ROPE_DEFAULT);
    assert_refused("{" REQUIRED ", \"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 4}}", SL_ERR_UNSUPPORTED,
                   "dynamic");
    assert_refused("{" REQUIRED ", \"rope_scaling\": {\"rope_type\": \"llama3\"}}", SL_ERR_INVALID, "factor");
    assert_refused("{" REQUIRED ", \"rope_scaling\": 8}", SL_ERR_INVALID, "rope_scaling");
}

static void test_config_of_yarn(void **state) {
#define YARN(more) "{" REQUIRED ", \"max_position_embeddings\": 32768, \"rope_scaling\": {\"type\": \"yarn\"" more "}}"
    struct sl_model_config c;
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(load(YARN(", \"factor\": 4.0, \"original_max_position_embeddings\": 32768"), NULL, &c, &err),
                     SL_OK);
    assert_int_equal(c.rope.kind, SL_ROPE_YARN);
    assert_int_equal(c.max_positions, 131072);
    assert_true(fabs(c.rope.scale - (0.1 * log(4.0) + 1.0)) < 1e-15);
    assert_true(c.rope.low_turns == 1.0 && c.rope.high_turns == 32.0 && c.rope.truncate);
    assert_int_equal(load(YARN(", \"factor\": 0.5, \"attention_factor\": 1.5, \"beta_fast\": 8, \"truncate\": false"),
                          NULL, &c, &err),
                     SL_OK);
    assert_int_equal(c.max_positions, 32768); // never fewer than the file says
    assert_int_equal(c.rope.original_max_positions, 32768);
    assert_true(c.rope.scale == 1.5 && c.rope.high_turns == 8.0 && !c.rope.truncate);
    assert_refused(YARN(""), SL_ERR_INVALID, "factor");
    assert_refused(YARN(", \"factor\": 4, \"beta_slow\": 40"), SL_ERR_INVALID, "beta_fast");
    assert_refused(YARN(", \"factor\": 4, \"original_max_position_embeddings\": 1"), SL_ERR_INVALID,
                   "original_max_position_embeddings");
}

#define PHI(more)                                                                                                      \
    "{\"architectures\": [\"Phi3ForCausalLM\"], \"hidden_size\": 128, \"intermediate_size\": 100, "                    \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"vocab_size\": 300, "                                      \
    "\"max_position_embeddings\": 131072, \"original_max_position_embeddings\": 4096" more "}"
#define EIGHT "[1, 1, 1, 1, 2, 2, 2, 2]"

static void test_config_of_longrope(void **state) {
#define LONGROPE(type, short_factor, long_factor)                                                                      \
    ", \"partial_rotary_factor\": 0.5, \"rope_scaling\": {\"type\": \"" type "\", \"short_factor\": " short_factor     \
    ", \"long_factor\": " long_factor "}"
    struct sl_model_config c;
    struct sl_error err = {0};
    const char *const types[] = {PHI(LONGROPE("longrope", EIGHT, "[3, 3, 3, 3, 9, 9, 9, 9]")),
                                 PHI(LONGROPE("su", EIGHT, "[3, 3, 3, 3, 9, 9, 9, 9]"))};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(load(types[i], NULL, &c, &err), SL_OK);
        assert_int_equal(c.rope.kind, SL_ROPE_LONGROPE);
        assert_int_equal(c.rotary_dim, 16);
        assert_int_equal(c.rope.original_max_positions, 4096);
        assert_int_equal(c.max_positions, 131072);
        assert_true(c.rope.stretch[0][7] == 2.0 && c.rope.stretch[1][7] == 9.0);
        assert_true(fabs(c.rope.scale - sqrt(1.0 + log(32.0) / log(4096.0))) < 1e-15);
    }
    assert_refused(PHI(LONGROPE("longrope", EIGHT, "[1, 2]")), SL_ERR_INVALID, "long_factor must be 8");
    assert_refused(PHI(LONGROPE("longrope", "[1, 1, 1, 1, 2, 2, 2, 0]", EIGHT)), SL_ERR_INVALID, "short_factor");
    assert_refused(PHI(LONGROPE("longrope", "7", EIGHT)), SL_ERR_INVALID, "short_factor");
    assert_refused(PHI(LONGROPE("longrope", EIGHT, EIGHT ", \"long_mscale\": 1.2")), SL_ERR_UNSUPPORTED, "long_mscale");
    assert_refused(PHI(", \"partial_rotary_factor\": 0.4"), SL_ERR_UNSUPPORTED, "partial_rotary_factor");
    assert_refused("{" REQUIRED ", \"partial_rotary_factor\": 0.5}", SL_ERR_UNSUPPORTED, "partial_rotary_factor");
}

#define DIMENSIONS                                                                                                     \
    "\"hidden_size\": 64, \"intermediate_size\": 100, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "          \
    "\"vocab_size\": 300"
#define OF(family, more) "{\"architectures\": [\"" family "ForCausalLM\"], " DIMENSIONS more "}"

static void test_config_tells_which_layers_have_windows(void **state) {
    static const struct {
        const char *config;
        int64_t window;
        uint64_t layers;
    } cases[] = {
        {OF("Mistral", ""), 4096, 7}, // what the family does where the file is silent
        {OF("Mistral", ", \"sliding_window\": 16"), 16, 7},
        {OF("Mistral", ", \"sliding_window\": null"), 0, 0},
        {OF("Llama", ", \"sliding_window\": 16"), 0, 0}, // no Llama reads this key
        {OF("Phi3", ""), 0, 0},
        {OF("Phi3", ", \"sliding_window\": 2047"), 2047, 7},
        {OF("Qwen2", ", \"sliding_window\": 16, \"max_window_layers\": 1"), 0, 0},
        {OF("Qwen2", ", \"use_sliding_window\": true, \"sliding_window\": 16, \"max_window_layers\": 1"), 16, 6},
        {OF("Qwen2", ", \"use_sliding_window\": true, \"sliding_window\": 16, \"max_window_layers\": 9"), 16, 0},
        {OF("Qwen3", ", \"use_sliding_window\": true, \"sliding_window\": 16, \"layer_types\": "
                     "[\"sliding_attention\", \"full_attention\", \"sliding_attention\"]"),
         16, 5},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_model_config c;
        struct sl_error err = {0};
        if (load(cases[i].config, NULL, &c, &err) != SL_OK) {
            fail_msg("%s: %s", cases[i].config, err.text);
        }
        assert_int_equal(c.window, cases[i].window);
        assert_int_equal(c.window_layers[0], cases[i].layers);
    }
#define SLIDING "\"use_sliding_window\": true, \"sliding_window\": 16"
    assert_refused(OF("Qwen2", ", " SLIDING), SL_ERR_INVALID, "max_window_layers");
    assert_refused(OF("Qwen2", ", " SLIDING ", \"layer_types\": [\"full_attention\"]"), SL_ERR_INVALID, "layer_types");
    assert_refused(OF("Qwen3", ", " SLIDING ", \"layer_types\": [\"full_attention\", \"chunked_attention\", 3]"),
                   SL_ERR_UNSUPPORTED, "chunked_attention");
    assert_refused(OF("Mistral", ", \"sliding_window\": 0"), SL_ERR_INVALID, "sliding_window");
}

static void test_config_of_every_family(void **state) {
    static const struct {
        const char *config, *name;
        int head_dim, n_kv_heads, intermediate;
        enum sl_activation activation;
        bool tied, biases[SL_N_LAYER_MATRICES];
    } cases[] = {
        {OF("Llama", ""), "llama", 16, 4, 100, SL_ACT_SILU, false, {false}},
        {OF("Llama", ", \"attention_bias\": true"), "llama", 16, 4, 100, SL_ACT_SILU, false, {true, true}},
        {OF("Llama", ", \"mlp_bias\": true, \"hidden_act\": \"gelu_pytorch_tanh\""),
         "llama",
         16,
         4,
         100,
         SL_ACT_GELU_TANH,
         false,
         {false, false, true, true}},
        {OF("Mistral", ", \"num_key_value_heads\": 2, \"head_dim\": 32"),
         "mistral",
         32,
         2,
         100,
         SL_ACT_SILU,
         false,
         {false}},
        {OF("Qwen2", ", \"tie_word_embeddings\": true"), "qwen2", 16, 4, 100, SL_ACT_SILU, true, {true}},
        {OF("Qwen3", ""), "qwen3", 128, 4, 100, SL_ACT_SILU, false, {false}},
        {OF("Phi3", ""), "phi3", 16, 4, 100, SL_ACT_SILU, false, {false}},
        {OF("Falcon", ", \"num_kv_heads\": 4"), "falcon", 16, 1, 256, SL_ACT_GELU, true, {false}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_model_config c;
        struct sl_error err = {0};
        if (load(cases[i].config, NULL, &c, &err) != SL_OK) {
            fail_msg("%s: %s", cases[i].config, err.text);
        }
        assert_string_equal(c.family->name, cases[i].name);
        assert_int_equal(c.head_dim, cases[i].head_dim);
        assert_int_equal(c.rotary_dim, cases[i].head_dim);
        assert_int_equal(c.n_kv_heads, cases[i].n_kv_heads);
        assert_int_equal(c.intermediate, cases[i].intermediate);
        assert_int_equal(c.activation, cases[i].activation);
        assert_int_equal(c.tied_embeddings, cases[i].tied);
        assert_memory_equal(c.has_bias, cases[i].biases, sizeof c.has_bias);
    }
}

// The files that models were published with, but for keys that say nothing about what is computed.
static void test_config_of_published_models(void **state) {
    static const struct {
        const char *config;
        int n_heads, n_kv_heads, head_dim, hidden, intermediate;
        int64_t max_positions, window;
        double rope_theta;
        bool tied;
    } cases[] = {
        // Mistral-7B-v0.1, Mistral-Nemo
        {"{\"architectures\": [\"MistralForCausalLM\"], \"bos_token_id\": 1, \"eos_token_id\": 2, \"hidden_act\": "
         "\"silu\", \"hidden_size\": 4096, \"intermediate_size\": 14336, \"max_position_embeddings\": 32768, "
         "\"model_type\": \"mistral\", \"num_attention_heads\": 32, \"num_hidden_layers\": 32, "
         "\"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"sliding_window\": 4096, "
         "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", \"vocab_size\": 32000}",
         32, 8, 128, 4096, 14336, 32768, 4096, 1e4, false},
        {"{\"architectures\": [\"MistralForCausalLM\"], \"head_dim\": 128, \"hidden_act\": \"silu\", "
         "\"hidden_size\": 5120, \"intermediate_size\": 14336, \"max_position_embeddings\": 131072, "
         "\"num_attention_heads\": 32, \"num_hidden_layers\": 40, \"num_key_value_heads\": 8, \"rms_norm_eps\": "
         "1e-05, \"rope_theta\": 1000000.0, \"sliding_window\": null, \"tie_word_embeddings\": false, "
         "\"torch_dtype\": \"bfloat16\", \"vocab_size\": 131072}",
         32, 8, 128, 5120, 14336, 131072, 0, 1e6, false},
        // Qwen2.5-7B-Instruct, Qwen3-0.6B
        {"{\"architectures\": [\"Qwen2ForCausalLM\"], \"hidden_act\": \"silu\", \"hidden_size\": 3584, "
         "\"intermediate_size\": 18944, \"max_position_embeddings\": 32768, \"max_window_layers\": 28, "
         "\"num_attention_heads\": 28, \"num_hidden_layers\": 28, \"num_key_value_heads\": 4, \"rms_norm_eps\": "
         "1e-06, \"rope_theta\": 1000000.0, \"sliding_window\": 131072, \"tie_word_embeddings\": false, "
         "\"torch_dtype\": \"bfloat16\", \"use_sliding_window\": false, \"vocab_size\": 152064}",
         28, 4, 128, 3584, 18944, 32768, 0, 1e6, false},
        {"{\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false, \"head_dim\": 128, \"hidden_act\": "
         "\"silu\", \"hidden_size\": 1024, \"intermediate_size\": 3072, \"max_position_embeddings\": 40960, "
         "\"max_window_layers\": 28, \"num_attention_heads\": 16, \"num_hidden_layers\": 28, "
         "\"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, \"rope_theta\": 1000000, "
         "\"sliding_window\": null, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", "
         "\"use_sliding_window\": false, \"vocab_size\": 151936}",
         16, 8, 128, 1024, 3072, 40960, 0, 1e6, true},
        // Phi-3-mini-4k-instruct
        {"{\"architectures\": [\"Phi3ForCausalLM\"], \"attention_bias\": false, \"hidden_act\": \"silu\", "
         "\"hidden_size\": 3072, \"intermediate_size\": 8192, \"max_position_embeddings\": 4096, "
         "\"num_attention_heads\": 32, \"num_hidden_layers\": 32, \"num_key_value_heads\": 32, "
         "\"original_max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-05, \"rope_scaling\": null, "
         "\"rope_theta\": 10000.0, \"sliding_window\": 2047, \"tie_word_embeddings\": false, \"torch_dtype\": "
         "\"bfloat16\", \"vocab_size\": 32064}",
         32, 32, 96, 3072, 8192, 4096, 2047, 1e4, false},
        // Falcon-7B
        {"{\"alibi\": false, \"apply_residual_connection_post_layernorm\": false, \"architectures\": "
         "[\"FalconForCausalLM\"], \"bias\": false, \"bos_token_id\": 11, \"eos_token_id\": 11, \"hidden_size\": "
         "4544, \"layer_norm_epsilon\": 1e-05, \"multi_query\": true, \"new_decoder_architecture\": false, "
         "\"num_attention_heads\": 71, \"num_hidden_layers\": 32, \"parallel_attn\": true, \"torch_dtype\": "
         "\"bfloat16\", \"vocab_size\": 65024}",
         71, 1, 64, 4544, 18176, 2048, 0, 1e4, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_model_config c;
        struct sl_error err = {0};
        if (load(cases[i].config, NULL, &c, &err) != SL_OK) {
            fail_msg("%s: %s", cases[i].config, err.text);
        }
        assert_int_equal(c.n_heads, cases[i].n_heads);
        assert_int_equal(c.n_kv_heads, cases[i].n_kv_heads);
        assert_int_equal(c.head_dim, cases[i].head_dim);
        assert_int_equal(c.hidden, cases[i].hidden);
        assert_int_equal(c.intermediate, cases[i].intermediate);
        assert_int_equal(c.max_positions, cases[i].max_positions);
        assert_int_equal(c.window, cases[i].window);
        assert_true(c.rope_theta == cases[i].rope_theta);
        assert_int_equal(c.tied_embeddings, cases[i].tied);
        assert_int_equal(c.dtype, SL_BF16);
        assert_int_equal(c.rope.kind, SL_ROPE_DEFAULT);
    }
}

static void test_config_refuses_by_name_what_is_not_computed(void **state) {
    (void)state;
    assert_refused("{\"architectures\": [\"MixtralForCausalLM\"]}", SL_ERR_UNSUPPORTED, "MixtralForCausalLM");
    assert_refused("{\"architectures\": [\"Qwen3MoeForCausalLM\"]}", SL_ERR_UNSUPPORTED, "Qwen3MoeForCausalLM");
    assert_refused("{}", SL_ERR_UNSUPPORTED, "architectures");
    assert_refused("{}", SL_ERR_UNSUPPORTED, "FalconForCausalLM"); // what there is instead
    assert_refused("{" REQUIRED ", \"hidden_act\": \"relu\"}", SL_ERR_UNSUPPORTED, "relu");
    assert_refused(OF("Mistral", ", \"attention_bias\": true"), SL_ERR_UNSUPPORTED, "attention_bias");
    assert_refused(OF("Qwen2", ", \"mlp_bias\": true"), SL_ERR_UNSUPPORTED, "mlp_bias");
    assert_refused(OF("Falcon", ", \"alibi\": true"), SL_ERR_UNSUPPORTED, "alibi");
    assert_refused(OF("Falcon", ", \"new_decoder_architecture\": true"), SL_ERR_UNSUPPORTED,
                   "new_decoder_architecture");
    assert_refused(OF("Falcon", ", \"multi_query\": false"), SL_ERR_UNSUPPORTED, "multi_query");
    assert_refused(OF("Falcon", ", \"parallel_attn\": false"), SL_ERR_UNSUPPORTED, "parallel_attn");
    assert_refused("{" REQUIRED ", \"torch_dtype\": \"float8_e4m3fn\"}", SL_ERR_UNSUPPORTED, "float8_e4m3fn");
    assert_refused("{" REQUIRED ", \"quantization_config\": {}}", SL_ERR_UNSUPPORTED, "quantization_config");
    assert_refused("{" REQUIRED ", \"head_dim\": 12}", SL_ERR_UNSUPPORTED, "head_dim");
}

static void test_config_refuses_malformed_files(void **state) {
    (void)state;
    assert_refused(NULL, SL_ERR_INVALID, "config.json");
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
    assert_refused("{" REQUIRED ", \"rms_norm_eps\": 1e-46}", SL_ERR_INVALID, "rms_norm_eps"); // 0 as f32
    assert_refused("{" REQUIRED ", \"rms_norm_eps\": 1e39}", SL_ERR_INVALID, "rms_norm_eps");  // infinite as f32
    assert_refused("{" REQUIRED ", \"rope_theta\": 1e-300}", SL_ERR_INVALID, "rope_theta");
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
        cmocka_unit_test(test_config_names_a_git_lfs_pointer),
        cmocka_unit_test(test_config_implies_what_is_not_given),
        cmocka_unit_test(test_config_generation_file_adds_special_ids),
        cmocka_unit_test(test_config_takes_the_models_sampling),
        cmocka_unit_test(test_config_names_sampling_that_is_not_done),
        cmocka_unit_test(test_config_refuses_sampling_out_of_bounds),
        cmocka_unit_test(test_config_sampling_can_be_turned_off),
        cmocka_unit_test(test_config_reads_all_spellings_of_rope_scaling),
        cmocka_unit_test(test_config_of_yarn),
        cmocka_unit_test(test_config_of_longrope),
        cmocka_unit_test(test_config_tells_which_layers_have_windows),
        cmocka_unit_test(test_config_of_every_family),
        cmocka_unit_test(test_config_of_published_models),
        cmocka_unit_test(test_config_refuses_by_name_what_is_not_computed),
        cmocka_unit_test(test_config_refuses_malformed_files),
        cmocka_unit_test(test_config_reads_the_profile),
        cmocka_unit_test(test_config_refuses_malformed_profiles_by_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
