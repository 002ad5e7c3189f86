// SPDX-License-Identifier: Apache-2.0
// Purpose: a thread has its name and its stack, and takes no signals.
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

static void *report_stack(void *arg) {
    pthread_attr_t attr;
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstacksize(&attr, arg);
        pthread_attr_destroy(&attr);
    }
    return NULL;
}

static void test_a_thread_has_the_stack_that_kernels_need(void **state) {
    (void)state;
    pthread_attr_t before, small;
    assert_int_equal(pthread_getattr_default_np(&before), 0);
    assert_int_equal(pthread_attr_init(&small), 0);
    assert_int_equal(pthread_attr_setstacksize(&small, 1 << 20), 0);
    assert_int_equal(pthread_setattr_default_np(&small), 0); // what `ulimit -s 1024` does before the program starts
    size_t bytes = 0;
    pthread_t thread;
    assert_int_equal(sl_thread_start("stack", report_stack, &bytes, &thread, NULL), SL_OK);
    pthread_join(thread, NULL);
    assert_true(bytes >= SL_THREAD_STACK_BYTES);
    assert_int_equal(pthread_setattr_default_np(&before), 0);
    pthread_attr_destroy(&small);
    pthread_attr_destroy(&before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thread_has_a_name_and_no_signals),
        cmocka_unit_test(test_a_thread_has_the_stack_that_kernels_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
