// SPDX-License-Identifier: Apache-2.0
// Purpose: GGUF files that are refused, the meaning of their metadata, and where a model's file is found.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <limits.h>
#include <sys/stat.h>

#include "engine/model/gguf/document.h"
#include "engine/model/model_internal.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "tests/gguf_file.h"
#include "tests/unit/scarce.h"
#include "tests/unit/temp_folder.h"

#define LLAMA_OF(type, kv)                                                                                             \
    "s general.architecture llama\nu llama.block_count 1\nu llama.embedding_length 32\nu llama.context_length 128\n"   \
    "u llama.feed_forward_length 64\nf llama.attention.layer_norm_rms_epsilon 1e-5\nu llama.attention.head_count "     \
    "2\n" type " llama.attention.head_count_kv " kv "\n"
#define LLAMA             LLAMA_OF("u", "1")
#define EMBEDDING         "t token_embd.weight 8 32 8\n"
#define FREQS(tensor)     "t rope_freqs.weight " tensor "\n" EMBEDDING
#define SETS(short, long) "t rope_factors_short.weight " short "\nt rope_factors_long.weight " long "\n" EMBEDDING

static struct gguf_file file;
static void write_file(const struct temp_folder *folder, const char *name, const char *text) {
    gguf_file_make(&file, text, strlen(text));
    temp_folder_write(folder, name, file.bytes, file.n);
}

static const char *path_in(const struct temp_folder *folder, const char *name, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s/%s", folder->path, name);
    return path;
}

static void check_open(const struct temp_folder *folder, enum sl_status expected, const char *named) {
    char path[PATH_MAX];
    struct sl_gguf *gguf = NULL;
    struct sl_error err = {0};
    enum sl_status status = sl_gguf_open(path_in(folder, "x.gguf", path), &gguf, &err);
    if (status != expected || (status != SL_OK && (!strstr(err.text, named) || !strstr(err.text, "x.gguf")))) {
        fail_msg("status %d, expected %d about \"%s\": %s", status, expected, named, err.text);
    }
    assert_true((gguf != NULL) == (status == SL_OK));
    sl_gguf_close(&gguf);
}

// --- the file --------------------------------------------------------------------------------------------------------

static void test_gguf_refuses_every_beginning_of_a_file(void **state) {
    struct temp_folder folder = temp_folder_create();
    (void)state;
    write_file(&folder, "x.gguf", LLAMA "S list a|b|c\nF numbers 1,2\n" EMBEDDING "t a 0 3\n");
    check_open(&folder, SL_OK, "");
    for (size_t n = file.n - 21; n > 0; n--) { // the last tensor's padding may be cut
        temp_folder_write(&folder, "x.gguf", file.bytes, n);
        check_open(&folder, SL_ERR_INVALID, "");
    }
    temp_folder_destroy(&folder);
}

static void test_gguf_refuses_damaged_numbers(void **state) {
    static const struct {
        size_t at;
        unsigned char bytes[8];
        size_t n;
        enum sl_status status;
        const char *named;
    } cases[] = {
        {0, "GGML", 4, SL_ERR_INVALID, "not a GGUF file"},
        {4, {1}, 1, SL_ERR_UNSUPPORTED, "version 1"},
        {4, {0, 0, 0, 3}, 4, SL_ERR_UNSUPPORTED, "big endian"},
        {8, {255, 255, 255, 255}, 4, SL_ERR_INVALID, "tensors"},
        {16, {255, 255, 255, 255, 255, 255, 255, 255}, 8, SL_ERR_INVALID, "values"},
        {16, {2}, 1, SL_ERR_INVALID, ""},                                               // one more than there are
        {24, {255, 255, 255, 255, 255, 255, 255, 255}, 8, SL_ERR_INVALID, "truncated"}, // the first key's length
        {35, {99}, 1, SL_ERR_INVALID, "type 99"},                                       // after "abc"
        {39, {9}, 1, SL_ERR_UNSUPPORTED, "array of arrays"},                            // of its elements
        {43, {255, 255, 255, 255, 255, 255, 255, 255}, 8, SL_ERR_INVALID, "truncated"}, // how many
        {43, {0, 0, 0, 0, 0, 0, 0, 64}, 8, SL_ERR_INVALID, "truncated"},                // times 4 is 0
    };
    struct temp_folder folder = temp_folder_create();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(&folder, "x.gguf", "i abc 1,2,3\n");
        memcpy(file.bytes + cases[i].at, cases[i].bytes, cases[i].n);
        temp_folder_write(&folder, "x.gguf", file.bytes, file.n);
        check_open(&folder, cases[i].status, cases[i].named);
    }
    temp_folder_destroy(&folder);
}

