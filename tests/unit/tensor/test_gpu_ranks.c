// SPDX-License-Identifier: Apache-2.0
// Purpose: ranks whose devices have memory of their own: operations on devices other than rank 0's, over the emulator.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/tensor/cpu/tiers.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/driver.h"
#include "engine/tensor/cuda/table/ops.h"
#include "engine/tensor/ranks/internal.h"

#define RANKS 2

struct world {
    struct gpu_driver driver;
    struct sl_team *teams[RANKS];
    struct sl_device *device;
    struct sl_ops each;
    const struct sl_ops *ops;
    struct sl_stream *stream;
};

static const struct gpu_queue *wrong; // of the device that has failed

// The emulator's devices fail together. CUDA's do not: the others go on.
static enum sl_status look(struct gpu_queue *queue, struct sl_error *err) {
    return queue == wrong ? sl_fail(err, SL_ERR_INTERNAL, "an address that is nobody's") : SL_OK;
}

static const struct sl_stream *full; // has no room for page lists

static enum sl_status publish(struct sl_stream *stream, struct sl_kv_heads *heads, struct sl_error *err) {
    (void)heads;
    return stream == full ? sl_fail(err, SL_ERR_EXHAUSTED, "no room") : SL_OK;
}

static void open_world(struct world *w) {
    struct sl_ranks_config config = {.n = RANKS};
    const struct sl_ops *host;
    assert_int_equal(sl_ops_select("reference", &host, NULL), SL_OK);
    w->driver = sl_gpu_emulator;
    w->driver.queue_look = look;
    w->driver.progress = NULL; // as CUDA has it
    w->each = *sl_gpu_ops(&w->driver, host);
    w->each.publish = publish;
    config.ops = &w->each;
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(sl_team_create(1, &w->teams[i], NULL), SL_OK);
        assert_int_equal(sl_gpu_device_open(&w->driver, i, w->teams[i], &config.devices[i], NULL), SL_OK);
        config.teams[i] = w->teams[i];
    }
    assert_int_equal(sl_ranks_open(&config, &w->device, &w->ops, NULL), SL_OK);
    w->stream = sl_device_stream(w->device, SL_STREAM_COMPUTE);
}

static void close_world(struct world *w) {
    sl_device_close(&w->device);
    for (int i = 0; i < RANKS; i++) {
        sl_team_destroy(&w->teams[i]);
    }
}

static void test_a_device_that_fails_while_rank_0_goes_on_is_named(void **state) {
    struct world w;
    struct sl_error err;
    (void)state;
    open_world(&w);
    assert_int_equal(sl_stream_wait(w.stream, &err), SL_OK);
    wrong = sl_gpu_stream(sl_device_stream(sl_ranks_device(w.device, 1), SL_STREAM_COMPUTE))->queue;
    assert_int_equal(sl_stream_wait(w.stream, &err), SL_ERR_INTERNAL);
    assert_string_equal(err.text, "rank 1 of 2: an address that is nobody's");
    assert_true(sl_device_has_failed(w.device));
    wrong = NULL;
    close_world(&w);
}

static void test_a_rank_that_cannot_publish_is_named(void **state) {
    struct world w;
    struct sl_kv_heads none = {.n = 0};
    struct sl_error err;
    (void)state;
    open_world(&w);
    assert_int_equal(w.ops->publish(w.stream, &none, &err), SL_OK);
    full = sl_device_stream(sl_ranks_device(w.device, 1), SL_STREAM_COMPUTE);
    assert_int_equal(w.ops->publish(w.stream, &none, &err), SL_ERR_EXHAUSTED);
    assert_string_equal(err.text, "rank 1 of 2: no room");
    full = NULL;
    close_world(&w);
}

struct copy_call {
    struct sl_ranks_call call;
    int *to;
    const int *from;
};

static void copy_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct copy_call *c = (const struct copy_call *)call;
    if (rank == 1) {
        sl_stream_copy(stream, c->to, c->from, sizeof *c->to);
    }
}

// A thread that waits for another rank's stream alone finds done what rank 0's stream had queued before the call.
static void test_ranks_begin_behind_what_rank_0_has_queued(void **state) {
    struct world w;
    (void)state;
    open_world(&w);
    int *shared = sl_device_alloc(w.device, SL_MEMORY_SHARED, 2 * sizeof *shared);
    int *there = sl_device_alloc(w.device, SL_MEMORY_DEVICE, sizeof *there);
    shared[0] = 7;
    shared[1] = 0;
    sl_stream_copy(w.stream, there, shared, sizeof *there);
    struct copy_call c = {{sl_ranks_of(w.stream), RANKS, copy_part}, shared + 1, there};
    SL_RANKS_RUN(c);
    assert_int_equal(sl_stream_wait(sl_device_stream(sl_ranks_device(w.device, 1), SL_STREAM_COMPUTE), NULL), SL_OK);
    assert_int_equal(shared[1], 7);
    sl_device_free(w.device, SL_MEMORY_SHARED, shared);
    sl_device_free(w.device, SL_MEMORY_DEVICE, there);
    close_world(&w);
}

