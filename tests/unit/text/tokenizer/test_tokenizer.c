// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: ids of difficult strings against those that the `tokenizers` library gave (tools/golden_tokenizer.py), on
 *          the demo model's pipeline and on others with its vocabulary; and what else the header promises.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/unit/text/tokenizer/tokenizer_json.h"

#define GOLDEN "tests/golden/tokenizer/demo.json"

static struct sl_tokenizer *load_demo(void) {
    struct sl_error err = {0};
    struct sl_tokenizer *tokenizer = NULL;
    if (sl_tokenizer_load("models/demo", &tokenizer, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return tokenizer;
}

// --- golden strings --------------------------------------------------------------------------------------------------
static char *detokenize(const struct sl_tokenizer *tokenizer, const int32_t *ids, size_t n, size_t *n_bytes_out) {
    struct sl_detokenizer detokenizer;
    size_t step_bytes = sl_detokenizer_max_bytes(tokenizer), n_bytes = 0;
    char *text = malloc((n + 1) * step_bytes);
    assert_non_null(text);
    sl_detokenizer_init(&detokenizer, tokenizer);
    for (size_t i = 0; i < n; i++) {
        n_bytes += sl_detokenizer_push(&detokenizer, ids[i], text + n_bytes, step_bytes);
        assert_true(sl_utf8_valid(text, n_bytes, NULL));
    }
    n_bytes += sl_detokenizer_finish(&detokenizer, text + n_bytes, step_bytes);
    *n_bytes_out = n_bytes;
    return text;
}

static bool same_ids(const json_t *expected, const int32_t *ids, size_t n) {
    bool same = json_array_size(expected) == n;
    for (size_t i = 0; i < n && same; i++) {
        same = json_integer_value(json_array_get(expected, i)) == ids[i];
    }
    return same;
}

static void check_case(const struct sl_tokenizer *tokenizer, const char *group, size_t nth, const json_t *golden) {
    const json_t *text = json_array_get(golden, 0);
    const json_t *decoded = json_array_get(golden, json_array_size(golden) == 3 ? 2 : 0);
    int32_t *ids = NULL;
    size_t n_ids = 0, n_bytes = 0;
    struct sl_error err = {0};
    if (sl_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), false, &ids, &n_ids, &err) !=
        SL_OK) {
        fail_msg("%s, string %zu: %s", group, nth, err.text);
    }
    if (!same_ids(json_array_get(golden, 1), ids, n_ids)) {
        fail_msg("%s: ids of string %zu differ: \"%.200s\"", group, nth, json_string_value(text));
    }
    const size_t n_least = sl_tokenizer_least_tokens(tokenizer, json_string_value(text), json_string_length(text));
    if (n_least > n_ids) {
        fail_msg("%s: string %zu has %zu tokens, not %zu at least", group, nth, n_ids, n_least);
    }
    char *back = detokenize(tokenizer, ids, n_ids, &n_bytes);
    if (!json_is_null(decoded) &&
        (n_bytes != json_string_length(decoded) || memcmp(back, json_string_value(decoded), n_bytes) != 0)) {
        fail_msg("%s: string %zu comes back as \"%.*s\"", group, nth, (int)n_bytes, back);
    }
    free(back);
    free(ids);
}

static void test_tokenizer_agrees_with_recorded_ids(void **state) {
    (void)state;
    json_error_t cause;
    json_t *groups = json_load_file(GOLDEN, JSON_ALLOW_NUL, &cause);
    assert_non_null(groups);
    size_t n_cases = 0;
    for (size_t g = 0; g < json_array_size(groups); g++) {
        json_t *group = json_array_get(groups, g), *patch = json_object_get(group, "patch"), *root = demo_json();
        const char *name = json_string_value(json_object_get(group, "name"));
        if (json_object_get(patch,
                            "model")) { // replaces members of the model, where the others replace members of root
            json_object_update(json_object_get(root, "model"), json_object_get(patch, "model"));
            json_object_del(patch, "model");
        }
        json_object_update(root, patch);
        struct sl_tokenizer *tokenizer = NULL;
        struct sl_error err = {0};
        if (load_json(root, NULL, &tokenizer, &err) != SL_OK) {
            fail_msg("%s: %s", name, err.text);
        }
        json_t *cases = json_object_get(group, "cases");
        for (size_t i = 0; i < json_array_size(cases); i++) {
            check_case(tokenizer, name, i, json_array_get(cases, i));
        }
        n_cases += json_array_size(cases);
        sl_tokenizer_destroy(&tokenizer);
    }
    assert_true(n_cases > 4000);
    json_decref(groups);
}