static void test_gguf_refuses_impossible_tensors(void **state) {
    static const struct {
        const char *text;
        enum sl_status status;
        const char *named;
    } cases[] = {
        {"t a 0 4\nt b 0 4\n", SL_OK, ""},
        {"u same 1\nu same 2\n", SL_ERR_INVALID, "same is there twice"},
        {"t a 0 4\nt a 0 4\n", SL_ERR_INVALID, "tensor a is there twice"},
        {"t a 0\n", SL_ERR_INVALID, "0 dimensions"},
        {"t a 0 1 1 1 1 1\n", SL_ERR_INVALID, "5 dimensions"},
        {"t a 0 4 0\n", SL_ERR_INVALID, "impossible shape"},
        {"t a 0 900000 900000 900000 900000\n", SL_ERR_INVALID, "impossible shape"},
        {"t a 0 900000 9000\n", SL_ERR_INVALID, "truncated"},
        {"t a 8 48 2\n", SL_ERR_INVALID, "whole blocks of Q8_0"},
        {"t a 12 128 2\n", SL_ERR_INVALID, "whole blocks of Q4_K"},
        {"t a 23 256\n", SL_ERR_UNSUPPORTED, "IQ4_XS"},
        {"t a 77 256\n", SL_ERR_UNSUPPORTED, "not known"},
        {"u general.alignment 24\nt a 0 4\n", SL_ERR_INVALID, "power of two"},
        {"u general.alignment 0\nt a 0 4\n", SL_ERR_INVALID, "power of two"},
        {"f general.alignment 64\nt a 0 4\n", SL_ERR_INVALID, "type u32"},
        {"i general.alignment 64\nt a 0 4\n", SL_ERR_INVALID, "type u32"},
        {"u general.alignment 64\nt a 0 4\nt b 0 4\n", SL_ERR_INVALID, "multiple of 64"},
        {"u split.count 3\n", SL_ERR_UNSUPPORTED, "one of 3 files"},
    };
    struct temp_folder folder = temp_folder_create();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(&folder, "x.gguf", cases[i].text);
        check_open(&folder, cases[i].status, cases[i].named);
    }
    write_file(&folder, "x.gguf", "t a 0 16\nt b 0 16\n"); // b's offset of 64, its last eight bytes, becomes 32
    unsigned char *offset = memmem(file.bytes, file.n, "\x40\0\0\0\0\0\0\0", 8);
    assert_non_null(offset);
    *offset = 32;
    temp_folder_write(&folder, "x.gguf", file.bytes, file.n);
    check_open(&folder, SL_ERR_INVALID, "overlaps");
    temp_folder_destroy(&folder);
}

// Without a writer, opening it must not wait.
static void test_gguf_refuses_a_fifo_at_once(void **state) {
    struct temp_folder folder = temp_folder_create();
    char path[PATH_MAX];
    (void)state;
    assert_int_equal(mkfifo(path_in(&folder, "x.gguf", path), 0600), 0);
    check_open(&folder, SL_ERR_IO, "not a regular file");
    temp_folder_destroy(&folder);
}

// --- where a model's file is -----------------------------------------------------------------------------------------

static enum sl_status load_config(const char *model, struct sl_model_config *config_out, struct sl_error *err) {
    *err = (struct sl_error){0};
    return sl_model_config_load(model, config_out, err);
}

static void test_model_is_a_file_or_the_only_one_of_a_folder(void **state) {
    struct temp_folder folder = temp_folder_create();
    struct sl_model_config config;
    struct sl_error err;
    char path[PATH_MAX];
    (void)state;
    write_file(&folder, "x.gguf", LLAMA EMBEDDING);
    assert_int_equal(load_config(path_in(&folder, "x.gguf", path), &config, &err), SL_OK);
    assert_int_equal(load_config(folder.path, &config, &err), SL_OK);
    assert_int_equal(config.hidden, 32);
    assert_int_equal(config.n_vocab, 8);
    assert_true(config.tied_embeddings && !config.has_profile);
    // what lies beside a file has its name in front
    const char profile[] = "{\"version\": 1, \"dense_preference\": [1.0], \"threshold\": 0.5, \"dense_layers\": [0]}";
    temp_folder_write_text(&folder, "x.gguf.sluice_profile.json", profile);
    assert_int_equal(load_config(path, &config, &err), SL_OK);
    assert_true(config.has_profile);
    write_file(&folder, "y.gguf", LLAMA EMBEDDING);
    assert_int_equal(load_config(folder.path, &config, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "exactly one .gguf"));
    temp_folder_write_text(&folder, "config.json", "{}"); // a folder of the other kind
    assert_int_equal(load_config(folder.path, &config, &err), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "architectures"));
    temp_folder_destroy(&folder);
}

