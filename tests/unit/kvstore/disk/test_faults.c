// SPDX-License-Identifier: Apache-2.0
// A folder of capsules on a disk where any call may fail, in every way, once or from then on, or be the last one of the process: it never
// ends the process, never gives back a byte that was not written, never takes more than it may, and opens again.
#include "tests/unit/kvstore/disk/folder_harness.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/kvstore/disk/faults.h"

#define BIG   ((size_t)9 << 20) // of which one has room
#define SMALL 20000
#define FAR   10000 // calls: more than there are

enum { EVICTED, STAYS, NEW, N_SEEDS };

static enum sl_status write_new(struct fixture *fixture, size_t bytes) {
    return write_capsule(fixture, NEW, 3, bytes);
}

static void fill(struct fixture *fixture, size_t bytes) {
    assert_int_equal(write_capsule(fixture, EVICTED, 3, bytes), SL_OK);
    assert_int_equal(write_capsule(fixture, STAYS, 3, SMALL), SL_OK);
}

static bool has(struct fixture *fixture, int seed) {
    struct sl_disk_entry found;
    return finds(fixture, hash_of(seed, 2), 3 * STRIDE, &found) && read_back(fixture, &found, seed) == SL_OK;
}

// All that a store does with a folder: one capsule is written and, if it is BIG, another one goes for it, one is read, one is counted as used.
static enum sl_status act(struct fixture *fixture, size_t bytes) {
    struct sl_capsule_id key = {11, 22, hash_of(STAYS, WHOLE)};
    enum sl_status status = write_new(fixture, bytes);
    has(fixture, STAYS);
    sl_disk_folder_touch(fixture->folder, &key, NULL);
    has(fixture, NEW);
    return status;
}

static uint64_t id_of(struct fixture *fixture, int seed) {
    struct sl_disk_entry found;
    assert_true(finds(fixture, hash_of(seed, 2), 3 * STRIDE, &found));
    return found.id;
}

static int64_t bytes_of_files(const struct fixture *fixture) {
    int64_t bytes = 0;
    DIR *dir = opendir(fixture->path);
    assert_non_null(dir);
    for (struct dirent *name; (name = readdir(dir));) {
        struct stat file;
        bytes += fstatat(dirfd(dir), name->d_name, &file, 0) == 0 && S_ISREG(file.st_mode) ? file.st_size : 0;
    }
    closedir(dir);
    return bytes;
}

// Nothing is wrong in what is there, and another start finds the same and works.
static void check_after(struct fixture *fixture, size_t bytes) {
    reopen(fixture);
    int n = 0;
    for (int seed = 0; seed < N_SEEDS; seed++) {
        n += has(fixture, seed);
    }
    assert_int_equal(count(fixture, NULL), n); // what is counted is found and whole
    assert_true(bytes_of_files(fixture) <= MAX_BYTES);
    enum sl_status status = write_new(fixture, bytes);
    assert_true(status == SL_OK || status == SL_ERR_EXISTS);
    assert_true(has(fixture, NEW));
}

