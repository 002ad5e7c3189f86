// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: files that were damaged, cut short, exchanged or are none: a start takes what is whole, sets aside what is not, and never
 *          has an event that was not told.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "state_harness.h"
#include "tests/unit/temp_folder.h"

#define ROOM     (INT64_C(64) << 20)
#define FILE_MAX 65536

static struct temp_folder folder;
static struct harness harness;
static struct sl_job *live, *ended;
static uint8_t file_live[FILE_MAX], file_ended[FILE_MAX];
static size_t n_live, n_ended;

static size_t slurp(const char *name, uint8_t *bytes) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder.path, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, FILE_MAX, file);
    fclose(file);
    return n;
}

static bool exists(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder.path, name);
    return access(path, F_OK) == 0;
}

static void remove_if_there(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder.path, name);
    (void)unlink(path);
}

static int begin(void **state) {
    (void)state;
    struct sl_error err;
    assert_int_equal(sl_log_configure("error", NULL), SL_OK);
    folder = temp_folder_create();
    assert_int_equal(harness_open(&harness, folder.path, ROOM, &err), SL_OK);
    live = harness_job("job-1-1");
    ended = harness_job("job-1-2");
    sl_state_keep(harness.state, live, false);
    sl_state_keep(harness.state, ended, false);
    harness_decode(live, 20);
    harness_decode(ended, 10);
    harness_finish(ended);
    harness_await_told(live);
    harness_await_told(ended);
    harness_close(&harness);
    n_live = slurp("job-1-1", file_live);
    n_ended = slurp("job-1-2", file_ended);
    assert_true(n_live > 500 && n_live < FILE_MAX && n_ended > 500 && n_ended < FILE_MAX);
    return 0;
}

static int end(void **state) {
    (void)state;
    sl_job_unref(&live);
    sl_job_unref(&ended);
    temp_folder_destroy(&folder);
    return 0;
}

