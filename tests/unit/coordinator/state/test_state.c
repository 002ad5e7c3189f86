// SPDX-License-Identifier: Apache-2.0
// Purpose: jobs that were written down come back, watchers see only what is written, and a disk that fails stops no job.
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "state_harness.h"
#include "tests/unit/kvstore/disk/faults.h"
#include "tests/unit/temp_folder.h"

#define ROOM (INT64_C(64) << 20)

static struct temp_folder folder;
static struct harness harness;
static struct sl_error err;

// --- SQLite's system calls are faults.h's ------------------------------------------------------------------------------

int __wrap_openat(int dir_fd, const char *path, int flags, ...);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at);
ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t at);
int __wrap_unlinkat(int dir_fd, const char *path, int flags);
int __wrap_close(int fd);

static int open_file(const char *path, int flags, int mode) {
    return __wrap_openat(AT_FDCWD, path, flags, mode);
}

static int unlink_file(const char *path) {
    return __wrap_unlinkat(AT_FDCWD, path, 0);
}

static int use_faults(void **state) {
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    (void)state;
    assert_int_equal(vfs->xSetSystemCall(vfs, "open", (sqlite3_syscall_ptr)open_file), SQLITE_OK);
    assert_int_equal(vfs->xSetSystemCall(vfs, "pwrite", (sqlite3_syscall_ptr)__wrap_pwrite), SQLITE_OK);
    assert_int_equal(vfs->xSetSystemCall(vfs, "pwrite64", (sqlite3_syscall_ptr)__wrap_pwrite), SQLITE_OK);
    assert_int_equal(vfs->xSetSystemCall(vfs, "pread", (sqlite3_syscall_ptr)__wrap_pread), SQLITE_OK);
    assert_int_equal(vfs->xSetSystemCall(vfs, "pread64", (sqlite3_syscall_ptr)__wrap_pread), SQLITE_OK);
    assert_int_equal(vfs->xSetSystemCall(vfs, "unlink", (sqlite3_syscall_ptr)unlink_file), SQLITE_OK);
    assert_int_equal(vfs->xSetSystemCall(vfs, "close", (sqlite3_syscall_ptr)__wrap_close), SQLITE_OK);
    return 0;
}

static int begin(void **state) {
    (void)state;
    folder = temp_folder_create();
    assert_int_equal(harness_open(&harness, folder.path, ROOM, &err), SL_OK);
    return 0;
}

static int end(void **state) {
    (void)state;
    harness_close(&harness);
    temp_folder_destroy(&folder);
    return 0;
}

