// SPDX-License-Identifier: Apache-2.0
// Weights that processes share: packed once, whatever happens to the process that packs; nothing is believed that is not
// complete, sealed and of this version; nothing remains after the last user.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/version.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/shared_users.h"
#include "engine/tensor/shared_weights.h"
#include "base/team.h"
#include "tests/unit/scarce.h"
#include "tests/unit/slowness.h"
#include "tests/unit/temp_folder.h"

#define KEY    0x1234abcdU
#define BYTES  ((size_t)3 << 20) // of a packed matrix: more than a huge page, and no multiple of it
#define SMALL  100
#define FILLED 0x5a

static const struct sl_matrix large = {.n = 1024, .k = 3072, .dtype = SL_Q8_0, .parts = {{NULL, 1024, SL_Q8_0}}};
static const struct sl_matrix little = {.n = 10, .k = 10, .dtype = SL_BF16, .parts = {{NULL, 10, SL_BF16}}};

struct place {
    struct temp_folder parent;
    char folder[96];
    struct sl_shared_weights_config config;
};

static void make_place(struct place *place) {
    *place = (struct place){.parent = temp_folder_create()};
    snprintf(place->folder, sizeof place->folder, "%s/users", place->parent.path);
    place->config = (struct sl_shared_weights_config){.folder = place->folder,
                                                      .small_pages = true,
                                                      .key = KEY,
                                                      .room_bytes = 1 << 30,
                                                      .max_matrices = 4,
                                                      .still_ms = 300 * SLOWNESS};
}

// The folder of the lists is gone, or the parent cannot be removed.
static void leave_place(struct place *place) {
    assert_int_equal(access(place->folder, F_OK), -1);
    assert_int_equal(rmdir(place->parent.path), 0);
}