// Writes these bytes to the live job's file: the folder opens, and the other job is as it was. Returns how many events the job has; -1: it
// was set aside.
static int64_t open_with(const uint8_t *bytes, size_t n) {
    struct sl_error err = {0};
    temp_folder_write(&folder, "job-1-1", bytes, n);
    if (harness_open(&harness, folder.path, ROOM, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    int64_t n_events = -1;
    bool has_other = false;
    for (int i = 0; i < harness.n_jobs; i++) {
        if (strcmp(harness.jobs[i]->id, "job-1-1") == 0) {
            n_events = harness_assert_same_events(live, harness.jobs[i]);
        } else {
            assert_int_equal(harness_assert_same_events(ended, harness.jobs[i]), (int64_t)ended->log.n_events);
            has_other = true;
        }
    }
    assert_true(has_other);
    harness_close(&harness);
    assert_int_equal(exists("damaged-job-1-1"), n_events < 0);
    assert_int_equal(exists("job-1-1"), n_events >= 0);
    remove_if_there("damaged-job-1-1");
    return n_events;
}

static void test_state_opens_whatever_was_flipped(void **state) {
    (void)state;
    int n_aside = 0, n_cut = 0;
    for (size_t at = 0; at < n_live; at += at < 64 ? 1 : 7) {
        uint8_t bytes[FILE_MAX];
        memcpy(bytes, file_live, n_live);
        bytes[at] ^= (uint8_t)(1 << at % 8);
        int64_t n = open_with(bytes, n_live);
        n_aside += n < 0;
        n_cut += n >= 0;
        assert_true(n < (int64_t)live->log.n_events); // never passes for whole
    }
    assert_true(n_aside > 50 && n_cut < 20); // whether the last record was ever whole cannot be known
}

static void test_state_opens_whatever_was_cut(void **state) {
    (void)state;
    int64_t last = (int64_t)live->log.n_events;
    assert_int_equal(open_with(file_live, n_live), last);
    for (size_t n = n_live - 1; n > 0; n -= n > 97 ? 13 : 1) {
        int64_t n_events = open_with(file_live, n);
        assert_true(n_events <= last); // fewer and fewer, without a gap
        last = n_events;
    }
    assert_int_equal(last, -1);
}

// After a system crash, blocks that were not yet written hold zeros.
static void test_state_takes_zeros_at_the_end_for_what_was_never_written(void **state) {
    (void)state;
    uint8_t bytes[FILE_MAX];
    memcpy(bytes, file_live, n_live);
    memset(bytes + n_live, 0, 4096);
    assert_int_equal(open_with(bytes, n_live + 4096), (int64_t)live->log.n_events);
}

// An end of which half was written is none: the job goes on, and its file without it.
static void test_state_of_half_an_end_goes_on(void **state) {
    (void)state;
    struct sl_error err;
    for (size_t cut = 1; cut < 120; cut += 17) {
        temp_folder_write(&folder, "job-1-2", file_ended, n_ended - cut);
        assert_int_equal(harness_open(&harness, folder.path, ROOM, &err), SL_OK);
        struct sl_job *job = harness.jobs[harness.n_jobs - 1];
        assert_int_equal(harness_assert_same_events(ended, job), (int64_t)ended->log.n_events - 2);
        assert_int_equal(sl_job_state(job), SLUICE__V1__JOB_STATE__DECODING);
        harness_decode(job, 15);
        harness_finish(job);
        harness_await_told(job);
        harness_close(&harness);
        assert_int_equal(harness_open(&harness, folder.path, ROOM, &err), SL_OK);
        assert_int_equal(harness.jobs[harness.n_jobs - 1]->n_output, 15);
        harness_close(&harness);
    }
}

static void test_state_does_not_believe_names(void **state) {
    (void)state;
    struct sl_error err;
    temp_folder_write(&folder, "job-1-3", file_live, n_live);   // a copy
    temp_folder_write(&folder, "job-1-4", "SLUICEJB", 8);       // a beginning
    temp_folder_write(&folder, "job-1-5", "", 0);               // nothing
    temp_folder_write(&folder, "job-XY", file_live, n_live);    // foreign: let be
    temp_folder_write(&folder, "notes.txt", file_live, n_live); // likewise
    assert_int_equal(harness_open(&harness, folder.path, ROOM, &err), SL_OK);
    assert_int_equal(harness.n_jobs, 2);
    harness_close(&harness);
    assert_true(exists("job-XY") && exists("notes.txt") && exists("damaged-job-1-3"));
    assert_false(exists("job-1-3") || exists("job-1-4") || exists("job-1-5"));
}

static void test_state_keeps_few_of_what_is_damaged(void **state) {
    (void)state;
    struct sl_error err;
    char name[32];
    for (int i = 10; i < 30; i++) {
        snprintf(name, sizeof name, "job-1-%d", i);
        temp_folder_write(&folder, name, file_live, n_live);
    }
    assert_int_equal(harness_open(&harness, folder.path, ROOM, &err), SL_OK);
    harness_close(&harness);
    int n = 0;
    for (int i = 10; i < 30; i++) {
        snprintf(name, sizeof name, "job-1-%d", i);
        assert_false(exists(name));
        snprintf(name, sizeof name, "damaged-job-1-%d", i);
        n += exists(name);
    }
    assert_int_equal(n, 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_state_opens_whatever_was_flipped, begin, end),
        cmocka_unit_test_setup_teardown(test_state_opens_whatever_was_cut, begin, end),
        cmocka_unit_test_setup_teardown(test_state_takes_zeros_at_the_end_for_what_was_never_written, begin, end),
        cmocka_unit_test_setup_teardown(test_state_of_half_an_end_goes_on, begin, end),
        cmocka_unit_test_setup_teardown(test_state_does_not_believe_names, begin, end),
        cmocka_unit_test_setup_teardown(test_state_keeps_few_of_what_is_damaged, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
