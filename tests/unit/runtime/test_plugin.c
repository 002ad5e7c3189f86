// SPDX-License-Identifier: Apache-2.0
// Errors for a plugin that is missing, or has another version. argv: the folder of the test's plugins.
#include "engine/runtime/plugin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *folder;

static enum sl_status load(const char *name, const struct sl_plugin **plugin_out, struct sl_error *err) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return sl_plugin_load(path, plugin_out, err);
}

static void test_plugin_of_this_version_is_loaded(void **state) {
    const struct sl_plugin *plugin = NULL, *again = NULL;
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(load("libsluice_cuda.so", &plugin, &err), SL_OK);
    assert_string_equal(plugin->name, "cuda");
    assert_int_equal(load("libsluice_cuda.so", &again, &err), SL_OK);
    assert_ptr_equal(again, plugin);
}

static void test_plugin_of_another_version_is_refused_with_both_numbers(void **state) {
    const struct sl_plugin *plugin = NULL;
    struct sl_error err = {0};
    char mine[32];
    (void)state;
    assert_int_equal(load("libanother_version.so", &plugin, &err), SL_ERR_UNSUPPORTED);
    assert_null(plugin);
    snprintf(mine, sizeof mine, "this program %u", SL_PLUGIN_ABI);
    assert_non_null(strstr(err.text, "interface 7, "));
    assert_non_null(strstr(err.text, mine));
}

static void test_plugin_without_a_getter_is_refused(void **state) {
    const struct sl_plugin *plugin = NULL;
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(sl_plugin_load("libm.so.6", &plugin, &err), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "not a plugin of Sluice"));
}

static void test_plugin_that_is_missing_is_told_how_to_build(void **state) {
    const struct sl_plugin *plugin = NULL;
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(load("libnowhere.so", &plugin, &err), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "libnowhere.so cannot be loaded: "));
    assert_int_equal(sl_plugin_find("cuda", &plugin, &err), SL_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "libsluice_cuda.so is not beside the program; `make gpu` builds it");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plugin_of_this_version_is_loaded),
        cmocka_unit_test(test_plugin_of_another_version_is_refused_with_both_numbers),
        cmocka_unit_test(test_plugin_without_a_getter_is_refused),
        cmocka_unit_test(test_plugin_that_is_missing_is_told_how_to_build),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