static struct sl_shared_weights *open_ok(const struct place *place) {
    struct sl_shared_weights *shared = NULL;
    struct sl_error err;
    if (sl_shared_weights_open(&place->config, &shared, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return shared;
}

// Packs both matrices.
static void fill(struct sl_shared_weights *shared) {
    char *at = sl_shared_weights_take(shared, &little, SMALL);
    assert_non_null(at);
    memset(at, FILLED, SMALL);
    at = sl_shared_weights_take(shared, &large, BYTES);
    assert_non_null(at);
    assert_int_equal((uintptr_t)at % 64, 0);
    memset(at, FILLED, BYTES);
}

static bool is_filled(const char *at, size_t bytes) {
    return at[0] == FILLED && memcmp(at, at + 1, bytes - 1) == 0;
}

// Takes both matrices of weights that are ready. Returns the large one.
static const char *check_filled(struct sl_shared_weights *shared) {
    assert_true(sl_shared_weights_are_ready(shared));
    assert_true(sl_shared_weights_hold(shared, &little));
    assert_false(sl_shared_weights_hold(shared, &large)); // not yet
    const char *first = sl_shared_weights_take(shared, &little, SMALL);
    const char *at = sl_shared_weights_take(shared, &large, BYTES);
    assert_non_null(first);
    assert_non_null(at);
    assert_true(is_filled(first, SMALL));
    assert_true(is_filled(at, BYTES));
    assert_int_equal(sl_shared_weights_finish(shared, NULL), SL_OK);
    return at;
}

// Forks a process that runs fn until it is killed. Returns when fn has returned there.
static pid_t start_process(void (*fn)(struct sl_shared_weights *shared), const struct place *place) {
    int done[2];
    char byte = 0;
    assert_int_equal(pipe(done), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct sl_shared_weights *shared = NULL;
        if (sl_shared_weights_open(&place->config, &shared, NULL) == SL_OK) {
            fn(shared);
            (void)!write(done[1], "x", 1);
        }
        close(done[0]);
        close(done[1]);
        for (;;) {
            pause();
        }
    }
    close(done[1]);
    assert_int_equal(read(done[0], &byte, 1), 1);
    close(done[0]);
    return pid;
}

static void end_process(pid_t pid) {
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void pack_all(struct sl_shared_weights *shared) {
    char *at = sl_shared_weights_take(shared, &little, SMALL);
    memset(at, FILLED, SMALL);
    at = sl_shared_weights_take(shared, &large, BYTES);
    memset(at, FILLED, BYTES);
    if (sl_shared_weights_finish(shared, NULL) != SL_OK) {
        abort();
    }
}

static void pack_half(struct sl_shared_weights *shared) {
    memset(sl_shared_weights_take(shared, &little, SMALL), FILLED, SMALL);
    sl_shared_weights_progress(shared, 77);
}

// Returns a number of /proc/self/smaps for the mapping that has `at`, in KiB.
static long smaps(const void *at, const char *name) {
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long begin, end;
    long value = -1;
    bool inside = false;
    assert_non_null(file);
    while (value < 0 && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) {
            inside = begin <= (uintptr_t)at && (uintptr_t)at < end;
        } else if (inside && strncmp(line, name, strlen(name)) == 0) {
            value = strtol(line + strlen(name), NULL, 10);
        }
    }
    fclose(file);
    return value;
}

static void test_shared_weights_are_packed_once(void **state) {
    (void)state;
    struct place place;
    make_place(&place);
    pid_t packer = start_process(pack_all, &place);
    struct sl_shared_weights *shared = open_ok(&place);
    const char *at = check_filled(shared);
    assert_int_equal(sl_shared_weights_users(shared), 2);
    long rss = smaps(at, "Rss:"), pss = smaps(at, "Pss:");
    assert_true(rss >= (long)(BYTES >> 10));
    assert_true(pss <= rss / 2 + 8);

    end_process(packer); // the weights outlive it, and others find them here
    assert_int_equal(sl_shared_weights_users(shared), 1);
    struct sl_shared_weights *third = open_ok(&place);
    check_filled(third);
    sl_shared_weights_close(&shared);
    assert_int_equal(sl_shared_weights_users(third), 1);
    sl_shared_weights_close(&third);
    leave_place(&place);
}

static void *kill_soon(void *arg) {
    sl_sleep_ms(100);
    kill(*(pid_t *)arg, SIGKILL);
    return NULL;
}

static void test_shared_weights_of_a_killed_packer_are_packed_again(void **state) {
    (void)state;
    struct place place;
    pthread_t killer;
    make_place(&place);
    place.config.still_ms = 60000;
    pid_t packer = start_process(pack_half, &place);
    assert_int_equal(pthread_create(&killer, NULL, kill_soon, &packer), 0);
    struct sl_shared_weights *shared = open_ok(&place); // waits until then
    assert_int_equal(pthread_join(killer, NULL), 0);
    waitpid(packer, NULL, 0);
    assert_false(sl_shared_weights_are_ready(shared));
    fill(shared);
    assert_int_equal(sl_shared_weights_finish(shared, NULL), SL_OK);
    struct sl_shared_weights *second = open_ok(&place);
    check_filled(second);
    sl_shared_weights_close(&second);
    sl_shared_weights_close(&shared);
    leave_place(&place);
}

static void test_shared_weights_wait_only_while_they_are_packed(void **state) {
    (void)state;
    struct place place;
    _Atomic size_t done = 0;
    struct sl_shared_weights *shared = NULL;
    struct sl_error err;
    make_place(&place);
    place.config.done_out = &done;
    pid_t packer = start_process(pack_half, &place);
    int64_t begin_ns = sl_now_ns();
    assert_int_equal(sl_shared_weights_open(&place.config, &shared, &err), SL_ERR_DEADLINE);
    assert_true(sl_now_ns() - begin_ns >= place.config.still_ms * SL_NS_PER_MS);
    assert_non_null(strstr(err.text, "without progress"));
    end_process(packer);

    // The list of a killed process goes when the next one opens any weights.
    char list[128];
    snprintf(list, sizeof list, "%s/%016x", place.folder, KEY);
    assert_int_equal(access(list, F_OK), 0);
    place.config.key = KEY + 1;
    shared = open_ok(&place);
    assert_int_equal(access(list, F_OK), -1);
    sl_shared_weights_close(&shared);
    leave_place(&place);
}

static void *wait_for_weights(void *arg) {
    struct sl_shared_weights *shared = NULL;
    const struct place *place = arg;
    return sl_shared_weights_open(&place->config, &shared, NULL) == SL_OK ? shared : NULL;
}

static bool becomes(const _Atomic size_t *done, size_t value) {
    for (int64_t until = sl_deadline_in_ms(20000); atomic_load(done) != value && sl_deadline_left_ms(until) > 0;) {
        sl_sleep_ms(2);
    }
    return atomic_load(done) == value;
}

// A process that waits sees the progress of the one that packs, also within a matrix, and that of a second one that
// begins again after the first has died. It shows the most that was done.
static void test_shared_weights_show_progress(void **state) {
    (void)state;
    struct place place;
    _Atomic size_t done = 0;
    pthread_t thread;
    void *waited = NULL;
    make_place(&place);
    place.config.still_ms = 1500 * SLOWNESS;
    struct sl_shared_weights *shared = open_ok(&place);
    place.config.done_out = &done;
    assert_int_equal(pthread_create(&thread, NULL, wait_for_weights, &place), 0);
    fill(shared);
    sl_shared_weights_progress(shared, 4711);
    assert_true(becomes(&done, 4711));
    sl_shared_weights_progress(shared, 1); // what others see of the second one
    for (int i = 0; i < 6; i++) {          // longer than it would wait without progress
        sl_shared_weights_progress_within(shared);
        sl_sleep_ms(place.config.still_ms / 4);
    }
    assert_int_equal(atomic_load(&done), 4711);
    sl_shared_weights_progress(shared, 4712);
    assert_true(becomes(&done, 4712));
    assert_int_equal(sl_shared_weights_finish(shared, NULL), SL_OK);
    sl_shared_weights_progress_within(shared); // sealed: nothing is written
    assert_int_equal(pthread_join(thread, &waited), 0);
    assert_non_null(waited);
    struct sl_shared_weights *second = waited;
    check_filled(second);
    sl_shared_weights_close(&second);
    sl_shared_weights_close(&shared);
    leave_place(&place);
}

// --- what is not believed --------------------------------------------------------------------------------------------

struct forgery {
    const char *name; // of the memfd; NULL: the right one
    bool unsealed;
    size_t flipped;   // offset of a byte that is changed; SIZE_MAX: none
    size_t cut_bytes; // taken off its end
    // The bytes of both records under a digest that is right; 0: those of the weights.
    uint64_t record_bytes[2];
};

#define RECORDS_AT 80 // {shape, bytes} of each matrix; the digest is at DIGEST_AT
#define DIGEST_AT  56

// Changes the bytes of the records.
static void forge_records(int fd, const struct forgery *forgery, const char *whole) {
    uint64_t records[4];
    memcpy(records, whole + RECORDS_AT, sizeof records);
    for (int i = 0; i < 2; i++) {
        records[2 * i + 1] = forgery->record_bytes[i] != 0 ? forgery->record_bytes[i] : records[2 * i + 1];
    }
    uint64_t digest = sl_hash(records, sizeof records, 0);
    assert_int_equal(pwrite(fd, records, sizeof records, RECORDS_AT), sizeof records);
    assert_int_equal(pwrite(fd, &digest, sizeof digest, DIGEST_AT), sizeof digest);
}

// Makes a memfd from whole weights, and names it in the list.
static int forge(const struct place *place, const struct forgery *forgery, const char *whole, size_t bytes) {
    char name[SL_SHARED_NAME_BYTES], line[64], list[128];
    sl_shared_name(KEY, name);
    int fd = memfd_create(forgery->name != NULL ? forgery->name : name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    size_t kept = bytes - forgery->cut_bytes;
    assert_int_equal(write(fd, whole, kept), kept);
    if (kept >= RECORDS_AT + 32) { // with the bytes of the weights, that changes nothing
        forge_records(fd, forgery, whole);
    }
    if (forgery->flipped != SIZE_MAX) {
        char other = (char)(whole[forgery->flipped] ^ 1);
        assert_int_equal(pwrite(fd, &other, 1, (off_t)forgery->flipped), 1);
    }
    if (!forgery->unsealed) {
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK), 0);
    }
    assert_true(mkdir(place->folder, 0700) == 0 || errno == EEXIST);
    snprintf(list, sizeof list, "%s/%016x", place->folder, KEY);
    int file = open(list, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int n = snprintf(line, sizeof line, "%d %d\n", getpid(), fd);
    assert_int_equal(write(file, line, (size_t)n), n);
    close(file);
    return fd;
}

static void test_shared_weights_refuse_what_is_not_theirs(void **state) {
    (void)state;
    struct place place;
    make_place(&place);
    struct sl_shared_weights *shared = open_ok(&place);
    fill(shared);
    assert_int_equal(sl_shared_weights_finish(shared, NULL), SL_OK);
    size_t bytes = sl_shared_weights_bytes(shared);
    char *whole = malloc(bytes);
    assert_non_null(whole);
    struct sl_shared_weights *second = open_ok(&place);
    const char *first = sl_shared_weights_take(second, &little, SMALL); // the header is in the page before
    memcpy(whole, first - (uintptr_t)first % (2 << 20), bytes);
    sl_shared_weights_close(&second);
    sl_shared_weights_close(&shared);

    const size_t faults[] = {0 /* magic */,      8 /* version */, 24 /* layout */, 32 /* key */,
                             40 /* n_records */, 48 /* bytes */,  DIGEST_AT,       74 /* max_records: by 65,536 */,
                             RECORDS_AT};
    assert_string_equal(whole + 8, SL_VERSION);
    struct forgery forgeries[sizeof faults / sizeof faults[0] + 8] = {
        {.flipped = SIZE_MAX, .cut_bytes = 2 << 20},
        {.flipped = SIZE_MAX, .cut_bytes = bytes - 50},
        {.flipped = SIZE_MAX, .unsealed = true},
        {.flipped = SIZE_MAX, .name = "another"},
        {.flipped = SIZE_MAX, .record_bytes = {bytes + 1}},
        {.flipped = SIZE_MAX, .record_bytes = {0, bytes - 4096}}, // less than the memfd, and too much at its place
        {.flipped = SIZE_MAX, .record_bytes = {bytes / 2, bytes / 2}},
        {.flipped = SIZE_MAX, .record_bytes = {8192, UINT64_MAX - 8191}}, // the sum is small again
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        forgeries[8 + i].flipped = faults[i];
    }
    for (size_t i = 0; i < sizeof forgeries / sizeof forgeries[0]; i++) {
        int fd = forge(&place, &forgeries[i], whole, bytes);
        shared = open_ok(&place);
        assert_false(sl_shared_weights_are_ready(shared));
        fill(shared); // replaces it
        assert_int_equal(sl_shared_weights_finish(shared, NULL), SL_OK);
        second = open_ok(&place);
        check_filled(second);
        sl_shared_weights_close(&second);
        close(fd);
        sl_shared_weights_close(&shared);
    }
    const struct forgery none = {.flipped = SIZE_MAX}; // so the others were refused for their fault
    int fd = forge(&place, &none, whole, bytes);
    shared = open_ok(&place);
    check_filled(shared);
    close(fd);
    sl_shared_weights_close(&shared);
    free(whole);
    leave_place(&place);
}

static void test_shared_weights_ignore_a_list_of_anything(void **state) {
    (void)state;
    static const char *const lists[] = {"",        "\n", "x y z",           "1 0\n", "99999999 3\n",
                                        "-1 -1\n", "12", "1 99999999999999"};
    struct place place;
    char list[128];
    make_place(&place);
    snprintf(list, sizeof list, "%s/%016x", place.folder, KEY);
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        assert_int_equal(mkdir(place.folder, 0700), 0);
        FILE *file = fopen(list, "w");
        assert_non_null(file);
        fputs(lists[i], file);
        fclose(file);
        struct sl_shared_weights *shared = open_ok(&place);
        assert_false(sl_shared_weights_are_ready(shared));
        sl_shared_weights_close(&shared);
    }
    leave_place(&place);
}

static void test_shared_weights_of_other_matrices_are_stale(void **state) {
    (void)state;
    struct place place;
    make_place(&place);
    struct sl_shared_weights *shared = open_ok(&place);
    fill(shared);
    assert_int_equal(sl_shared_weights_finish(shared, NULL), SL_OK);

    struct sl_shared_weights *second = open_ok(&place);
    assert_null(sl_shared_weights_take(second, &large, BYTES)); // little was the first
    assert_null(sl_shared_weights_take(second, &little, SMALL + 1));
    assert_int_equal(sl_shared_weights_finish(second, NULL), SL_ERR_PEER_STALE);
    sl_shared_weights_close(&second);
    second = open_ok(&place);
    check_filled(second);
    assert_null(sl_shared_weights_take(second, &little, SMALL)); // more than there are
    sl_shared_weights_close(&second);
    sl_shared_weights_close(&shared);
    leave_place(&place);
}

// --- no room ---------------------------------------------------------------------------------------------------------

static void test_shared_weights_without_memory(void **state) {
    (void)state;
    struct place place;
    struct sl_shared_weights *shared = NULL;
    struct rlimit old, low = {.rlim_cur = 1 << 20};
    make_place(&place);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0); // a signal would end this test
    assert_int_equal(sl_shared_weights_open(&place.config, &shared, NULL), SL_ERR_EXHAUSTED);
    low.rlim_cur = 2 << 20;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    shared = open_ok(&place);
    char *first = sl_shared_weights_take(shared, &little, SMALL);
    assert_non_null(first);
    assert_null(sl_shared_weights_take(shared, &large, BYTES));
    assert_null(sl_shared_weights_take(shared, &little, SMALL)); // others would miss one
    assert_int_equal(sl_shared_weights_finish(shared, NULL), SL_ERR_EXHAUSTED);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    first[0] = FILLED; // still this process's own

