// SPDX-License-Identifier: Apache-2.0
// A folder of capsules whose files were damaged, cut, renamed, copied or never ours: it opens, loses no capsule whose file is whole, and
// gives back no byte that was not written.
#include "tests/unit/kvstore/disk/folder_harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"

#define N_CAPSULES 6
#define N_DAMAGES  160
#define BODY       20000
#define MAX_FILES  (N_CAPSULES + 4)

static uint64_t draw(uint64_t *random, uint64_t below) {
    *random += SL_GOLDEN;
    return sl_mix(*random) % below;
}

static size_t hashes_of(int seed) {
    return (size_t)seed * 170;
}

// N_CAPSULES in a closed folder; their paths by seed.
static void fill(struct fixture *fixture, char paths[N_CAPSULES][128]) {
    for (int i = 0; i < N_CAPSULES; i++) {
        struct sl_disk_entry found;
        assert_int_equal(write_capsule(fixture, i, hashes_of(i), BODY), SL_OK);
        assert_true(finds(fixture, hash_of(i, WHOLE), (int64_t)hashes_of(i) * STRIDE + 7, &found));
        path_of(fixture, found.id, paths[i]);
    }
    sl_disk_folder_close(&fixture->folder);
}

static void open_again(struct fixture *fixture) {
    struct sl_error err = {0};
    if (sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

// Returns whether the capsule is there and right; wrong bytes fail the test.
static bool has(struct fixture *fixture, int seed) {
    struct sl_disk_entry found;
    return finds(fixture, hash_of(seed, WHOLE), (int64_t)hashes_of(seed) * STRIDE + 7, &found) &&
           read_back(fixture, &found, seed) == SL_OK;
}

static int list(const char *folder, char paths[MAX_FILES][512]) {
    int n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *file; (file = readdir(dir));) {
        if (file->d_name[0] != '.') {
            assert_true(n < MAX_FILES);
            snprintf(paths[n++], sizeof *paths, "%s/%s", folder, file->d_name);
        }
    }
    closedir(dir);
    return n;
}

static void overwrite(const char *path, off_t at, size_t bytes, uint64_t *random, bool zeros) {
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    for (size_t i = 0; i < bytes; i++) {
        uint8_t byte = zeros ? 0 : (uint8_t)draw(random, 256);
        assert_int_equal(pwrite(fd, &byte, 1, at + (off_t)i), 1);
    }
    close(fd);
}

static void damage(const char *path, uint64_t *random) {
    struct stat file;
    assert_int_equal(stat(path, &file), 0);
    uint64_t bytes = (uint64_t)file.st_size + 1;
    uint64_t page = draw(random, bytes / 4096 + 1) * 4096;
    switch (draw(random, 6)) {
    case 0: // anywhere
        overwrite(path, (off_t)draw(random, bytes), 1 + draw(random, 64), random, false);
        break;
    case 1: // in its head
        overwrite(path, (off_t)draw(random, sizeof(struct sl_disk_head)), 1 + draw(random, 8), random, false);
        break;
    case 2:
        overwrite(path, (off_t)page, 4096, random, true);
        break;
    case 3:
        overwrite(path, (off_t)page, 4096, random, false);
        break;
    case 4:
        assert_int_equal(truncate(path, (off_t)draw(random, bytes)), 0);
        break;
    default: // longer
        assert_int_equal(truncate(path, (off_t)(bytes + draw(random, 10000))), 0);
    }
}

static void test_folder_opens_whatever_was_damaged(void **state) {
    struct fixture *fixture = *state;
    int n_lost = 0;
    for (uint64_t seed = 0; seed < N_DAMAGES; seed++) {
        char paths[N_CAPSULES][128], files[MAX_FILES][512];
        uint64_t random = seed;
        fill(fixture, paths);
        const char *damaged = files[draw(&random, (uint64_t)list(fixture->path, files))];
        damage(damaged, &random);
        open_again(fixture);
        for (int i = 0; i < N_CAPSULES; i++) {
            bool there = has(fixture, i);
            if (!there && strcmp(paths[i], damaged) != 0) {
                fail_msg("seed %d: %s was damaged, and capsule %d is lost", (int)seed, damaged, i);
            }
            n_lost += !there;
        }
        assert_int_equal(write_capsule(fixture, 100, 3, BODY), SL_OK);
        reopen(fixture);
        assert_true(count(fixture, NULL) >= N_CAPSULES); // of seven at most one is damaged
        begin_anew(fixture);
    }
    assert_in_range(n_lost, N_DAMAGES / 2, N_DAMAGES); // most damages are some
}

static void copy(const char *from, const char *to) {
    static char bytes[BODY + 20000];
    FILE *file = fopen(from, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    file = fopen(to, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

// A name is only a name: what a file holds is in the file.
static void test_folder_does_not_believe_names(void **state) {
    struct fixture *fixture = *state;
    char paths[N_CAPSULES][128], path[128];
    fill(fixture, paths);
    path_of(fixture, 77, path);
    copy(paths[0], path); // twice
    path_of(fixture, UINT64_MAX, path);
    assert_int_equal(rename(paths[1], path), 0);
    assert_int_equal(rename(paths[2], paths[1]), 0);
    assert_int_equal(unlink(paths[3]), 0);
    assert_int_equal(rename(paths[4], paths[3]), 0);
    open_again(fixture);
    for (int i = 0; i < N_CAPSULES; i++) {
        assert_int_equal(has(fixture, i), i != 3);
    }
    assert_int_equal(count(fixture, NULL), N_CAPSULES - 1);
    for (int i = 10; i < 20; i++) { // ids have begun anew, and no existing file is overwritten
        assert_int_equal(write_capsule(fixture, i, hashes_of(0), BODY), SL_OK);
    }
    reopen(fixture);
    assert_int_equal(count(fixture, NULL), N_CAPSULES - 1 + 10);
    for (int i = 0; i < N_CAPSULES; i++) {
        assert_int_equal(has(fixture, i), i != 3);
    }
}

// Foreign files stay, and block no file of ours.
static void test_folder_lets_foreign_files_be(void **state) {
    struct fixture *fixture = *state;
    static const char *const names[] = {"capsule-1",
                                        "capsule-000000000000000G",
                                        "capsule-00000000000000001",
                                        "notes.txt",
                                        "capsule-",
                                        "CAPSULE-0000000000000001",
                                        "capsule-%s%n.",
                                        "capsule-00000000000000AA"};
    enum { N_NAMES = sizeof names / sizeof *names };
    char paths[N_CAPSULES][128], path[256];
    fill(fixture, paths);
    for (int i = 0; i < N_NAMES; i++) {
        snprintf(path, sizeof path, "%s/%s", fixture->path, names[i]);
        copy(paths[0], path);
    }
    path_of(fixture, 1000, path);
    assert_int_equal(mkdir(path, 0700), 0);
    path_of(fixture, 1001, path);
    assert_int_equal(mkfifo(path, 0600), 0);
    path_of(fixture, 1002, path);
    assert_int_equal(symlink(paths[0], path), 0);
    path_of(fixture, 1003, path);
    assert_int_equal(symlink("/dev/zero", path), 0);
    open_again(fixture);
    for (int i = 0; i < N_CAPSULES; i++) {
        assert_true(has(fixture, i));
    }
    assert_int_equal(count(fixture, NULL), N_CAPSULES);
    for (int i = 0; i < N_NAMES; i++) {
        snprintf(path, sizeof path, "%s/%s", fixture->path, names[i]);
        assert_int_equal(access(path, F_OK), 0);
    }
    for (uint64_t id = 1000; id < 1004; id++) {
        struct stat file;
        path_of(fixture, id, path);
        assert_int_equal(lstat(path, &file), 0);
    }
    for (int i = 10; i < 20; i++) {
        assert_int_equal(write_capsule(fixture, i, 0, BODY), SL_OK);
    }
}

// While the store runs: a file that was good at the start, and changed since, is a miss; nothing of it is served.
static void test_folder_notices_what_is_damaged_later(void **state) {
    struct fixture *fixture = *state;
    for (uint64_t seed = 0; seed < N_DAMAGES / 4; seed++) {
        char paths[N_CAPSULES][128];
        uint64_t random = seed;
        fill(fixture, paths);
        open_again(fixture);
        damage(paths[2], &random);
        copy(paths[1], paths[3]); // another one's, whole
        assert_int_equal(unlink(paths[4]), 0);
        for (int i = 0; i < N_CAPSULES; i++) {
            bool there = has(fixture, i);
            assert_true(i == 2 || there == (i != 3 && i != 4));
        }
        begin_anew(fixture);
    }
}

// The last use is that of the file's time, wherever the clock stands.
static void test_folder_copes_with_any_time(void **state) {
    struct fixture *fixture = *state;
    static const struct timespec times[] = {{0, 0}, {-5, 7}, {INT64_MAX / 2, 5}, {4102444800, 0}};
    for (size_t t = 0; t < sizeof times / sizeof *times; t++) {
        char paths[N_CAPSULES][128];
        fill(fixture, paths);
        struct timespec used[2] = {times[t], times[t]};
        utimensat(AT_FDCWD, paths[5], used, 0); // a file system may refuse it
        open_again(fixture);
        for (int i = 0; i < N_CAPSULES; i++) {
            assert_true(has(fixture, i));
        }
        assert_int_equal(write_capsule(fixture, 100, 3, MAX_BYTES - 5 * 28672), SL_OK); // one or two go for it
        assert_true(finds_whole(fixture, 100, 3));
        reopen(fixture);
        assert_int_equal(write_capsule(fixture, 101, 3, MAX_BYTES / 2), SL_OK); // and now that is not the oldest
        assert_false(finds_whole(fixture, 0, 0));
        begin_anew(fixture);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_folder_opens_whatever_was_damaged, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_does_not_believe_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_lets_foreign_files_be, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_notices_what_is_damaged_later, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_copes_with_any_time, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