// --- what the header promises ----------------------------------------------------------------------------------------
static void test_tokenizer_puts_begin_token_in_front(void **state) {
    (void)state;
    struct sl_tokenizer *tokenizer = load_demo();
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(sl_tokenizer_begin_id(tokenizer), 2045);
    assert_int_equal(sl_tokenizer_vocab_size(tokenizer), 2048);
    assert_int_equal(sl_tokenizer_encode(tokenizer, "a", 1, true, &ids, &n, NULL), SL_OK);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], 2045);
    free(ids);
    assert_int_equal(sl_tokenizer_encode(tokenizer, "", 0, true, &ids, &n, NULL), SL_OK);
    assert_int_equal(n, 1);
    free(ids);
    assert_int_equal(sl_tokenizer_encode(tokenizer, "", 0, false, &ids, &n, NULL), SL_OK);
    assert_int_equal(n, 0);
    free(ids);
    sl_tokenizer_destroy(&tokenizer);
    assert_null(tokenizer);
    sl_tokenizer_destroy(&tokenizer);
}

static void test_tokenizer_knows_bytes_of_every_token(void **state) {
    (void)state;
    struct sl_tokenizer *tokenizer = load_demo();
    size_t n_bytes = 0;
    bool seen[256] = {false};
    for (int32_t id = 0; id < sl_tokenizer_vocab_size(tokenizer); id++) {
        const char *bytes = sl_tokenizer_token_bytes(tokenizer, id, &n_bytes);
        assert_non_null(bytes);
        assert_true(n_bytes > 0);
        assert_int_equal(sl_tokenizer_is_special(tokenizer, id), id >= 2045);
        if (n_bytes == 1) {
            seen[(unsigned char)bytes[0]] = true;
        }
    }
    for (int byte = 0; byte < 256; byte++) {
        assert_true(seen[byte]);
    }
    assert_memory_equal(sl_tokenizer_token_bytes(tokenizer, 2046, &n_bytes), "<|im_start|>", 12);
    assert_int_equal(n_bytes, 12);
    assert_null(sl_tokenizer_token_bytes(tokenizer, -1, &n_bytes));
    assert_null(sl_tokenizer_token_bytes(tokenizer, 2048, &n_bytes));
    assert_false(sl_tokenizer_is_special(tokenizer, 2048));
    sl_tokenizer_destroy(&tokenizer);
}

// Its bytes tell of a text that it is too long, without the time and the memory that encoding takes.
static void test_tokenizer_tells_the_least_tokens(void **state) {
    (void)state;
    struct sl_tokenizer *tokenizer = load_demo();
    static const char *const units[] = {"a", "a!", "1", "\n", "the ", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    const size_t n_bytes = 60000;
    char *text = malloc(n_bytes);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        const size_t n_unit = strlen(units[i]), n = n_bytes / n_unit * n_unit;
        for (size_t at = 0; at < n; at += n_unit) {
            memcpy(text + at, units[i], n_unit);
        }
        int32_t *ids;
        size_t n_ids;
        assert_int_equal(sl_tokenizer_encode(tokenizer, text, n, false, &ids, &n_ids, NULL), SL_OK);
        free(ids);
        const size_t n_least = sl_tokenizer_least_tokens(tokenizer, text, n);
        assert_true(n_least <= n_ids && n_least > 0);
        assert_true(n_least * 100 >= n_ids); // 60 MB are refused by a model of 65,536 positions
    }
    free(text);
    sl_tokenizer_destroy(&tokenizer);
}

static void test_tokenizer_refuses_what_is_not_utf8(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n_bytes, bad_offset;
    } cases[] = {
        {"\xff", 1, 0},          {"ab\x80", 3, 2},           {"abcdefghijkl\xc3", 13, 12}, {"\xc0\x80", 2, 0},
        {"a\xe0\x80\x80", 4, 1}, {"a\xed\xa0\x80", 4, 1},    {"\xf4\x90\x80\x80", 4, 0},   {"\xf0\x80\x80\x80", 4, 0},
        {"\xe2\x82", 2, 0},      {"\xf5\x80\x80\x80", 4, 0}, {"x\xe2\x28\xa1", 4, 1},      {"\xc3\xa9\xc3", 3, 2},
    };
    struct sl_tokenizer *tokenizer = load_demo();
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct sl_error err = {0};
        int32_t *ids = NULL;
        size_t n = 0, offset = 99;
        char expected[32];
        assert_false(sl_utf8_valid(cases[i].text, cases[i].n_bytes, &offset));
        assert_int_equal(offset, cases[i].bad_offset);
        assert_int_equal(sl_tokenizer_encode(tokenizer, cases[i].text, cases[i].n_bytes, false, &ids, &n, &err),
                         SL_ERR_INVALID);
        snprintf(expected, sizeof(expected), "offset %zu", cases[i].bad_offset);
        assert_non_null(strstr(err.text, expected));
        assert_null(ids);
    }
    sl_tokenizer_destroy(&tokenizer);
}