static void reopen(void) {
    harness_close(&harness);
    if (harness_open(&harness, folder.path, ROOM, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

static void test_state_gives_back_jobs_with_all_that_was_seen(void **state) {
    (void)state;
    struct sl_job *first = harness_job("job-5f-1"), *second = harness_job("job-5f-2"),
                  *tenth = harness_job("job-5f-10");
    tenth->spec.no_reuse = true;
    sl_state_keep(harness.state, first, false);
    sl_state_keep(harness.state, second, false);
    sl_state_keep(harness.state, tenth, false);
    assert_int_equal(sl_event_log_wait_told(&first->log, sl_deadline_in_ms(20000)), SL_OK);
    harness_decode(first, 100);
    harness_decode(second, 30);
    harness_finish(second);
    harness_await_told(first);
    harness_await_told(second);
    harness_await_told(tenth);
    reopen();
    assert_int_equal(harness.n_jobs, 3);
    assert_int_equal(harness.n_prompt_tokens, 3);
    assert_true(harness.no_reuse);
    assert_int_equal(harness_assert_same_events(first, harness.jobs[0]), (int64_t)first->log.n_events);
    assert_int_equal(harness_assert_same_events(second, harness.jobs[1]), (int64_t)second->log.n_events);
    assert_int_equal(harness_assert_same_events(tenth, harness.jobs[2]), 1); // numbers, not letters

    struct sl_job *job = harness.jobs[0];
    assert_int_equal(sl_job_state(job), SLUICE__V1__JOB_STATE__DECODING);
    assert_int_equal(job->n_output, 100);
    assert_int_equal(job->output[99], 109);
    assert_int_equal(job->submitted_ms, first->submitted_ms);
    Sluice__V1__Job *report = sl_job_describe(harness.jobs[1]);
    assert_non_null(report);
    assert_int_equal(report->state, SLUICE__V1__JOB_STATE__DONE);
    assert_int_equal(report->n_output_tokens, 30);
    assert_string_equal(report->decode_worker, "decode-0");
    assert_string_equal(report->label, "a label");
    assert_true(report->statistics->ttft_ms == 12.5);
    assert_int_equal(report->statistics->kept, SLUICE__V1__KEPT__KEPT_STORED);
    assert_int_equal(report->statistics->kept_state, SLUICE__V1__KEPT__KEPT_NOT_LATE);
    assert_int_equal(report->statistics->not_cached, SLUICE__V1__NOT_CACHED__NOT_CACHED_OFF);
    sluice__v1__job__free_unpacked(report, NULL);
    assert_true(sl_job_ended_ns(harness.jobs[1]) != 0 && sl_job_ended_ns(harness.jobs[1]) <= sl_now_ns());

    // It goes on, and is there again.
    harness_decode(job, 150);
    harness_finish(job);
    harness_await_told(job);
    job = sl_job_ref(job);
    reopen();
    assert_int_equal(harness.jobs[0]->n_output, 150);
    assert_int_equal(harness_assert_same_events(job, harness.jobs[0]), (int64_t)job->log.n_events);
    sl_job_unref(&job);
    sl_job_unref(&first);
    sl_job_unref(&second);
    sl_job_unref(&tenth);
}

static void test_state_shows_nothing_that_is_not_written(void **state) {
    (void)state;
    struct sl_job *job = harness_job("job-1-1");
    sl_state_keep(harness.state, job, false);
    harness_decode(job, 10);
    harness_await_told(job);
    int64_t seen = sl_event_log_last_sequence(&job->log);
    fault_begin(&(struct fault){.kind = FAULT_SILENT, .lasting = true, .scope = FAULT_GROWING});
    harness_decode(job, 20); // the writing thread does not wait
    sl_sleep_ms(50);
    assert_int_equal(sl_event_log_last_sequence(&job->log), seen);
    Sluice__V1__Event *event = NULL;
    assert_int_equal(sl_event_log_get(&job->log, seen + 1, sl_deadline_in_ms(20), &event), SL_ERR_DEADLINE);
    fault_end();
    harness_await_told(job);
    assert_int_equal(harness_stats(&harness).n_lost, 0);
    sl_job_unref(&job);
}

static void test_state_that_is_silent_is_not_waited_for(void **state) {
    (void)state;
    struct sl_job *job = harness_job("job-1-1"), *later = harness_job("job-1-2");
    sl_state_keep(harness.state, job, false);
    harness_await_told(job);
    fault_begin(&(struct fault){.kind = FAULT_SILENT, .lasting = true, .scope = FAULT_GROWING});
    harness_decode(job, 20);
    while (fault_hits() == 0) {
        sl_sleep_ms(1);
    }
    sl_state_watch(harness.state, sl_now_ns());
    assert_true(sl_event_log_last_sequence(&job->log) < 20); // it may still answer
    sl_state_watch(harness.state, sl_deadline_in_ms(3000));
    assert_true(sl_event_log_last_sequence(&job->log) > 20);
    sl_state_keep(harness.state, later, false); // is not even tried
    assert_int_equal(sl_event_log_last_sequence(&later->log), 1);
    fault_end();
    harness_await(&harness, 0, 2); // its file, which tells less than was seen, is gone
    sl_job_unref(&later);
    later = harness_job("job-1-3");
    sl_state_keep(harness.state, later, false);
    harness_await(&harness, 1, 2);
    sl_job_unref(&job);
    sl_job_unref(&later);
}

static void test_state_of_a_full_disk_lets_jobs_go_on(void **state) {
    (void)state;
    struct sl_job *old = harness_job("job-1-1"), *job = harness_job("job-1-2"), *next = harness_job("job-1-3");
    sl_state_keep(harness.state, old, false);
    harness_decode(old, 5);
    harness_finish(old);
    harness_await_told(old);
    sl_state_keep(harness.state, job, false);
    harness_await_told(job);
    harness_await(&harness, 2, 0);
    fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = ENOSPC, .lasting = true, .scope = FAULT_GROWING});
    harness_decode(job, 20); // what has ended makes way, in vain
    harness_await_told(job);
    harness_await(&harness, 0, 1);
    sl_state_keep(harness.state, next, false);
    harness_await_told(next);
    harness_await(&harness, 0, 2);
    fault_end();
    harness_decode(job, 30);
    harness_finish(job);
    harness_await_told(job);
    sl_job_unref(&next);
    next = harness_job("job-1-4");
    sl_state_keep(harness.state, next, false);
    harness_await(&harness, 1, 2);
    reopen();
    assert_int_equal(harness.n_jobs, 1);
    assert_string_equal(harness.jobs[0]->id, "job-1-4");
    sl_job_unref(&old);
    sl_job_unref(&job);
    sl_job_unref(&next);
}

// Any system call may fail: jobs continue, and the next start finds whole jobs.
static void test_state_survives_any_call_that_fails_once(void **state) {
    (void)state;
    for (int at = 0;; at++) {
        fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = EIO, .at = at, .scope = FAULT_CHANGING});
        char id[32];
        snprintf(id, sizeof id, "job-2-%x", at);
        struct sl_job *job = harness_job(id);
        sl_state_keep(harness.state, job, false);
        harness_decode(job, 10);
        harness_finish(job);
        harness_await_told(job);
        bool hit = fault_hits() > 0;
        fault_end();
        int64_t lost = harness_stats(&harness).n_lost;
        reopen();
        for (int i = 0; i < harness.n_jobs; i++) {
            if (strcmp(harness.jobs[i]->id, id) == 0) {
                assert_int_equal(harness_assert_same_events(job, harness.jobs[i]), (int64_t)job->log.n_events);
            }
        }
        sl_job_unref(&job);
        if (!hit) {
            assert_int_equal(lost, 0);
            assert_true(at >= 2);
            return;
        }
    }
}