// --- the configuration -----------------------------------------------------------------------------------------------

static void test_metadata_become_a_configuration(void **state) {
    static const struct {
        const char *text;
        enum sl_status status;
        const char *named;
    } cases[] = {
        {LLAMA EMBEDDING, SL_OK, ""},
        {LLAMA_OF("i", "1,1,1") EMBEDDING, SL_OK, ""},
        {LLAMA_OF("i", "1,2") EMBEDDING, SL_ERR_UNSUPPORTED, "llama.attention.head_count_kv is a list of different"},
        {"s general.architecture bert\n", SL_ERR_UNSUPPORTED, "bert; only llama, qwen2, qwen3, phi3, falcon"},
        {"u a 1\n", SL_ERR_UNSUPPORTED, "general.architecture"},
        {LLAMA "u llama.expert_count 8\n" EMBEDDING, SL_ERR_UNSUPPORTED, "mixtures"},
        {LLAMA "u llama.attention.key_length 16\nu llama.attention.value_length 8\n" EMBEDDING, SL_ERR_UNSUPPORTED,
         "channels"},
        {LLAMA "u llama.attention.value_length 16\n" EMBEDDING, SL_OK, ""}, // of the key's, 32 / 2
        {LLAMA "u llama.attention.value_length 8\n" EMBEDDING, SL_ERR_UNSUPPORTED, "keys of 16 channels"},
        {LLAMA "u llama.attention.key_length 32\n" EMBEDDING, SL_ERR_UNSUPPORTED, "values of 16"},
        {LLAMA "f llama.attention.value_length 16\n" EMBEDDING, SL_ERR_INVALID, "value_length is not an integer"},
        {LLAMA "f llama.rope.dimension_count 16\n" EMBEDDING, SL_ERR_INVALID, "dimension_count is not an integer"},
        {LLAMA, SL_ERR_INVALID, "x.gguf: llama.vocab_size is missing"},
        {LLAMA "f llama.rope.freq_base nan\n" EMBEDDING, SL_ERR_INVALID, "finite"},
        {LLAMA "s llama.rope.scaling.type linear\nf llama.rope.scaling.factor 2\n" EMBEDDING, SL_OK, ""},
        {LLAMA "s llama.rope.scaling.type cubic\n" EMBEDDING, SL_ERR_UNSUPPORTED, ": llama.rope.scaling.type is cubic"},
        {LLAMA "u llama.rope.scaling.type 1\n" EMBEDDING, SL_ERR_UNSUPPORTED, "scaling.type is not a text"},
        {LLAMA "S llama.rope.scaling.type linear\n" EMBEDDING, SL_ERR_UNSUPPORTED, "scaling.type is not a text"},
        {LLAMA "s llama.rope.scaling.type none\nf llama.rope.scaling.factor 2\n" EMBEDDING, SL_OK, ""},
        {LLAMA "f llama.rope.scale_linear nan\n" EMBEDDING, SL_ERR_INVALID, "finite"},
        {LLAMA "f llama.rope.scale_linear 2\nf llama.rope.scaling.attn_factor 2\n" EMBEDDING, SL_ERR_UNSUPPORTED,
         "attn_factor is 2"},
        {LLAMA FREQS("1 8"), SL_OK, ""},
        {LLAMA "f llama.rope.scaling.factor 1\n" FREQS("1 8"), SL_OK, ""},
        {LLAMA "f llama.rope.scaling.factor 2\n" FREQS("1 8"), SL_ERR_UNSUPPORTED, "factor is 2"},
        {LLAMA "f llama.rope.scale_linear 2\n" FREQS("1 8"), SL_ERR_UNSUPPORTED, "scale_linear is 2"},
        {LLAMA "s llama.rope.scaling.type none\nf llama.rope.scaling.factor 2\n" FREQS("1 8"), SL_OK, ""},
        {LLAMA "s llama.rope.scaling.type yarn\n" FREQS("1 8"), SL_ERR_UNSUPPORTED, "scaling.type is yarn"},
        {LLAMA "f llama.rope.scaling.attn_factor 2\n" FREQS("1 8"), SL_ERR_UNSUPPORTED, "attn_factor is 2"},
        {LLAMA FREQS("8 32"), SL_ERR_UNSUPPORTED, "rope_freqs.weight has 1 dimensions, the first of 32, and type Q8_0"},
        {LLAMA FREQS("1 4 2"), SL_ERR_UNSUPPORTED, "rope_freqs.weight has 2 dimensions"},
        {LLAMA FREQS("1 16385"), SL_ERR_UNSUPPORTED, "rope_freqs.weight has 1 dimensions, the first of 16385"},
        {LLAMA FREQS("1 4"), SL_ERR_INVALID, "short_factor must be 8"},
        {LLAMA SETS("1 8", "1 8"), SL_OK, ""},
        {LLAMA SETS("1 8", "8 32"), SL_ERR_UNSUPPORTED, "rope_factors_long.weight has"},
        {LLAMA SETS("1 2 4", "1 8"), SL_ERR_UNSUPPORTED, "rope_factors_short.weight has"},
        {LLAMA "t rope_factors_short.weight 1 8\n" EMBEDDING, SL_ERR_UNSUPPORTED,
         "rope_factors_long.weight is missing"},
        {LLAMA "t rope_factors_long.weight 1 8\n" EMBEDDING, SL_ERR_UNSUPPORTED,
         "rope_factors_short.weight is missing"},
        {LLAMA "t rope_freqs.weight 1 8\n" SETS("1 8", "1 8"), SL_ERR_UNSUPPORTED,
         "rope_freqs.weight and rope_factors_*"},
        {LLAMA "u llama.rope.dimension_count 8\n" EMBEDDING, SL_ERR_UNSUPPORTED, "llama.rope.dimension_count"},
        {LLAMA "u tokenizer.ggml.eos_token_id 99\n" EMBEDDING, SL_ERR_INVALID, "tokenizer.ggml.eos_token_id must"},
    };
    struct temp_folder folder = temp_folder_create();
    char path[PATH_MAX];
    (void)state;
    path_in(&folder, "x.gguf", path);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_model_config config;
        struct sl_error err;
        write_file(&folder, "x.gguf", cases[i].text);
        enum sl_status status = load_config(path, &config, &err);
        if (status != cases[i].status || (status != SL_OK && !strstr(err.text, cases[i].named))) {
            fail_msg("case %zu: status %d: %s", i, status, err.text);
        }
    }
    temp_folder_destroy(&folder);
}

