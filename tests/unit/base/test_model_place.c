// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <sys/stat.h>

#include "base/model_place.h"
#include "tests/unit/temp_folder.h"

static ssize_t link_bytes; // of /proc/self/exe; 0: as it is; below 0: it cannot be read

ssize_t __real_readlink(const char *path, char *buffer, size_t bytes);
ssize_t __wrap_readlink(const char *path, char *buffer, size_t bytes);
ssize_t __wrap_readlink(const char *path, char *buffer, size_t bytes) {
    if (link_bytes == 0) {
        return __real_readlink(path, buffer, bytes);
    }
    errno = link_bytes < 0 ? EACCES : 0;
    memset(buffer, '/', bytes);
    return link_bytes < (ssize_t)bytes ? link_bytes : (ssize_t)bytes;
}

// base/name, made as a folder
static struct temp_folder folder_in(const struct temp_folder *base, const char *name) {
    struct temp_folder made;
    assert_true((size_t)snprintf(made.path, sizeof made.path, "%s/%s", base->path, name) < sizeof made.path);
    assert_int_equal(mkdir(made.path, 0700), 0);
    return made;
}

static void test_model_place_of_the_cache(void **state) {
    (void)state;
    char path[PATH_MAX];
    assert_int_equal(setenv("XDG_CACHE_HOME", "/cache", 1), 0);
    assert_int_equal(setenv("HOME", "/home/me", 1), 0);
    assert_true(sl_model_place(0, path));
    assert_string_equal(path, "/cache/sluice/models");
    assert_int_equal(setenv("XDG_CACHE_HOME", "relative", 1), 0);
    assert_true(sl_model_place(0, path));
    assert_string_equal(path, "/home/me/.cache/sluice/models");
    assert_int_equal(unsetenv("XDG_CACHE_HOME"), 0);
    assert_true(sl_model_place(0, path));
    assert_string_equal(path, "/home/me/.cache/sluice/models");
    assert_int_equal(setenv("HOME", "", 1), 0);
    assert_false(sl_model_place(0, path));
    assert_int_equal(unsetenv("HOME"), 0);
    assert_false(sl_model_place(0, path));
    assert_true(sl_model_place(1, path) && sl_model_place(2, path));
    assert_false(sl_model_place(SL_MODEL_PLACES, path));
}

static void test_model_names(void **state) {
    (void)state;
    char longest[SL_MODEL_NAME_BYTES + 1];
    static const char *const good[] = {"a", "smollm2", "Qwen2.5-0.5B_x"}, *const bad[] = {"",    ".",   "..", ".a",
                                                                                          "a/b", "a b", "é"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(sl_model_name_valid(good[i]));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(sl_model_name_valid(bad[i]));
    }
    for (size_t n = SL_MODEL_NAME_BYTES - 1; n <= SL_MODEL_NAME_BYTES; n++) {
        memset(longest, 'a', n);
        longest[n] = '\0';
        assert_int_equal(sl_model_name_valid(longest), n < SL_MODEL_NAME_BYTES);
    }
}

static void test_model_is_found_by_its_name(void **state) {
    (void)state;
    char path[PATH_MAX], expected[PATH_MAX];
    struct temp_folder cache = temp_folder_create();
    struct temp_folder ours = folder_in(&cache, "sluice"), models = folder_in(&ours, "models");
    struct temp_folder huggingface = folder_in(&models, "hf"), gguf = folder_in(&models, "gg"),
                       none = folder_in(&models, "no");
    assert_int_equal(setenv("XDG_CACHE_HOME", cache.path, 1), 0);
    temp_folder_write_text(&huggingface, "config.json", "{}");
    temp_folder_write_text(&huggingface, "x.gguf", "");
    temp_folder_write_text(&gguf, "M.GGUF", "");
    temp_folder_write_text(&gguf, "M.gguf.sluice_profile.json", "{}");
    temp_folder_write_text(&none, "a.gguf", "");
    temp_folder_write_text(&none, "b.gguf", "");

    assert_true(sl_model_find("hf", path));
    assert_string_equal(path, huggingface.path);
    assert_true(sl_model_find("gg", path));
    assert_string_equal(path, gguf.path);
    assert_true(sl_model_in(huggingface.path, path));
    assert_string_equal(path, huggingface.path);
    snprintf(expected, sizeof expected, "%s/M.GGUF", gguf.path);
    assert_true(sl_model_in(gguf.path, path));
    assert_string_equal(path, expected);
    assert_false(sl_model_in(none.path, path)); // ambiguous
    assert_false(sl_model_find("no", path));
    assert_false(sl_model_find("absent", path));
    assert_false(sl_model_find("..", path) && strcmp(path, "..") != 0);
    assert_true(sl_model_find("/nothing/here", path)); // a path is what it is
    assert_string_equal(path, "/nothing/here");
    assert_true(sl_model_find("models", path)); // of the source tree, where tests run
    assert_string_equal(path, "models");

    temp_folder_destroy(&huggingface);
    temp_folder_destroy(&gguf);
    temp_folder_destroy(&none);
    assert_int_equal(rmdir(models.path) | rmdir(ours.path) | rmdir(cache.path), 0);
}

static void test_a_folder_that_is_not_found_says_why(void **state) {
    (void)state;
    char path[PATH_MAX];
    struct sl_error err = {0};
    assert_int_equal(sl_program_folder(path, &err), SL_OK);
    assert_true(path[0] == '/' && strstr(path, "bin"));
    link_bytes = -1;
    assert_int_equal(sl_program_folder(path, &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, "Permission denied"));
    assert_false(sl_model_place(1, path));
    link_bytes = PATH_MAX; // more than there is room for
    assert_int_equal(sl_program_folder(path, &err), SL_ERR_RANGE);
    assert_non_null(strstr(err.text, "4094 bytes"));
    link_bytes = 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_place_of_the_cache),
        cmocka_unit_test(test_model_names),
        cmocka_unit_test(test_model_is_found_by_its_name),
        cmocka_unit_test(test_a_folder_that_is_not_found_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
