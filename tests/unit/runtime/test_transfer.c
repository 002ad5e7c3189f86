// SPDX-License-Identifier: Apache-2.0
// KV between a device's memory and the host's: the bytes are those of the session, whichever way they went.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/runtime/transfer.h"
#include "engine/tensor/ranks/internal.h"
#include "tests/unit/capsule_body.h"

enum { LAYERS = 3, HEADS = 2, DIM = 64 };
static const struct sl_kv_geometry geometry = {LAYERS, HEADS, DIM};

#define ARENA_BYTES ((size_t)8 << 20)

static void open_ranks(struct sl_runtime *runtime, const char *device, int ranks, size_t arena_bytes) {
    struct sl_runtime_config config = {.device = device, .threads = 1, .ranks = ranks};
    assert_int_equal(sl_runtime_open(&config, runtime, NULL), SL_OK);
    assert_int_equal(sl_runtime_open_arena(runtime, arena_bytes, NULL), SL_OK);
}

static void open_runtime(struct sl_runtime *runtime, const char *device) {
    open_ranks(runtime, device, 1, ARENA_BYTES);
}

// malloc'd.
static void *body_of(const struct sl_session *session) {
    void *body = malloc(sl_capsule_body_bytes(session) + 1);
    copy_body(session, body);
    return body;
}

// Layers differ in length, heads too: `n_slots` and less. An empty layer is among them.
static struct sl_session *make_session(struct sl_arena *arena, int n_slots) {
    struct sl_session *session;
    assert_int_equal(
        sl_session_create_plain(&geometry, SL_KV_F16, SL_POSITION_ORIGINAL, n_slots, arena, &session, NULL), SL_OK);
    for (int l = 0; l < LAYERS; l++) {
        int n = l == 1 ? 0 : n_slots / (l + 1);
        assert_int_equal(sl_session_reserve(session, l, n), SL_OK);
        for (int h = 0; h < HEADS; h++) {
            sl_session_set_slots(session, l, h, (uint32_t)(n / (h + 1)));
        }
    }
    session->n_tokens = n_slots;
    return session;
}

// The same bytes into the pages of both: `there` lies in the device's memory.
static void fill(const struct sl_runtime *runtime, const struct sl_session *here, const struct sl_session *there) {
    unsigned char next = 1;
    for (int l = 0; l < LAYERS; l++) {
        for (int h = 0; h < HEADS; h++) {
            const struct sl_head *head = &here->layers[l].heads[h];
            for (uint32_t p = 0; p < head->n_pages; p++) {
                size_t bytes = here->layers[l].work.bytes;
                for (size_t i = 0; i < bytes; i++) {
                    ((unsigned char *)head->pages[p])[i] = (unsigned char)(next += 3);
                }
                next++;
                assert_int_equal(
                    sl_transfer_in(runtime, there->layers[l].heads[h].pages[p], head->pages[p], bytes, NULL), SL_OK);
            }
        }
    }
}

static void test_body_is_the_same_from_a_device(void **state) {
    static const int lengths[] = {1, 64, 700, 4000}; // pages, and shares of a launch, of which one is never enough
    struct sl_runtime cpu, gpu;
    (void)state;
    open_runtime(&cpu, "cpu");
    open_runtime(&gpu, "emulated");
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct sl_session *here = make_session(cpu.arena, lengths[i]), *there = make_session(gpu.arena, lengths[i]);
        fill(&gpu, here, there);
        size_t bytes = sl_capsule_body_bytes(here);
        char *want = body_of(here), *body = malloc(bytes), *of_cpu = malloc(bytes);
        assert_int_equal(sl_transfer_body_out(&gpu, there, body, NULL), SL_OK);
        assert_memory_equal(body, want, bytes);
        assert_int_equal(sl_transfer_body_out(&cpu, here, of_cpu, NULL), SL_OK);
        assert_memory_equal(of_cpu, want, bytes);
        free(want);
        free(body);
        free(of_cpu);
        sl_session_destroy(&here);
        sl_session_destroy(&there);
    }
    sl_runtime_close(&cpu);
    sl_runtime_close(&gpu);
}

