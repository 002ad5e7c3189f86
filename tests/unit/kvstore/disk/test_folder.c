// SPDX-License-Identifier: Apache-2.0
// Capsules as files: what is written is read, over restarts; what is damaged or too much goes; what cannot be used is refused.
#include "tests/unit/kvstore/disk/folder_harness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/thread.h"

#define BODY ((size_t)5 << 20) // of which three have room

// ---- tests ----------------------------------------------------------------------------------------------------------

static void test_disk_folder_gives_back_what_was_written(void **state) {
    struct fixture *fixture = *state;
    struct sl_disk_entry found;
    assert_int_equal(write_capsule(fixture, 1, 5, BODY + 13), SL_OK);
    assert_int_equal(write_capsule(fixture, 1, 5, BODY + 13), SL_ERR_EXISTS);
    assert_int_equal(write_capsule(fixture, 2, 0, 4), SL_OK);
    for (int pass = 0; pass < 2; pass++) { // the second one after a restart
        for (size_t block = 1; block < 5; block++) {
            assert_true(finds(fixture, hash_of(1, block), (int64_t)(block + 1) * STRIDE, &found));
            assert_int_equal(found.head.stride, STRIDE);
            assert_int_equal(found.head.n_tokens, 5 * STRIDE + 7);
            assert_int_equal(read_back(fixture, &found, 1), SL_OK);
        }
        assert_true(finds_whole(fixture, 1, 5));
        assert_true(finds(fixture, hash_of(2, WHOLE), 7, &found));
        assert_int_equal(read_back(fixture, &found, 2), SL_OK);
        assert_false(finds(fixture, hash_of(1, 0), STRIDE, &found));     // less than a quarter of it
        assert_false(finds(fixture, hash_of(1, 2), 2 * STRIDE, &found)); // another length: not the same tokens
        assert_false(finds(fixture, hash_of(3, 1), 2 * STRIDE, &found));
        assert_int_equal(count(fixture, NULL), 2);
        reopen(fixture);
    }
}

static void test_disk_folder_the_longest_prefix_is_found(void **state) {
    struct fixture *fixture = *state;
    struct sl_disk_entry found;
    assert_int_equal(write_capsule(fixture, 1, 5, 5000), SL_OK);
    assert_int_equal(write_capsule(fixture, 2, 3, 5000), SL_OK);
    struct sl_prefix prefixes[] = {{{11, 22, hash_of(9, 9)}, 900},
                                   {{11, 23, hash_of(1, 4)}, 5 * STRIDE}, // another recipe
                                   {{11, 22, hash_of(1, 3)}, 4 * STRIDE},
                                   {{11, 22, hash_of(2, 2)}, 3 * STRIDE}};
    size_t at;
    assert_true(sl_disk_index_find(sl_disk_folder_index(fixture->folder), prefixes, 4, &at, &found));
    assert_int_equal(at, 2);
    assert_int_equal(read_back(fixture, &found, 1), SL_OK);
}

static void test_disk_folder_the_least_recently_used_goes(void **state) {
    struct fixture *fixture = *state;
    int64_t bytes;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(write_capsule(fixture, i, 2, BODY), SL_OK);
    }
    struct sl_capsule_id key = {11, 22, hash_of(0, WHOLE)};
    assert_int_equal(sl_disk_folder_touch(fixture->folder, &key, NULL), SL_OK);
    key.prefix_hash = hash_of(0, 1);
    assert_int_equal(sl_disk_folder_touch(fixture->folder, &key, NULL), SL_ERR_NOT_FOUND); // a part is not the whole
    reopen(fixture);                                                                       // the order of use is kept
    assert_int_equal(write_capsule(fixture, 3, 2, BODY), SL_OK);
    assert_true(finds_whole(fixture, 0, 2));
    assert_false(finds_whole(fixture, 1, 2));
    assert_true(finds_whole(fixture, 2, 2));
    assert_true(finds_whole(fixture, 3, 2));
    assert_int_equal(write_capsule(fixture, 4, 2, 2 * BODY), SL_OK); // the rest of two
    assert_true(finds_whole(fixture, 3, 2));
    assert_int_equal(count(fixture, &bytes), 2);
    assert_true(bytes <= MAX_BYTES);
    assert_int_equal(write_capsule(fixture, 5, 2, MAX_BYTES), SL_ERR_EXHAUSTED); // and nothing went for it
    assert_int_equal(count(fixture, NULL), 2);
    // Opened with less, it shrinks.
    sl_disk_folder_close(&fixture->folder);
    assert_int_equal(sl_disk_folder_open(fixture->path, 0, 2 * MAX_BYTES, NULL, &fixture->folder, NULL), SL_OK);
    for (int i = 6; i < 12; i++) {
        assert_int_equal(write_capsule(fixture, i, 2, BODY), SL_OK);
    }
    assert_int_equal(count(fixture, NULL), 6);
    reopen(fixture);
    assert_int_equal(count(fixture, NULL), 3);
    assert_true(finds_whole(fixture, 9, 2));
}

