// SPDX-License-Identifier: Apache-2.0
// Purpose: what every server's main() sets up for the process.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/options/program.h"

struct config {
    struct sl_program_options common;
};

static const struct sl_option options[] = {SL_PROGRAM_OPTIONS(config, common)};
static const struct sl_program program = {
    .name = "test", .usage = "[options]", .summary = "A test.", SL_OPTIONS(options)};

struct scheduling { // struct sched_attr of the kernel
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice_ns, deadline_ns, period_ns;
};

static void *read_scheduling(void *arg) {
    assert_int_equal(syscall(SYS_sched_getattr, 0, arg, sizeof(struct scheduling), 0), 0);
    return NULL;
}

static void test_threads_of_a_server_have_short_time_slices(void **state) {
    (void)state;
    struct scheduling before, own, started;
    struct config config;
    pthread_t thread;
    int code = -1;
    read_scheduling(&before);
    assert_true(sl_program_begin(&program, 1, (char *[]){(char *)"test", NULL}, &config, &config.common, &code));
    read_scheduling(&own);
    assert_int_equal(pthread_create(&thread, NULL, read_scheduling, &started), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (before.policy != 0) {
        skip(); // the caller has chosen how this test is scheduled
    }
    uint64_t slice_ns = before.slice_ns > 0 ? 100000 : 0; // before Linux 6.12 there is none
    assert_int_equal(own.slice_ns, slice_ns);
    assert_int_equal(started.slice_ns, slice_ns);
    assert_int_equal(own.policy, before.policy);
    assert_int_equal(own.nice, before.nice);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads_of_a_server_have_short_time_slices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