// A key that would change numbers and is not implemented is refused by name, whatever its type. It is accepted where its value is neutral.
static void test_keys_that_nothing_reads_are_refused(void **state) {
    static const struct {
        const char *key, *neutral, *other; // lines' first letters and values
    } cases[] = {
        {"expert_count", "u0", "u2"},
        {"expert_count", "f0", "f2"},
        {"attention.causal", "b1", "b0"},
        {"attention.causal", "b1", "syes"},
        {"attention.clamp_kqv", "f0", "f8"},
        {"attention.max_alibi_bias", "f0", "f8"},
        {"attention.scale", "f0", "f0.25"},
        {"attn_logit_softcapping", "f0", "f50"},
        {"final_logit_softcapping", "f0", "f30"},
        {"logit_scale", "f1", "f0.5"},
        {"logit_scale", "f0", "fnan"},
        {"residual_scale", "f1", "F1,2"},
        {"embedding_scale", "f1", "f12"},
        {"rope.scaling.yarn_ext_factor", "f1", "f0"},
        {"rope.scaling.yarn_attn_factor", "f1", "f2"},
        {"rope.scaling.yarn_log_multiplier", "f0", "f0.1"},
    };
    struct temp_folder folder = temp_folder_create();
    char path[PATH_MAX], text[512];
    (void)state;
    path_in(&folder, "x.gguf", path);
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof cases[0]); i++) {
        const char *value = i % 2 == 0 ? cases[i / 2].neutral : cases[i / 2].other;
        struct sl_model_config config;
        struct sl_error err;
        snprintf(text, sizeof text, LLAMA "%c llama.%s %s\n" EMBEDDING, value[0], cases[i / 2].key, value + 1);
        write_file(&folder, "x.gguf", text);
        enum sl_status status = load_config(path, &config, &err);
        if (status != (i % 2 == 0 ? SL_OK : SL_ERR_UNSUPPORTED) ||
            (status != SL_OK && !strstr(err.text, cases[i / 2].key))) {
            fail_msg("%s of %s: status %d: %s", cases[i / 2].key, value, status, err.text);
        }
    }
    temp_folder_destroy(&folder);
}