// Neither a run that is one piece, nor marks in the worst order, may take time that grows with the square.
static void test_tokenizer_is_not_slowed_by_hostile_text(void **state) {
    (void)state;
    static const char *const units[] = {
        "a", " ", "\xcc\x81\xcc\xa3", "<|im_", "ab", "\n ", "\xf0\x9f\x91\xa8\xe2\x80\x8d", "<"};
    struct sl_tokenizer *tokenizer = load_demo();
    size_t n_bytes = 1000000;
    char *text = malloc(n_bytes + 8);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++) {
        size_t n_unit = strlen(units[i]), n_text = 0, n_ids = 0;
        int32_t *ids = NULL;
        for (; n_text + n_unit <= n_bytes; n_text += n_unit) {
            memcpy(text + n_text, units[i], n_unit);
        }
        clock_t begin = clock(); // our own time: the machine may have others to serve
        assert_int_equal(sl_tokenizer_encode(tokenizer, text, n_text, false, &ids, &n_ids, NULL), SL_OK);
        assert_true(clock() - begin < (clock_t)20 * CLOCKS_PER_SEC); // a quadratic run takes minutes
        free(ids);
    }
    free(text);
    sl_tokenizer_destroy(&tokenizer);
}

static struct sl_tokenizer *load_with_regex(const char *regex) {
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_error err = {0};
    json_t *root = demo_json();
    json_t *steps = json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers");
    json_object_set_new(json_object_get(json_array_get(steps, 0), "pattern"), "Regex", json_string(regex));
    if (load_json(root, NULL, &tokenizer, &err) != SL_OK) {
        fail_msg("%s: %s", regex, err.text);
    }
    return tokenizer;
}

// A group that is repeated needs a stack; where the compiled code's is too small the interpreter goes on.
static void test_tokenizer_matches_what_needs_a_deep_stack(void **state) {
    (void)state;
    enum { N = 20000 };
    struct sl_tokenizer *demo = load_demo(), *nested = load_with_regex("(?:[ac]|x\\p{N})+(?=b)|b");
    int32_t *expected = NULL, *ids = NULL;
    size_t n_expected = 0, n = 0;
    struct sl_error err = {0};
    char *text = malloc(N + 1);
    assert_non_null(text);
    memset(text, 'a', N);
    text[N] = 'b';
    assert_int_equal(sl_tokenizer_encode(demo, text, N, false, &expected, &n_expected, NULL), SL_OK);
    if (sl_tokenizer_encode(nested, text, N + 1, false, &ids, &n, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(n, n_expected + 1);
    assert_memory_equal(ids, expected, n_expected * sizeof(*ids));
    free(text);
    free(ids);
    free(expected);
    sl_tokenizer_destroy(&demo);
    sl_tokenizer_destroy(&nested);
}

static void test_tokenizer_gives_up_an_expression_that_explodes(void **state) {
    (void)state;
    struct sl_tokenizer *tokenizer = load_with_regex("(?:a+)+[bc]|x");
    int32_t *ids = NULL;
    size_t n = 0;
    struct sl_error err = {0};
    static const char text[] = "x aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    assert_int_equal(sl_tokenizer_encode(tokenizer, text, sizeof(text) - 1, false, &ids, &n, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "limit"));
    assert_null(ids);
    sl_tokenizer_destroy(&tokenizer);
}

// Each match is short, and looks to the end of the text for another one.
static void test_tokenizer_gives_up_an_expression_that_reads_the_text_at_each_position(void **state) {
    (void)state;
    enum { N = 100000 };
    struct sl_tokenizer *tokenizer = load_with_regex("a*b|.");
    int32_t *ids = NULL;
    size_t n = 0;
    struct sl_error err = {0};
    char *text = malloc(N);
    assert_non_null(text);
    memset(text, 'a', N);
    assert_int_equal(sl_tokenizer_encode(tokenizer, text, N, false, &ids, &n, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "reads the text too often"));
    assert_null(ids);
    free(text);
    sl_tokenizer_destroy(&tokenizer);
}

static void *encode_often(void *arg) {
    static const char text[] = "Threads share it: caf\u00e9 e\u0323\u0301 <|im_end|>  12345 \u65e5\u672c\n";
    const struct sl_tokenizer *tokenizer = arg;
    uint64_t sum = 0;
    for (int i = 0; i < 300; i++) {
        int32_t *ids = NULL;
        size_t n = 0;
        if (sl_tokenizer_encode(tokenizer, text, sizeof(text) - 1, true, &ids, &n, NULL) != SL_OK) {
            return NULL;
        }
        for (size_t k = 0; k < n; k++) {
            sum = sum * 31 + (uint64_t)ids[k];
        }
        free(ids);
    }
    return (void *)(uintptr_t)sum; // a number that all threads must agree on
}

static void test_tokenizer_is_shared_by_threads(void **state) {
    (void)state;
    enum { N = 4 };
    struct sl_tokenizer *tokenizer = load_demo();
    pthread_t threads[N];
    void *alone = encode_often(tokenizer);
    assert_non_null(alone);
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, tokenizer), 0);
    }
    for (int i = 0; i < N; i++) {
        void *result = NULL;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_ptr_equal(result, alone);
    }
    sl_tokenizer_destroy(&tokenizer);
}

