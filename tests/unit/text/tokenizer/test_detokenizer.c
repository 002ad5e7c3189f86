// SPDX-License-Identifier: Apache-2.0
// Purpose: the streaming detokenizer: characters come out whole whatever the tokens' borders, and rubbish is replaced.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "tests/unit/text/tokenizer/tokenizer_json.h"

static int load(void **state) {
    struct sl_tokenizer *tokenizer = NULL;
    if (sl_tokenizer_load("models/demo", &tokenizer, NULL) != SL_OK) {
        return -1;
    }
    *state = tokenizer;
    return 0;
}

static int unload(void **state) {
    struct sl_tokenizer *tokenizer = *state;
    sl_tokenizer_destroy(&tokenizer);
    return 0;
}

static int32_t token_of_byte(const struct sl_tokenizer *tokenizer, char byte) {
    for (int32_t id = 0; id < sl_tokenizer_vocab_size(tokenizer); id++) {
        size_t n = 0;
        const char *bytes = sl_tokenizer_token_bytes(tokenizer, id, &n);
        if (n == 1 && bytes[0] == byte) {
            return id;
        }
    }
    fail_msg("no token for byte %d", byte);
    return -1;
}

// Feed bytes one token each; text collects what comes out, and every step must be whole characters.
static void check_bytes(const struct sl_tokenizer *tokenizer, const char *bytes, size_t n, const char *expected) {
    struct sl_detokenizer detokenizer;
    char text[4096], step[4096];
    size_t n_text = 0;
    assert_true(sl_detokenizer_max_bytes(tokenizer) <= sizeof(step));
    sl_detokenizer_init(&detokenizer, tokenizer);
    for (size_t i = 0; i <= n; i++) {
        size_t n_step = i < n
                            ? sl_detokenizer_push(&detokenizer, token_of_byte(tokenizer, bytes[i]), step, sizeof(step))
                            : sl_detokenizer_finish(&detokenizer, step, sizeof(step));
        assert_true(sl_utf8_valid(step, n_step, NULL));
        memcpy(text + n_text, step, n_step);
        n_text += n_step;
    }
    text[n_text] = '\0';
    assert_string_equal(text, expected);
    assert_int_equal(sl_detokenizer_finish(&detokenizer, step, sizeof(step)), 0);
}

#define R "\xef\xbf\xbd"

static void test_detokenizer_waits_for_whole_characters(void **state) {
    const struct sl_tokenizer *tokenizer = *state;
    static const char emoji[] = "\xf0\x9f\x98\x80";
    struct sl_detokenizer detokenizer;
    char buf[256];
    sl_detokenizer_init(&detokenizer, tokenizer);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sl_detokenizer_push(&detokenizer, token_of_byte(tokenizer, emoji[i]), buf, sizeof(buf)), 0);
        assert_int_equal(sl_detokenizer_push(&detokenizer, 2045, buf, sizeof(buf)),
                         0); // special tokens disturb nothing
    }
    assert_int_equal(sl_detokenizer_push(&detokenizer, token_of_byte(tokenizer, emoji[3]), buf, sizeof(buf)), 4);
    assert_memory_equal(buf, emoji, 4);
    check_bytes(tokenizer, "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z", 11, "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z");
}

static void test_detokenizer_replaces_impossible_bytes(void **state) {
    const struct sl_tokenizer *tokenizer = *state;
    static const struct {
        const char *bytes, *expected;
    } cases[] = {
        {"\x80", R},
        {"\xff\xfe", R R},
        {"\xc3", R},
        {"\xc3"
         "a",
         R "a"},
        {"\xe2\x82", R},
        {"\xe2\x82"
         "a",
         R "a"},
        {"\xe2\x82\xc3\xa9", R "\xc3\xa9"},
        {"\xf0\x9f\x98", R},
        {"\xf0\x9f\x98\xf0\x9f\x98\x80", R "\xf0\x9f\x98\x80"},
        {"\xc0\xaf", R R},
        {"\xe0\x80\xaf", R R R},
        {"\xed\xa0\x80", R R R},
        {"\xf4\x90\x80\x80", R R R R},
        // Table 3-11 of the Unicode Standard
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf"
         "A",
         R R R R "A"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        check_bytes(tokenizer, cases[i].bytes, strlen(cases[i].bytes), cases[i].expected);
    }
}

static void test_detokenizer_ignores_ids_out_of_range(void **state) {
    const struct sl_tokenizer *tokenizer = *state;
    struct sl_detokenizer detokenizer;
    char buf[256];
    sl_detokenizer_init(&detokenizer, tokenizer);
    assert_int_equal(sl_detokenizer_push(&detokenizer, -1, buf, sizeof(buf)), 0);
    assert_int_equal(sl_detokenizer_push(&detokenizer, 2048, buf, sizeof(buf)), 0);
    assert_int_equal(sl_detokenizer_push(&detokenizer, INT32_MAX, buf, sizeof(buf)), 0);
}

