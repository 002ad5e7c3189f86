// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the pipelines of published families, with small vocabularies: ids of the same strings, and the text that ids
 *          give, against those of the `tokenizers` library (tools/golden_tokenizer_families.py describes the files).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/unit/text/tokenizer/tokenizer_json.h"

#define FOLDER         "tests/golden/tokenizer/families"
#define SAME_TEXT      65535
#define FIRST_TOKEN    0xf8f0 // the character that stands for the family's first added token
#define N_PLACEHOLDERS 15
#define N_TEXTS        2000
#define N_DECODED      200

static json_t *load_file(const char *name) {
    char path[128];
    json_error_t cause;
    snprintf(path, sizeof(path), FOLDER "/%s", name);
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, &cause);
    if (!json) {
        fail_msg("%s: %s", path, cause.text);
    }
    return json;
}

static struct sl_tokenizer *load_family(const char *name, json_t **added_tokens_out) {
    char file[64];
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_error err = {0};
    snprintf(file, sizeof(file), "%s.json", name);
    json_t *root = load_file(file);
    *added_tokens_out = json_incref(json_object_get(root, "added_tokens"));
    if (load_json(root, NULL, &tokenizer, &err) != SL_OK) {
        fail_msg("%s: %s", name, err.text);
    }
    return tokenizer;
}

// --- records ---------------------------------------------------------------------------------------------------------
struct records {
    unsigned char *bytes, *at, *end;
};

static struct records open_records(const char *name) {
    char path[128];
    snprintf(path, sizeof(path), FOLDER "/%s.ids", name);
    FILE *file = fopen(path, "rb");
    if (!file) {
        fail_msg("cannot open %s", path);
    }
    size_t capacity = 1 << 22;
    unsigned char *bytes = malloc(capacity);
    assert_non_null(bytes);
    size_t n = fread(bytes, 1, capacity, file);
    fclose(file);
    assert_true(n < capacity);
    return (struct records){bytes, bytes, bytes + n};
}

static const unsigned char *take(struct records *records, size_t n_bytes) {
    const unsigned char *bytes = records->at;
    assert_true((size_t)(records->end - records->at) >= n_bytes);
    records->at += n_bytes;
    return bytes;
}

static int32_t take_number(struct records *records) {
    const unsigned char *p = take(records, 2);
    return p[0] | p[1] << 8;
}

// The ids of a record, malloc'd, and its decoded text, which is NULL when that is the text itself.
static int32_t *take_record(struct records *records, size_t *n_ids_out, const char **text_out, size_t *n_text_out) {
    size_t n = (size_t)take_number(records);
    int32_t *ids = malloc((n + 1) * sizeof(*ids));
    assert_non_null(ids);
    for (size_t i = 0; i < n; i++) {
        ids[i] = take_number(records);
    }
    int32_t n_text = take_number(records);
    *n_ids_out = n;
    *n_text_out = n_text == SAME_TEXT ? 0 : (size_t)n_text;
    *text_out = n_text == SAME_TEXT ? NULL : (const char *)take(records, *n_text_out);
    return ids;
}

// --- one family ------------------------------------------------------------------------------------------------------
// The string with the family's added tokens in their places; malloc'd.
static char *fill_in(const json_t *string, const json_t *added_tokens, size_t *n_bytes_out) {
    const char *from = json_string_value(string), *end = from + json_string_length(string);
    char *text = malloc((size_t)(end - from) * 32 + 1);
    size_t n = 0;
    assert_non_null(text);
    while (from < end) {
        const unsigned char *p = (const unsigned char *)from;
        int character =
            end - from >= 3 && p[0] >> 4 == 0xe ? (p[0] & 0xf) << 12 | (p[1] & 0x3f) << 6 | (p[2] & 0x3f) : 0;
        if (character < FIRST_TOKEN || character >= FIRST_TOKEN + N_PLACEHOLDERS) {
            text[n++] = *from++;
            continue;
        }
        size_t nth = (size_t)(character - FIRST_TOKEN) % json_array_size(added_tokens);
        const char *content = json_string_value(json_object_get(json_array_get(added_tokens, nth), "content"));
        assert_true(strlen(content) <= 3 * 32);
        memcpy(text + n, content, strlen(content));
        n += strlen(content);
        from += 3;
    }
    *n_bytes_out = n;
    return text;
}