static void test_metadata_say_how_rope_is_scaled(void **state) {
    static const struct {
        const char *text;
        enum sl_rope_kind kind;
        double factor, fast, slow;
    } cases[] = {
        {"u a 1\n", SL_ROPE_DEFAULT, 0, 0, 0},
        {"f llama.rope.scale_linear 4\n", SL_ROPE_LINEAR, 4, 0, 0}, // older files; without a type
        {"f llama.rope.scaling.factor 2\nf llama.rope.scale_linear 4\n", SL_ROPE_LINEAR, 2, 0, 0},
        {"s llama.rope.scaling.type yarn\nf llama.rope.scaling.factor 4\n", SL_ROPE_YARN, 4, 32, 1},
        {"s llama.rope.scaling.type yarn\nf llama.rope.scaling.factor 4\nf llama.rope.scaling.yarn_beta_fast 16\n"
         "f llama.rope.scaling.yarn_beta_slow 2\n",
         SL_ROPE_YARN, 4, 16, 2},
    };
    struct temp_folder folder = temp_folder_create();
    char path[PATH_MAX], text[1024];
    (void)state;
    path_in(&folder, "x.gguf", path);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_model_config config;
        struct sl_error err;
        snprintf(text, sizeof text, LLAMA "%s" EMBEDDING, cases[i].text);
        write_file(&folder, "x.gguf", text);
        if (load_config(path, &config, &err) != SL_OK || config.rope.kind != cases[i].kind ||
            config.rope.factor != cases[i].factor || config.rope.high_turns != cases[i].fast ||
            config.rope.low_turns != cases[i].slow) {
            fail_msg("case %zu: kind %d, %g, %g, %g: %s", i, config.rope.kind, config.rope.factor,
                     config.rope.high_turns, config.rope.low_turns, err.text);
        }
    }
    temp_folder_destroy(&folder);
}

static void test_metadata_say_windows_stretches_and_ends(void **state) {
    struct temp_folder folder = temp_folder_create();
    struct sl_model_config config;
    struct sl_error err;
    char path[PATH_MAX];
    (void)state;
    path_in(&folder, "x.gguf", path);
    write_file(&folder, "x.gguf", LLAMA "u llama.attention.sliding_window 11\n" EMBEDDING);
    assert_int_equal(load_config(path, &config, &err), SL_OK);
    assert_string_equal(config.family->name, "mistral");
    assert_int_equal(config.window, 11);
    // eight frequencies with a stretch of their own, as Llama 3.1 has them: byte i of the data is 1 + i % 31
    write_file(&folder, "x.gguf", LLAMA "t rope_freqs.weight 1 8\n" EMBEDDING);
    assert_int_equal(load_config(path, &config, &err), SL_OK);
    assert_int_equal(config.rope.kind, SL_ROPE_LONGROPE);
    assert_true(config.rope.stretch[0][0] == config.rope.stretch[1][0] && config.rope.scale == 1.0);
    assert_true(config.rope.stretch[0][1] > config.rope.stretch[0][0]);
    write_file(&folder, "x.gguf",
               LLAMA
               "u tokenizer.ggml.eos_token_id 2\nu tokenizer.ggml.eot_token_id 3\nu tokenizer.ggml.bos_token_id 1\n"
               "S tokenizer.ggml.tokens a|b|c|d|<|im_end\n" EMBEDDING);
    assert_int_equal(load_config(path, &config, &err), SL_OK);
    assert_int_equal(config.bos_id, 1);
    assert_int_equal(config.ends.n, 2);
    assert_true(config.ends.ids[0] == 2 && config.ends.ids[1] == 3);
    // A known end of turns is one beside the file's own where it is a control token (3), and none as a word (1).
    for (int type = 1; type <= 3; type += 2) {
        char text[1000];
        snprintf(text, sizeof text,
                 LLAMA "u tokenizer.ggml.eos_token_id 0\nS tokenizer.ggml.tokens a|b|<end_of_turn>\n"
                       "i tokenizer.ggml.token_type 1,1,%d\n" EMBEDDING,
                 type);
        write_file(&folder, "x.gguf", text);
        assert_int_equal(load_config(path, &config, &err), SL_OK);
        assert_int_equal(config.ends.n, type == 3 ? 2 : 1);
        assert_true(config.ends.ids[0] == 0 && (type == 1 || config.ends.ids[1] == 2));
    }
    temp_folder_destroy(&folder);
}