// Runs a job in a process that ends before its system call `at`. *told: how many events its watchers have seen. Returns
// false if there were not so many calls.
static bool run_killed(int at, _Atomic int64_t *told) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct harness mine;
        fault_begin(&(struct fault){.kind = FAULT_KILLED, .at = at, .scope = FAULT_CHANGING});
        if (harness_open(&mine, folder.path, ROOM, &err) != SL_OK) {
            _exit(3);
        }
        struct sl_job *job = harness_job("job-1-1");
        sl_state_keep(mine.state, job, false);
        for (int n = 2; n <= 6; n++) {
            harness_decode(job, n);
            sl_sleep_ms(2);
            atomic_store(told, sl_event_log_last_sequence(&job->log));
        }
        harness_finish(job);
        harness_await_told(job);
        atomic_store(told, (int64_t)job->log.n_events);
        harness_close(&mine);
        _exit(7);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 7));
    return WEXITSTATUS(status) == 0;
}

static void test_state_killed_before_any_call_has_all_that_was_seen(void **state) {
    _Atomic int64_t *told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct sl_job *whole = harness_job("job-1-1");
    (void)state;
    assert_true(told != MAP_FAILED);
    harness_decode(whole, 6);
    harness_finish(whole);
    for (int at = 0;; at++) {
        folder = temp_folder_create();
        atomic_store(told, 0);
        bool killed = run_killed(at, told);
        assert_int_equal(harness_open(&harness, folder.path, ROOM, &err), SL_OK);
        assert_true(atomic_load(told) == 0 || harness.n_jobs == 1);
        if (harness.n_jobs == 1) { // its tokens, and no fewer than were seen; times differ
            assert_true((int64_t)harness.jobs[0]->log.n_events >= atomic_load(told));
            assert_true(harness.jobs[0]->n_output <= whole->n_output);
            for (int i = 0; i < harness.jobs[0]->n_output; i++) {
                assert_int_equal(harness.jobs[0]->output[i], whole->output[i]);
            }
        }
        harness_close(&harness);
        temp_folder_destroy(&folder);
        if (!killed) {
            assert_true(at > 20);
            break;
        }
    }
    sl_job_unref(&whole);
    assert_int_equal(munmap(told, sizeof *told), 0);
}

static void test_state_keeps_to_its_bytes(void **state) {
    (void)state;
    harness_close(&harness);
    assert_int_equal(harness_open(&harness, folder.path, SL_STATE_MIN_BYTES, &err), SL_OK);
    struct sl_job *jobs[200];
    int n = 0;
    for (; n < 200; n++) { // of about 10 KB
        char id[32];
        snprintf(id, sizeof id, "job-3-%d", n);
        jobs[n] = harness_job(id);
        sl_state_keep(harness.state, jobs[n], false);
        harness_decode(jobs[n], 390);
        harness_finish(jobs[n]);
        harness_await_told(jobs[n]);
        assert_true(harness_stats(&harness).bytes <= SL_STATE_MIN_BYTES);
    }
    assert_int_equal(harness_stats(&harness).n_lost, 0);
    int64_t n_left = harness_stats(&harness).n_jobs;
    assert_true(n_left > 30 && n_left < 190);
    harness_close(&harness);
    assert_int_equal(harness_open(&harness, folder.path, SL_STATE_MIN_BYTES, &err), SL_OK);
    assert_int_equal(harness.n_jobs, n_left);
    assert_string_equal(harness.jobs[harness.n_jobs - 1]->id, "job-3-199"); // the oldest have gone
    while (n > 0) {
        sl_job_unref(&jobs[--n]);
    }
}

