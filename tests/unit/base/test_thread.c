// SPDX-License-Identifier: Apache-2.0
// Purpose: a thread has its name and takes no signals.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>

#include "base/thread.h"

static void *report_name_and_mask(void *arg) {
    char *name = arg;
    pthread_getname_np(pthread_self(), name, 16);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    return sigismember(&mask, SIGINT) && sigismember(&mask, SIGTERM) ? arg : NULL;
}

static void test_thread_has_a_name_and_no_signals(void **state) {
    (void)state;
    char name[16] = "";
    pthread_t thread;
    assert_int_equal(sl_thread_start("a-name-longer-than-fifteen", report_name_and_mask, name, &thread, NULL), SL_OK);
    void *result;
    pthread_join(thread, &result);
    assert_ptr_equal(result, name);
    assert_string_equal(name, "a-name-longer-t");
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    assert_false(sigismember(&mask, SIGINT)); // the creator's mask is as it was
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thread_has_a_name_and_no_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