// --- tokenizers ------------------------------------------------------------------------------------------------------

static void put_texts(const char *key, const json_t *list) {
    gguf_put_text(&file, key, strlen(key));
    gguf_put_u32(&file, 9);
    gguf_put_u32(&file, 8);
    gguf_put_u64(&file, json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *text = json_array_get(list, i);
        gguf_put_text(&file, json_string_value(text), json_string_length(text));
    }
    file.n_values++;
}

static void put_numbers(const char *key, bool is_float, const json_t *list) {
    gguf_put_text(&file, key, strlen(key));
    gguf_put_u32(&file, 9);
    gguf_put_u32(&file, is_float ? 6 : 5);
    gguf_put_u64(&file, json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        gguf_put_number(&file, is_float, json_number_value(json_array_get(list, i)));
    }
    file.n_values++;
}

// tools/golden_sentencepiece.py: scores in place of merges.
static void test_scores_give_the_ids_that_sentencepiece_gives(void **state) {
    static const char text[] =
        "s general.architecture llama\ns tokenizer.ggml.model llama\nu tokenizer.ggml.bos_token_id 1\n"
        "u tokenizer.ggml.eos_token_id 2\nu tokenizer.ggml.unknown_token_id 0\n";
    struct temp_folder folder = temp_folder_create();
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_error err = {0};
    char path[PATH_MAX];
    json_t *golden = json_load_file("tests/golden/tokenizer/sentencepiece.json", 0, NULL);
    assert_non_null(golden);
    (void)state;
    gguf_file_make(&file, text, sizeof text - 1);
    file.n = 24; // values alone, and those of the lists after them
    file.n_values = 0;
    for (const char *at = text, *line, *end = text + sizeof text - 1;;) {
        size_t n;
        if (!gguf_next(&at, end, '\n', &line, &n)) {
            break;
        }
        if (n > 2) {
            gguf_put_value(&file, line[0], line + 2, line + n);
        }
    }
    put_texts("tokenizer.ggml.tokens", json_object_get(golden, "tokens"));
    put_numbers("tokenizer.ggml.scores", true, json_object_get(golden, "scores"));
    put_numbers("tokenizer.ggml.token_type", false, json_object_get(golden, "types"));
    memcpy(file.bytes + 16, &file.n_values, 8);
    temp_folder_write(&folder, "x.gguf", file.bytes, file.n);
    if (sl_tokenizer_load(path_in(&folder, "x.gguf", path), &tokenizer, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(sl_tokenizer_begin_id(tokenizer), 1);
    const json_t *texts = json_object_get(golden, "texts"), *all = json_object_get(golden, "ids");
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *expected = json_array_get(all, i), *string = json_array_get(texts, i);
        int32_t *ids = NULL;
        size_t n = 0;
        assert_int_equal(sl_tokenizer_encode(tokenizer, json_string_value(string), json_string_length(string), false,
                                             &ids, &n, &err),
                         SL_OK);
        bool same = n == json_array_size(expected);
        for (size_t k = 0; k < n && same; k++) {
            same = ids[k] == json_integer_value(json_array_get(expected, k));
        }
        if (!same) {
            fail_msg("text %zu, \"%s\": %zu ids, expected %zu", i, json_string_value(string), n,
                     json_array_size(expected));
        }
        free(ids);
    }
    sl_tokenizer_destroy(&tokenizer);
    json_decref(golden);
    temp_folder_destroy(&folder);
}

static void test_tokenizers_are_refused_by_name(void **state) {
#define GPT2   "s tokenizer.ggml.model gpt2\n"
#define TOKENS "S tokenizer.ggml.tokens a|b|ab|<s>\ni tokenizer.ggml.token_type 1,1,1,3\n"
    static const struct {
        const char *text;
        enum sl_status status;
        const char *named;
    } cases[] = {
        {GPT2 "s tokenizer.ggml.pre gpt-2\n" TOKENS "S tokenizer.ggml.merges a b\n", SL_OK, ""},
        {"u a 1\n", SL_ERR_UNSUPPORTED, "tokenizer.ggml.model is missing"},
        {"s tokenizer.ggml.model bert\n", SL_ERR_UNSUPPORTED, "bert"},
        {GPT2 TOKENS, SL_ERR_UNSUPPORTED, "tokenizer.ggml.pre is missing"},
        {GPT2 "s tokenizer.ggml.pre nonesuch\n" TOKENS, SL_ERR_UNSUPPORTED, "nonesuch"},
        {GPT2 "s tokenizer.ggml.pre gpt-2\n", SL_ERR_INVALID, "tokenizer.ggml.tokens"},
        {GPT2 "s tokenizer.ggml.pre gpt-2\nS tokenizer.ggml.tokens a|a\n", SL_ERR_INVALID, "twice"},
        {GPT2 "s tokenizer.ggml.pre gpt-2\nS tokenizer.ggml.tokens a||b\n", SL_ERR_INVALID, "token 1 is empty"},
        {GPT2 "s tokenizer.ggml.pre gpt-2\nS tokenizer.ggml.tokens a|\xff\n", SL_ERR_INVALID, "UTF-8"},
        {GPT2 "s tokenizer.ggml.pre gpt-2\nS tokenizer.ggml.tokens a|b\ni tokenizer.ggml.token_type 1\n",
         SL_ERR_INVALID, "token_type"},
        {GPT2 "s tokenizer.ggml.pre gpt-2\n" TOKENS, SL_ERR_INVALID, "tokenizer.ggml.merges is missing"},
        {GPT2 "s tokenizer.ggml.pre gpt-2\n" TOKENS "S tokenizer.ggml.merges a c\n", SL_ERR_INVALID,
         "vocabulary lacks"},
        {"s tokenizer.ggml.model llama\n" TOKENS, SL_ERR_INVALID, "scores"},
        {"s tokenizer.ggml.model llama\n" TOKENS "F tokenizer.ggml.scores 1,nan,nan,1\n", SL_ERR_INVALID, "score"},
    };
    struct temp_folder folder = temp_folder_create();
    char path[PATH_MAX];
    (void)state;
    path_in(&folder, "x.gguf", path);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_tokenizer *tokenizer = NULL;
        struct sl_error err = {0};
        write_file(&folder, "x.gguf", cases[i].text);
        enum sl_status status = sl_tokenizer_load(path, &tokenizer, &err);
        if (status != cases[i].status || (status != SL_OK && !strstr(err.text, cases[i].named))) {
            fail_msg("case %zu: status %d: %s", i, status, err.text);
        }
        sl_tokenizer_destroy(&tokenizer);
    }
    temp_folder_destroy(&folder);
}

