// SPDX-License-Identifier: Apache-2.0
// Purpose: a name is one cluster's, folders of others are refused, and a log does not fill the memory that it lies in.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "client/cli/clusters_here.h"

static char folder[] = "/tmp/sluice-test-here-XXXXXX";

static void test_here_belongs_to_one_who_is_known_by_his_process(void **state) {
    (void)state;
    struct sl_cluster_here one, other;
    struct sl_cluster_entry *entries;
    struct sl_error err;
    size_t n;
    assert_int_equal(sl_cluster_here_open("one", &one, &err), SL_OK);
    assert_int_equal(sl_cluster_here_open("one", &other, &err), SL_ERR_EXISTS);
    assert_int_equal(sl_clusters_here(&entries, &n, &err), SL_OK);
    assert_int_equal(n, 1);
    assert_true(entries[0].running && !entries[0].state); // it is starting, and can be stopped all the same
    assert_int_equal(entries[0].pid, getpid());
    sl_cluster_entry_forget(&entries[0]); // it has not ended
    assert_int_equal(access(one.log_path, F_OK), 0);
    sl_cluster_here_close(&one, true);
    assert_int_equal(sl_cluster_entry_pid(&entries[0]), 0);
    sl_cluster_entry_forget(&entries[0]);
    assert_int_not_equal(access(one.dir, F_OK), 0);
    sl_clusters_here_free(&entries, n);
}

static void *hold_for_a_moment(void *arg) {
    sl_sleep_ms(200); // longer than the wait for a lasting owner of the name
    flock(*(int *)arg, LOCK_UN);
    return NULL;
}

static void test_here_waits_for_who_only_looks(void **state) {
    (void)state;
    struct sl_cluster_here one;
    struct sl_error err;
    char path[PATH_MAX + 8];
    pthread_t thread;
    assert_int_equal(sl_cluster_here_open("one", &one, &err), SL_OK);
    snprintf(path, sizeof path, "%s/lock", one.dir);
    sl_cluster_here_close(&one, true);
    FILE *lock = fopen(path, "r");
    assert_non_null(lock);
    int fd = fileno(lock);
    assert_int_equal(flock(fd, LOCK_SH), 0);
    assert_int_equal(sl_thread_start("looks", hold_for_a_moment, &fd, &thread, &err), SL_OK);
    assert_int_equal(sl_cluster_here_open("one", &one, &err), SL_OK);
    pthread_join(thread, NULL);
    fclose(lock);
    sl_cluster_here_close(&one, false);
}

static void test_here_refuses_what_others_may_write_to(void **state) {
    (void)state;
    struct sl_cluster_here one, other;
    struct sl_cluster_entry *entries;
    struct sl_error err;
    char root[64], elsewhere[PATH_MAX + 16];
    size_t n;
    assert_int_equal(sl_cluster_here_open("one", &one, &err), SL_OK);
    snprintf(root, sizeof root, "%s/sluice", folder);
    const char *const places[] = {root, one.dir};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(chmod(places[i], 0770), 0);
        assert_int_equal(sl_cluster_here_open("one", &other, &err), SL_ERR_DENIED);
        assert_int_equal(sl_clusters_here(&entries, &n, &err), SL_ERR_DENIED);
        assert_non_null(strstr(err.text, "may be written to by others"));
        assert_int_equal(chmod(places[i], 0700), 0);
        if (getuid() == 0) {
            assert_int_equal(chown(places[i], 65534, 65534), 0);
            assert_int_equal(sl_cluster_here_open("one", &other, &err), SL_ERR_DENIED);
            assert_int_equal(sl_clusters_here(&entries, &n, &err), SL_ERR_DENIED);
            assert_non_null(strstr(err.text, "belongs to somebody else"));
            assert_int_equal(chown(places[i], 0, 0), 0);
        }
    }
    sl_cluster_here_close(&one, true);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", folder); // a link where the log goes leads nowhere
    assert_int_equal(unlink(one.log_path), 0);
    assert_int_equal(symlink(elsewhere, one.log_path), 0);
    assert_int_equal(sl_cluster_here_open("one", &one, &err), SL_ERR_IO);
    assert_int_not_equal(access(elsewhere, F_OK), 0);
    assert_int_equal(access(root, F_OK), 0);
}

static off_t bytes_of(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? st.st_size : -1;
}

static void test_here_begins_a_new_log_when_one_is_long(void **state) {
    (void)state;
    struct sl_cluster_here one;
    struct sl_error err;
    char before[PATH_MAX + 24];
    bool anew = true;
    assert_int_equal(sl_cluster_here_open("one", &one, &err), SL_OK);
    snprintf(before, sizeof before, "%s.1", one.log_path);
    fputs("short\n", one.log);
    fflush(one.log);
    assert_int_equal(sl_cluster_here_bound_log(&one, &anew, &err), SL_OK);
    assert_false(anew);
    for (int i = 0; i < 2; i++) { // and once more: the oldest goes
        assert_int_equal(ftruncate(fileno(one.log), (off_t)16 << 20), 0);
        assert_int_equal(sl_cluster_here_bound_log(&one, &anew, &err), SL_OK);
        assert_true(anew);
        assert_int_equal(bytes_of(one.log_path), 0);
        assert_int_equal(bytes_of(before), 16 << 20);
        fputs("further\n", one.log);
        fflush(one.log);
        assert_int_equal(bytes_of(one.log_path), 8);
    }
    sl_cluster_here_close(&one, false);
    assert_int_not_equal(access(one.dir, F_OK), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_here_belongs_to_one_who_is_known_by_his_process),
        cmocka_unit_test(test_here_waits_for_who_only_looks),
        cmocka_unit_test(test_here_refuses_what_others_may_write_to),
        cmocka_unit_test(test_here_begins_a_new_log_when_one_is_long),
    };
    char command[80];
    if (!mkdtemp(folder) || setenv("XDG_RUNTIME_DIR", folder, 1) != 0) {
        return 1;
    }
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) == 0 ? n_failed : 1;
}