static enum sl_status write_of(struct fixture *fixture, int seed, uint64_t tenant, double read_ms) {
    struct sl_stored *stored = make_stored(seed, 2, BODY);
    stored->keys.tenant = tenant;
    stored->keys.read_ms = read_ms;
    stored->keys.read_tokens = stored->n_tokens;
    enum sl_status status = sl_disk_folder_write(fixture->folder, stored, NULL, NULL, NULL);
    free_stored(stored);
    return status;
}

static void evict_by(struct fixture *fixture, const char *policy) {
    sl_disk_folder_evict_by(fixture->folder, &(struct sl_eviction_config){.policy = sl_eviction_find(policy)});
}

// Dates the last use of a capsule that write_of() wrote so many seconds back.
static void set_used(struct fixture *fixture, int seed, time_t seconds_ago) {
    struct sl_disk_entry entry;
    char path[128];
    assert_true(finds(fixture, hash_of(seed, WHOLE), 2 * STRIDE + 7, &entry));
    path_of(fixture, entry.id, path);
    const struct timespec then = {.tv_sec = time(NULL) - seconds_ago};
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){then, then}, 0), 0);
}

static void test_disk_folder_the_policy_chooses(void **state) {
    struct fixture *fixture = *state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(write_of(fixture, i, i == 0 ? 7 : 8, i == 0 ? 1000 : 10), SL_OK);
    }
    reopen(fixture); // tenants and times are in the files
    evict_by(fixture, "share");
    assert_int_equal(write_of(fixture, 3, 7, 1000), SL_OK); // tenant 8 has more than half
    assert_true(finds_whole(fixture, 0, 2));
    assert_false(finds_whole(fixture, 1, 2));
    assert_int_equal(write_of(fixture, 4, 7, 1000), SL_OK); // and now tenant 7
    assert_false(finds_whole(fixture, 0, 2));
    assert_true(finds_whole(fixture, 2, 2));
    set_used(fixture, 2, 100);
    set_used(fixture, 3, 200);
    set_used(fixture, 4, 5);
    reopen(fixture);
    evict_by(fixture, "cost");
    assert_int_equal(write_of(fixture, 5, 9, 1000), SL_OK); // 2 is read again in the shortest time, 3 is the oldest
    assert_false(finds_whole(fixture, 2, 2));
    assert_int_equal(count(fixture, NULL), 3);
    struct sl_disk_entry entry;
    assert_true(finds(fixture, hash_of(5, WHOLE), 2 * STRIDE + 7, &entry));
    assert_int_equal(entry.head.tenant, 9);
    assert_true(entry.head.read_ms == 1000 && entry.head.read_tokens == 2 * STRIDE + 7 && entry.head.stored_ms > 0);
    evict_by(fixture, "lru");
    assert_int_equal(write_of(fixture, 6, 9, 1), SL_OK);
    assert_false(finds_whole(fixture, 3, 2));
}