static void test_detokenizer_never_writes_past_the_buffer(void **state) {
    const struct sl_tokenizer *tokenizer = *state;
    for (int32_t id = 0; id < sl_tokenizer_vocab_size(tokenizer); id++) {
        for (size_t room = 0; room < 6; room++) {
            struct sl_detokenizer detokenizer;
            char buf[256], guard[256];
            memset(buf, 0x55, sizeof(buf));
            memset(guard, 0x55, sizeof(guard));
            sl_detokenizer_init(&detokenizer, tokenizer);
            size_t n = sl_detokenizer_push(&detokenizer, id, buf, room);
            assert_true(n <= room);
            assert_true(sl_utf8_valid(buf, n, NULL));
            assert_memory_equal(buf + room, guard, sizeof(buf) - room);
        }
    }
}

// Every token after every incomplete beginning fits into the promised buffer.
static void test_detokenizer_max_bytes_suffices(void **state) {
    const struct sl_tokenizer *tokenizer = *state;
    static const char beginning[] = "\xf0\x9f\x98";
    size_t max_bytes = sl_detokenizer_max_bytes(tokenizer);
    char big[4096], fitting[4096];
    assert_true(max_bytes <= sizeof(fitting));
    for (int32_t id = 0; id < sl_tokenizer_vocab_size(tokenizer); id++) {
        struct sl_detokenizer a, b;
        sl_detokenizer_init(&a, tokenizer);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(sl_detokenizer_push(&a, token_of_byte(tokenizer, beginning[i]), big, sizeof(big)), 0);
        }
        b = a;
        size_t n = sl_detokenizer_push(&a, id, big, sizeof(big));
        assert_int_equal(sl_detokenizer_push(&b, id, fitting, max_bytes), n);
        assert_memory_equal(big, fitting, n);
    }
}

// Ids of the llama2 family: 3 + byte for single bytes.
static void test_detokenizer_joins_byte_tokens_and_strips_one_space(void **state) {
    (void)state;
    enum { BYTES = 3, MARK = -1 };
    static const struct {
        int32_t ids[8];
        int n;
        const char *steps[9]; // what each token gives, and finish at the end
    } cases[] = {
        {{MARK, MARK, BYTES + 'a'}, 3, {"", " ", "a", ""}},
        {{BYTES + 'a', MARK, 1, MARK}, 4, {"a", " ", "", " ", ""}},
        {{BYTES + 0xf0, BYTES + 0x9f, BYTES + 0x98, BYTES + 0x80}, 4, {"", "", "", "\xf0\x9f\x98\x80", ""}},
        {{BYTES + 0x0a, BYTES + ' '}, 2, {"\n", " ", ""}},
        {{BYTES + ' ', MARK}, 2, {"", " ", ""}},
        {{1, BYTES + 0xe2, BYTES + 0x96, MARK}, 4, {"", "", "", R R " ", ""}},
        {{BYTES + 0xe2, BYTES + 0x96}, 2, {"", "", R R}},
        {{BYTES + 0xff, BYTES + 0xe2, BYTES + 'a'}, 3, {R, "", R "a", ""}},
    };
    struct sl_tokenizer *tokenizer = NULL;
    json_error_t cause;
    json_t *root = json_load_file("tests/golden/tokenizer/families/llama2.json", 0, &cause);
    assert_non_null(root);
    json_t *mark = json_object_get(json_object_get(json_object_get(root, "model"), "vocab"), "\xe2\x96\x81");
    int32_t mark_id = (int32_t)json_integer_value(mark);
    assert_int_equal(load_json(root, NULL, &tokenizer, NULL), SL_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct sl_detokenizer detokenizer;
        char buf[4096];
        assert_true(sl_detokenizer_max_bytes(tokenizer) <= sizeof(buf));
        sl_detokenizer_init(&detokenizer, tokenizer);
        for (int k = 0; k <= cases[i].n; k++) {
            int32_t id = k < cases[i].n && cases[i].ids[k] == MARK ? mark_id : cases[i].ids[k];
            size_t n = k < cases[i].n ? sl_detokenizer_push(&detokenizer, id, buf, sizeof(buf))
                                      : sl_detokenizer_finish(&detokenizer, buf, sizeof(buf));
            assert_int_equal(n, strlen(cases[i].steps[k]));
            assert_memory_equal(buf, cases[i].steps[k], n);
        }
    }
    sl_tokenizer_destroy(&tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_detokenizer_waits_for_whole_characters),
        cmocka_unit_test(test_detokenizer_replaces_impossible_bytes),
        cmocka_unit_test(test_detokenizer_ignores_ids_out_of_range),
        cmocka_unit_test(test_detokenizer_never_writes_past_the_buffer),
        cmocka_unit_test(test_detokenizer_max_bytes_suffices),
        cmocka_unit_test(test_detokenizer_joins_byte_tokens_and_strips_one_space),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