    struct sl_shared_weights *second = open_ok(&place);
    assert_false(sl_shared_weights_are_ready(second));
    sl_shared_weights_close(&second);
    sl_shared_weights_close(&shared);

    place.config.room_bytes = 1 << 20; // address space
    shared = open_ok(&place);
    assert_null(sl_shared_weights_take(shared, &large, BYTES));
    sl_shared_weights_close(&shared);
    leave_place(&place);
}

static void test_shared_weights_without_a_place_for_the_list(void **state) {
    (void)state;
    struct place place;
    struct sl_shared_weights *shared = NULL;
    struct sl_error err;
    make_place(&place);
    assert_int_equal(mkdir(place.folder, 0755), 0); // others may enter it
    assert_int_equal(sl_shared_weights_open(&place.config, &shared, &err), SL_ERR_DENIED);
    assert_non_null(strstr(err.text, place.folder));

    assert_int_equal(chmod(place.folder, 0700), 0);
    if (mount("none", place.folder, "tmpfs", 0, "size=4k,mode=700") == 0) {
        char path[128], page[4096] = {0};
        snprintf(path, sizeof path, "%s/full", place.folder);
        int file = open(path, O_WRONLY | O_CREAT, 0600);
        assert_int_equal(write(file, page, sizeof page), sizeof page);
        close(file);
        assert_int_equal(sl_shared_weights_open(&place.config, &shared, &err), SL_ERR_IO);
        assert_non_null(strstr(err.text, strerror(ENOSPC)));
        assert_int_equal(umount(place.folder), 0);
    } else {
        print_message("no full tmpfs: mount: %s\n", strerror(errno));
    }
    assert_int_equal(rmdir(place.folder), 0);
    place.config.folder = "/proc/nowhere/users";
    assert_int_equal(sl_shared_weights_open(&place.config, &shared, &err), SL_ERR_IO);
    leave_place(&place);
}