static void test_state_forgets_what_the_table_forgets_and_what_never_began(void **state) {
    (void)state;
    struct sl_job *old = harness_job("job-1-1"), *refused = harness_job("job-1-2");
    sl_state_keep(harness.state, old, false);
    sl_state_keep(harness.state, refused, false);
    sl_state_drop(harness.state, refused);
    harness_await(&harness, 1, 0);
    harness_decode(old, 1);
    harness_finish(old);
    harness_await_told(old);
    atomic_store(&old->forgotten, true); // jobs.c
    harness_await(&harness, 0, 0);
    sl_job_unref(&old);
    sl_job_unref(&refused);
}

static void test_state_suspended_shows_and_writes_nothing_more(void **state) {
    (void)state;
    struct sl_job *job = harness_job("job-1-1");
    sl_state_keep(harness.state, job, false);
    harness_decode(job, 10);
    harness_await_told(job);
    int64_t seen = sl_event_log_last_sequence(&job->log);
    sl_state_suspend(harness.state);
    harness_finish(job);
    sl_sleep_ms(20);
    assert_int_equal(sl_event_log_last_sequence(&job->log), seen);
    assert_int_equal(sl_event_log_wait_closed(&job->log, 0), SL_ERR_DEADLINE);
    reopen();
    assert_int_equal(harness_assert_same_events(job, harness.jobs[0]), seen);
    assert_int_equal(sl_job_state(harness.jobs[0]), SLUICE__V1__JOB_STATE__DECODING);
    sl_job_unref(&job);
}

static mode_t mode_of(const char *name) {
    char path[256];
    struct stat about;
    snprintf(path, sizeof path, "%s/%s", folder.path, name);
    assert_int_equal(stat(path, &about), 0);
    return about.st_mode & 0777;
}

static void test_state_is_of_one_process_and_one_user(void **state) {
    (void)state;
    struct harness other;
    assert_int_equal(harness_open(&other, folder.path, ROOM, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "another process"));
    struct sl_job *job = harness_job("job-1-1");
    sl_state_keep(harness.state, job, false);
    harness_await_told(job);
    assert_int_equal(mode_of("jobs.db"), 0600);
    assert_int_equal(mode_of("jobs.db-wal"), 0600);
    assert_int_equal(chmod(folder.path, 0755), 0);
    reopen();
    assert_int_equal(mode_of("."), 0700);
    assert_int_equal(harness_open(&other, "/nowhere/at/all", ROOM, &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, "--state /nowhere/at/all"));
    assert_int_equal(harness_open(&other, folder.path, 1, &err), SL_ERR_INVALID);
    sl_job_unref(&job);
}

static void test_state_leaves_a_folder_of_others_as_it_is(void **state) {
    (void)state;
    struct harness other;
    char owner[256];
    if (geteuid() != 0) {
        skip(); // only root makes a folder of another user
    }
    struct temp_folder theirs = temp_folder_create();
    assert_int_equal(chown(theirs.path, 65534, 65534), 0);
    assert_int_equal(chmod(theirs.path, 0777), 0);
    assert_int_equal(harness_open(&other, theirs.path, ROOM, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "another user's"));
    snprintf(owner, sizeof owner, "%s/owner", theirs.path);
    assert_int_not_equal(access(owner, F_OK), 0);
    temp_folder_destroy(&theirs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_killed_before_any_call_has_all_that_was_seen),
        cmocka_unit_test_setup_teardown(test_state_gives_back_jobs_with_all_that_was_seen, begin, end),
        cmocka_unit_test_setup_teardown(test_state_shows_nothing_that_is_not_written, begin, end),
        cmocka_unit_test_setup_teardown(test_state_that_is_silent_is_not_waited_for, begin, end),
        cmocka_unit_test_setup_teardown(test_state_of_a_full_disk_lets_jobs_go_on, begin, end),
        cmocka_unit_test_setup_teardown(test_state_survives_any_call_that_fails_once, begin, end),
        cmocka_unit_test_setup_teardown(test_state_keeps_to_its_bytes, begin, end),
        cmocka_unit_test_setup_teardown(test_state_forgets_what_the_table_forgets_and_what_never_began, begin, end),
        cmocka_unit_test_setup_teardown(test_state_suspended_shows_and_writes_nothing_more, begin, end),
        cmocka_unit_test_setup_teardown(test_state_is_of_one_process_and_one_user, begin, end),
        cmocka_unit_test(test_state_leaves_a_folder_of_others_as_it_is),
    };
    return cmocka_run_group_tests(tests, use_faults, NULL);
}
