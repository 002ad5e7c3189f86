// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: loading a tokenizer: files that must be refused, where the begin token comes from, what the fingerprint
 *          tells.
 *
 * Design: a broken file is the demo model's with one thing changed, so that the one thing is the reason.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/text/tokenizer/tokenizer_json.h"

// --- files that are refused ------------------------------------------------------------------------------------------
// Set root.path[0].path[1]... to the JSON text `value`, or delete it when that is NULL.
static void change(json_t *root, const char *path, const char *value) {
    char parts[128];
    char *rest = NULL;
    snprintf(parts, sizeof(parts), "%s", path);
    char *part = strtok_r(parts, "/", &rest);
    for (char *next = strtok_r(NULL, "/", &rest); next; part = next, next = strtok_r(NULL, "/", &rest)) {
        root = json_is_array(root) ? json_array_get(root, (size_t)atoi(part)) : json_object_get(root, part);
        assert_non_null(root);
    }
    json_t *json = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    assert_true(!value || json);
    if (json_is_array(root)) {
        assert_int_equal(json ? json_array_insert_new(root, (size_t)atoi(part), json)
                              : json_array_remove(root, (size_t)atoi(part)),
                         0);
    } else {
        assert_int_equal(json ? json_object_set_new(root, part, json) : json_object_del(root, part), 0);
    }
}

