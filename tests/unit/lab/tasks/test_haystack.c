// SPDX-License-Identifier: Apache-2.0
// Purpose: any text becomes one running text of sentences, nothing of it is lost, and what is no text is refused by name.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/tasks/haystack.h"
#include "tests/unit/temp_folder.h"

enum { MAX_PATH = 128 };

// A haystack of files with these bytes.
static enum sl_status open_bytes(const char *const *texts, const size_t *n_bytes, size_t n,
                                 struct sl_haystack **haystack_out, struct sl_error *err) {
    struct temp_folder folder = temp_folder_create();
    char paths[4][MAX_PATH];
    const char *list[4];
    assert_true(n <= 4);
    for (size_t i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "%zu.txt", i);
        temp_folder_write(&folder, name, texts[i], n_bytes[i]);
        snprintf(paths[i], sizeof paths[i], "%s/%s", folder.path, name);
        list[i] = paths[i];
    }
    enum sl_status status = sl_haystack_open(list, n, haystack_out, err);
    temp_folder_destroy(&folder);
    return status;
}

static struct sl_haystack *open_text(const char *text) {
    struct sl_haystack *haystack = NULL;
    struct sl_error err = {0};
    size_t n_bytes = strlen(text);
    if (open_bytes(&text, &n_bytes, 1, &haystack, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return haystack;
}

static char *sentences(const struct sl_haystack *haystack, int64_t first, int64_t n) {
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *out = open_memstream(&text, &n_bytes);
    assert_non_null(out);
    sl_haystack_write(haystack, first, n, out);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void expect_sentences(const struct sl_haystack *haystack, int64_t first, int64_t n, const char *expected) {
    char *text = sentences(haystack, first, n);
    assert_string_equal(text, expected);
    free(text);
}

static void test_haystack_is_running_text(void **state) {
    (void)state;
    struct sl_haystack *haystack = open_text("\n\nOne  word.\tTwo\r\n v1.5 words! And\f\fmore. \n Three");
    assert_int_equal(sl_haystack_n_sentences(haystack), 3);
    expect_sentences(haystack, 0, 1, " One word.");
    expect_sentences(haystack, 1, 1, " Two v1.5 words! And more.");
    expect_sentences(haystack, 2, 1, " Three");
    expect_sentences(haystack, 1, 0, "");
    assert_true(sl_haystack_contains(haystack, "word. Two"));
    assert_false(sl_haystack_contains(haystack, "word.  Two"));
    sl_haystack_close(&haystack);
    assert_null(haystack);
    sl_haystack_close(&haystack);
}

static void test_haystack_repeats(void **state) {
    (void)state;
    struct sl_haystack *haystack = open_text("a. b. c.");
    expect_sentences(haystack, 2, 8, " c. a. b. c. a. b. c. a.");
    expect_sentences(haystack, 7, 2, " b. c.");
    expect_sentences(sl_haystack_noise(), 3, 6,
                     " The road is dry. The river runs on. The mill wheel turns. A cart goes by. The road is dry."
                     " The river runs on.");
    sl_haystack_close(&haystack);
}

static void test_haystack_joins_files(void **state) {
    (void)state;
    const char *texts[] = {"first.\n", "second", "third."};
    size_t n_bytes[] = {7, 6, 6};
    struct sl_haystack *haystack = NULL;
    struct sl_error err = {0};
    assert_int_equal(open_bytes(texts, n_bytes, 3, &haystack, &err), SL_OK);
    expect_sentences(haystack, 0, sl_haystack_n_sentences(haystack), " first. second third.");
    sl_haystack_close(&haystack);
}

// Checks that the sentences have at most the limit, are not empty, and together are the text again.
static void check_cuts(const char *text, bool at_spaces) {
    struct sl_haystack *haystack = open_text(text);
    int64_t n = sl_haystack_n_sentences(haystack);
    char *all = sentences(haystack, 0, n);
    assert_int_equal(all[0], ' ');
    assert_string_equal(all + 1, text);
    assert_true(n > 1);
    for (int64_t i = 0; i < n; i++) {
        char *sentence = sentences(haystack, i, 1);
        assert_in_range(strlen(sentence), 1, SL_SENTENCE_MAX_BYTES);
        assert_true(sl_utf8_valid(sentence, strlen(sentence), NULL));
        assert_true(!at_spaces || sentence[0] == ' ');
        free(sentence);
    }
    free(all);
    sl_haystack_close(&haystack);
}

static void test_haystack_cuts_what_does_not_end(void **state) {
    (void)state;
    char text[4001] = "";
    for (int i = 0; i < 4000; i++) {
        text[i] = i % 7 == 6 ? ' ' : 'x';
    }
    check_cuts(text, true);
    memset(text, 'x', 4000);
    check_cuts(text, false);
    for (int i = 0; i < 1333; i++) {
        memcpy(text + 3 * i, "\xe6\xb0\xb4", 3); // a Chinese character: no spaces, three bytes each
    }
    text[3999] = '\0';
    check_cuts(text, false);
}

static void expect_refused(const char *bytes, size_t n_bytes, const char *why) {
    struct sl_haystack *haystack = NULL;
    struct sl_error err = {0};
    assert_int_equal(open_bytes(&bytes, &n_bytes, 1, &haystack, &err), SL_ERR_INVALID);
    assert_null(haystack);
    assert_non_null(strstr(err.text, "0.txt"));
    assert_non_null(strstr(err.text, why));
}

static void test_haystack_refuses_what_is_no_text(void **state) {
    (void)state;
    expect_refused("", 0, "no text");
    expect_refused(" \n ", 3, "no text");
    expect_refused("a\0b", 3, "byte 0");
    expect_refused("caf\xe9 au lait", 12, "0xe9 behind \" caf\"");
}

static void test_haystack_names_a_missing_file(void **state) {
    (void)state;
    const char *path = "/nonexistent/essay.txt";
    struct sl_haystack *haystack = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_haystack_open(&path, 1, &haystack, &err), SL_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, path));
    path = "/";
    assert_int_equal(sl_haystack_open(&path, 1, &haystack, &err), SL_ERR_IO); // opens, and cannot be read
    assert_null(haystack);
}

static void test_haystack_default_is_the_licences(void **state) {
    (void)state;
    struct sl_haystack *haystack = NULL;
    struct sl_error err = {0};
    if (sl_haystack_open(NULL, 0, &haystack, &err) != SL_OK) {
        assert_non_null(strstr(err.text, "give a text file")); // a system without them says what to do
        return;
    }
    assert_true(sl_haystack_n_sentences(haystack) > 100);
    assert_true(sl_haystack_contains(haystack, "GNU GENERAL PUBLIC LICENSE Version 3"));
    sl_haystack_close(&haystack);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_haystack_is_running_text),
        cmocka_unit_test(test_haystack_repeats),
        cmocka_unit_test(test_haystack_joins_files),
        cmocka_unit_test(test_haystack_cuts_what_does_not_end),
        cmocka_unit_test(test_haystack_refuses_what_is_no_text),
        cmocka_unit_test(test_haystack_names_a_missing_file),
        cmocka_unit_test(test_haystack_default_is_the_licences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