// All ways to cut a token are tried, each at the price of its length.
static void test_tokens_that_are_cut_are_not_long(void **state) {
    static char text[2048];
    struct temp_folder folder = temp_folder_create();
    char path[PATH_MAX];
    (void)state;
    path_in(&folder, "x.gguf", path);
    for (int n = 1024; n <= 1025; n++) {
        struct sl_tokenizer *tokenizer = NULL;
        struct sl_error err = {0};
        snprintf(text, sizeof text,
                 "s tokenizer.ggml.model llama\nF tokenizer.ggml.scores 1,2\nS tokenizer.ggml.tokens b|%0*d\n", n, 0);
        write_file(&folder, "x.gguf", text);
        assert_int_equal(sl_tokenizer_load(path, &tokenizer, &err), n == 1024 ? SL_OK : SL_ERR_UNSUPPORTED);
        assert_true(n == 1024 || strstr(err.text, "token 1 has 1025 bytes; up to 1024") != NULL);
        sl_tokenizer_destroy(&tokenizer);
    }
    temp_folder_destroy(&folder);
}

// Texts where merges are possible, and where a cut prevents them.
static void test_every_pretokenizer_of_the_table_cuts(void **state) {
    static const struct {
        const char *name, *text, *ids;
    } cases[] = {
        {"gpt-2", "ab12", "4 5 "},     {"phi-2", "ab12", "4 5 "},
        {"llama-bpe", "ab12", "4 5 "}, {"falcon3", "ab12", "4 5 "},
        {"dbrx", "ab12", "4 5 "},      {"smaug-bpe", "ab12", "4 5 "},
        {"qwen2", "ab12", "4 2 3 "},   {"deepseek-r1-qwen", "ab12", "4 2 3 "},
        {"smollm", "ab12", "4 2 3 "},  {"starcoder", "ab12", "4 2 3 "},
        {"falcon", "ab12", "4 5 "},    {"falcon", "ab12111", "4 5 2 2 2 "},
        {"tekken", "ab12", "4 2 3 "},  {"tekken", "aBb", "0 7 "},
        {"gpt-4o", "ab12", "4 5 "},    {"gpt-4o", "aBb", "0 7 "},
        {"qwen2", "aBb", "6 1 "},      {"llama-bpe", "12121", "5 2 3 2 "},
    };
    struct temp_folder folder = temp_folder_create();
    char path[PATH_MAX], text[512];
    (void)state;
    path_in(&folder, "x.gguf", path);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_tokenizer *tokenizer = NULL;
        struct sl_error err = {0};
        int32_t *ids = NULL;
        size_t n = 0, used = 0;
        char is[64] = "";
        snprintf(text, sizeof text,
                 "s tokenizer.ggml.model gpt2\ns tokenizer.ggml.pre %s\nS tokenizer.ggml.tokens a|b|1|2|ab|12|aB|Bb|B\n"
                 "S tokenizer.ggml.merges a b|1 2|a B|B b\n",
                 cases[i].name);
        write_file(&folder, "x.gguf", text);
        if (sl_tokenizer_load(path, &tokenizer, &err) != SL_OK) {
            fail_msg("%s: %s", cases[i].name, err.text);
        }
        assert_int_equal(sl_tokenizer_encode(tokenizer, cases[i].text, strlen(cases[i].text), false, &ids, &n, &err),
                         SL_OK);
        for (size_t k = 0; k < n; k++) {
            used += (size_t)snprintf(is + used, sizeof is - used, "%d ", ids[k]);
        }
        if (strcmp(is, cases[i].ids) != 0) {
            fail_msg("%s: \"%s\" is %s, expected %s", cases[i].name, cases[i].text, is, cases[i].ids);
        }
        free(ids);
        sl_tokenizer_destroy(&tokenizer);
    }
    temp_folder_destroy(&folder);
}