static void test_shared_weights_are_made_by_a_team(void **state) {
    (void)state;
    struct place place;
    make_place(&place);
    assert_int_equal(sl_team_create(2, &place.config.team, NULL), SL_OK);
    struct sl_shared_weights *packer = open_ok(&place);
    uint64_t n_before = sl_team_tasks_done(place.config.team);
    char *at = sl_shared_weights_take(packer, &large, 5 * BYTES); // more than was made
    assert_non_null(at);
    assert_int_equal(sl_team_tasks_done(place.config.team), n_before + 2);
    assert_true(at[0] == 0 && memcmp(at, at + 1, 5 * BYTES - 1) == 0);
    memset(at, FILLED, 5 * BYTES);
    sl_team_destroy(&place.config.team); // finishing needs none
    assert_int_equal(sl_shared_weights_finish(packer, NULL), SL_OK);
    assert_true(is_filled(at, 5 * BYTES));
    sl_shared_weights_close(&packer);
    leave_place(&place);
}

static void test_shared_weights_want_huge_pages(void **state) {
    (void)state;
    struct place place;
    struct sl_shared_weights *shared = NULL;
    make_place(&place);
    place.config.small_pages = false;
    assert_int_equal(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    enum sl_status status = sl_shared_weights_open(&place.config, &shared, NULL);
    place.config.small_pages = true;
    struct sl_shared_weights *second = open_ok(&place);
    assert_int_equal(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
    assert_int_equal(status, SL_ERR_UNSUPPORTED);
    sl_shared_weights_close(&second);
    leave_place(&place);
}

static enum sl_status make_shared(void *arg, struct sl_error *err) {
    struct sl_shared_weights *shared = NULL;
    enum sl_status status = sl_shared_weights_open(arg, &shared, err);
    sl_shared_weights_close(&shared);
    return status;
}

static void test_shared_weights_without_heap(void **state) {
    (void)state;
    struct place place;
    make_place(&place);
    assert_int_equal(assert_refused_without_memory(make_shared, &place.config), 1);
    struct sl_shared_weights *shared = open_ok(&place), *second = NULL;
    fill(shared);
    assert_int_equal(sl_shared_weights_finish(shared, NULL), SL_OK);
    scarce_begin(1); // what cannot be checked is not used
    assert_int_equal(sl_shared_weights_open(&place.config, &second, NULL), SL_OK);
    assert_true(scarce_end());
    assert_false(sl_shared_weights_are_ready(second));
    sl_shared_weights_close(&second);
    sl_shared_weights_close(&shared);
    leave_place(&place);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_weights_are_packed_once),
        cmocka_unit_test(test_shared_weights_of_a_killed_packer_are_packed_again),
        cmocka_unit_test(test_shared_weights_wait_only_while_they_are_packed),
        cmocka_unit_test(test_shared_weights_show_progress),
        cmocka_unit_test(test_shared_weights_refuse_what_is_not_theirs),
        cmocka_unit_test(test_shared_weights_ignore_a_list_of_anything),
        cmocka_unit_test(test_shared_weights_of_other_matrices_are_stale),
        cmocka_unit_test(test_shared_weights_without_memory),
        cmocka_unit_test(test_shared_weights_without_heap),
        cmocka_unit_test(test_shared_weights_are_made_by_a_team),
        cmocka_unit_test(test_shared_weights_want_huge_pages),
        cmocka_unit_test(test_shared_weights_without_a_place_for_the_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