// More marks than are told apart: those that are seen to be reached count from the oldest that can be seen on.
static void test_progress_is_seen_far_behind_the_host(void **state) {
    struct world w;
    struct sl_mark marks[300];
    (void)state;
    open_world(&w);
    struct sl_device *device = sl_ranks_device(w.device, 1);
    struct sl_stream *stream = sl_device_stream(device, SL_STREAM_COMPUTE);
    for (int i = 0; i < 300; i++) {
        marks[i] = sl_stream_mark(stream);
    }
    uint64_t seen = 0;
    for (int i = 300 - GPU_EVENTS + 1; i < 300; i++) {
        assert_int_equal(sl_mark_wait(&marks[i], NULL), SL_OK);
        uint64_t now = sl_device_progress(device);
        assert_true(now > seen);
        seen = now;
    }
    close_world(&w);
}

// Every rank has a block at an address of its own; without room on one of them there is none, and nothing is held.
static void test_replicated_memory_is_every_ranks(void **state) {
    struct world w;
    (void)state;
    open_world(&w);
    struct sl_ranks *ranks = sl_ranks_of(w.stream);
    char *x = sl_device_alloc(w.device, SL_MEMORY_REPLICATED, 4000), *ordinary;
    assert_true(sl_ranks_is_replicated(ranks, x) && sl_ranks_is_replicated(ranks, x + 3999));
    assert_false(sl_ranks_is_replicated(ranks, x + 4000));
    assert_ptr_equal(sl_ranks_here(ranks, 0, x + 8), x + 8);
    char *other = sl_ranks_here(ranks, 1, x);
    assert_true(other != NULL && other != x);
    assert_ptr_equal(sl_ranks_here(ranks, 1, x + 8), other + 8);
    assert_null(sl_ranks_here(ranks, 1, NULL));
    ordinary = sl_device_alloc(w.device, SL_MEMORY_DEVICE, 100);
    assert_ptr_equal(sl_ranks_here(ranks, 1, ordinary), ordinary);
    sl_emu_use(1);
    size_t used = sl_emu_used();
    sl_emu_set_room(used + 2000);
    assert_null(sl_device_alloc(w.device, SL_MEMORY_REPLICATED, 4000));
    sl_emu_use(1);
    assert_int_equal(sl_emu_used(), used);
    sl_emu_set_room((size_t)1 << 30);
    sl_device_free(w.device, SL_MEMORY_REPLICATED, x);
    assert_false(sl_ranks_is_replicated(ranks, x));
    sl_device_free(w.device, SL_MEMORY_DEVICE, ordinary);
    close_world(&w);
    sl_emu_use(1);
    assert_int_equal(sl_emu_used(), 0);
}

// A copy into replicated memory reaches every replica.
static void test_copies_reach_all_replicas(void **state) {
    struct world w;
    (void)state;
    open_world(&w);
    struct sl_ranks *ranks = sl_ranks_of(w.stream);
    int *shared = sl_device_alloc(w.device, SL_MEMORY_SHARED, 2 * sizeof *shared);
    int *x = sl_device_alloc(w.device, SL_MEMORY_REPLICATED, 2 * sizeof *x);
    shared[0] = 7;
    sl_stream_copy(w.stream, x + 1, shared, sizeof *x);
    for (int r = 0; r < RANKS; r++) {
        shared[1] = 0;
        sl_stream_copy(w.stream, shared + 1, sl_ranks_here(ranks, r, x + 1), sizeof *x);
        assert_int_equal(sl_stream_wait(w.stream, NULL), SL_OK);
        assert_int_equal(shared[1], 7);
    }
    sl_device_free(w.device, SL_MEMORY_SHARED, shared);
    sl_device_free(w.device, SL_MEMORY_REPLICATED, x);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_device_that_fails_while_rank_0_goes_on_is_named),
        cmocka_unit_test(test_a_rank_that_cannot_publish_is_named),
        cmocka_unit_test(test_ranks_begin_behind_what_rank_0_has_queued),
        cmocka_unit_test(test_replicated_memory_is_every_ranks),
        cmocka_unit_test(test_copies_reach_all_replicas),
        cmocka_unit_test(test_progress_is_seen_far_behind_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