static bool is_one_of(const char *name, const char *const *names, size_t n_names) {
    for (size_t i = 0; i < n_names; i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

// A fault at every call in turn; how many calls there were.
static int fault_at_every_call(struct fixture *fixture, struct fault fault, size_t bytes) {
    static const char *const of_reading[] = {"openat", "pread", "fstat"}, *const of_space[] = {"pwrite", "fallocate"};
    const char *hit;
    do {
        fill(fixture, bytes);
        fault_begin(&fault);
        enum sl_status status = act(fixture, bytes);
        hit = fault_end();
        if (!hit) {
            assert_int_equal(status, SL_OK);
        } else if (!is_one_of(hit, of_reading, 3) && !fault.lasting) {
            assert_true(has(fixture, STAYS)); // whatever happened to the others
        }
        if (hit && is_one_of(hit, of_space, 2) && fault.error == ENOSPC && !fault.lasting) {
            assert_int_equal(status, SL_OK); // the room of the one that went was enough
        }
        check_after(fixture, bytes);
        begin_anew(fixture);
        fault.at++;
        assert_true(fault.at < FAR);
    } while (hit);
    return fault.at - 1;
}

static void test_folder_survives_any_call_that_fails_once(void **state) {
    static const int errors[] = {ENOSPC, EIO, EMFILE, EINTR, EDQUOT, EROFS};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        struct fault fault = {.kind = FAULT_ERROR, .error = errors[i]};
        assert_in_range(fault_at_every_call(*state, fault, i < 2 ? BIG : SMALL), 20, 100);
    }
}

static void test_folder_survives_a_disk_that_fails_from_some_call_on(void **state) {
    static const struct fault faults[] = {
        {.kind = FAULT_ERROR, .error = ENOSPC, .lasting = true, .scope = FAULT_GROWING},
        {.kind = FAULT_ERROR, .error = EROFS, .lasting = true, .scope = FAULT_CHANGING},
        {.kind = FAULT_ERROR, .error = EIO, .lasting = true},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        fault_at_every_call(*state, faults[i], i < 1 ? BIG : SMALL);
    }
}

static void test_folder_goes_on_where_calls_do_half(void **state) {
    struct fixture *fixture = *state;
    fill(fixture, BIG);
    fault_begin(&(struct fault){.kind = FAULT_HALF, .lasting = true});
    assert_int_equal(act(fixture, BIG), SL_OK);
    assert_true(has(fixture, NEW));
    assert_true(has(fixture, STAYS));
    reopen(fixture);
    assert_non_null(fault_end());
    assert_int_equal(count(fixture, NULL), 2);
    check_after(fixture, BIG);
}

static void test_folder_may_be_killed_before_any_call(void **state) {
    struct fixture *fixture = *state;
    for (int at = 0, how = 0; how == 0; at++) {
        fill(fixture, BIG);
        sl_disk_folder_close(&fixture->folder);
        pid_t child = fork();
        if (child == 0) {
            if (sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, NULL) == SL_OK) {
                fault_begin(&(struct fault){.kind = FAULT_KILLED, .at = at});
                act(fixture, BIG);
            }
            _exit(1); // there were not so many calls
        }
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) <= 1);
        assert_int_equal(sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, NULL), SL_OK);
        assert_true(has(fixture, STAYS));
        check_after(fixture, BIG);
        begin_anew(fixture);
    }
}

// Starting: what cannot be read may be lost, or the start is refused with the reason; the next one works.
static void test_folder_opens_or_says_why_not(void **state) {
    struct fixture *fixture = *state;
    static const int errors[] = {EIO, EMFILE};
    for (size_t i = 0; i < 2 * sizeof errors / sizeof *errors; i++) {
        const char *hit = "";
        for (int at = 0; hit; at++) {
            struct sl_error err = {0};
            char path[128];
            assert_int_equal(write_capsule(fixture, STAYS, 3, SMALL), SL_OK);
            path_of(fixture, 99, path); // one to be removed
            fclose(fopen(path, "wb"));
            sl_disk_folder_close(&fixture->folder);
            fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = errors[i / 2], .at = at, .lasting = i % 2});
            enum sl_status status = sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, &err);
            hit = fault_end();
            assert_true(status == SL_OK || strstr(err.text, fixture->path));
            assert_true(hit || status == SL_OK);
            check_after(fixture, SMALL);
            begin_anew(fixture);
        }
    }
}

// Others have filled the disk, where our own limit is far: what was used longest ago makes room, but not for them.
static void test_folder_makes_way_once_where_others_fill_the_disk(void **state) {
    struct fixture *fixture = *state;
    struct fault full = {.kind = FAULT_ERROR, .error = ENOSPC, .scope = FAULT_GROWING};
    for (int i = 10; i < 20; i++) {
        assert_int_equal(write_capsule(fixture, i, 3, SMALL), SL_OK);
    }
    fault_begin(&full);
    assert_int_equal(write_capsule(fixture, 20, 3, SMALL), SL_OK);
    fault_end();
    assert_false(finds_whole(fixture, 10, 3)); // it has made room
    assert_int_equal(count(fixture, NULL), 10);
    full.lasting = true;
    for (int i = 21; i < 30; i++) { // another writer takes the room that becomes free
        fault_begin(&full);
        enum sl_status status = write_capsule(fixture, i, 3, SMALL);
        fault_end();
        assert_int_equal(status, SL_ERR_EXHAUSTED);
    }
    assert_int_equal(count(fixture, NULL), 9); // only the first of them cost one
    assert_true(has(fixture, 20));
    assert_int_equal(write_capsule(fixture, 30, 3, SMALL), SL_OK); // there is room again
}

#define N_FILES 7

static const struct fault unreadable = {.kind = FAULT_ERROR, .error = EIO, .lasting = true, .only = "pread"};

static int count_readable(struct fixture *fixture) {
    int n = 0;
    for (int seed = 0; seed < N_FILES; seed++) {
        n += has(fixture, seed);
    }
    return n;
}

static void fill_all(struct fixture *fixture) {
    for (int seed = 0; seed < N_FILES; seed++) {
        assert_int_equal(write_capsule(fixture, seed, 3, SMALL), SL_OK);
    }
}