static void check_decoded(const struct sl_tokenizer *tokenizer, const char *what, size_t nth, const int32_t *ids,
                          size_t n_ids, const char *expected, size_t n_expected) {
    struct sl_detokenizer detokenizer;
    size_t step_bytes = sl_detokenizer_max_bytes(tokenizer), n = 0;
    char *text = malloc((n_ids + 1) * step_bytes);
    assert_non_null(text);
    sl_detokenizer_init(&detokenizer, tokenizer);
    for (size_t i = 0; i < n_ids; i++) {
        size_t n_step = sl_detokenizer_push(&detokenizer, ids[i], text + n, step_bytes);
        assert_true(sl_utf8_valid(text + n, n_step, NULL));
        n += n_step;
    }
    n += sl_detokenizer_finish(&detokenizer, text + n, step_bytes);
    if (n != n_expected || memcmp(text, expected, n) != 0) {
        fail_msg("%s %zu comes back as \"%.*s\" instead of \"%.*s\"", what, nth, (int)n, text, (int)n_expected,
                 expected);
    }
    free(text);
}

static void check_text(const struct sl_tokenizer *tokenizer, const char *family, size_t nth, const char *text,
                       size_t n_text, struct records *records) {
    size_t n_expected = 0, n_decoded = 0, n = 0;
    const char *decoded = NULL;
    struct sl_error err = {0};
    int32_t *expected = take_record(records, &n_expected, &decoded, &n_decoded), *ids = NULL;
    if (sl_tokenizer_encode(tokenizer, text, n_text, true, &ids, &n, &err) != SL_OK) {
        fail_msg("%s, string %zu: %s", family, nth, err.text);
    }
    assert_true(sl_tokenizer_least_tokens(tokenizer, text, n_text) <= n);
    for (size_t i = 0; i < n || i < n_expected; i++) {
        if (i == n || i == n_expected || ids[i] != expected[i]) {
            fail_msg("%s: %zu ids instead of %zu of string %zu differ from the %zu. on: \"%.*s\"", family, n,
                     n_expected, nth, i, (int)(n_text < 200 ? n_text : 200), text);
        }
    }
    check_decoded(tokenizer, family, nth, ids, n, decoded ? decoded : text, decoded ? n_decoded : n_text);
    free(expected);
    free(ids);
}

static void check_family(const char *name) {
    json_t *added_tokens = NULL, *strings = load_file("strings.json");
    struct sl_tokenizer *tokenizer = load_family(name, &added_tokens);
    struct records records = open_records(name);
    assert_int_equal(json_array_size(strings), N_TEXTS);
    for (size_t i = 0; i < N_TEXTS; i++) {
        size_t n_text = 0;
        char *text = fill_in(json_array_get(strings, i), added_tokens, &n_text);
        check_text(tokenizer, name, i, text, n_text, &records);
        free(text);
    }
    for (size_t i = 0; i < N_DECODED; i++) {
        size_t n_ids = 0, n_decoded = 0;
        const char *decoded = NULL;
        int32_t *ids = take_record(&records, &n_ids, &decoded, &n_decoded);
        assert_non_null(decoded);
        check_decoded(tokenizer, name, N_TEXTS + i, ids, n_ids, decoded, n_decoded);
        free(ids);
    }
    assert_ptr_equal(records.at, records.end);
    free(records.bytes);
    sl_tokenizer_destroy(&tokenizer);
    json_decref(added_tokens);
    json_decref(strings);
}

static void test_family(void **state) {
    check_family(*state);
}

// --- time ------------------------------------------------------------------------------------------------------------
// Without a pre-tokenizer a text is one piece, however long; and an expression may match all of it.
static void test_tokenizer_encodes_a_long_piece_in_time(void **state) {
    (void)state;
    static const char *const families[] = {"llama2", "mistral", "mistral3", "metaspace", "falcon"};
    static const char *const units[] = {"a",      "word", "\xe2\x96\x81", " ", "\xe6\x97\xa5", "\xf0\x9f\x98\x80",
                                        "of the "};
    size_t n_bytes = 1000000;
    char *text = malloc(n_bytes);
    assert_non_null(text);
    for (size_t f = 0; f < sizeof(families) / sizeof(*families); f++) {
        json_t *added_tokens = NULL;
        struct sl_tokenizer *tokenizer = load_family(families[f], &added_tokens);
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
        sl_tokenizer_destroy(&tokenizer);
        json_decref(added_tokens);
    }
    free(text);
}

// To add a family: its pipeline in tools/golden_tokenizer_families.py, and a line here.
#define FAMILY(name)                                                                                                   \
    { "test_tokenizer_agrees_on_" name, test_family, NULL, NULL, (void *)(name) }

int main(void) {
    const struct CMUnitTest tests[] = {
        FAMILY("llama3"),
        FAMILY("qwen2"),
        FAMILY("gpt2"),
        FAMILY("gpt2_flags"),
        FAMILY("falcon"),
        FAMILY("llama2"),
        FAMILY("yi"),
        FAMILY("mistral"),
        FAMILY("mistral3"),
        FAMILY("phi3"),
        FAMILY("metaspace"),
        FAMILY("metaspace_never"),
        cmocka_unit_test(test_tokenizer_encodes_a_long_piece_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
