// SPDX-License-Identifier: Apache-2.0
/*
 * Ranks with memory of their own gather by ncclAllGather: over the emulator, and a library that is made here (fake_nccl.c). What they
 * compute has the bits of one device, by NCCL or by copies; what does not end is ended, and names a rank.
 *
 *     test_nccl FOLDER [REAL]    of the fakes; a libnccl of NVIDIA's, or nothing
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/thread.h"
#include "engine/tensor/cpu/tiers.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/driver.h"
#include "engine/tensor/cuda/group/nccl.h"
#include "engine/tensor/cuda/group/nccl_group.h"
#include "engine/tensor/cuda/launching.h"
#include "engine/tensor/cuda/table/ops.h"
#include "engine/tensor/half.h"
#include "engine/tensor/ranks/internal.h"
#include "tests/unit/scarce.h"
#include "tests/unit/slowness.h"

#define STILL_MS (300 * SLOWNESS)
#define MOST     4 // ranks

static const char *folder, *real;
static struct gpu_driver driver; // device memory is the host's, for the fakes

// Replaces the function of the plugin's driver (launching.h).
void sl_cuda_launching(const char *what) {
    (void)what;
}

// --- events that are never reached -------------------------------------------------------------------------------------

// While a queue is held, its events are not reached, as after a kernel that never ends; until the communicators are aborted.
static struct {
    pthread_mutex_t lock;
    int from_gather; // hold all queues once so many gathers were called; 0: no
    bool all;        // they are held
    struct gpu_queue *queue;
    struct gpu_event *events[64];
    int n;
} held = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_held(const struct gpu_event *event) {
    bool found = false;
    pthread_mutex_lock(&held.lock);
    for (int i = 0; i < held.n; i++) {
        found = found || held.events[i] == event;
    }
    pthread_mutex_unlock(&held.lock);
    return found;
}

static void record(struct gpu_event *event, struct gpu_queue *queue) {
    pthread_mutex_lock(&held.lock);
    if ((held.all || queue == held.queue) && held.n < (int)(sizeof held.events / sizeof held.events[0])) {
        held.events[held.n++] = event;
    }
    pthread_mutex_unlock(&held.lock);
    sl_gpu_emulator.event_record(event, queue);
}

static bool reached(struct gpu_event *event) {
    return !is_held(event) && sl_gpu_emulator.event_reached(event);
}

static bool wait_until(struct gpu_event *event, int64_t until_ns) {
    while (is_held(event) && sl_now_ns() < until_ns) {
        sl_sleep_ms(2);
    }
    return !is_held(event) && sl_gpu_emulator.event_wait_until(event, until_ns);
}

// --- what the fake tells and asks --------------------------------------------------------------------------------------

static atomic_int n_destroyed, n_aborted, n_gathers;
static _Atomic size_t n_gathered_bytes; // of a rank's own parts

// A stream is in order: what was queued before a gather is done before it.
void fake_nccl_before(void *stream, size_t bytes);
__attribute__((visibility("default"))) void fake_nccl_before(void *stream, size_t bytes) {
    struct gpu_event *event = sl_emu_event_open();
    sl_emu_event_record(event, stream);
    sl_emu_event_wait(event);
    sl_emu_event_close(&event);
    atomic_fetch_add(&n_gathered_bytes, bytes);
    int n = atomic_fetch_add(&n_gathers, 1) + 1;
    pthread_mutex_lock(&held.lock);
    held.all = held.all || (held.from_gather > 0 && n >= held.from_gather);
    pthread_mutex_unlock(&held.lock);
}

// Counts communicators that were aborted, or destroyed; the fake library calls it.
void fake_nccl_ended(int aborted);
__attribute__((visibility("default"))) void fake_nccl_ended(int aborted) {
    atomic_fetch_add(aborted ? &n_aborted : &n_destroyed, 1);
    pthread_mutex_lock(&held.lock);
    held.from_gather = 0;
    held.all = false;
    held.queue = NULL;
    held.n = 0;
    pthread_mutex_unlock(&held.lock);
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
    driver.event_record = record;
    driver.event_reached = reached;
    driver.event_wait_until = wait_until;
    driver.progress = NULL; // as CUDA has it
    atomic_store(&n_destroyed, 0);
    atomic_store(&n_aborted, 0);
    atomic_store(&n_gathers, 0);
    atomic_store(&n_gathered_bytes, 0);
    return 0;
}

static int close_test(void **state) {
    (void)state;
    sl_nccl_close();
    return sl_emu_used() != 0;
}

// --- devices and ranks of them -----------------------------------------------------------------------------------------

struct world {
    struct sl_team *teams[MOST];
    struct sl_device *device;
    const struct sl_ops *ops;
    struct sl_stream *stream;
};
static struct world lost_worlds[4]; // whose devices stay: a thread may come back to them
static int n_lost;

static enum sl_status try_world(int n, const struct sl_group_ops *group, struct world *w, struct sl_error *err) {
    struct sl_ranks_config config = {.n = n, .group = group, .still_ms = STILL_MS};
    const struct sl_ops *host;
    *w = (struct world){0};
    assert_int_equal(sl_ops_select("reference", &host, NULL), SL_OK);
    config.ops = sl_gpu_ops(&driver, host);
    for (int r = 0; r < n; r++) {
        assert_int_equal(sl_team_create(1, &w->teams[r], NULL), SL_OK);
        assert_int_equal(sl_gpu_device_open(&driver, r, w->teams[r], &config.devices[r], NULL), SL_OK);
        config.teams[r] = w->teams[r];
    }
    enum sl_status status = sl_ranks_open(&config, &w->device, &w->ops, err);
    for (int r = 0; r < n && status != SL_OK; r++) {
        sl_device_close(&config.devices[r]);
    }
    if (status == SL_OK) {
        w->stream = sl_device_stream(w->device, SL_STREAM_COMPUTE);
    }
    return status;
}

static void open_world(int n, const struct sl_group_ops *group, struct world *w) {
    struct sl_error err;
    if (try_world(n, group, w, &err) != SL_OK) {
        fail_msg("%d ranks: %s", n, err.text);
    }
}

static void close_world(struct world *w) {
    sl_device_close(&w->device);
    for (int r = 0; r < MOST; r++) {
        sl_team_destroy(&w->teams[r]);
    }
}

static void put(struct world *w, void *there, const void *from, size_t bytes) {
    void *shared = sl_device_alloc(w->device, SL_MEMORY_SHARED, bytes);
    memcpy(shared, from, bytes);
    sl_stream_copy(w->stream, there, shared, bytes);
    assert_int_equal(sl_stream_wait(w->stream, NULL), SL_OK);
    sl_device_free(w->device, SL_MEMORY_SHARED, shared);
}

static void fill(float *x, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)(sl_mix(seed + (uint64_t)i * SL_GOLDEN) % 20011) / 10000.0f - 1.0f;
    }
}

// --- products ----------------------------------------------------------------------------------------------------------

static const struct product_case {
    int64_t n, k, m, n_columns;
    bool gated, accumulate, rounded;
    enum sl_dtype dtype;
    size_t exchange_bytes; // 0: as large as it is
} products[] = {
    {256, 64, 3, 0, false, false, false, SL_BF16, 0},    {256, 64, 3, 0, false, true, false, SL_BF16, 0},
    {200, 64, 5, 0, true, false, true, SL_BF16, 0},    // 100 columns: shares that are not alike, one of part of a unit
    {192, 64, 2, 70, false, false, false, SL_BF16, 0}, // columns that end within a rank's
    {32, 64, 4, 0, false, false, true, SL_BF16, 0},    // of one rank alone
    {96, 40, 20, 0, false, false, true, SL_F32, 0},    // read as it is: not rounded
    {256, 64, 20, 0, false, true, false, SL_BF16, 8192}, // eight rows go at once
};

struct outcome {
    float *y[MOST]; // of every replica
    int64_t n;
};

static void free_outcome(struct outcome *o) {
    for (int r = 0; r < MOST; r++) {
        free(o->y[r]);
    }
}

static void make_matrix(const struct product_case *p, void *stored, struct sl_matrix *w) {
    float *numbers = malloc((size_t)(p->n * p->k) * sizeof *numbers);
    fill(numbers, p->n * p->k, 1);
    for (int64_t i = 0; i < p->n * p->k; i++) {
        if (p->dtype == SL_F32) {
            ((float *)stored)[i] = numbers[i];
        } else {
            ((uint16_t *)stored)[i] = sl_f32_to_bf16(numbers[i]);
        }
    }
    free(numbers);
    *w = (struct sl_matrix){.n = p->n,
                            .k = p->k,
                            .dtype = p->dtype,
                            .activation = p->gated ? SL_ACT_SILU : SL_ACT_NONE,
                            .gated = p->gated,
                            .parts = {{stored, p->n}}};
}

// y of all replicas, after a norm of x: both are replicated.
static struct outcome multiply(const struct product_case *p, struct world *w) {
    int64_t outputs = p->gated ? p->n / 2 : p->n, y_stride = outputs + 5, n_x = p->m * p->k;
    struct outcome o = {.n = p->m * y_stride};
    float *numbers = malloc((size_t)(o.n + n_x) * sizeof *numbers);
    void *stored = malloc((size_t)(p->n * p->k) * sizeof(float));
    struct sl_matrix matrix;
    make_matrix(p, stored, &matrix);
    assert_int_equal(w->ops->pack(w->stream, &matrix, NULL), SL_OK);
    assert_true(matrix.rounds_x == (p->dtype == SL_BF16));
    float *block =
        sl_device_alloc(w->device, SL_MEMORY_REPLICATED, (size_t)(2 * n_x + p->k + 16 + o.n) * sizeof *block);
    float *x = block, *h = x + n_x, *weight = h + n_x, *y = weight + p->k + 16;
    fill(numbers, n_x, 2);
    put(w, x, numbers, (size_t)n_x * sizeof *x);
    fill(numbers, p->k, 3);
    put(w, weight, numbers, (size_t)p->k * sizeof *x);
    fill(numbers, o.n, 4);
    put(w, y, numbers, (size_t)o.n * sizeof *x);
    const struct sl_norm norm = {SL_NORM_RMS, p->k, 1e-5f, weight, NULL};
    const struct sl_matmul args = {.x = h,
                                   .x_stride = p->k,
                                   .m = p->m,
                                   .y = y,
                                   .y_stride = y_stride,
                                   .n_columns = p->n_columns,
                                   .accumulate = p->accumulate,
                                   .then = p->rounded ? &matrix : NULL};
    if (p->exchange_bytes > 0 && sl_ranks_count(w->device) > 1) {
        sl_ranks_of(w->stream)->exchange_bytes = p->exchange_bytes;
    }
    w->ops->norm(w->stream, &norm, (struct sl_row_vectors){x, p->k, p->m, 1}, h, p->k);
    w->ops->matmul(w->stream, &matrix, &args);
    assert_int_equal(sl_stream_wait(w->stream, NULL), SL_OK);
    int n = sl_ranks_count(w->device);
    for (int r = 0; r < n; r++) { // device memory is the host's here
        o.y[r] = malloc((size_t)o.n * sizeof *o.y[r]);
        memcpy(o.y[r], n > 1 ? sl_ranks_here(sl_ranks_of(w->stream), r, y) : y, (size_t)o.n * sizeof *o.y[r]);
    }
    w->ops->unpack(&matrix);
    sl_device_free(w->device, SL_MEMORY_REPLICATED, block);
    free(stored);
    free(numbers);
    return o;
}

static float round_bf16(float x) {
    return sl_bf16_to_f32(sl_f32_to_bf16(x));
}

// Asserts equal outputs, after rounding where the product is to be read rounded.
static void assert_alike(const struct product_case *p, const struct outcome *one, const struct outcome *several,
                         int n) {
    bool rounded = p->rounded && p->dtype == SL_BF16;
    for (int r = 0; r < n; r++) {
        for (int64_t i = 0; i < one->n; i++) {
            float want = rounded ? round_bf16(one->y[0][i]) : one->y[0][i];
            float got = rounded ? round_bf16(several->y[r][i]) : several->y[r][i];
            if (memcmp(&want, &got, sizeof want) != 0) {
                fail_msg("product %d, rank %d of %d: [%lld] is %g, of one device %g", (int)(p - products), r, n,
                         (long long)i, (double)got, (double)want);
            }
        }
    }
}

static void check_products(const struct sl_group_ops *group) {
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
        struct world w;
        struct outcome one = {0};
        for (int n = 1; n <= MOST; n += n < 2 || SLOWNESS > 1 ? 1 : 2) {
            open_world(n, n > 1 ? group : NULL, &w);
            struct outcome several = multiply(&products[i], &w);
            if (n == 1) {
                one = several;
            } else {
                assert_alike(&products[i], &one, &several, n);
                free_outcome(&several);
            }
            close_world(&w);
        }
        free_outcome(&one);
    }
}

static void test_products_gather_by_nccl(void **state) {
    (void)state;
    assert_non_null(open_fake("fake_nccl", NULL));
    check_products(&sl_group_nccl);
    assert_true(atomic_load(&n_gathers) > 0 && atomic_load(&n_aborted) == 0);
    assert_true(atomic_load(&n_destroyed) > 0);
}

static void test_products_gather_by_copies(void **state) {
    (void)state;
    check_products(NULL);
    assert_int_equal(atomic_load(&n_gathers), 0);
}

// A part has a share of m rows; rounded it is half as large. Every rank sends its part to every other one, and rank 0 no more.
static void test_what_products_round_travels_rounded(void **state) {
    (void)state;
    assert_non_null(open_fake("fake_nccl", NULL));
    for (int rounded = 0; rounded < 2; rounded++) {
        const struct product_case p = {.n = 256, .k = 64, .m = 3, .rounded = rounded != 0, .dtype = SL_BF16};
        struct world w;
        atomic_store(&n_gathered_bytes, 0);
        open_world(2, &sl_group_nccl, &w);
        struct outcome o = multiply(&p, &w);
        size_t part = 3 * 128 * (rounded ? 2 : 4);
        assert_int_equal(atomic_load(&n_gathered_bytes), 2 * part);
        free_outcome(&o);
        close_world(&w);
    }
}

// --- what does not come, and what does not end -------------------------------------------------------------------------

struct gather_call {
    struct sl_ranks_call call;
    struct sl_columns columns;
};

static void gather_only(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    sl_ranks_gather_part(call, rank, stream, &((const struct gather_call *)call)->columns);
}

static void gather(struct world *w) {
    struct sl_ranks *ranks = sl_ranks_of(w->stream);
    float *x = sl_device_alloc(w->device, SL_MEMORY_REPLICATED, 1024);
    struct gather_call c = {{ranks, ranks->n, gather_only}, {.x = x, .stride = 64, .m = 4, .n_parts = ranks->n}};
    for (int r = 0; r <= ranks->n; r++) {
        c.columns.bounds[r] = 16 * r;
    }
    SL_RANKS_RUN(c);
}

// The time limit passes, communicators are aborted, and everything fails for good.
static void assert_ended(int n, const char *says) {
    struct world *w = &lost_worlds[n_lost++];
    struct sl_error err;
    open_world(n, &sl_group_nccl, w);
    if (says == NULL) { // rank 2's device stands still before its gather
        pthread_mutex_lock(&held.lock);
        held.queue = sl_gpu_stream(sl_ranks_compute(sl_ranks_of(w->stream), 2))->queue;
        pthread_mutex_unlock(&held.lock);
        says = "rank 2 of 3 has got nothing done for ";
    }
    gather(w);
    assert_int_equal(sl_stream_wait(w->stream, &err), SL_ERR_INTERNAL);
    if (strstr(err.text, says) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, says);
    }
    assert_int_equal(atomic_load(&n_aborted), n);
    assert_int_equal(atomic_load(&n_destroyed), 0);
    int n_before = atomic_load(&n_gathers);
    gather(w);
    assert_int_equal(atomic_load(&n_gathers), n_before);
    assert_int_equal(sl_stream_wait(w->stream, NULL), SL_ERR_INTERNAL);
}

static void test_a_call_that_does_not_end_is_ended(void **state) {
    (void)state;
    assert_non_null(open_fake("fake_nccl_hangs", NULL));
    assert_ended(2, "ncclAllGather has not ended for ");
}

static void test_a_gather_that_stands_still_is_ended(void **state) {
    (void)state;
    assert_non_null(open_fake("fake_nccl", NULL));
    held.from_gather = 2;
    assert_ended(2, "rank 1 of 2 has got nothing done for ");
}

static void test_the_rank_that_others_wait_for_is_named(void **state) {
    (void)state;
    assert_non_null(open_fake("fake_nccl", NULL));
    held.from_gather = 3;
    assert_ended(3, NULL);
}

struct alone {
    struct sl_group *group;
    struct sl_stream *stream;
    int rank;
    enum sl_status status;
};

static void *join_alone(void *arg) {
    struct alone *a = arg;
    a->status = a->group->ops->join(a->group, a->rank, a->stream, NULL);
    return NULL;
}

// Two ranks have joined and one does not call: the other one names it, and says that it waited.
static void test_a_rank_that_does_not_call_is_named(void **state) {
    struct sl_group *group = NULL;
    struct sl_device *device = NULL;
    struct sl_error err;
    pthread_t thread;
    (void)state;
    assert_non_null(open_fake("fake_nccl_hangs", NULL));
    assert_int_equal(sl_gpu_device_open(&driver, 0, NULL, &device, NULL), SL_OK);
    assert_int_equal(sl_group_nccl.open(2, 50, &group, NULL), SL_OK);
    struct sl_stream *stream = sl_device_stream(device, SL_STREAM_COMPUTE);
    struct alone other = {group, stream, 1, SL_OK};
    assert_int_equal(sl_thread_start("rank-1", join_alone, &other, &thread, NULL), SL_OK);
    assert_int_equal(group->ops->join(group, 0, stream, NULL), SL_OK);
    pthread_join(thread, NULL);
    assert_int_equal(other.status, SL_OK);
    char *parts = sl_device_alloc(device, SL_MEMORY_DEVICE, 64);
    assert_int_equal(group->ops->gather(group, 0, stream, parts, 32, &err), SL_ERR_PEER_LOST);
    assert_non_null(strstr(err.text, "rank 1 of 2 has not come to ncclAllGather for "));
    assert_int_equal(group->ops->lost(group), 1);
    group->ops->abort(group);
    assert_int_equal(atomic_load(&n_aborted), 2);
    assert_int_equal(group->ops->gather(group, 0, stream, parts, 32, &err), SL_ERR_PEER_LOST);
    group->ops->close(group);
    sl_device_free(device, SL_MEMORY_DEVICE, parts);
    sl_device_close(&device);
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

static enum sl_status refuse(int n, int64_t still_ms, struct sl_group **group_out, struct sl_error *err) {
    (void)n;
    (void)still_ms;
    (void)group_out;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "no library");
}

// Ranks without the library compute all the same.
static void test_ranks_copy_where_there_is_no_library(void **state) {
    struct sl_group_ops none = sl_group_nccl;
    (void)state;
    none.open = refuse;
    check_products(&none);
    assert_int_equal(atomic_load(&n_gathers), 0);
}

static void test_a_library_that_fails_is_told_of(void **state) {
    struct world w;
    struct sl_error err;
    (void)state;
    assert_non_null(open_fake("fake_nccl_fails", NULL));
    assert_int_equal(try_world(2, &sl_group_nccl, &w, &err), SL_ERR_INTERNAL);
    assert_non_null(
        strstr(err.text, "rank 0 of 2: ncclCommInitRank: NCCL says 3, the fake was made to fail; NCCL_DEBUG"));
    close_world(&w);
}

static enum sl_status open_fresh(void *arg, struct sl_error *err) {
    struct sl_group *group = NULL;
    (void)arg;
    enum sl_status status = sl_group_nccl.open(1, STILL_MS, &group, err);
    if (status == SL_OK) {
        group->ops->close(group);
    }
    return status;
}

static void test_opening_needs_memory(void **state) {
    (void)state;
    assert_non_null(open_fake("fake_nccl", NULL));
    assert_int_equal(assert_refused_without_memory(open_fresh, NULL), 1);
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
        TEST(test_products_gather_by_nccl),
        TEST(test_products_gather_by_copies),
        TEST(test_what_products_round_travels_rounded),
        TEST(test_a_call_that_does_not_end_is_ended),
        TEST(test_a_gather_that_stands_still_is_ended),
        TEST(test_the_rank_that_others_wait_for_is_named),
        TEST(test_a_rank_that_does_not_call_is_named),
        TEST(test_libraries_that_will_not_do_are_refused),
        TEST(test_ranks_copy_where_there_is_no_library),
        TEST(test_a_library_that_fails_is_told_of),
        TEST(test_opening_needs_memory),
        TEST(test_the_real_library_has_every_function),
    };
    folder = argc > 1 ? argv[1] : ".";
    real = argc > 2 && argv[2][0] != '\0' ? argv[2] : NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