// A disk that gives no bytes for a while, though files can be removed, costs no capsule: neither at a start nor while it is used.
static void test_folder_keeps_what_a_disk_does_not_give_for_a_while(void **state) {
    struct fixture *fixture = *state;
    for (int at = 0; at < N_FILES; at++) { // from the first file on, or from a later one
        struct fault fault = unreadable;
        struct sl_error err = {0};
        fill_all(fixture);
        sl_disk_folder_close(&fixture->folder);
        fault.at = 2 * at;
        fault_begin(&fault);
        assert_int_equal(sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, &err), SL_ERR_IO);
        assert_non_null(fault_end());
        assert_non_null(strstr(err.text, fixture->path));
        assert_non_null(strstr(err.text, "remove them if the disk works")); // it may be the only file, and damaged
        assert_int_equal(sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, NULL), SL_OK);
        assert_int_equal(count_readable(fixture), N_FILES);
        for (int i = 0; i < 2; i++) { // a file that was read in between has failed once
            fault_begin(&unreadable);
            assert_int_equal(count_readable(fixture), 0);
            fault_end();
            assert_int_equal(count_readable(fixture), N_FILES);
        }
        begin_anew(fixture);
    }
}

// Fails to read a file's content, whose head is in the page cache, as most heads are.
static enum sl_status fail_to_read(struct fixture *fixture, int seed) {
    struct fault fault = unreadable;
    struct sl_disk_entry found;
    fault.at = 2; // after the head and its hashes
    assert_true(finds(fixture, hash_of(seed, 2), 3 * STRIDE, &found));
    fault_begin(&fault);
    enum sl_status status = read_back(fixture, &found, seed);
    assert_non_null(fault_end());
    return status;
}

// While no file is read, the disk may be what fails: so a file stays for a while, though the folder can be opened by its cached heads.
static void test_folder_keeps_a_file_until_others_are_read(void **state) {
    struct fixture *fixture = *state;
    fill_all(fixture);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fail_to_read(fixture, 1), SL_ERR_IO);
        assert_int_equal(fail_to_read(fixture, 2), SL_ERR_IO);
        reopen(fixture);
    }
    assert_true(has(fixture, 2)); // the disk works again
    assert_int_equal(fail_to_read(fixture, 2), SL_ERR_IO);
    assert_int_equal(fail_to_read(fixture, 1), SL_ERR_NOT_FOUND);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(fail_to_read(fixture, 2), SL_ERR_IO);
    }
    assert_int_equal(fail_to_read(fixture, 2), SL_ERR_NOT_FOUND); // or this file alone is ever read
    assert_int_equal(count_readable(fixture), N_FILES - 2);
}

// A file that comes from the page cache does not show that the disk works, nor does one that may have been written only there.
static void test_folder_keeps_a_file_while_others_are_read_from_memory(void **state) {
    struct fixture *fixture = *state;
    struct fault of_disk = unreadable;
    of_disk.uncached = true;
    fill_all(fixture);
    fault_begin(&of_disk);
    assert_int_equal(count_readable(fixture), N_FILES); // from memory
    assert_null(fault_end());
    assert_int_equal(fail_to_read(fixture, 1), SL_ERR_IO);
    fault_begin(&of_disk);
    assert_false(has(fixture, 4));
    assert_non_null(fault_end());
    assert_int_equal(fail_to_read(fixture, 1), SL_ERR_IO);
    fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = EIO, .only = "fdatasync"});
    assert_true(has(fixture, 5));
    assert_non_null(fault_end());
    assert_int_equal(fail_to_read(fixture, 1), SL_ERR_IO);
    assert_true(has(fixture, 5)); // from the disk
    fault_begin(&of_disk);
    assert_true(has(fixture, 6)); // which has been seen to work: no file is dropped from memory for that again
    assert_null(fault_end());
    assert_int_equal(fail_to_read(fixture, 1), SL_ERR_NOT_FOUND);
    assert_int_equal(count_readable(fixture), N_FILES - 1);
}

// One call that fails while the folder is opened costs no file, however few there are.
static void test_folder_reads_a_file_again_before_it_is_removed(void **state) {
    struct fixture *fixture = *state;
    for (int n = 1; n <= N_FILES; n++) {
        for (int seed = 0; seed < n; seed++) {
            assert_int_equal(write_capsule(fixture, seed, 3, SMALL), SL_OK);
        }
        sl_disk_folder_close(&fixture->folder);
        fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = EIO, .only = "pread"});
        assert_int_equal(sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, NULL), SL_OK);
        assert_non_null(fault_end());
        assert_int_equal(count_readable(fixture), n);
        begin_anew(fixture);
    }
}