static void test_tokenizer_refuses_what_it_does_not_implement(void **state) {
    (void)state;
    static const struct {
        const char *path, *value;
        enum sl_status status;
        const char *named; // what the text of the error must contain
    } cases[] = {
        {"model", NULL, SL_ERR_INVALID, "model is missing"},
        {"model/vocab", NULL, SL_ERR_INVALID, "model.vocab"},
        {"model/vocab", "[]", SL_ERR_INVALID, "model.vocab"},
        {"model/vocab", "{}", SL_ERR_INVALID, "id"},
        {"model/merges", NULL, SL_ERR_INVALID, "model.merges"},
        {"model/merges", "{}", SL_ERR_INVALID, "model.merges"},
        {"model/merges/0", "\"zq\"", SL_ERR_INVALID, "merge 0"},
        {"model/merges/0", "\"z q x\"", SL_ERR_INVALID, "merge 0"},
        {"model/merges/0", "7", SL_ERR_INVALID, "merge 0"},
        {"model/merges/0", "[\"z\"]", SL_ERR_INVALID, "merge 0"},
        {"model/merges/0", "[\"z\", 1]", SL_ERR_INVALID, "merge 0"},
        {"model/merges/3", "\"nonesuch a\"", SL_ERR_INVALID, "nonesuch"},
        {"model/merges/3", "\"z Q\"", SL_ERR_INVALID, "zQ"},
        {"model/merges/3", "\"\\u0120 t\"", SL_ERR_INVALID, "repeats merge 0"},
        {"model/merges/3", "\" t\"", SL_ERR_INVALID, "merge 3"},
        {"model/vocab/a", NULL, SL_ERR_INVALID, "id"},
        {"model/vocab/a", "65", SL_ERR_INVALID, "id 65"},
        {"model/vocab/a", "-1", SL_ERR_INVALID, "id -1"},
        {"model/vocab/a", "9999999999", SL_ERR_INVALID, "id 9999999999"},
        {"model/vocab/a", "\"64\"", SL_ERR_INVALID, "not an integer"},
        {"model/vocab/a", "64.0", SL_ERR_INVALID, "not an integer"},
        {"model/vocab", "{\"\": 0}", SL_ERR_INVALID, "empty"},
        {"model/vocab/<|im_end|>", "3", SL_ERR_INVALID, "id"},
        {"model/type", "\"Unigram\"", SL_ERR_UNSUPPORTED, "Unigram"},
        {"model/type", "\"WordPiece\"", SL_ERR_UNSUPPORTED, "WordPiece"},
        {"model/byte_fallback", "true", SL_ERR_UNSUPPORTED, "byte_fallback"},
        {"model/dropout", "0.1", SL_ERR_UNSUPPORTED, "dropout"},
        {"model/continuing_subword_prefix", "\"##\"", SL_ERR_UNSUPPORTED, "continuing_subword_prefix"},
        {"model/end_of_word_suffix", "\"</w>\"", SL_ERR_UNSUPPORTED, "end_of_word_suffix"},
        {"model/ignore_merges", "1", SL_ERR_INVALID, "ignore_merges"},
        {"model/novelty", "1", SL_ERR_UNSUPPORTED, "novelty"},
        {"novelty", "1", SL_ERR_UNSUPPORTED, "novelty"},
        {"truncation", "{\"max_length\": 1}", SL_ERR_UNSUPPORTED, "truncation"},
        {"padding", "{\"pad_id\": 1}", SL_ERR_UNSUPPORTED, "padding"},
        {"decoder", "null", SL_ERR_UNSUPPORTED, "decoder"},
        {"decoder/type", "\"Metaspace\"", SL_ERR_UNSUPPORTED, "Metaspace"},
        {"normalizer/type", "\"NFKC\"", SL_ERR_UNSUPPORTED, "NFKC"},
        {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]}", SL_ERR_UNSUPPORTED,
         "Lowercase"},
        {"normalizer", "\"NFC\"", SL_ERR_INVALID, "normalizer"},
        {"added_tokens", "{}", SL_ERR_INVALID, "added_tokens"},
        {"added_tokens/0/content", NULL, SL_ERR_INVALID, "content"},
        {"added_tokens/0/content", "\"\"", SL_ERR_INVALID, "content"},
        {"added_tokens/0/id", "2046", SL_ERR_INVALID, "2046"},
        {"added_tokens/0/id", "4000", SL_ERR_INVALID, "4000"},
        {"added_tokens/0/id", "0", SL_ERR_INVALID, "id 0"},
        {"added_tokens/0/id", NULL, SL_ERR_INVALID, "not an integer"},
        {"added_tokens/0/single_word", "1", SL_ERR_INVALID, "single_word"},
        {"added_tokens/0/lstrip", "\"yes\"", SL_ERR_INVALID, "lstrip"},
        {"added_tokens/0/fancy", "1", SL_ERR_UNSUPPORTED, "fancy"},
        {"added_tokens/0/content", "\"<|im_end|>\"", SL_ERR_INVALID, "twice"},
        {"pre_tokenizer", "null", SL_ERR_UNSUPPORTED, "ByteLevel"},
        {"pre_tokenizer/pretokenizers", "[]", SL_ERR_UNSUPPORTED, "ByteLevel"},
        {"pre_tokenizer/pretokenizers", "{}", SL_ERR_INVALID, "pretokenizers"},
        {"pre_tokenizer/pretokenizers/1", NULL, SL_ERR_UNSUPPORTED, "ByteLevel"},
        {"pre_tokenizer/pretokenizers/0", "{\"type\": \"ByteLevel\"}", SL_ERR_UNSUPPORTED, "ByteLevel"},
        {"pre_tokenizer/pretokenizers/0", "{\"type\": \"Whitespace\"}", SL_ERR_UNSUPPORTED, "Whitespace"},
        {"pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", SL_ERR_UNSUPPORTED, "Removed"},
        {"pre_tokenizer/pretokenizers/0/invert", "true", SL_ERR_UNSUPPORTED, "inverted"},
        {"pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \" \"}", SL_ERR_UNSUPPORTED, "String"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(a\"", SL_ERR_INVALID, "expression"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"[a\"", SL_ERR_INVALID, "expression"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\p{Nonesuch}\"", SL_ERR_INVALID, "expression"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"a\\\\w\"", SL_ERR_UNSUPPORTED, "\\w\" at 1"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"a\\\\\"", SL_ERR_UNSUPPORTED, "at 1"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\bx\"", SL_ERR_UNSUPPORTED, "\\b"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"^x$\"", SL_ERR_UNSUPPORTED, "^x$"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"[[:alpha:]]\"", SL_ERR_UNSUPPORTED, "[:alpha:]"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"[a&&b]\"", SL_ERR_UNSUPPORTED, "&&"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(?x) a\"", SL_ERR_UNSUPPORTED, "(?x)"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(*ACCEPT)\"", SL_ERR_UNSUPPORTED, "(*ACCEPT)"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"a{,2}\"", SL_ERR_UNSUPPORTED, "{,2}"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"a{1,2}+\"", SL_ERR_UNSUPPORTED, "{1,2}+"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\p{L\"", SL_ERR_UNSUPPORTED, "\\p{L"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"[]a]\"", SL_ERR_UNSUPPORTED, "[]a]"},
        {"post_processor/type", "\"RobertaProcessing\"", SL_ERR_UNSUPPORTED, "RobertaProcessing"},
        {"post_processor", "{\"type\": \"TemplateProcessing\", \"single\": []}", SL_ERR_UNSUPPORTED, "Template"},
        {"post_processor",
         "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\"}}, {\"SpecialToken\": {}}]}",
         SL_ERR_INVALID, "(none)"},
        {"post_processor",
         "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}, {\"Sequence\": {}}]}",
         SL_ERR_INVALID, "<s>"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct sl_error err = {0};
        struct sl_tokenizer *tokenizer = NULL;
        json_t *root = demo_json();
        change(root, cases[i].path, cases[i].value);
        enum sl_status status = load_json(root, NULL, &tokenizer, &err);
        if (status != cases[i].status || !strstr(err.text, cases[i].named)) {
            fail_msg("%s = %s: status %d: %s", cases[i].path, cases[i].value ? cases[i].value : "(deleted)", status,
                     err.text);
        }
        assert_null(tokenizer);
    }
}

// A file of SentencePiece's kind, with tokens of all bytes and few others.
static json_t *marks_json(void) {
    json_t *root = json_loads("{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": ["
                              "{\"type\": \"Prepend\", \"prepend\": \"\\u2581\"}, "
                              "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\\u2581\"}]}, "
                              "\"pre_tokenizer\": null, \"decoder\": {\"type\": \"Sequence\", \"decoders\": ["
                              "{\"type\": \"Replace\", \"pattern\": {\"String\": \"\\u2581\"}, \"content\": \" \"}, "
                              "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, "
                              "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}, "
                              "\"model\": {\"type\": \"BPE\", \"unk_token\": \"a\", \"byte_fallback\": true, "
                              "\"vocab\": {\"\\u2581\": 256, \"a\": 257, \"\\u2581a\": 258}, "
                              "\"merges\": [\"\\u2581 a\"]}}",
                              0, NULL);
    assert_non_null(root);
    for (int byte = 0; byte < 256; byte++) {
        char token[8];
        snprintf(token, sizeof(token), "<0x%02X>", (unsigned)byte);
        json_object_set_new(json_object_get(json_object_get(root, "model"), "vocab"), token, json_integer(byte));
    }
    return root;
}

#define METASPACE(members) "{\"type\": \"Metaspace\", \"replacement\": \"\\u2581\"" members "}"

static void test_tokenizer_refuses_steps_that_it_does_not_implement(void **state) {
    (void)state;
    static const struct {
        const char *path, *value;
        enum sl_status status; // SL_OK: to be sure that the others fail for their own reason
        const char *named;
    } cases[] = {
        {"version", "\"1.0\"", SL_OK, ""},
        {"model/vocab", "{\"a\": 0}", SL_ERR_INVALID, "which the vocabulary lacks"},
        {"model/byte_fallback", "\"yes\"", SL_ERR_INVALID, "byte_fallback"},
        {"model/byte_fallback", "false", SL_OK, ""},
        {"model/fuse_unk", "2", SL_ERR_INVALID, "fuse_unk"},
        {"model/unk_token", "\"nonesuch\"", SL_ERR_INVALID, "nonesuch"},
        {"model", "{\"vocab\": {\"a\": 0}, \"merges\": []}", SL_ERR_UNSUPPORTED, "would be lost"},
        {"normalizer", "{\"type\": \"NFKC\"}", SL_ERR_UNSUPPORTED, "NFKC"},
        {"normalizer/normalizers/0/prepend", "\"\"", SL_ERR_INVALID, "prepend"},
        {"normalizer/normalizers/0/prepend", "7", SL_ERR_INVALID, "prepend"},
        {"normalizer/normalizers/1/pattern", "{\"Regex\": \" \"}", SL_ERR_UNSUPPORTED, "Regex"},
        {"normalizer/normalizers/1/pattern/String", "\"\"", SL_ERR_INVALID, "String"},
        {"normalizer/normalizers/1/content", NULL, SL_ERR_INVALID, "content"},
        {"normalizer/normalizers/0", "{\"type\": \"Sequence\", \"normalizers\": []}", SL_ERR_UNSUPPORTED, "Sequence"},
        {"normalizer/normalizers/0", "{}", SL_ERR_INVALID, "type"},
        {"pre_tokenizer", METASPACE(""), SL_OK, ""},
        {"pre_tokenizer", METASPACE(", \"add_prefix_space\": false"), SL_OK, ""},
        {"pre_tokenizer", METASPACE(", \"add_prefix_space\": false, \"prepend_scheme\": \"first\""), SL_ERR_INVALID,
         "prepend_scheme"},
        {"pre_tokenizer", METASPACE(", \"prepend_scheme\": \"last\""), SL_ERR_UNSUPPORTED, "last"},
        {"pre_tokenizer", METASPACE(", \"split\": 1"), SL_ERR_INVALID, "split"},
        {"pre_tokenizer", "{\"type\": \"Metaspace\", \"replacement\": \"_\"}", SL_ERR_UNSUPPORTED, "replacement"},
        {"pre_tokenizer", "{\"type\": \"Metaspace\"}", SL_ERR_INVALID, "replacement"},
        {"pre_tokenizer", "{\"type\": \"Punctuation\", \"behavior\": \"Removed\"}", SL_ERR_UNSUPPORTED, "Removed"},
        {"pre_tokenizer", "{\"type\": \"ByteLevel\"}", SL_ERR_UNSUPPORTED, "byte_fallback"},
        {"decoder", "null", SL_ERR_UNSUPPORTED, "spaces between tokens"},
        {"decoder", "{\"type\": \"ByteLevel\"}", SL_ERR_UNSUPPORTED, "ByteLevel"},
        {"decoder", "{\"type\": \"WordPiece\"}", SL_ERR_UNSUPPORTED, "WordPiece"},
        {"decoder", "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}", SL_ERR_UNSUPPORTED,
         "Strip"},
        {"decoder/decoders/3/stop", "1", SL_ERR_UNSUPPORTED, "stop"},
        {"decoder/decoders/3/start", "-1", SL_ERR_INVALID, "Strip"},
        {"decoder/decoders/3/content", "\"ab\"", SL_ERR_INVALID, "Strip"},
        {"decoder/decoders/0/content", "\"four\"", SL_ERR_UNSUPPORTED, "longer"},
        {"decoder/decoders/0/pattern", "{\"Regex\": \"a\"}", SL_ERR_UNSUPPORTED, "Regex"},
        {"decoder/decoders/0", METASPACE(""), SL_ERR_UNSUPPORTED, "Replace"},
        {"decoder/decoders/0", "{\"type\": \"Fuse\"}", SL_ERR_UNSUPPORTED, "Replace"},
        {"decoder/decoders/0", "{\"type\": \"ByteFallback\"}", SL_ERR_UNSUPPORTED, "Replace"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct sl_error err = {0};
        struct sl_tokenizer *tokenizer = NULL;
        json_t *root = marks_json();
        change(root, cases[i].path, cases[i].value);
        enum sl_status status = load_json(root, NULL, &tokenizer, &err);
        if (status != cases[i].status || !strstr(err.text, cases[i].named)) {
            fail_msg("%s = %s: status %d: %s", cases[i].path, cases[i].value ? cases[i].value : "(deleted)", status,
                     err.text);
        }
        assert_true((tokenizer != NULL) == (status == SL_OK));
        sl_tokenizer_destroy(&tokenizer);
    }
}

// Bytes of tokenizer.json as they are; NULL for no such file.
static void check_bytes_refused(const char *bytes, size_t n_bytes, enum sl_status expected, const char *named) {
    struct temp_folder folder = temp_folder_create();
    struct sl_error err = {0};
    struct sl_tokenizer *tokenizer = NULL;
    if (bytes) {
        temp_folder_write(&folder, "tokenizer.json", bytes, n_bytes);
    }
    assert_int_equal(sl_tokenizer_load(folder.path, &tokenizer, &err), expected);
    assert_non_null(strstr(err.text, named));
    assert_null(tokenizer);
    temp_folder_destroy(&folder);
}

static void test_tokenizer_refuses_damaged_files(void **state) {
    (void)state;
    json_t *root = demo_json();
    char *text = json_dumps(root, JSON_COMPACT);
    size_t n_bytes = strlen(text);
    check_bytes_refused(NULL, 0, SL_ERR_NOT_FOUND, "tokenizer.json");
    check_bytes_refused("", 0, SL_ERR_INVALID, "tokenizer.json");
    check_bytes_refused("[]", 2, SL_ERR_INVALID, "tokenizer.json");
    check_bytes_refused("{} {}", 5, SL_ERR_INVALID, "tokenizer.json");
    check_bytes_refused("{\"model\": 1, \"model\": 2}", 24, SL_ERR_INVALID, "duplicate");
    for (size_t n = n_bytes - 1; n > 0; n = n * 9 / 10) {
        check_bytes_refused(text, n, SL_ERR_INVALID, "tokenizer.json");
    }
    free(text);
    json_decref(root);

    size_t depth = 1000000;
    char *deep = malloc(depth + 5);
    assert_non_null(deep);
    memcpy(deep, "{\"a\":", 5);
    memset(deep + 5, '[', depth);
    check_bytes_refused(deep, depth + 5, SL_ERR_INVALID, "depth");
    free(deep);
}

static void test_tokenizer_refuses_a_huge_file(void **state) {
    (void)state;
    struct temp_folder folder = temp_folder_create();
    struct sl_error err = {0};
    struct sl_tokenizer *tokenizer = NULL;
    char path[128];
    temp_folder_write_text(&folder, "tokenizer.json", "{}");
    snprintf(path, sizeof(path), "%s/tokenizer.json", folder.path);
    assert_int_equal(truncate(path, (off_t)65 << 20), 0);
    assert_int_equal(sl_tokenizer_load(folder.path, &tokenizer, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "bytes"));
    temp_folder_destroy(&folder);
}

// --- the begin token -------------------------------------------------------------------------------------------------
static const char begin_template[] =
    "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, {\"type\": \"TemplateProcessing\", "
    "\"single\": [{\"SpecialToken\": {\"id\": \"<|im_start|>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\"}}], "
    "\"pair\": [], \"special_tokens\": {\"<|im_start|>\": {\"id\": \"<|im_start|>\", \"ids\": [2046]}}}]}";

static void test_tokenizer_takes_begin_token_from_template_or_configuration(void **state) {
    (void)state;
    static const struct {
        const char *post_processor, *config;
        int32_t begin_id;
    } cases[] = {
        {"null", NULL, -1},
        {begin_template, NULL, 2046},
        {begin_template, "{}", 2046},
        {begin_template, "{\"add_bos_token\": false}", -1},
        {begin_template, "{\"add_bos_token\": true}", 2046},
        {"null", "{\"add_bos_token\": true, \"bos_token\": \"<|im_end|>\"}", 2047},
        {"null", "{\"add_bos_token\": true, \"bos_token\": {\"content\": \"<|im_end|>\"}}", 2047},
        {"null", "{\"add_bos_token\": false, \"bos_token\": \"<|im_end|>\"}", -1},
        {"null", "{\"add_bos_token\": null, \"bos_token\": \"<|im_end|>\"}", -1},
        {"null", "{\"bos_token\": \"<|im_end|>\", \"add_eos_token\": false}", -1},
        {"{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\"}}]}", NULL, -1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct sl_tokenizer *tokenizer = NULL;
        struct sl_error err = {0};
        json_t *root = demo_json();
        change(root, "post_processor", cases[i].post_processor);
        if (load_json(root, cases[i].config, &tokenizer, &err) != SL_OK) {
            fail_msg("case %zu: %s", i, err.text);
        }
        assert_int_equal(sl_tokenizer_begin_id(tokenizer), cases[i].begin_id);
        sl_tokenizer_destroy(&tokenizer);
    }
}

static void test_tokenizer_puts_end_tokens_behind_unless_configured_otherwise(void **state) {
    (void)state;
    static const char template[] =
        "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"b\"}}, {\"Sequence\": {\"id\": "
        "\"A\"}}, {\"SpecialToken\": {\"id\": \"e\"}}], \"special_tokens\": {\"b\": {\"ids\": [2045]}, \"e\": "
        "{\"ids\": "
        "[2047, 2046]}}}";
    static const struct {
        const char *config;
        size_t n;
        int32_t ids[4];
    } cases[] = {
        {NULL, 4, {2045, 64, 2047, 2046}},
        {"{\"add_eos_token\": true}", 4, {2045, 64, 2047, 2046}},
        {"{\"add_eos_token\": false}", 2, {2045, 64}},
        {"{\"add_bos_token\": false}", 3, {64, 2047, 2046}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct sl_tokenizer *tokenizer = NULL;
        struct sl_error err = {0};
        int32_t *ids = NULL;
        size_t n = 0;
        json_t *root = demo_json();
        change(root, "post_processor", template);
        if (load_json(root, cases[i].config, &tokenizer, &err) != SL_OK) {
            fail_msg("case %zu: %s", i, err.text);
        }
        assert_int_equal(sl_tokenizer_encode(tokenizer, "a", 1, true, &ids, &n, NULL), SL_OK);
        assert_int_equal(n, cases[i].n);
        for (size_t k = 0; k < n; k++) {
            assert_int_equal(ids[k], cases[i].ids[k]);
        }
        free(ids);
        sl_tokenizer_destroy(&tokenizer);
    }
}

static void test_tokenizer_refuses_a_begin_token_that_it_lacks(void **state) {
    (void)state;
    static const struct {
        const char *config;
        enum sl_status status;
        const char *named;
    } cases[] = {
        {"{\"add_bos_token\": true}", SL_ERR_INVALID, "begin token"},
        {"{\"add_bos_token\": true, \"bos_token\": \"<nonesuch>\"}", SL_ERR_INVALID, "<nonesuch>"},
        {"{\"add_bos_token\": 1}", SL_ERR_INVALID, "add_bos_token"},
        {"{\"add_eos_token\": true}", SL_ERR_UNSUPPORTED, "add_eos_token"},
        {"{", SL_ERR_INVALID, "tokenizer_config.json"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct sl_tokenizer *tokenizer = NULL;
        struct sl_error err = {0};
        assert_int_equal(load_json(demo_json(), cases[i].config, &tokenizer, &err), cases[i].status);
        assert_non_null(strstr(err.text, cases[i].named));
        assert_null(tokenizer);
    }
}

static void test_tokenizer_asks_generation_config_last(void **state) {
    (void)state;
    struct temp_folder folder = temp_folder_create();
    struct sl_error err = {0};
    struct sl_tokenizer *tokenizer = NULL;
    json_t *root = demo_json();
    char *text = json_dumps(root, JSON_COMPACT);
    temp_folder_write_text(&folder, "tokenizer.json", text);
    temp_folder_write_text(&folder, "tokenizer_config.json", "{\"add_bos_token\": true}");
    temp_folder_write_text(&folder, "generation_config.json", "{\"bos_token_id\": 2046}");
    assert_int_equal(sl_tokenizer_load(folder.path, &tokenizer, &err), SL_OK);
    assert_int_equal(sl_tokenizer_begin_id(tokenizer), 2046);
    sl_tokenizer_destroy(&tokenizer);
    // in 32 bits the last two are ids
    static const char *const unknown[] = {"2048", "-1", "-2147483649", "-4294965250"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        char generation[64];
        snprintf(generation, sizeof generation, "{\"bos_token_id\": %s}", unknown[i]);
        temp_folder_write_text(&folder, "generation_config.json", generation);
        assert_int_equal(sl_tokenizer_load(folder.path, &tokenizer, &err), SL_ERR_INVALID);
    }
    temp_folder_destroy(&folder);
    free(text);
    json_decref(root);
}

// --- forms of the same thing -----------------------------------------------------------------------------------------
static uint64_t fingerprint_with(const char *path, const char *value) {
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_error err = {0};
    json_t *root = demo_json();
    if (path) {
        change(root, path, value);
    }
    if (load_json(root, NULL, &tokenizer, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    uint64_t fingerprint = sl_tokenizer_fingerprint(tokenizer);
    sl_tokenizer_destroy(&tokenizer);
    return fingerprint;
}

static void test_tokenizer_fingerprint_tells_what_matters(void **state) {
    (void)state;
    uint64_t demo = fingerprint_with(NULL, NULL);
    static const char *const changes[][2] = {
        {"model/merges/1788", NULL},
        {"model/ignore_merges", "true"},
        {"normalizer", "null"},
        {"added_tokens/0/special", "false"},
        {"added_tokens/0/lstrip", "true"},
        {"added_tokens/0/normalized", "true"},
        {"added_tokens/0/content", "\"<|end|>\""},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"x\""},
        {"pre_tokenizer/pretokenizers/1/add_prefix_space", "true"},
        {"post_processor", begin_template},
    };
    for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
        assert_true(fingerprint_with(changes[i][0], changes[i][1]) != demo);
    }
    assert_true(fingerprint_with("version", "\"2.0\"") == demo);
}

static void test_tokenizer_reads_merges_as_pairs(void **state) {
    (void)state;
    json_t *root = demo_json(), *merges = json_object_get(json_object_get(root, "model"), "merges");
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const char *merge = json_string_value(json_array_get(merges, i)), *space = strchr(merge, ' ');
        json_array_set_new(merges, i, json_pack("[s%s]", merge, (size_t)(space - merge), space + 1));
    }
    struct sl_tokenizer *tokenizer = NULL;
    assert_int_equal(load_json(root, NULL, &tokenizer, NULL), SL_OK);
    assert_true(sl_tokenizer_fingerprint(tokenizer) == fingerprint_with(NULL, NULL));
    sl_tokenizer_destroy(&tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer_refuses_what_it_does_not_implement),
        cmocka_unit_test(test_tokenizer_refuses_steps_that_it_does_not_implement),
        cmocka_unit_test(test_tokenizer_refuses_damaged_files),
        cmocka_unit_test(test_tokenizer_refuses_a_huge_file),
        cmocka_unit_test(test_tokenizer_takes_begin_token_from_template_or_configuration),
        cmocka_unit_test(test_tokenizer_puts_end_tokens_behind_unless_configured_otherwise),
        cmocka_unit_test(test_tokenizer_refuses_a_begin_token_that_it_lacks),
        cmocka_unit_test(test_tokenizer_asks_generation_config_last),
        cmocka_unit_test(test_tokenizer_fingerprint_tells_what_matters),
        cmocka_unit_test(test_tokenizer_reads_merges_as_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
