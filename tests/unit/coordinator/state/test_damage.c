// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a database that was damaged, cut short, or is none: a start takes what is whole, removes or sets aside what is
 *          not, and never has an event that was not told.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "state_harness.h"
#include "tests/unit/temp_folder.h"

#define ROOM     (INT64_C(64) << 20)
#define FILE_MAX (1 << 20)

static struct temp_folder folder;
static struct harness harness;
static struct sl_error err;
static struct sl_job *live, *ended;
static uint8_t database[FILE_MAX], base[FILE_MAX], wal[FILE_MAX]; // the log belongs to `base`
static size_t n_database, n_base, n_wal;

static size_t slurp(const char *name, uint8_t *bytes) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder.path, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, FILE_MAX, file);
    fclose(file);
    assert_true(n < FILE_MAX);
    return n;
}

static bool remove_file(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder.path, name);
    return unlink(path) == 0;
}

static int begin(void **state) {
    (void)state;
    assert_int_equal(sl_log_configure("error", NULL), SL_OK);
    folder = temp_folder_create();
    assert_int_equal(harness_open(&harness, folder.path, ROOM, &err), SL_OK);
    live = harness_job("job-1-1");
    ended = harness_job("job-1-2");
    sl_state_keep(harness.state, live, false);
    sl_state_keep(harness.state, ended, false);
    for (int n = 2; n <= 20; n++) { // a transaction each, or nearly
        harness_decode(live, n);
        harness_decode(ended, n / 2);
        harness_await_told(live);
    }
    harness_finish(ended);
    harness_await_told(live);
    harness_await_told(ended);
    uint8_t header[32];
    do { // no checkpoint between them
        n_wal = slurp("jobs.db-wal", wal);
        memcpy(header, wal, sizeof header);
        n_base = slurp("jobs.db", base);
    } while (slurp("jobs.db-wal", wal) != n_wal || memcmp(header, wal, sizeof header) != 0);
    harness_close(&harness);
    n_database = slurp("jobs.db", database);
    assert_true(n_database > 8000);
    return 0;
}

static int end(void **state) {
    (void)state;
    sl_job_unref(&live);
    sl_job_unref(&ended);
    temp_folder_destroy(&folder);
    return 0;
}

// Holds what a start found: -1 for a job that is not there, or its number of events.
struct found {
    int64_t live, ended;
    bool set_aside;
};