// A file that is read again and found damaged is removed as such: it does not count as one that the disk does not give.
static void test_folder_removes_a_file_that_is_damaged_when_it_is_read_again(void **state) {
    struct fixture *fixture = *state;
    char path[128];
    assert_int_equal(write_capsule(fixture, 0, 3, SMALL), SL_OK);
    path_of(fixture, id_of(fixture, 0), path);
    sl_disk_folder_close(&fixture->folder);
    assert_int_equal(truncate(path, 50), 0);
    fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = EIO, .only = "pread"});
    assert_int_equal(sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, NULL), SL_OK);
    assert_non_null(fault_end());
    assert_int_equal(count(fixture, NULL), 0);
    assert_int_equal(bytes_of_files(fixture), 0);
}

// The younger of two files of a capsule stays, also where the older one is read last.
static void test_folder_keeps_the_younger_file_of_a_capsule(void **state) {
    struct fixture *fixture = *state;
    char older[128], younger[128], away[128];
    path_of(fixture, 77, older);
    snprintf(away, sizeof away, "%s/away", fixture->path);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(write_capsule(fixture, 0, 3, SMALL), SL_OK);
        path_of(fixture, id_of(fixture, 0), younger);
        sl_disk_folder_close(&fixture->folder);
        assert_int_equal(rename(i == 0 ? younger : away, i == 0 ? away : older), 0);
        fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = EIO, .only = "pread"}); // the older one, once
        assert_int_equal(sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, NULL), SL_OK);
        assert_int_equal(fault_end() != NULL, i == 1);
    }
    assert_int_equal(access(older, F_OK), -1);
    assert_int_equal(access(younger, F_OK), 0);
    assert_int_equal(count(fixture, NULL), 1);
    assert_true(has(fixture, 0));
}

// The only file may be damaged, or its disk may fail: it stays. If the disk works, the folder is opened without it.
static void test_folder_does_without_its_only_file(void **state) {
    struct fixture *fixture = *state;
    const struct fault of_file = {.kind = FAULT_ERROR, .error = EIO, .only = "pread", .every = 1, .most = 2};
    assert_int_equal(write_capsule(fixture, 0, 3, SMALL), SL_OK);
    sl_disk_folder_close(&fixture->folder);
    fault_begin(&unreadable);
    assert_int_equal(sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, NULL), SL_ERR_IO);
    fault_end();
    fault_begin(&of_file);
    assert_int_equal(sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, NULL), SL_OK);
    assert_int_equal(fault_hits(), 2);
    fault_end();
    assert_int_equal(count(fixture, NULL), 0);
    assert_int_equal(write_capsule(fixture, 1, 3, SMALL), SL_OK);
    reopen(fixture);
    assert_true(has(fixture, 0) && has(fixture, 1));
}

// A file that cannot be read while others can is damaged: it is removed after a second attempt to read it, at a start too.
static void test_folder_removes_a_file_that_alone_cannot_be_read(void **state) {
    struct fixture *fixture = *state;
    fill_all(fixture);
    sl_disk_folder_close(&fixture->folder);
    const int n_reads =
        1 + 2 * (N_FILES - 1); // the first file once, heads and hashes of the others, and the first again
    fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = EIO, .every = n_reads, .only = "pread"});
    assert_int_equal(sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, NULL), SL_OK);
    assert_int_equal(fault_hits(), 2);
    fault_end();
    assert_int_equal(count(fixture, NULL), N_FILES - 1);
    assert_true(bytes_of_files(fixture) < N_FILES * SMALL);
    assert_int_equal(count_readable(fixture), N_FILES - 1);
    assert_int_equal(fail_to_read(fixture, 3), SL_ERR_IO);
    assert_true(has(fixture, 4));
    assert_int_equal(fail_to_read(fixture, 3), SL_ERR_NOT_FOUND);
    assert_false(finds_whole(fixture, 3, 3));
    assert_int_equal(count_readable(fixture), N_FILES - 2);
    reopen(fixture);
    assert_int_equal(count(fixture, NULL), N_FILES - 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_folder_survives_any_call_that_fails_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_survives_a_disk_that_fails_from_some_call_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_goes_on_where_calls_do_half, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_may_be_killed_before_any_call, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_opens_or_says_why_not, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_makes_way_once_where_others_fill_the_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_keeps_what_a_disk_does_not_give_for_a_while, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_keeps_a_file_until_others_are_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_keeps_a_file_while_others_are_read_from_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_removes_a_file_that_is_damaged_when_it_is_read_again, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_folder_keeps_the_younger_file_of_a_capsule, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_reads_a_file_again_before_it_is_removed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_does_without_its_only_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_removes_a_file_that_alone_cannot_be_read, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
