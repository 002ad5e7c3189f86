// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "client/cli/pull/index.h"

#define DIGEST "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static enum sl_status find(bool is_json, const char *page, struct sl_index_file *file) {
    struct sl_error err = {0};
    *file = (struct sl_index_file){0};
    enum sl_status status = sl_index_find(page, strlen(page), is_json, "a-1.whl", file, &err);
    assert_true(status == SL_OK || err.text[0]);
    return status;
}

struct row {
    const char *page, *url, *sha256;
};

static void check_rows(bool is_json, const struct row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct sl_index_file file;
        assert_int_equal(find(is_json, rows[i].page, &file), SL_OK);
        assert_string_equal(file.url, rows[i].url);
        assert_string_equal(file.sha256, rows[i].sha256);
    }
}

static void test_page_of_html_has_links(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"<a href=\"a-1.whl\">", "a-1.whl", ""},
        {"<a href=\"/p/a-1.whl#sha256=" DIGEST "\">a</a>", "/p/a-1.whl", DIGEST},
        {"<A\nHREF = '../../x/a-1.whl?b=1&amp;c=&quot;2#sha256=" DIGEST "&x=1' >", "../../x/a-1.whl?b=1&c=\"2", DIGEST},
        {"<a href=a-1.whl#sha256=" DIGEST ">", "a-1.whl", DIGEST},
        {"<a class=\"a href='no'\" data-x='>=3' href=\"a-1.whl\">x</a><a href=\"a-1.whl\">", "a-1.whl", ""},
        {"<a rel=href href=https://h/a-1.whl#md5=" DIGEST ">", "https://h/a-1.whl", ""},
        {"<abbr href=x/a-1.whl><a href=b.whl><a href=y/a-1.whl>", "y/a-1.whl", ""},
        {"<a href=\"a-1.whl#sha256=0011223344556677889gaabbccddeeff00112233445566778899aabbccddeeff\">", "a-1.whl", ""},
        {"<a data href=\"a-1.whl#sha256=" DIGEST "0\">", "a-1.whl", ""}, // of another length: no digest
        {"<a/ href=\"a-1.whl#sha256=00\"><a / href=\"z/a-1.whl\">", "z/a-1.whl", ""},
    };
    check_rows(false, rows, sizeof rows / sizeof *rows);
}

static void test_page_of_html_without_the_file(void **state) {
    (void)state;
    static const char *const pages[] = {"",
                                        "<",
                                        "<a href",
                                        "<a href=\"a-1.whl\"",
                                        "<a href=>",
                                        "<a name=\"a-1.whl\">",
                                        "<a href=\"b-a-1.whl\">",
                                        "<a href=\"b-1.whl\">",
                                        "<a href=\"a-1.whl.asc\">",
                                        "<a href=\"x?a-1.whl\">",
                                        "<a href=\"x#/a-1.whl\">",
                                        "a-1.whl"};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        struct sl_index_file file;
        assert_int_equal(find(false, pages[i], &file), SL_ERR_NOT_FOUND);
    }
}

static void test_page_of_html_with_too_long_a_link(void **state) {
    (void)state;
    char page[SL_URL_BYTES + 64];
    struct sl_index_file file;
    for (int n = SL_URL_BYTES - 1; n <= SL_URL_BYTES; n++) { // the longest, and one more
        snprintf(page, sizeof page, "<a href=\"%0*d/a-1.whl\">", n - 8, 0);
        assert_int_equal(find(false, page, &file), n < SL_URL_BYTES ? SL_OK : SL_ERR_NOT_FOUND);
    }
}

static void test_page_of_json_has_files(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"{\"files\": [{\"filename\": \"b\", \"url\": \"b\"}, {\"filename\": \"a-1.whl\", \"url\": \"u\"}]}", "u", ""},
        {"{\"files\": [{\"filename\": \"a-1.whl\", \"url\": \"u\", \"hashes\": {\"sha256\": "
         "\"00112233445566778899AABBCCDDEEFF"
         "00112233445566778899aabbccddeeff\"}}, {\"filename\": \"a-1.whl\", \"url\": \"second\"}]}",
         "u", DIGEST},
        {"{\"files\": [{\"filename\": \"a-1.whl\", \"url\": 1}, {\"filename\": \"a-1.whl\", \"url\": \"u\", "
         "\"hashes\": "
         "{\"sha256\": 5}}]}",
         "u", ""},
    };
    check_rows(true, rows, sizeof rows / sizeof *rows);
    struct sl_index_file file;
    assert_int_equal(find(true, "{\"files\": []}", &file), SL_ERR_NOT_FOUND);
    assert_int_equal(find(true, "{\"files\": {}}", &file), SL_ERR_INVALID);
    assert_int_equal(find(true, "[]", &file), SL_ERR_INVALID);
    assert_int_equal(find(true, "{\"files\": [", &file), SL_ERR_INVALID);
    assert_int_equal(find(true, "<a href=\"a-1.whl\">", &file), SL_ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_of_html_has_links),
        cmocka_unit_test(test_page_of_html_without_the_file),
        cmocka_unit_test(test_page_of_html_with_too_long_a_link),
        cmocka_unit_test(test_page_of_json_has_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
