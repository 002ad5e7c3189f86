// SPDX-License-Identifier: Apache-2.0
/*
 * Ranks over GPUs: small sums by our kernel, in the emulator, large ones by a library that is made here (fake_nccl.c); and what is said where there is none.
 *
 *     test_nccl FOLDER [REAL]    of the fakes; a libnccl of NVIDIA's, or nothing
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/cuda/emu/emulator.h"
#include "tensor/cuda/emulated/driver.h"
#include "tensor/cuda/group/nccl.h"
#include "tensor/cuda/group/nccl_group.h"
#include "tensor/cuda/launching.h"
#include "tests/unit/scarce.h"
#include "tests/unit/tensor/group/ranks.h"

#define DEADLINE_MS (SLOWNESS > 1 ? 4000 : 1000) // long enough for threads that are only slow
#define SMALL       131072                       // floats that our kernel adds up at once, of up to four ranks

static const char *folder, *real;
static struct gpu_driver driver; // device memory is the host's, for the fakes

// Of the plugin's driver (launching.h).
void sl_cuda_launching(const char *what) {
    (void)what;
}

// A stream is in order: what was queued before a sum is done before it.
void fake_nccl_before(void *stream);
__attribute__((visibility("default"))) void fake_nccl_before(void *stream) {
    struct gpu_event *event = sl_emu_event_open();
    sl_emu_event_record(event, stream);
    sl_emu_event_wait(event);
    sl_emu_event_close(&event);
}

// How communicators have ended.
static atomic_int n_destroyed, n_aborted;
void fake_nccl_ended(int aborted);
__attribute__((visibility("default"))) void fake_nccl_ended(int aborted) {
    atomic_fetch_add(aborted ? &n_aborted : &n_destroyed, 1);
}

static const struct nccl_functions *open_fake(const char *name, struct sl_error *err) {
    char path[4096];
    snprintf(path, sizeof path, "%s/lib%s.so", folder, name);
    return sl_nccl_open(path, err);
}

static int open_test(void **state) {
    (void)state;
    driver = sl_gpu_emulator;
    driver.alloc = sl_gpu_emulator.alloc_shared;
    driver.free = sl_gpu_emulator.free_shared;
    atomic_store(&n_destroyed, 0);
    atomic_store(&n_aborted, 0);
    return 0;
}

static int close_test(void **state) {
    (void)state;
    sl_nccl_close();
    return sl_emu_used() != 0;
}

static struct ranks ranks_of(int size) {
    return (struct ranks){.kind = EMULATED, .size = size, .join = true, .ops = &sl_group_nccl, .driver = &driver};
}

static float number(int rank, int64_t i) {
    return (float)((i * 2654435761 + rank * 40503) % 1000003) * (rank % 2 ? 1e-4f : 3.0f);
}

// --- sums --------------------------------------------------------------------------------------------------------------

static bool sum_once(struct rank *rank, int64_t n) {
    bool is_small = n <= (rank->size > 4 ? SMALL / 2 : SMALL); // ours ascends, the fake's descends
    float *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = number(rank->number, i);
    }
    float *there = rank_put(rank, x, (size_t)n * sizeof *x);
    rank_dawdle(rank);
    CHECK(sl_group_sum(rank->group, rank->stream, there, n, NULL) == SL_OK);
    CHECK(rank_take(rank, there, x, (size_t)n * sizeof *x));
    for (int64_t i = 0; i < n; i++) {
        float want = number(is_small ? 0 : rank->size - 1, i);
        for (int r = 1; r < rank->size; r++) {
            want += number(is_small ? r : rank->size - 1 - r, i);
        }
        CHECK(memcmp(&x[i], &want, sizeof want) == 0);
    }
    free(x);
    return true;
}

static bool sum_sizes(struct rank *rank) {
    static const int64_t sizes[] = {0, 1, 3, 1000, SMALL / 2, SMALL / 2 + 1, SMALL, SMALL + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CHECK(sum_once(rank, sizes[i]));
    }
    for (int64_t round = 0; round < 60 / SLOWNESS; round++) {
        CHECK(sum_once(rank, 1 + round % 7 * 50));
    }
    return true;
}

static void test_sums_are_right(void **state) {
    static const int sizes[] = {1, 2, 3, 8};
    (void)state;
    assert_non_null(open_fake("fake_nccl", NULL));
    for (size_t i = 0; i < (SLOWNESS > 1 ? 2 : sizeof sizes / sizeof sizes[0]); i++) {
        struct ranks ranks = ranks_of(sizes[i]);
        ranks_run(&ranks, sum_sizes);
    }
}

// More sums than are watched at a time, and nobody waits for them.
static bool sum_ahead(struct rank *rank) {
    enum { ROUNDS = 70, N = SMALL + 1 };
    float *x = calloc(N, sizeof *x), *small = rank_put(rank, x, 4);
    x[N - 1] = 1;
    float *large = rank_put(rank, x, N * sizeof *x);
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(sl_group_sum(rank->group, rank->stream, small, 1, NULL) == SL_OK);
        CHECK(sl_group_sum(rank->group, rank->stream, large, N, NULL) == SL_OK);
    }
    CHECK(rank_take(rank, large, x, N * sizeof *x) && rank_take(rank, small, x, 4));
    free(x);
    return true;
}

static void test_sums_are_queued(void **state) {
    (void)state;
    assert_non_null(open_fake("fake_nccl", NULL));
    struct ranks ranks = ranks_of(2);
    ranks_run(&ranks, sum_ahead);
}

static bool gather_sizes(struct rank *rank) {
    static const size_t sizes[] = {0, 1, 4097, 524288, 1000001};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i], all = n * (size_t)rank->size;
        unsigned char *bytes = malloc(all + 1);
        memset(bytes, rank->number + 1, all);
        char *out = rank_put(rank, bytes, all);
        CHECK(sl_group_gather(rank->group, rank->stream, out + (size_t)rank->number * n, n, out, NULL) == SL_OK);
        CHECK(rank_take(rank, out, bytes, all));
        for (size_t j = 0; j < all; j++) {
            CHECK(bytes[j] == j / n + 1);
        }
        free(bytes);
    }
    return true;
}

static void test_gathers_are_right(void **state) {
    (void)state;
    assert_non_null(open_fake("fake_nccl", NULL));
    for (int size = 1; size <= (SLOWNESS > 1 ? 2 : 3); size++) {
        struct ranks ranks = ranks_of(size);
        ranks_run(&ranks, gather_sizes);
    }
}

static bool meet_once(struct rank *rank) {
    struct sl_error err = {0};
    int whose = -7;
    sl_fail(&err, SL_ERR_IO, "its disk");
    CHECK(sl_group_meet(rank->group, rank->number == 1 ? SL_ERR_IO : SL_OK, &whose, &err) == SL_ERR_IO && whose == 1);
    CHECK(strcmp(err.text, "rank 1 of 2: its disk") == 0 && sl_group_lost(rank->group) == -1);
    return true;
}

static void test_meetings_are_those_of_all_groups(void **state) {
    (void)state;
    assert_non_null(open_fake("fake_nccl", NULL));
    struct ranks ranks = ranks_of(2);
    ranks_run(&ranks, meet_once);
    assert_int_equal(atomic_load(&n_destroyed), 2);
    assert_int_equal(atomic_load(&n_aborted), 0);
}

// --- who does not come, and what does not end --------------------------------------------------------------------------

static bool lose_one(struct rank *rank) {
    struct sl_error err = {0};
    float x[1] = {1}, *there = rank_put(rank, x, sizeof x);
    CHECK(sl_group_sum(rank->group, rank->stream, there, 1, NULL) == SL_OK);
    if (rank->number == 0) {
        sl_sleep_ms(50);
        sl_group_abandon(rank->group);
    }
    CHECK(sl_group_sum(rank->group, rank->stream, there, 1, &err) == SL_ERR_PEER_LOST);
    CHECK(strcmp(err.text, "rank 0 of 3 has given up") == 0 && sl_group_lost(rank->group) == 0);
    return rank_take(rank, there, x, sizeof x);
}

static void test_who_gives_up_is_named(void **state) {
    (void)state;
    assert_non_null(open_fake("fake_nccl", NULL));
    struct ranks ranks = ranks_of(3);
    ranks_run(&ranks, lose_one);
    assert_int_equal(atomic_load(&n_destroyed), 0);
    assert_int_equal(atomic_load(&n_aborted), 3);
}

static bool sum_in_vain(struct rank *rank) {
    struct sl_error err = {0};
    float *there = sl_device_alloc(rank->device, SL_MEMORY_DEVICE, (SMALL + 1) * sizeof *there);
    memset(there, 0, (SMALL + 1) * sizeof *there); // the host's
    CHECK(sl_group_sum(rank->group, rank->stream, there, SMALL + 1, &err) == SL_ERR_PEER_LOST);
    CHECK(strstr(err.text, "ncclAllReduce has not ended for") != NULL || strstr(err.text, "has given up") != NULL);
    CHECK(sl_group_sum(rank->group, rank->stream, there, 1, &err) == SL_ERR_PEER_LOST);
    sl_device_free(rank->device, SL_MEMORY_DEVICE, there);
    return true;
}

static void test_a_call_that_does_not_end_is_ended(void **state) {
    (void)state;
    assert_non_null(open_fake("fake_nccl_hangs", NULL));
    struct ranks ranks = ranks_of(2);
    ranks.deadline_ms = DEADLINE_MS;
    ranks_run(&ranks, sum_in_vain);
}

static bool sum_that_stands_still(struct rank *rank) {
    struct sl_error err = {0};
    float *there = sl_device_alloc(rank->device, SL_MEMORY_DEVICE, (SMALL + 1) * sizeof *there);
    memset(there, 0, (SMALL + 1) * sizeof *there);
    // Nobody waits for the stream: what is before the sum was done by the fake, the event behind it is not reached.
    CHECK(sl_group_sum(rank->group, rank->stream, there, SMALL + 1, &err) == SL_OK);
    for (int64_t end = sl_deadline_in_ms(30000); sl_group_lost(rank->group) < 0 && sl_deadline_left_ms(end) > 0;) {
        sl_sleep_ms(5);
    }
    CHECK(sl_group_meet(rank->group, SL_OK, NULL, &err) == SL_ERR_PEER_LOST);
    CHECK(strstr(err.text, "come to a sum") != NULL);
    sl_device_free(rank->device, SL_MEMORY_DEVICE, there);
    return true;
}

static void test_a_sum_that_stands_still_is_ended(void **state) {
    (void)state;
    assert_non_null(open_fake("fake_nccl", NULL));
    struct ranks ranks = ranks_of(2);
    ranks.deadline_ms = DEADLINE_MS;
    ranks_run(&ranks, sum_that_stands_still);
}

// --- libraries ---------------------------------------------------------------------------------------------------------

static void assert_refused(const char *name, const char *said) {
    struct sl_error err = {0};
    if (open_fake(name, &err) != NULL || err.status != SL_ERR_UNSUPPORTED || strstr(err.text, said) == NULL) {
        fail_msg("%s: \"%s\" does not say \"%s\"", name, err.text, said);
    }
}

static void test_libraries_that_will_not_do_are_refused(void **state) {
    (void)state;
    assert_refused("no_nccl", "install version 2 of NCCL (libnccl2) where the loader finds it");
    assert_refused("fake_nccl_lacks", "has no ncclCommAbort");
    assert_refused("fake_nccl_old", "is version 21304, 21400 (2.14) or a newer one is needed");
}

static bool join_in_vain(struct rank *rank) {
    struct sl_error err = {0};
    CHECK(sl_group_join(&sl_group_nccl, &rank->config, &rank->group, &err) == SL_ERR_INTERNAL);
    CHECK(strstr(err.text, "NCCL says 3, the fake was made to fail; NCCL_DEBUG=INFO tells more") != NULL);
    return true;
}

static void test_a_library_that_fails_is_told_of(void **state) {
    (void)state;
    assert_non_null(open_fake("fake_nccl_fails", NULL));
    struct ranks ranks = ranks_of(1);
    ranks.join = false;
    ranks_run(&ranks, join_in_vain);
}

static enum sl_status join_fresh(void *arg, struct sl_error *err) {
    struct rank *rank = arg;
    memset(rank->config.hall, 0, sl_group_hall_bytes(1));
    enum sl_status status = sl_group_join(&sl_group_nccl, &rank->config, &rank->group, err);
    sl_group_leave(&rank->group);
    return status;
}

static bool join_without_memory(struct rank *rank) {
    CHECK(assert_refused_without_memory(join_fresh, rank) == 4); // its end, two slots, a thread
    return true;
}

static void test_joining_needs_memory(void **state) {
    (void)state;
    assert_non_null(open_fake("fake_nccl", NULL));
    struct ranks ranks = ranks_of(1);
    ranks.join = false;
    ranks_run(&ranks, join_without_memory);
}

static bool join_wrongly(struct rank *rank) {
    struct sl_error err = {0};
    rank->config.one_process = rank->kind != EMULATED;
    CHECK(sl_group_join(&sl_group_nccl, &rank->config, &rank->group, &err) == SL_ERR_UNSUPPORTED);
    CHECK(strstr(err.text, rank->kind == EMULATED ? "threads of one process" : "computes on processors") != NULL);
    rank->config.hall = NULL;
    CHECK(sl_group_join(&sl_group_nccl, &rank->config, &rank->group, &err) == SL_ERR_INVALID);
    return true;
}

static void test_ranks_are_gpus_of_one_process(void **state) {
    (void)state;
    for (int kind = THREADS; kind <= EMULATED; kind++) {
        struct ranks ranks = ranks_of(1);
        ranks.kind = (enum ranks_kind)kind;
        ranks.join = false;
        ranks_run(&ranks, join_wrongly);
    }
}

// Without a device it goes no further, but every function is there.
static void test_the_real_library_has_every_function(void **state) {
    struct sl_error err = {0};
    (void)state;
    if (real == NULL) {
        skip();
    }
    if (sl_nccl_open(real, &err) == NULL) {
        fail_msg("%s", err.text);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
#define TEST(test) cmocka_unit_test_setup_teardown(test, open_test, close_test)
        TEST(test_sums_are_right),
        TEST(test_sums_are_queued),
        TEST(test_gathers_are_right),
        TEST(test_meetings_are_those_of_all_groups),
        TEST(test_who_gives_up_is_named),
        TEST(test_a_call_that_does_not_end_is_ended),
        TEST(test_a_sum_that_stands_still_is_ended),
        TEST(test_libraries_that_will_not_do_are_refused),
        TEST(test_a_library_that_fails_is_told_of),
        TEST(test_joining_needs_memory),
        TEST(test_ranks_are_gpus_of_one_process),
        TEST(test_the_real_library_has_every_function),
    };
    folder = argc > 1 ? argv[1] : ".";
    real = argc > 2 && argv[2][0] != '\0' ? argv[2] : NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