static struct found open_with(const uint8_t *bytes, size_t n, const uint8_t *log, size_t n_log) {
    struct found found = {-1, -1, false};
    remove_file("jobs.db-shm");
    remove_file("jobs.db-wal");
    temp_folder_write(&folder, "jobs.db", bytes, n);
    if (n_log > 0) {
        temp_folder_write(&folder, "jobs.db-wal", log, n_log);
    }
    if (harness_open(&harness, folder.path, ROOM, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    for (int i = 0; i < harness.n_jobs; i++) {
        bool is_live = strcmp(harness.jobs[i]->id, "job-1-1") == 0;
        *(is_live ? &found.live : &found.ended) = harness_assert_same_events(is_live ? live : ended, harness.jobs[i]);
    }
    harness_close(&harness);
    found.set_aside = remove_file("damaged-jobs.db");
    return found;
}

static void test_state_opens_whatever_was_flipped(void **state) {
    static uint8_t bytes[FILE_MAX];
    int n_removed = 0, n_aside = 0, n_whole = 0;
    (void)state;
    for (size_t at = 0; at < n_database; at += at < 100 ? 3 : 211) {
        if (at >= 60 && at < 64) { // the version
            continue;
        }
        memcpy(bytes, database, n_database);
        bytes[at] ^= (uint8_t)(1 << at % 8);
        struct found found = open_with(bytes, n_database, NULL, 0);
        // A job is whole, or it is not there.
        assert_true(found.live == -1 || found.live == (int64_t)live->log.n_events);
        assert_true(found.ended == -1 || found.ended == (int64_t)ended->log.n_events);
        n_aside += found.set_aside;
        n_removed += !found.set_aside && (found.live < 0 || found.ended < 0);
        n_whole += found.live >= 0 && found.ended >= 0;
    }
    assert_true(n_aside > 5 && n_removed > 5 && n_whole > 0); // free bytes of pages may have any value
}

static void test_state_opens_whatever_was_cut(void **state) {
    (void)state;
    for (size_t n = n_database - 1; n > 0; n -= n > 1511 ? 1511 : n) {
        struct found found = open_with(database, n, NULL, 0);
        assert_true(found.live == -1 || found.live == (int64_t)live->log.n_events);
        assert_true(found.ended == -1 || found.ended == (int64_t)ended->log.n_events);
    }
}

// The log holds transactions one after the other: one that is cut short, or was never written, takes nothing before it along.
static void test_state_of_a_torn_log_has_what_was_committed_before(void **state) {
    static uint8_t torn[FILE_MAX];
    int64_t last_live = -1, last_ended = -1;
    (void)state;
    for (size_t n = 0; n <= n_wal; n += n + 2003 < n_wal || n == n_wal ? 2003 : n_wal - n) {
        memcpy(torn, wal, n);
        memset(torn + n, 0, n_wal - n); // blocks that a crash of the system left unwritten
        struct found zeros = open_with(base, n_base, torn, n_wal), found = open_with(base, n_base, wal, n);
        assert_true(zeros.live == found.live && zeros.ended == found.ended && !found.set_aside);
        assert_true(found.live >= last_live && found.ended >= last_ended); // more and more, without a gap
        last_live = found.live;
        last_ended = found.ended;
    }
    assert_int_equal(last_live, (int64_t)live->log.n_events);
    assert_int_equal(last_ended, (int64_t)ended->log.n_events);
}

static void test_state_sets_aside_what_is_no_database_of_jobs(void **state) {
    static uint8_t bytes[FILE_MAX];
    (void)state;
    struct found found =
        open_with((const uint8_t *)"these are notes, and no database of jobs whatever its name says", 64, NULL, 0);
    assert_true(found.set_aside && found.live == -1 && found.ended == -1);
    memcpy(bytes, database, n_database);
    bytes[68] ^= 1; // application_id
    assert_true(open_with(bytes, n_database, NULL, 0).set_aside);
}

static void test_state_refuses_another_version(void **state) {
    static uint8_t bytes[FILE_MAX];
    (void)state;
    memcpy(bytes, database, n_database);
    bytes[63] = 2; // user_version
    temp_folder_write(&folder, "jobs.db", bytes, n_database);
    assert_int_equal(harness_open(&harness, folder.path, ROOM, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "of another version"));
    assert_false(remove_file("damaged-jobs.db"));
}

// Another program that can write to the database may do anything: a row that it changed is not believed.
static void test_state_does_not_believe_rows_that_it_did_not_write(void **state) {
    static const char *const changes[] = {
        "UPDATE jobs SET id = 'job-1-3' WHERE id = 'job-1-1'",
        "UPDATE batches SET first = first + 1000 WHERE job = 1",
        "DELETE FROM batches WHERE job = 1 AND first = (SELECT min(first) FROM batches WHERE job = 1)",
        "UPDATE batches SET events = x'ffffffff00', digest = 0 WHERE job = 1",
        "UPDATE jobs SET accepted = x'00' WHERE number = 1",
        "UPDATE jobs SET end = x'00' WHERE number = 1",
        "UPDATE batches SET job = 9 WHERE job = 1",
    };
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char path[256];
        sqlite3 *connection;
        temp_folder_write(&folder, "jobs.db", database, n_database);
        snprintf(path, sizeof path, "%s/jobs.db", folder.path);
        assert_int_equal(sqlite3_open(path, &connection), SQLITE_OK);
        assert_int_equal(sqlite3_exec(connection, changes[i], NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_close(connection), SQLITE_OK);
        assert_int_equal(harness_open(&harness, folder.path, ROOM, &err), SL_OK);
        for (int j = 0; j < harness.n_jobs; j++) {
            assert_string_equal(harness.jobs[j]->id, "job-1-2");
            harness_assert_same_events(ended, harness.jobs[j]);
        }
        harness_close(&harness);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_state_opens_whatever_was_flipped, begin, end),
        cmocka_unit_test_setup_teardown(test_state_opens_whatever_was_cut, begin, end),
        cmocka_unit_test_setup_teardown(test_state_of_a_torn_log_has_what_was_committed_before, begin, end),
        cmocka_unit_test_setup_teardown(test_state_sets_aside_what_is_no_database_of_jobs, begin, end),
        cmocka_unit_test_setup_teardown(test_state_refuses_another_version, begin, end),
        cmocka_unit_test_setup_teardown(test_state_does_not_believe_rows_that_it_did_not_write, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
