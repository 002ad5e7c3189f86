// SPDX-License-Identifier: Apache-2.0
// A GPU as a device, over the emulator: its memory is not the host's, and queued work is done once a thread waits for it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/tensor/cpu/tiers.h"
#include "engine/tensor/cuda/dense/launch.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/driver.h"
#include "engine/tensor/cuda/table/ops.h"

static struct sl_device *open_device(void) {
    struct sl_device *device;
    assert_int_equal(sl_gpu_device_open(&sl_gpu_emulator, 0, NULL, &device, NULL), SL_OK);
    return device;
}

static void test_gpu_device_computes_when_waited_for(void **state) {
    struct sl_device *device = open_device();
    struct sl_stream *stream = sl_device_stream(device, SL_STREAM_COMPUTE);
    int *shared = sl_device_alloc(device, SL_MEMORY_SHARED, 2 * sizeof *shared);
    int *there = sl_device_alloc(device, SL_MEMORY_DEVICE, sizeof *there);
    (void)state;
    assert_false(device->ops->one_memory);
    shared[0] = 7;
    shared[1] = 0;
    sl_stream_copy(stream, there, shared, sizeof *there);
    sl_stream_copy(stream, shared + 1, there, sizeof *there);
    struct sl_mark mark = sl_stream_mark(stream);
    assert_false(sl_mark_reached(&mark));
    assert_int_equal(shared[1], 0);
    assert_int_equal(sl_mark_wait(&mark, NULL), SL_OK);
    assert_true(sl_mark_reached(&mark));
    assert_int_equal(shared[1], 7);
    sl_device_free(device, SL_MEMORY_SHARED, shared);
    sl_device_free(device, SL_MEMORY_DEVICE, there);
    sl_device_close(&device);
}

static void test_gpu_device_keeps_the_order_of_two_streams(void **state) {
    struct sl_device *device = open_device();
    struct sl_stream *compute = sl_device_stream(device, SL_STREAM_COMPUTE);
    struct sl_stream *out = sl_device_stream(device, SL_STREAM_OUT);
    int *shared = sl_device_alloc(device, SL_MEMORY_SHARED, 2 * sizeof *shared);
    int *there = sl_device_alloc(device, SL_MEMORY_DEVICE, sizeof *there);
    (void)state;
    for (int i = 1; i < 200; i++) { // more marks than are told apart
        shared[0] = i;
        sl_stream_copy(compute, there, shared, sizeof *there);
        struct sl_mark made = sl_stream_mark(compute);
        sl_stream_after(out, &made);
        sl_stream_copy(out, shared + 1, there, sizeof *there);
        assert_int_equal(sl_stream_wait(out, NULL), SL_OK);
        assert_int_equal(shared[1], i);
        assert_true(sl_mark_reached(&made));
    }
    sl_device_free(device, SL_MEMORY_SHARED, shared);
    sl_device_free(device, SL_MEMORY_DEVICE, there);
    sl_device_close(&device);
}

static void test_gpu_stream_describes_more_than_its_ring(void **state) {
    struct sl_device *device = open_device();
    struct sl_stream *stream = sl_device_stream(device, SL_STREAM_COMPUTE);
    struct gpu_stream *s = sl_gpu_stream(stream);
    enum { PIECE = 1000003, N = 40 }; // 40 MB through 4
    unsigned char *bytes = malloc(PIECE), *back = sl_device_alloc(device, SL_MEMORY_SHARED, N);
    (void)state;
    for (int i = 0; i < N; i++) {
        memset(bytes, i + 1, PIECE);
        char *there = sl_gpu_describe(s, bytes, PIECE);
        assert_non_null(there);
        sl_stream_copy(stream, back + i, there + PIECE - 1, 1);
    }
    assert_int_equal(sl_stream_wait(stream, NULL), SL_OK);
    for (int i = 0; i < N; i++) {
        assert_int_equal(back[i], i + 1);
    }
    free(bytes);
    sl_device_free(device, SL_MEMORY_SHARED, back);
    sl_device_close(&device);
}