static void test_disk_folder_drops_files_of_other_versions(void **state) {
    struct fixture *fixture = *state;
    struct sl_disk_entry entry;
    struct sl_disk_head head;
    struct sl_hash128 hashes[3];
    char path[128];
    assert_int_equal(write_capsule(fixture, 1, 3, BODY), SL_OK);
    assert_true(finds(fixture, hash_of(1, WHOLE), 3 * STRIDE + 7, &entry));
    path_of(fixture, entry.id, path);
    FILE *file = fopen(path, "r+b");
    assert_int_equal(fread(&head, sizeof head, 1, file), 1);
    assert_int_equal(fread(hashes, sizeof hashes, 1, file), 1);
    head.version = SL_DISK_FILE_VERSION - 1;
    head.digest = sl_hash(&head, offsetof(struct sl_disk_head, digest), 0); // it is whole
    head.digest = sl_hash(&head.tenant, sizeof head - offsetof(struct sl_disk_head, tenant), head.digest);
    head.digest = sl_hash(hashes, sizeof hashes, head.digest);
    rewind(file);
    assert_int_equal(fwrite(&head, sizeof head, 1, file), 1);
    fclose(file);
    reopen(fixture);
    assert_int_equal(count(fixture, NULL), 0);
}

static void test_disk_folder_a_document_stays(void **state) {
    struct fixture *fixture = *state;
    struct sl_protected *protected = NULL;
    struct sl_capsule_id *ids = malloc(2 * sizeof *ids);
    int64_t bytes;
    assert_int_equal(sl_protected_create(60000, &protected, NULL), SL_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(write_capsule(fixture, i, 2, BODY), SL_OK);
    }
    sl_disk_folder_close(&fixture->folder);
    assert_int_equal(sl_disk_folder_open(fixture->path, 0, MAX_BYTES, protected, &fixture->folder, NULL), SL_OK);
    assert_int_equal(write_capsule(fixture, 3, 2, BODY), SL_ERR_EXHAUSTED); // which are documents is not known yet
    assert_int_equal(count(fixture, NULL), 3);
    ids[0] = (struct sl_capsule_id){11, 22, hash_of(0, WHOLE)};
    ids[1] = (struct sl_capsule_id){11, 22, hash_of(1, WHOLE)};
    sl_protected_set(protected, ids, 2);
    for (int i = 3; i < 6; i++) { // each takes the place of the one before
        assert_int_equal(write_capsule(fixture, i, 2, BODY), SL_OK);
        assert_true(finds_whole(fixture, 0, 2));
        assert_true(finds_whole(fixture, 1, 2));
        assert_true(finds_whole(fixture, i, 2));
    }
    assert_int_equal(write_capsule(fixture, 6, 2, 2 * BODY), SL_ERR_EXHAUSTED); // more than documents leave
    assert_int_equal(count(fixture, &bytes), 3);                                // others do not go in vain
    assert_true(bytes <= MAX_BYTES);
    sl_protected_set(protected, NULL, 0);
    assert_int_equal(write_capsule(fixture, 6, 2, 2 * BODY), SL_OK);
    assert_false(finds_whole(fixture, 0, 2));
    sl_disk_folder_close(&fixture->folder);
    sl_protected_destroy(&protected);
}

// A folder that may have fewer bytes than before keeps its documents, whatever is older.
static void test_disk_folder_a_document_stays_when_it_shrinks(void **state) {
    struct fixture *fixture = *state;
    struct sl_protected *protected = NULL;
    struct sl_capsule_id *ids = malloc(sizeof *ids);
    int64_t bytes;
    sl_disk_folder_close(&fixture->folder);
    assert_int_equal(sl_disk_folder_open(fixture->path, 0, 2 * MAX_BYTES, NULL, &fixture->folder, NULL), SL_OK);
    for (int i = 0; i < 6; i++) { // the document is the oldest
        assert_int_equal(write_capsule(fixture, i, 2, BODY), SL_OK);
    }
    for (int is_told = 0; is_told < 2; is_told++) {
        sl_disk_folder_close(&fixture->folder);
        assert_int_equal(sl_protected_create(60000, &protected, NULL), SL_OK);
        if (is_told) {
            ids[0] = (struct sl_capsule_id){11, 22, hash_of(0, WHOLE)};
            sl_protected_set(protected, ids, 1);
        }
        assert_int_equal(sl_disk_folder_open(fixture->path, 0, MAX_BYTES, protected, &fixture->folder, NULL), SL_OK);
        assert_int_equal(count(fixture, &bytes), is_told ? 3 : 6); // at first it is not known which is one
        assert_true(finds_whole(fixture, 0, 2));
        assert_true(!is_told || bytes <= MAX_BYTES);
        sl_disk_folder_close(&fixture->folder);
        sl_protected_destroy(&protected);
    }
}

