// SPDX-License-Identifier: Apache-2.0
// Lists of processes that share weights: a list is locked only in a folder of this user, which comes and goes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/tensor/shared_users.h"
#include "tests/unit/temp_folder.h"

#define KEY 0x1234abcdU

// The folder goes with its last list, and anything may then come in its place.
static void test_a_list_is_locked_only_in_a_folder_of_this_user(void **state) {
    (void)state;
    struct temp_folder parent = temp_folder_create();
    char folder[96];
    struct sl_shared_list list;
    struct sl_error err;
    snprintf(folder, sizeof folder, "%s/users", parent.path);
    assert_int_equal(sl_shared_list_open(&list, folder, KEY, NULL), SL_OK);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(sl_shared_list_lock(&list, &err), SL_OK);
    sl_shared_list_leave(&list);
    assert_int_equal(mkdir(folder, 0755), 0);
    assert_int_equal(sl_shared_list_lock(&list, &err), SL_ERR_DENIED);
    assert_non_null(strstr(err.text, folder));
    if (geteuid() == 0) {
        assert_int_equal(chmod(folder, 0700), 0);
        assert_int_equal(chown(folder, 1, 1), 0);
        assert_int_equal(sl_shared_list_lock(&list, &err), SL_ERR_DENIED);
    }
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(symlink("/tmp", folder), 0);
    assert_int_equal(sl_shared_list_lock(&list, &err), SL_ERR_DENIED);
    assert_int_equal(unlink(folder), 0);
    assert_int_equal(rmdir(parent.path), 0);
}

struct churn {
    const char *folder;
    _Atomic bool ended;
};

static void *make_and_remove(void *arg) {
    struct churn *churn = arg;
    while (!atomic_load(&churn->ended)) {
        (void)mkdir(churn->folder, 0700);
        (void)rmdir(churn->folder); // fails while a list is there
    }
    return NULL;
}

static void test_a_list_is_locked_while_others_remove_the_folder(void **state) {
    (void)state;
    struct temp_folder parent = temp_folder_create();
    char folder[96];
    pthread_t threads[2];
    int n_locked = 0;
    snprintf(folder, sizeof folder, "%s/users", parent.path);
    struct churn churn = {.folder = folder};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, make_and_remove, &churn), 0);
    }
    for (int64_t until = sl_deadline_in_ms(500); n_locked < 20 || sl_deadline_left_ms(until) > 0;) {
        struct sl_shared_list list;
        struct sl_error err = {0};
        assert_int_equal(sl_shared_list_open(&list, folder, KEY, &err), SL_OK);
        enum sl_status status = sl_shared_list_lock(&list, &err);
        if (status != SL_OK && status != SL_AGAIN) {
            fail_msg("%s", err.text);
        }
        n_locked += status == SL_OK;
        sl_shared_list_leave(&list);
    }
    atomic_store(&churn.ended, true);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(rmdir(parent.path), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_list_is_locked_only_in_a_folder_of_this_user),
        cmocka_unit_test(test_a_list_is_locked_while_others_remove_the_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