static void test_gpu_stream_says_what_it_had_no_room_for(void **state) {
    struct sl_device *device = open_device();
    struct sl_stream *stream = sl_device_stream(device, SL_STREAM_COMPUTE);
    struct sl_error err = {0};
    void *here;
    (void)state;
    sl_stream_hold(stream);
    sl_stream_hold(stream);
    assert_null(sl_gpu_describe_begin(sl_gpu_stream(stream), sl_gpu_emulator.ring_bytes, &here));
    assert_int_equal(sl_stream_wait(stream, &err), SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "page lists"));
    assert_int_equal(sl_stream_wait(stream, &err), SL_ERR_EXHAUSTED); // and again
    assert_int_equal(sl_stream_release(stream, NULL), SL_OK); // the last one says it, and later steps may do better
    assert_int_equal(sl_stream_release(stream, &err), SL_ERR_EXHAUSTED);
    assert_int_equal(sl_stream_wait(stream, &err), SL_OK);
    assert_false(sl_device_has_failed(device));
    sl_device_close(&device);
}

// Positions of slots, by way of published page lists; of a part of the heads, too.
static void test_gpu_heads_are_found_where_they_were_published(void **state) {
    struct sl_device *device = open_device();
    struct sl_stream *stream = sl_device_stream(device, SL_STREAM_COMPUTE);
    const struct sl_ops *host;
    assert_int_equal(sl_ops_select("reference", &host, NULL), SL_OK);
    const struct sl_ops *ops = sl_gpu_ops(&sl_gpu_emulator, host);
    struct sl_page_layout layout;
    enum { HEADS = 3, SLOTS = 130 };
    assert_int_equal(sl_page_layout_init(&layout, SL_KV_F16, 16, 1, true), SL_OK);
    (void)state;
    struct sl_kv kv[HEADS];
    void *pages[HEADS][3], *blocks[HEADS * 3], *shared = sl_device_alloc(device, SL_MEMORY_SHARED, layout.bytes);
    for (int h = 0; h < HEADS; h++) {
        for (int p = 0; p < 3; p++) {
            pages[h][p] = blocks[3 * h + p] = sl_device_alloc(device, SL_MEMORY_DEVICE, layout.bytes);
            for (int j = 0; j < SL_PAGE_SLOTS; j++) {
                ((float *)((char *)shared + layout.states))[j] = (float)(1000 * h + SL_PAGE_SLOTS * p + j);
            }
            sl_stream_copy(stream, pages[h][p], shared, layout.bytes);
            assert_int_equal(sl_stream_wait(stream, NULL), SL_OK);
        }
        kv[h] = (struct sl_kv){pages[h], 0, SLOTS, &layout, &layout};
    }
    struct sl_kv_heads heads = {.kv = kv, .n = HEADS};
    assert_int_equal(ops->publish(stream, &heads, NULL), SL_OK);
    memset(pages, 0, sizeof pages[0]); // the host's list may change
    for (int i = 0; i < 2000; i++) {   // a step of many sequences, each of which publishes its own
        struct sl_kv_heads other = {.kv = kv, .n = 1};
        assert_int_equal(ops->publish(stream, &other, NULL), SL_OK);
    }
    float *out = sl_device_alloc(device, SL_MEMORY_SHARED, SLOTS * sizeof *out);
    struct sl_kv_heads last = sl_kv_heads_part(heads, HEADS - 1, 1);
    ops->read_state(stream, &last, 0, (struct sl_vectors){out, SLOTS});
    assert_int_equal(sl_stream_wait(stream, NULL), SL_OK);
    for (int j = 0; j < SLOTS; j++) {
        assert_true(out[j] == (float)(1000 * (HEADS - 1) + j));
    }
    for (int i = 0; i < HEADS * 3; i++) {
        sl_device_free(device, SL_MEMORY_DEVICE, blocks[i]);
    }
    sl_device_free(device, SL_MEMORY_SHARED, out);
    sl_device_free(device, SL_MEMORY_SHARED, shared);
    sl_device_close(&device);
}