// The same for the index: it takes all that is there until the documents are known.
static void test_disk_folder_a_document_stays_when_the_index_shrinks(void **state) {
    struct fixture *fixture = *state;
    struct sl_protected *protected = NULL;
    int64_t most = (int64_t)512 << 20; // for an index of 8 MiB
    sl_disk_folder_close(&fixture->folder);
    assert_int_equal(sl_disk_folder_open(fixture->path, 0, most, NULL, &fixture->folder, NULL), SL_OK);
    for (int i = 0; i < 160; i++) {
        assert_int_equal(write_capsule(fixture, i, SL_CAPSULE_CACHE_MAX_PREFIXES - 1, 100), SL_OK);
    }
    sl_disk_folder_close(&fixture->folder);
    assert_int_equal(sl_protected_create(60000, &protected, NULL), SL_OK);
    assert_int_equal(sl_disk_folder_open(fixture->path, 0, MAX_BYTES, protected, &fixture->folder, NULL), SL_OK);
    assert_int_equal(count(fixture, NULL), 160);
    struct sl_capsule_id *ids = malloc(sizeof *ids);
    ids[0] = (struct sl_capsule_id){11, 22, hash_of(0, WHOLE)};
    sl_protected_set(protected, ids, 1);
    assert_int_equal(write_capsule(fixture, 200, SL_CAPSULE_CACHE_MAX_PREFIXES - 1, 100), SL_OK);
    assert_in_range(count(fixture, NULL), 100, 130); // what 4 MiB can say about such
    assert_true(finds_whole(fixture, 0, SL_CAPSULE_CACHE_MAX_PREFIXES - 1));
    sl_disk_folder_close(&fixture->folder);
    sl_protected_destroy(&protected);
}

static void test_disk_folder_a_full_index_makes_room_too(void **state) {
    struct fixture *fixture = *state;
    for (int pass = 0; pass < 2; pass++) { // the second one fills it anew
        for (int i = 0; i < 200; i++) {
            assert_int_equal(write_capsule(fixture, i, SL_CAPSULE_CACHE_MAX_PREFIXES - 1, 100), SL_OK);
            assert_true(finds_whole(fixture, i, SL_CAPSULE_CACHE_MAX_PREFIXES - 1));
        }
        int n = (int)count(fixture, NULL);
        assert_in_range(n, 100, 130); // what 4 MiB can say about such
        reopen(fixture);
        assert_int_equal(count(fixture, NULL), n);
        assert_true(finds_whole(fixture, 200 - n, SL_CAPSULE_CACHE_MAX_PREFIXES - 1));
        assert_false(finds_whole(fixture, 199 - n, SL_CAPSULE_CACHE_MAX_PREFIXES - 1));
    }
}

// So many that their heads are read ahead.
static void test_disk_folder_opens_with_many(void **state) {
    struct fixture *fixture = *state;
    struct sl_disk_entry found;
    enum { N = 600 };
    for (int i = 0; i < N; i++) {
        assert_int_equal(write_capsule(fixture, i, 3, 100), SL_OK);
    }
    reopen(fixture);
    assert_int_equal(count(fixture, NULL), N);
    for (int i = 0; i < N; i++) {
        assert_true(finds(fixture, hash_of(i, 2), 3 * STRIDE, &found));
        assert_int_equal(read_back(fixture, &found, i), SL_OK);
    }
    sl_disk_folder_close(&fixture->folder); // and with a limit on files that may be open
    struct rlimit before, few;
    getrlimit(RLIMIT_NOFILE, &before);
    few = (struct rlimit){8, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    enum sl_status status = sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, NULL);
    setrlimit(RLIMIT_NOFILE, &before);
    if (status != SL_OK) { // refused, since no file could be opened just then: nothing is lost by that
        assert_int_equal(sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, NULL), SL_OK);
    }
    assert_int_equal(count(fixture, NULL), N);
}