static size_t n_blocks(struct sl_arena *arena) {
    struct sl_arena_stats stats;
    sl_arena_get_stats(arena, &stats);
    return stats.n_blocks;
}

// A session over a body that has arrived in staging memory, with the bytes of `of`.
static struct sl_session *arrive(const struct sl_session *of, struct sl_arena *staging) {
    struct sl_capsule_bytes capsule = {.body_bytes = sl_capsule_body_bytes(of)};
    struct sl_capsule_id id = {0};
    struct sl_session *session;
    capsule.body = sl_arena_alloc(staging, capsule.body_bytes);
    copy_body(of, capsule.body);
    assert_int_equal(sl_capsule_write_header(of, &id, &capsule.header, &capsule.header_bytes, NULL), SL_OK);
    assert_int_equal(sl_capsule_adopt(&capsule, staging, &geometry, &id, 1, &session, NULL), SL_OK);
    return session;
}

// On `ranks` devices, of which each has the pages of its heads alone.
static void check_arrival(int ranks) {
    struct sl_runtime cpu, gpu;
    struct sl_arena *staging;
    struct sl_mark done;
    void *staged;
    open_runtime(&cpu, "cpu");
    open_ranks(&gpu, "emulated", ranks, ARENA_BYTES);
    assert_int_equal(sl_arena_create_mapped(ARENA_BYTES, &staging, NULL), SL_OK);
    struct sl_session *here = make_session(cpu.arena, 300), *there = make_session(gpu.arena, 300);
    fill(&gpu, here, there);
    sl_session_destroy(&there);
    struct sl_session *session = arrive(here, staging);
    assert_int_equal(sl_transfer_session_in(&gpu, session, gpu.arena, &staged, &done, NULL), SL_OK);
    assert_int_equal(sl_mark_wait(&done, NULL), SL_OK);
    sl_arena_free(staging, staged);
    assert_int_equal(n_blocks(staging), 0);
    assert_int_equal(n_blocks(gpu.arena), ranks);
    for (int l = 0; l < LAYERS; l++) {
        for (int h = 0; h < HEADS; h++) {
            const struct sl_head *head = &session->layers[l].heads[h];
            for (uint32_t p = 0; p < head->n_pages; p++) {
                const char *base = gpu.arena_memory[h * ranks / HEADS], *page = head->pages[p];
                assert_true(page >= base && page < base + ARENA_BYTES / (size_t)ranks + SL_ARENA_UNIT);
            }
        }
    }
    size_t bytes = sl_capsule_body_bytes(here);
    char *want = body_of(here), *body = malloc(bytes);
    assert_int_equal(sl_transfer_body_out(&gpu, session, body, NULL), SL_OK);
    assert_memory_equal(body, want, bytes);
    free(want);
    free(body);
    sl_session_destroy(&session);
    sl_session_destroy(&here);
    assert_int_equal(n_blocks(gpu.arena), 0);
    sl_arena_destroy(&staging);
    sl_runtime_close(&cpu);
    sl_runtime_close(&gpu);
}

static void test_capsule_that_arrives_is_divided_among_ranks(void **state) {
    (void)state;
    check_arrival(1);
    check_arrival(2);
}

static void test_capsule_that_finds_no_room_stays_where_it_is(void **state) {
    struct sl_runtime cpu, gpu;
    struct sl_arena *staging;
    struct sl_mark done;
    struct sl_error err;
    void *staged;
    (void)state;
    open_runtime(&cpu, "cpu");
    open_ranks(&gpu, "emulated", 2, 2 * 32 * SL_ARENA_UNIT);
    assert_int_equal(sl_arena_create_mapped(ARENA_BYTES, &staging, NULL), SL_OK);
    struct sl_session *here = make_session(cpu.arena, 300);
    struct sl_session *session = arrive(here, staging);
    assert_int_equal(sl_transfer_session_in(&gpu, session, gpu.arena, &staged, &done, &err), SL_ERR_EXHAUSTED);
    assert_int_equal(n_blocks(gpu.arena), 0);
    sl_session_destroy(&session);
    assert_int_equal(n_blocks(staging), 0);
    sl_session_destroy(&here);
    sl_arena_destroy(&staging);
    sl_runtime_close(&cpu);
    sl_runtime_close(&gpu);
}