// --- memory ----------------------------------------------------------------------------------------------------------

static enum sl_status make_all(void *arg, struct sl_error *err) {
    const char *path = arg;
    struct sl_model_config config = {.head_dim = 16};
    struct sl_tensors *tensors = NULL;
    json_t *root = NULL;
    struct sl_tensor_source source;
    struct sl_rows rows;
    enum sl_status status = sl_model_document_load(path, "tokenizer.json", &root, err);
    json_decref(root);
    status = status == SL_OK ? sl_tensors_open(path, &config, &tensors, err) : status;
    status = status == SL_OK ? sl_tensors_find(tensors, "model.embed_tokens.weight", 2, 8, 32, &source, err) : status;
    status = status == SL_OK ? sl_tensors_read(tensors, &source, SL_F32, NULL, &rows, err) : status;
    sl_tensors_close(&tensors);
    return status;
}

static void test_gguf_without_memory_is_refused(void **state) {
    struct temp_folder folder = temp_folder_create();
    char path[PATH_MAX];
    (void)state;
    write_file(&folder, "x.gguf",
               LLAMA "s tokenizer.ggml.model llama\n" TOKENS "F tokenizer.ggml.scores 1,2,3,4\n" EMBEDDING);
    assert_true(assert_refused_without_memory(make_all, (void *)path_in(&folder, "x.gguf", path)) >= 12);
    temp_folder_destroy(&folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf_without_memory_is_refused),
        cmocka_unit_test(test_every_pretokenizer_of_the_table_cuts),
        cmocka_unit_test(test_gguf_refuses_every_beginning_of_a_file),
        cmocka_unit_test(test_gguf_refuses_damaged_numbers),
        cmocka_unit_test(test_gguf_refuses_impossible_tensors),
        cmocka_unit_test(test_model_is_a_file_or_the_only_one_of_a_folder),
        cmocka_unit_test(test_metadata_become_a_configuration),
        cmocka_unit_test(test_metadata_say_windows_stretches_and_ends),
        cmocka_unit_test(test_scores_give_the_ids_that_sentencepiece_gives),
        cmocka_unit_test(test_tokenizers_are_refused_by_name),
        cmocka_unit_test(test_gguf_refuses_a_fifo_at_once),
        cmocka_unit_test(test_keys_that_nothing_reads_are_refused),
        cmocka_unit_test(test_metadata_say_how_rope_is_scaled),
        cmocka_unit_test(test_tokens_that_are_cut_are_not_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
