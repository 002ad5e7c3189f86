// SPDX-License-Identifier: Apache-2.0
// Purpose: a thread has its name and its stack, and takes no signals; a loop works until it is told to stop.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/loop.h"

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

struct counting {
    struct sl_loop loop;
    int n_asked, n_done;
};

static void *count(void *arg) {
    struct counting *counting = arg;
    SL_LOCKED(&counting->loop.mutex);
    while (!counting->loop.stopping) {
        counting->n_done = counting->n_asked;
        pthread_cond_broadcast(&counting->loop.changed);
        sl_loop_wait(&counting->loop, SL_NO_DEADLINE);
    }
    return NULL;
}

static void test_a_loop_works_until_it_is_stopped(void **state) {
    (void)state;
    struct counting counting = {.n_asked = 0};
    sl_loop_init(&counting.loop);
    assert_int_equal(sl_loop_start(&counting.loop, "counting", count, &counting, NULL), SL_OK);
    for (int i = 1; i <= 3; i++) {
        SL_LOCKED(&counting.loop.mutex);
        counting.n_asked = i;
        pthread_cond_broadcast(&counting.loop.changed);
        while (counting.n_done < i) {
            sl_loop_wait(&counting.loop, SL_NO_DEADLINE);
        }
    }
    sl_loop_stop(&counting.loop);
    assert_int_equal(counting.n_done, 3);
    assert_true(counting.loop.stopping);
    sl_loop_stop(&counting.loop); // idempotent
    sl_loop_cleanup(&counting.loop);
}

static void *sleep_long(void *arg) {
    struct sl_loop *loop = arg;
    SL_LOCKED(&loop->mutex);
    sl_loop_sleep(loop, SL_NO_DEADLINE);
    return NULL;
}

static void test_a_loop_sleeps_until_its_deadline_or_its_end(void **state) {
    (void)state;
    struct sl_loop loop;
    sl_loop_init(&loop);
    SL_WITH_LOCK(&loop.mutex, sl_loop_sleep(&loop, sl_now_ns() - 1));
    assert_int_equal(sl_loop_start(&loop, "sleeping", sleep_long, &loop, NULL), SL_OK);
    SL_WITH_LOCK(&loop.mutex, pthread_cond_broadcast(&loop.changed)); // does not end it
    sl_loop_cleanup(&loop);                                           // does
}

static void test_a_loop_that_never_ran_is_released(void **state) {
    (void)state;
    struct sl_loop loop;
    sl_loop_init(&loop);
    sl_loop_cleanup(&loop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thread_has_a_name_and_no_signals),
        cmocka_unit_test(test_a_thread_has_the_stack_that_kernels_need),
        cmocka_unit_test(test_a_loop_works_until_it_is_stopped),
        cmocka_unit_test(test_a_loop_sleeps_until_its_deadline_or_its_end),
        cmocka_unit_test(test_a_loop_that_never_ran_is_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