// A kernel that never ends: the wait does, names the device, and nothing waits for it afterwards.
static void test_gpu_device_that_hangs_is_given_up(void **state) {
    struct sl_device *device = open_device();
    struct sl_stream *stream = sl_device_stream(device, SL_STREAM_COMPUTE);
    struct sl_stream *in = sl_device_stream(device, SL_STREAM_IN);
    float *x = sl_device_alloc(device, SL_MEMORY_SHARED, 64 * sizeof *x);
    void *out = sl_device_alloc(device, SL_MEMORY_DEVICE, 64 * sizeof(uint16_t));
    struct sl_error err = {0};
    (void)state;
    memset(x, 0, 64 * sizeof *x);
    sl_device_limit_waits(device, 400);
    for (int i = 0; i < 3; i++) {
        sl_gpu_round_rows(sl_gpu_stream(stream)->queue, x, 64, 1, 64, 64, out);
        assert_int_equal(sl_stream_wait(stream, NULL), SL_OK);
    }
    sl_emu_stall_at(0, 1);
    sl_gpu_round_rows(sl_gpu_stream(stream)->queue, x, 64, 1, 64, 64, out);
    sl_gpu_round_rows(sl_gpu_stream(stream)->queue, x, 64, 1, 64, 64, out);
    struct sl_mark stuck = sl_stream_mark(stream);
    sl_stream_after(in, &stuck);
    int64_t began_ns = sl_now_ns();
    assert_int_equal(sl_stream_wait(in, &err), SL_ERR_INTERNAL); // of another stream, after it
    int64_t waited_ms = (sl_now_ns() - began_ns) / SL_NS_PER_MS;
    assert_true(waited_ms >= 400 && waited_ms < 20000);
    assert_non_null(strstr(err.text, "device 0 (emulated) hangs: it has work and got nothing done for 0.4 s"));
    assert_true(sl_device_has_failed(device));

    began_ns = sl_now_ns();
    assert_int_equal(sl_mark_wait(&stuck, &err), SL_ERR_INTERNAL);
    const struct sl_mark none = {stream, 0};
    assert_int_equal(sl_mark_wait(&none, &err), SL_ERR_INTERNAL);
    assert_non_null(strstr(err.text, "device 0 (emulated) hangs"));
    sl_device_free(device, SL_MEMORY_DEVICE, out);
    sl_device_free(device, SL_MEMORY_SHARED, x);
    sl_device_close(&device);
    assert_true(sl_now_ns() - began_ns < 300 * SL_NS_PER_MS);
    sl_emu_stall_at(0, 0);
}

// A table with a hole would be found by the job that falls into it.
static void test_gpu_table_has_every_operation(void **state) {
    const struct sl_ops *host;
    (void)state;
    assert_int_equal(sl_ops_select("reference", &host, NULL), SL_OK);
    const struct sl_ops *ops = sl_gpu_ops(&sl_gpu_emulator, host);
    for (size_t at = 0; at < sizeof *ops; at += sizeof(void *)) {
        void *entry;
        memcpy(&entry, (const char *)ops + at, sizeof entry);
        bool may_lack = at == offsetof(struct sl_ops, arranges) || at == offsetof(struct sl_ops, arrange) ||
                        at == offsetof(struct sl_ops, attend_fold);
        assert_true(entry != NULL || may_lack);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpu_device_computes_when_waited_for),
        cmocka_unit_test(test_gpu_device_keeps_the_order_of_two_streams),
        cmocka_unit_test(test_gpu_stream_describes_more_than_its_ring),
        cmocka_unit_test(test_gpu_stream_says_what_it_had_no_room_for),
        cmocka_unit_test(test_gpu_heads_are_found_where_they_were_published),
        cmocka_unit_test(test_gpu_table_has_every_operation),
        cmocka_unit_test(test_gpu_device_that_hangs_is_given_up), // last: its memory stays
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