static void change_byte(const char *path, off_t at) {
    int fd = open(path, O_RDWR);
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void test_disk_folder_a_damaged_capsule_is_a_miss_and_goes(void **state) {
    struct fixture *fixture = *state;
    enum { HEADER, BODY_END, CUT, GONE, N_DAMAGES };
    for (int damage = 0; damage < N_DAMAGES; damage++) {
        char path[128];
        struct sl_disk_entry found;
        assert_int_equal(write_capsule(fixture, damage, 3, BODY), SL_OK);
        assert_int_equal(write_capsule(fixture, 100, 3, BODY), damage == 0 ? SL_OK : SL_ERR_EXISTS);
        assert_true(finds(fixture, hash_of(damage, 2), 3 * STRIDE, &found));
        path_of(fixture, found.id, path);
        if (damage == HEADER || damage == BODY_END) {
            change_byte(path, damage == HEADER ? 10 : (off_t)BODY + 999);
        } else {
            assert_int_equal(damage == CUT ? truncate(path, BODY) : unlink(path), 0);
        }
        assert_int_equal(read_back(fixture, &found, damage), SL_ERR_NOT_FOUND);
        assert_int_equal(access(path, F_OK), -1);
        assert_false(finds(fixture, hash_of(damage, 2), 3 * STRIDE, &found));
        int64_t bytes;
        assert_int_equal(count(fixture, &bytes), 1); // the other one is untouched
        assert_in_range(bytes, BODY, BODY + 8192);
        assert_true(finds(fixture, hash_of(100, 2), 3 * STRIDE, &found));
        assert_int_equal(read_back(fixture, &found, 100), SL_OK);
    }
}

static void test_disk_folder_what_a_killed_process_left_is_swept(void **state) {
    struct fixture *fixture = *state;
    char path[128];
    struct sl_disk_entry found;
    assert_int_equal(write_capsule(fixture, 1, 3, BODY), SL_OK);
    assert_true(finds(fixture, hash_of(1, 2), 3 * STRIDE, &found));
    path_of(fixture, found.id + 5, path); // as if the next one had been under way
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fclose(file);
    reopen(fixture);
    assert_int_equal(access(path, F_OK), -1);
    assert_true(finds(fixture, hash_of(1, 2), 3 * STRIDE, &found));
    assert_int_equal(read_back(fixture, &found, 1), SL_OK);
}

// Writes and removes until it is killed.
static void write_for_ever(struct fixture *fixture) {
    struct sl_disk_folder *folder;
    if (sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &folder, NULL) != SL_OK) {
        _exit(1);
    }
    for (int i = 0;; i++) {
        struct sl_stored *stored = make_stored(i % 50, 3, 500000 + (size_t)(i % 7) * 100000);
        enum sl_status status = sl_disk_folder_write(folder, stored, NULL, NULL, NULL);
        if (status != SL_OK && status != SL_ERR_EXISTS) {
            _exit(1);
        }
        free_stored(stored);
    }
}

static void test_disk_folder_may_be_killed_at_any_moment(void **state) {
    struct fixture *fixture = *state;
    int64_t n_read = 0;
    for (int round = 0; round < 12; round++) {
        sl_disk_folder_close(&fixture->folder);
        pid_t child = fork();
        if (child == 0) {
            write_for_ever(fixture);
        }
        sl_sleep_ms(60 + round * 13);
        assert_int_equal(kill(child, SIGKILL), 0);
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how)); // and did not end by itself
        assert_int_equal(sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, NULL), SL_OK);
        int64_t n = 0;
        for (int seed = 0; seed < 50; seed++) {
            struct sl_disk_entry found;
            if (finds(fixture, hash_of(seed, 2), 3 * STRIDE, &found)) {
                assert_int_equal(read_back(fixture, &found, seed), SL_OK);
                n++;
            }
        }
        assert_int_equal(n, count(fixture, NULL)); // what is counted is found and whole
        n_read += n;
    }
    assert_true(n_read > 0);
}

static bool never(void *arg) {
    (void)arg;
    return false;
}