// Few heads over many ranks: what their own ranges have no room for lies in others', in as many blocks as that takes.
static void check_fills(int ranks) {
    struct sl_runtime cpu, gpu;
    struct sl_arena *staging;
    struct sl_arena_stats stats;
    struct sl_mark done;
    void *staged;
    open_runtime(&cpu, "cpu");
    assert_int_equal(sl_arena_create_mapped(ARENA_BYTES, &staging, NULL), SL_OK);
    struct sl_session *here = make_session(cpu.arena, 300);
    size_t bytes = sl_capsule_body_bytes(here), page = here->layers[0].work.bytes;
    size_t range_bytes =
        (bytes / page + (size_t)ranks - 1) / (size_t)ranks * page; // room for the pages, and hardly more
    open_ranks(&gpu, "emulated", ranks, range_bytes * (size_t)ranks);
    struct sl_session *session = arrive(here, staging);
    assert_int_equal(sl_transfer_session_in(&gpu, session, gpu.arena, &staged, &done, NULL), SL_OK);
    assert_int_equal(sl_mark_wait(&done, NULL), SL_OK);
    sl_arena_free(staging, staged);
    sl_arena_get_stats(gpu.arena, &stats);
    assert_int_equal(stats.used_bytes, bytes);
    assert_int_equal(session->taken_bytes, 0);
    char *want = body_of(here), *body = malloc(bytes);
    assert_int_equal(sl_transfer_body_out(&gpu, session, body, NULL), SL_OK);
    assert_memory_equal(body, want, bytes);
    for (int h = 0; h < HEADS; h++) { // pages go back with the blocks that they are in, not by themselves
        sl_session_set_slots(session, 0, h, 0);
    }
    assert_int_equal(session->taken_bytes, 0);
    free(want);
    free(body);
    sl_session_destroy(&session);
    sl_session_destroy(&here);
    assert_int_equal(n_blocks(gpu.arena), 0);
    assert_int_equal(n_blocks(staging), 0);
    sl_arena_destroy(&staging);
    sl_runtime_close(&cpu);
    sl_runtime_close(&gpu);
}

static void test_capsule_that_fits_all_ranges_together_is_adopted(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        check_fills(ranks);
    }
}

// The pages of a head lie with the rank that has the head.
static void test_ranges_of_heads_are_those_of_ranks(void **state) {
    static const int ranges[] = {1, 2, 3, 4, 16}, heads[] = {1, 2, 3, 8, 9};
    (void)state;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        struct sl_arena *arena, *more;
        assert_int_equal(sl_arena_create_mapped(SL_ARENA_UNIT, &arena, NULL), SL_OK);
        for (int r = 1; r < ranges[i]; r++) {
            assert_int_equal(sl_arena_create_mapped(SL_ARENA_UNIT, &more, NULL), SL_OK);
            sl_arena_join(arena, &more);
        }
        for (size_t n = 0; n < sizeof heads / sizeof *heads; n++) {
            const struct sl_kv_geometry some = {1, heads[n], DIM};
            struct sl_session *session;
            assert_int_equal(sl_session_create_plain(&some, SL_KV_F16, SL_POSITION_ORIGINAL, 1, arena, &session, NULL),
                             SL_OK);
            for (int h = 0; h < heads[n]; h++) {
                struct sl_share share = sl_share_of(heads[n], sl_session_range(session, h), ranges[i]);
                assert_true(h >= share.first && h < share.first + share.n);
            }
            sl_session_destroy(&session);
        }
        sl_arena_destroy(&arena);
    }
}

