// SPDX-License-Identifier: Apache-2.0
// Purpose: base/whole_file.h: the file of this name is the old one or the new one, whole, and no temporary file is left.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/whole_file.h"

static char folder[] = "/tmp/sluice-whole-file-XXXXXX";
static char path[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(path, sizeof path, "%s/file", mkdtemp(folder) ? folder : "");
    return path[0] == '/' ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder); // fails when something was left in it
}

static int n_files(void) {
    DIR *stream = opendir(folder);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(stream));) {
        n += entry->d_name[0] != '.';
    }
    closedir(stream);
    return n;
}

static void assert_content(const char *expected) {
    char found[64] = "";
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    found[fread(found, 1, sizeof found - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(found, expected);
}

static void write_whole(const char *content) {
    struct sl_whole_file whole;
    assert_int_equal(sl_whole_file_open(&whole, path, NULL), SL_OK);
    fputs(content, whole.file);
    assert_int_equal(sl_whole_file_finish(&whole, NULL), SL_OK);
}

static void test_whole_file_takes_the_name_at_the_end(void **state) {
    (void)state;
    struct sl_whole_file whole;
    write_whole("old");
    assert_int_equal(sl_whole_file_open(&whole, path, NULL), SL_OK);
    fputs("new", whole.file);
    fflush(whole.file);
    assert_content("old");
    assert_int_equal(sl_whole_file_finish(&whole, NULL), SL_OK);
    assert_content("new");
    assert_int_equal(n_files(), 1);
    unlink(path);
}

static void test_whole_file_can_be_read_by_everybody(void **state) {
    (void)state;
    mode_t before = umask(0077);
    write_whole("x");
    umask(before);
    struct stat found;
    assert_int_equal(stat(path, &found), 0);
    assert_int_equal(found.st_mode & 0777, 0644);
    unlink(path);
}

static void test_whole_file_has_the_callers_mode(void **state) {
    (void)state;
    struct sl_whole_file whole;
    struct stat found;
    assert_int_equal(sl_whole_file_open(&whole, path, NULL), SL_OK);
    whole.mode = 0600;
    fputs("x", whole.file);
    assert_int_equal(sl_whole_file_finish(&whole, NULL), SL_OK);
    assert_int_equal(stat(path, &found), 0);
    assert_int_equal(found.st_mode & 0777, 0600);
    unlink(path);
}

static void test_whole_file_that_is_abandoned_leaves_the_old_one(void **state) {
    (void)state;
    struct sl_whole_file whole;
    write_whole("old");
    assert_int_equal(sl_whole_file_open(&whole, path, NULL), SL_OK);
    fputs("new", whole.file);
    sl_whole_file_abandon(&whole);
    sl_whole_file_abandon(&whole); // not open: nothing to do
    assert_content("old");
    assert_int_equal(n_files(), 1);
    unlink(path);
}

// Files may have 1000 bytes, as on a disk that is full: n_bytes more are found too many by a write in the middle, or by
// the last one, which is that of fflush().
static void check_full_disk(size_t n_bytes) {
    struct sl_whole_file whole;
    struct sl_error err = {0};
    struct rlimit before, limit;
    write_whole("old");
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){.rlim_cur = 1000, .rlim_max = before.rlim_max};
    assert_int_equal(sl_whole_file_open(&whole, path, &err), SL_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (size_t i = 0; i < n_bytes; i++) {
        fputc('x', whole.file);
    }
    enum sl_status status = sl_whole_file_finish(&whole, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, SL_ERR_IO);
    assert_non_null(strstr(err.text, path));
    assert_content("old");
    assert_int_equal(n_files(), 1);
    unlink(path);
}

static void test_whole_file_on_a_full_disk_leaves_the_old_one(void **state) {
    (void)state;
    check_full_disk(1001);
    check_full_disk(1 << 20);
}

static void test_whole_file_that_cannot_be_made_is_named_at_once(void **state) {
    (void)state;
    struct sl_whole_file whole;
    struct sl_error err = {0};
    assert_int_equal(sl_whole_file_open(&whole, "/nonexistent/file", &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, "/nonexistent/file"));
    assert_int_equal(sl_whole_file_open(&whole, folder, &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, "directory"));
    char long_path[PATH_MAX + 1];
    memset(long_path, 'x', PATH_MAX);
    long_path[PATH_MAX] = '\0';
    assert_int_equal(sl_whole_file_open(&whole, long_path, &err), SL_ERR_INVALID);
    sl_whole_file_abandon(&whole);
    assert_int_equal(n_files(), 0);
}

// As root, the rename would replace /dev/null.
static void test_whole_file_replaces_no_device_and_no_pipe(void **state) {
    (void)state;
    struct sl_whole_file whole;
    struct sl_error err = {0};
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(sl_whole_file_open(&whole, path, &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, "a pipe"));
    sl_whole_file_abandon(&whole);
    char link[80];
    snprintf(link, sizeof link, "%s.link", path);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(sl_whole_file_open(&whole, link, &err), SL_ERR_IO);
    unlink(link);
    unlink(path);
    assert_int_equal(symlink("/proc/self/exe", path), 0); // an open file, as behind /dev/stdout
    assert_int_equal(sl_whole_file_open(&whole, path, &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, "an open file"));
    assert_int_equal(n_files(), 1);
    unlink(path);
    assert_int_equal(n_files(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_file_takes_the_name_at_the_end),
        cmocka_unit_test(test_whole_file_can_be_read_by_everybody),
        cmocka_unit_test(test_whole_file_has_the_callers_mode),
        cmocka_unit_test(test_whole_file_that_is_abandoned_leaves_the_old_one),
        cmocka_unit_test(test_whole_file_on_a_full_disk_leaves_the_old_one),
        cmocka_unit_test(test_whole_file_that_cannot_be_made_is_named_at_once),
        cmocka_unit_test(test_whole_file_replaces_no_device_and_no_pipe),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