// --- bytes without a token -------------------------------------------------------------------------------------------

#define LACKING(members)                                                                                               \
    "{\"decoder\": {\"type\": \"ByteLevel\"}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "     \
    "false, \"use_regex\": false}, "                                                                                   \
    "\"model\": {\"type\": \"BPE\", " members "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"?\": 3}, "                 \
    "\"merges\": [\"a b\"]}}"
#define FALLING(members)                                                                                               \
    "{\"decoder\": {\"type\": \"Fuse\"}, \"model\": {\"type\": \"BPE\", \"byte_fallback\": true, " members             \
    "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"?\": 3, \"<0xC3>\": 4, \"<0x04>\": 5}, \"merges\": [\"a b\"]}}"

// As the `tokenizers` library: the byte is dropped, so that its neighbors may merge; or it becomes the unknown token.
static void test_tokenizer_drops_bytes_without_a_token(void **state) {
    static const struct {
        const char *tokenizer, *text, *ids;
    } cases[] = {
        {LACKING(""),
         "a\x04"
         "b",
         "2 "},
        {LACKING(""), "\x04", ""},
        {LACKING(""), "\x04\x04", ""},
        {LACKING(""),
         "a\xc3\xa9"
         "b",
         "2 "},
        {LACKING(""),
         "b\x04\x04"
         "a\x04"
         "b",
         "1 2 "},
        {LACKING("\"unk_token\": \"?\", "), "\x04", "3 "},
        {LACKING("\"unk_token\": \"?\", "),
         "a\xc3\xa9"
         "b",
         "0 3 3 1 "},
        {LACKING("\"unk_token\": \"?\", \"fuse_unk\": true, "),
         "a\xc3\xa9"
         "b",
         "0 3 1 "},
        {FALLING("\"unk_token\": \"?\", "),
         "a\x04"
         "b",
         "0 5 1 "},
        {FALLING("\"unk_token\": \"?\", "),
         "a\xc3\xa9"
         "b",
         "0 3 1 "},
        {FALLING(""),
         "a\xc3\xa9"
         "b",
         "2 "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct sl_tokenizer *tokenizer = NULL;
        struct sl_error err = {0};
        if (load_json(json_loads(cases[i].tokenizer, 0, NULL), NULL, &tokenizer, &err) != SL_OK) {
            fail_msg("case %zu: %s", i, err.text);
        }
        int32_t *ids = NULL;
        size_t n = 0, used = 0;
        char text[64] = "";
        assert_int_equal(sl_tokenizer_encode(tokenizer, cases[i].text, strlen(cases[i].text), false, &ids, &n, &err),
                         SL_OK);
        for (size_t k = 0; k < n; k++) {
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%d ", ids[k]);
        }
        assert_string_equal(text, cases[i].ids);
        free(ids);
        sl_tokenizer_destroy(&tokenizer);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer_drops_bytes_without_a_token),
        cmocka_unit_test(test_tokenizer_agrees_with_recorded_ids),
        cmocka_unit_test(test_tokenizer_puts_begin_token_in_front),
        cmocka_unit_test(test_tokenizer_knows_bytes_of_every_token),
        cmocka_unit_test(test_tokenizer_tells_the_least_tokens),
        cmocka_unit_test(test_tokenizer_refuses_what_is_not_utf8),
        cmocka_unit_test(test_tokenizer_is_not_slowed_by_hostile_text),
        cmocka_unit_test(test_tokenizer_matches_what_needs_a_deep_stack),
        cmocka_unit_test(test_tokenizer_gives_up_an_expression_that_explodes),
        cmocka_unit_test(test_tokenizer_gives_up_an_expression_that_reads_the_text_at_each_position),
        cmocka_unit_test(test_tokenizer_is_shared_by_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