// A layer is sent as it was while the session continues: later evictions and writes do not change it.
static void test_layer_leaves_as_it_was(void **state) {
    struct sl_runtime cpu, gpu;
    (void)state;
    open_runtime(&cpu, "cpu");
    open_runtime(&gpu, "emulated");
    struct sl_session *here = make_session(cpu.arena, 300), *there = make_session(gpu.arena, 300);
    fill(&gpu, here, there);
    size_t bytes = sl_capsule_layer_bytes(here, 0), page_bytes = here->layers[0].work.bytes;
    char *want = body_of(here), *body[4], *zeros = calloc(1, page_bytes);
    struct sl_mark down[4];
    for (int i = 0; i < 4; i++) { // more than there are blocks on the way
        body[i] = malloc(bytes);
        assert_int_equal(sl_transfer_layer_out(&gpu, there, 0, body[i], &down[i], NULL), SL_OK);
    }
    assert_false(sl_mark_reached(&down[3]));
    sl_stream_copy(gpu.stream, there->layers[0].heads[0].pages[0], zeros, page_bytes);
    sl_session_destroy(&there);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(sl_mark_wait(&down[i], NULL), SL_OK);
        assert_memory_equal(body[i], want, bytes);
        free(body[i]);
    }
    assert_int_equal(sl_stream_wait(gpu.stream, NULL), SL_OK); // `zeros` has been read
    free(want);
    free(zeros);
    sl_session_destroy(&here);
    sl_runtime_close(&cpu);
    sl_runtime_close(&gpu);
}

static void test_mirror_is_what_the_host_reads(void **state) {
    struct sl_runtime cpu, gpu;
    struct sl_mirror mirror;
    (void)state;
    open_runtime(&cpu, "cpu");
    open_runtime(&gpu, "emulated");
    struct sl_session *here = make_session(cpu.arena, 200), *there = make_session(gpu.arena, 200);
    fill(&gpu, here, there);
    assert_int_equal(sl_mirror_open(&cpu, here, &mirror, NULL), SL_OK);
    assert_ptr_equal(mirror.session, here);
    sl_mirror_close(&mirror);
    assert_int_equal(sl_mirror_open(&gpu, there, &mirror, NULL), SL_OK);
    char *want = body_of(here), *got = body_of(mirror.session);
    assert_memory_equal(got, want, sl_capsule_body_bytes(here));
    assert_int_equal(mirror.session->n_tokens, 200);
    sl_mirror_close(&mirror);
    free(want);
    free(got);
    sl_session_destroy(&here);
    sl_session_destroy(&there);
    sl_runtime_close(&cpu);
    sl_runtime_close(&gpu);
}

static void test_arena_takes_most_of_a_device_where_nobody_says(void **state) {
    struct sl_runtime cpu, device;
    (void)state;
    open_runtime(&cpu, "cpu");
    assert_int_equal(sl_runtime_usual_arena_bytes(&cpu), (size_t)1 << 30);
    open_runtime(&device, "emulated");
    size_t room = sl_device_room(device.device), usual = sl_runtime_usual_arena_bytes(&device);
    assert_true(usual > room / 100 * 84 && usual < room / 100 * 86);
    sl_runtime_close(&device);
    sl_runtime_close(&cpu);
}

static void test_arena_of_a_device_that_is_full_says_so(void **state) {
    struct sl_runtime device;
    struct sl_error err;
    (void)state;
    open_runtime(&device, "emulated");
    setenv("SLUICE_EMULATED_MEMORY", "0", 1);
    assert_int_equal(sl_runtime_open_arena(&device, sl_runtime_usual_arena_bytes(&device), &err), SL_ERR_EXHAUSTED);
    unsetenv("SLUICE_EMULATED_MEMORY");
    assert_non_null(strstr(err.text, "the device has no room for a KV cache beside the model: 0 bytes are free"));
    sl_runtime_close(&device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_of_a_device_that_is_full_says_so),
        cmocka_unit_test(test_arena_takes_most_of_a_device_where_nobody_says),
        cmocka_unit_test(test_capsule_that_arrives_is_divided_among_ranks),
        cmocka_unit_test(test_capsule_that_fits_all_ranges_together_is_adopted),
        cmocka_unit_test(test_ranges_of_heads_are_those_of_ranks),
        cmocka_unit_test(test_capsule_that_finds_no_room_stays_where_it_is),
        cmocka_unit_test(test_body_is_the_same_from_a_device),
        cmocka_unit_test(test_layer_leaves_as_it_was),
        cmocka_unit_test(test_mirror_is_what_the_host_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
