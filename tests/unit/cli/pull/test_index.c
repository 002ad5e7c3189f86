// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/cli/pull/index.h"
#include "tests/unit/temp_folder.h"

// pip's variables as a test wants them; NULL: none. Files of this machine do not count: PIP_CONFIG_FILE is read last.
static void set(const char *url, const char *cert, const char *config) {
    static const char *const names[] = {"PIP_INDEX_URL", "PIP_CERT", "PIP_CONFIG_FILE"};
    const char *values[] = {url, cert, config ? config : "/dev/null"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(values[i] ? setenv(names[i], values[i], 1) : unsetenv(names[i]), 0);
    }
    assert_int_equal(unsetenv("SSL_CERT_FILE"), 0);
}

static struct sl_index chosen(const char *given) {
    struct sl_index index;
    struct sl_error err;
    assert_int_equal(sl_index_choose(given, &index, &err), SL_OK);
    return index;
}

static void test_index_is_the_public_one_or_what_is_said(void **state) {
    (void)state;
    set(NULL, NULL, NULL);
    assert_string_equal(chosen("").url, "https://pypi.org/simple");
    assert_string_equal(chosen("").cert, "");
    set("http://mirror/simple//", "/certs.pem", NULL);
    assert_string_equal(chosen("").url, "http://mirror/simple");
    assert_string_equal(chosen("").cert, "/certs.pem");
    assert_string_equal(chosen("https://mine/").url, "https://mine");
    set("", "", NULL); // as if they were not there
    assert_string_equal(chosen("").url, "https://pypi.org/simple");
    assert_int_equal(setenv("SSL_CERT_FILE", "/system.pem", 1), 0);
    assert_string_equal(chosen("").cert, "/system.pem");
}

static void test_index_is_that_of_a_configuration(void **state) {
    (void)state;
    char path[128];
    struct temp_folder folder = temp_folder_create();
    snprintf(path, sizeof path, "%s/pip.conf", folder.path);
    temp_folder_write_text(
        &folder, "pip.conf",
        "index-url = http://before\n[install]\nindex-url = http://other\n[global]\n"
        "; index-url = http://a\n  # index-url = http://b\nextra-index-url = http://c\nindex_url : http://ours/ \n"
        "cert=/ours.pem\ntimeout\n[download]\n[freeze]\nindex-url = http://last\n");
    set(NULL, NULL, path);
    assert_string_equal(chosen("").url, "http://ours");
    assert_string_equal(chosen("").cert, "/ours.pem");
    set("http://said", NULL, path);
    assert_string_equal(chosen("").url, "http://said");
    temp_folder_destroy(&folder);
}

static void test_index_that_cannot_be(void **state) {
    (void)state;
    char longest[SL_URL_BYTES + 1];
    struct sl_index index;
    struct sl_error err;
    static const char *const bad[] = {"ftp://host", "host", "file:///etc/passwd", "httpx://host"};
    set(NULL, NULL, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(sl_index_choose(bad[i], &index, &err), SL_ERR_INVALID);
    }
    for (size_t n = SL_URL_BYTES - 1; n <= SL_URL_BYTES; n++) {
        memset(longest, 'a', n);
        memcpy(longest, "http://", 7);
        longest[n] = '\0';
        assert_int_equal(sl_index_choose(longest, &index, &err), n < SL_URL_BYTES ? SL_OK : SL_ERR_INVALID);
        set(longest, NULL, NULL);
        assert_int_equal(sl_index_choose("", &index, &err), n < SL_URL_BYTES ? SL_OK : SL_ERR_INVALID);
        set(NULL, NULL, NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index_is_the_public_one_or_what_is_said),
        cmocka_unit_test(test_index_is_that_of_a_configuration),
        cmocka_unit_test(test_index_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