static void test_disk_folder_what_fails_leaves_nothing(void **state) {
    struct fixture *fixture = *state;
    struct sl_error err = {0};
    struct rlimit before, small = {BODY / 2, RLIM_INFINITY};
    assert_int_equal(write_capsule(fixture, 1, 3, 1000), SL_OK);
    struct sl_stored *stored = make_stored(2, 3, BODY);
    assert_int_equal(sl_disk_folder_write(fixture->folder, stored, never, NULL, &err), SL_ERR_CANCELLED);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small); // a disk that takes half of it
    enum sl_status status = sl_disk_folder_write(fixture->folder, stored, NULL, NULL, &err);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, SL_ERR_IO);
    assert_non_null(strstr(err.text, strerror(EFBIG)));
    free_stored(stored);
    int64_t bytes;
    assert_int_equal(count(fixture, &bytes), 1);
    assert_int_equal(bytes, 4096);
    assert_false(finds_whole(fixture, 2, 3));
    assert_int_equal(write_capsule(fixture, 2, 3, BODY), SL_OK);
}

static void refuse(const char *path, int64_t bytes, enum sl_status expected, const char *word) {
    struct sl_disk_folder *folder;
    struct sl_error err = {0};
    assert_int_equal(sl_disk_folder_open(path, 0, bytes, NULL, &folder, &err), expected);
    if (!strstr(err.text, path) || !strstr(err.text, word)) {
        fail_msg("does not say %s and %s: %s", path, word, err.text);
    }
}

static void write_text(const char *path, const char *text, size_t n) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(text, 1, n, file);
    fclose(file);
}

static void test_disk_folder_refuses_what_it_cannot_use(void **state) {
    struct fixture *fixture = *state;
    char path[128];
    refuse(fixture->path, MAX_BYTES, SL_ERR_PRECONDITION, "of its own"); // in use
    refuse(fixture->path, 1000, SL_ERR_INVALID, "--disk-bytes");
    refuse("/proc/nothing", MAX_BYTES, SL_ERR_IO, "can write to");
    snprintf(path, sizeof path, "%s/a/b", fixture->path);
    refuse(path, MAX_BYTES, SL_ERR_IO, "can write to");
    snprintf(path, sizeof path, "%s/file", fixture->path);
    write_text(path, "text", 4);
    refuse(path, MAX_BYTES, SL_ERR_IO, "can write to");
}

// ---- readers --------------------------------------------------------------------------------------------------------

struct reader {
    struct fixture *fixture;
    _Atomic bool *done;
    int n_read;
    pthread_t thread;
};

static void *read_many(void *arg) {
    struct reader *reader = arg;
    for (int i = 0; !*reader->done; i++) {
        int seed = i % 6;
        struct sl_disk_entry found;
        if (finds(reader->fixture, hash_of(seed, 2), 3 * STRIDE, &found)) {
            reader->n_read += read_back(reader->fixture, &found, seed) == SL_OK; // or it has just gone
        }
    }
    return NULL;
}

static void test_disk_folder_many_read_while_one_writes(void **state) {
    struct fixture *fixture = *state;
    struct reader readers[4];
    _Atomic bool done = false;
    for (int i = 0; i < 4; i++) {
        readers[i] = (struct reader){.fixture = fixture, .done = &done};
        assert_int_equal(sl_thread_start("reader", read_many, &readers[i], &readers[i].thread, NULL), SL_OK);
    }
    for (int i = 0; i < 60; i++) { // six of 3 MiB, where three have room: each write removes one
        assert_int_equal(write_capsule(fixture, i % 6, 3, BODY), SL_OK);
    }
    done = true;
    for (int i = 0; i < 4; i++) {
        pthread_join(readers[i].thread, NULL);
        assert_true(readers[i].n_read > 0);
    }
    assert_int_equal(count(fixture, NULL), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_disk_folder_gives_back_what_was_written, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_the_longest_prefix_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_the_least_recently_used_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_the_policy_chooses, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_drops_files_of_other_versions, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_a_document_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_a_document_stays_when_it_shrinks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_a_document_stays_when_the_index_shrinks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_a_full_index_makes_room_too, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_opens_with_many, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_a_damaged_capsule_is_a_miss_and_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_what_a_killed_process_left_is_swept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_may_be_killed_at_any_moment, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_what_fails_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_refuses_what_it_cannot_use, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_folder_many_read_while_one_writes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
