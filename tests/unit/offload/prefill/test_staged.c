// SPDX-License-Identifier: Apache-2.0
// Offloaded layers of a device with memory of its own: what stores get has come down from it, and what they have goes up again. With a tiny model
// on an emulated device, beside the same prompt read with all layers held there.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fake_store.h"
#include "engine/job/job_recipe.h"
#include "net/offload/prefill/offload.h"
#include "engine/runtime/transfer.h"
#include "tests/unit/offload/prefill/read_chunk.h"

#define MODEL       "tests/golden/llama/gqa" // of three layers with two KV heads
#define N_SHORT     200
#define N_LONG      330
#define N_KEPT      128 // of the short one, which the long one goes on from: whole pages
#define ARENA_BYTES ((size_t)8 << 20)
#define RECIPE      "place=offload/1+2,scope=sinks:8+recent:24,topk=32,channels=4,chunk=64"

struct fixture {
    struct sl_runtime runtime;
    struct sl_node node;
    int32_t tokens[N_LONG];
    struct fake_store store;
    struct sl_plan plan;
    struct sl_offload *offload;
    struct sl_session *session;
};

static struct sl_plan make_plan(const struct fixture *f, int64_t n_tokens, bool local) {
    struct sl_recipe recipe;
    struct sl_plan plan;
    struct sl_error err = {0};
    struct sl_kv_geometry geometry = sl_model_geometry(f->runtime.config);
    if (sl_job_recipe(RECIPE, f->runtime.config, &recipe, &err) != SL_OK ||
        (local ? sl_plan_make_local : sl_plan_make)(&recipe, &geometry, n_tokens, 0, &plan, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return plan;
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    struct sl_error err = {0};
    struct sl_runtime_config config = {.model_dir = MODEL, .device = "emulated", .threads = 2, .max_rows = 64};
    struct sl_fabric_config fabric = {.listen = "127.0.0.1:0", .transport = "tcp"};
    void *region;
    if (sl_runtime_open(&config, &f->runtime, &err) != SL_OK ||
        sl_runtime_open_arena(&f->runtime, ARENA_BYTES, &err) != SL_OK ||
        sl_fabric_create(&fabric, &f->node.fabric, &err) != SL_OK ||
        sl_fabric_region_create(f->node.fabric, ARENA_BYTES, 0, &region, &err) != SL_OK ||
        sl_arena_create(region, ARENA_BYTES, &f->node.staging, &err) != SL_OK ||
        sl_ledger_create(f->node.staging, &f->node.staging_ledger, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    f->node.runtime = f->runtime;
    f->node.arena = f->runtime.arena;
    for (int i = 0; i < N_LONG; i++) {
        f->tokens[i] = (int32_t)((unsigned)i * 2654435761u >> 8) % 150 + 5;
    }
    sl_rpc_init();
    f->plan = make_plan(f, N_LONG, false);
    fake_store_start(&f->store, "tcp", &f->plan.work[1], ARENA_BYTES);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    struct sl_arena_stats staged, held;
    sl_offload_close(&f->offload);
    sl_session_destroy(&f->session);
    sl_arena_get_stats(f->node.staging, &staged);
    sl_arena_get_stats(f->node.arena, &held);
    sl_fabric_destroy(&f->node.fabric);
    sl_ledger_destroy(&f->node.staging_ledger);
    sl_arena_destroy(&f->node.staging);
    fake_store_stop(&f->store);
    sl_rpc_shutdown();
    sl_runtime_close(&f->runtime);
    free(f);
    assert_int_equal(staged.n_blocks, 0);
    assert_int_equal(held.n_blocks, 0);
    return 0;
}

// Read a prompt from what was resumed on; without an offload all layers stay here.
static struct sl_session *read_all(struct fixture *f, const struct sl_plan *plan, struct sl_session *resumed) {
    struct sl_reader_config config = {.plan = plan,
                                      .runtime = &f->runtime,
                                      .arena = f->node.arena,
                                      .resumed = resumed,
                                      .attends_elsewhere = f->offload != NULL,
                                      .tokens = f->tokens};
    struct sl_reader *reader;
    struct sl_error err = {0};
    enum sl_status status = sl_reader_create(&config, &reader, &err);
    if (status == SL_OK && f->offload) {
        status = sl_offload_begin(f->offload, sl_reader_session(reader), &err);
    }
    while (status == SL_OK && !sl_reader_is_done(reader)) {
        status = read_chunk(&f->runtime, reader, f->offload, plan, NULL, &err);
    }
    if (status != SL_OK) {
        fail_msg("%s", err.text);
    }
    struct sl_session *session = sl_reader_take_session(reader);
    sl_reader_destroy(&reader);
    return session;
}

// Opens the remote KV of two layers at the store.
static void open_offload(struct fixture *f, const struct sl_plan *plan) {
    static Sluice__V1__StoreShare share, *shares[] = {&share}; // outlive the offload
    struct sl_error err = {0};
    sluice__v1__store_share__init(&share);
    share.address = (char *)fake_store_address(&f->store);
    share.n_lanes = 4;
    struct sl_offload_config config = {.node = &f->node,
                                       .plan = plan,
                                       .job_id = "test",
                                       .capsule = &(struct sl_capsule_id){.model_fingerprint = 1},
                                       .tokens = f->tokens,
                                       .salt = &(struct sl_hash128){{1}},
                                       .stores = shares,
                                       .n_stores = 1};
    if (sl_offload_open(&config, &f->offload, &err) != SL_OK || sl_offload_stage(f->offload, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

// Reads the prompt with two layers at the store; in f->session.
static void read_offloading(struct fixture *f, const struct sl_plan *plan, struct sl_session *resumed) {
    Sluice__V1__AnnexShare **remote_kvs = NULL;
    size_t n_remote_kvs = 0;
    struct sl_error err = {0};
    enum sl_status status;
    open_offload(f, plan);
    f->session = read_all(f, plan, resumed);
    do {
        status = sl_offload_finish(f->offload, f->session, sl_deadline_in_ms(1000), &remote_kvs, &n_remote_kvs, &err);
    } while (status == SL_AGAIN);
    if (status != SL_OK) {
        fail_msg("%s", err.text);
    }
    sl_remote_kv_shares_free(&remote_kvs, n_remote_kvs);
    sl_offload_close(&f->offload);
}

static void *from_device(const struct fixture *f, const void *page, size_t bytes) {
    struct sl_byte_range piece = {page, bytes};
    struct sl_mark down = {0};
    void *copy = malloc(bytes);
    assert_int_equal(sl_transfer_pieces_out(&f->runtime, &piece, 1, bytes, copy, &down, NULL), SL_OK);
    assert_int_equal(sl_mark_wait(&down, NULL), SL_OK);
    return copy;
}

static void assert_same_rows(const struct sl_page_layout *layout, const char *a, const char *b, int64_t n_slots) {
    size_t bytes = (size_t)n_slots * (size_t)layout->head_dim * 2; // f16
    assert_memory_equal(a, b, bytes);
    assert_memory_equal(a + layout->v, b + layout->v, bytes);
}

// The store has nothing of what the device's memory held before.
static void assert_unused_is_clear(const struct sl_page_layout *layout, const char *page, int64_t n_slots) {
    size_t row = (size_t)layout->head_dim * 2;
    for (size_t at = (size_t)n_slots * row; at < SL_PAGE_SLOTS * row; at++) {
        assert_true(page[at] == 0 && page[layout->v + at] == 0);
    }
}

// Leaves other numbers in the device's free memory, as sessions before have.
static void use_before(struct fixture *f) {
    struct sl_arena_stats stats;
    sl_arena_get_stats(f->node.arena, &stats);
    void *there = sl_arena_alloc(f->node.arena, stats.largest_free_bytes), *here = malloc(stats.largest_free_bytes);
    assert_non_null(there);
    memset(here, 0x3b, stats.largest_free_bytes);
    assert_int_equal(sl_transfer_in(&f->runtime, there, here, stats.largest_free_bytes, NULL), SL_OK);
    sl_arena_free(f->node.arena, there);
    free(here);
}

// Compares the offloaded layers that the session holds here, and those that the store has.
static void assert_same(struct fixture *f, const struct sl_session *whole, int64_t n_tokens, int64_t n_at_store) {
    const struct fake_remote_kv *remote_kv = fake_store_remote_kv(&f->store, 0);
    assert_int_equal(remote_kv->n_tokens, n_at_store);
    for (int offloaded_head = 0; offloaded_head < 4; offloaded_head++) {
        const struct sl_head *want = &whole->layers[1 + offloaded_head / 2].heads[offloaded_head % 2],
                             *got = &f->session->layers[1 + offloaded_head / 2].heads[offloaded_head % 2];
        const struct sl_page_layout *layout = &f->plan.work[1];
        assert_int_equal(got->n_slots, n_tokens);
        for (int64_t t = 0; t < n_tokens; t += SL_PAGE_SLOTS) {
            int64_t left = n_tokens - t, n = left < SL_PAGE_SLOTS ? left : SL_PAGE_SLOTS;
            char *a = from_device(f, want->pages[t / SL_PAGE_SLOTS], layout->bytes),
                 *b = from_device(f, got->pages[t / SL_PAGE_SLOTS], layout->bytes);
            assert_same_rows(layout, a, b, n);
            assert_same_rows(layout, a, fake_remote_kv_page(remote_kv, offloaded_head, t), n);
            assert_unused_is_clear(layout, fake_remote_kv_page(remote_kv, offloaded_head, t), n);
            free(a);
            free(b);
        }
    }
}

// Returns the session that a job leaves, as a store would bring it back: without the offloaded layers, and cut.
static struct sl_session *resume(struct fixture *f, struct sl_session **session) {
    size_t bytes = sl_capsule_body_bytes(*session), header_bytes;
    struct sl_capsule_id id = {1, 2, {{3}}};
    uint8_t *header;
    void *body = malloc(bytes), *block = sl_arena_alloc(f->node.arena, bytes);
    assert_non_null(block);
    assert_int_equal(sl_transfer_body_out(&f->runtime, *session, body, NULL), SL_OK);
    assert_int_equal(sl_transfer_in(&f->runtime, block, body, bytes, NULL), SL_OK);
    assert_int_equal(sl_capsule_write_header(*session, &id, &header, &header_bytes, NULL), SL_OK);
    struct sl_capsule_bytes capsule = {block, bytes, header, header_bytes};
    struct sl_session *opened;
    assert_int_equal(
        sl_capsule_adopt(&capsule, f->node.arena, &(*session)->geometry, &id, f->plan.max_slots, &opened, NULL), SL_OK);
    assert_int_equal(sl_session_truncate(opened, N_KEPT, NULL), SL_OK);
    sl_session_destroy(session);
    free(body);
    return opened;
}

static void test_offloaded_pages_come_down_and_go_up(void **state) {
    struct fixture *f = *state;
    struct sl_plan brief = make_plan(f, N_SHORT, false), brief_local = make_plan(f, N_SHORT, true),
                   local = make_plan(f, N_LONG, true);
    use_before(f);
    struct sl_session *whole = read_all(f, &brief_local, NULL);
    read_offloading(f, &brief, NULL);
    assert_same(f, whole, N_SHORT, N_SHORT);
    sl_session_destroy(&whole);

    struct sl_session *resumed = resume(f, &f->session);
    whole = read_all(f, &local, NULL);
    read_offloading(f, &f->plan, resumed); // the kept ones were read back
    assert_same(f, whole, N_LONG, N_LONG);
    sl_session_destroy(&whole);
}

// The time in which a store reads the document back is told apart: that between its answers, and that before its only one.
static void test_the_wait_for_a_disk_is_counted(void **state) {
    struct fixture *f = *state;
    for (int i = 0; i < 3; i++) {
        struct sl_offload_stats stats;
        f->store.n_restoring = i == 0 ? 2 : 0;
        f->store.waited_ms = i == 1 ? INT64_MAX : 0; // which the job's clock contradicts
        open_offload(f, &f->plan);
        sl_offload_get_stats(f->offload, &stats);
        assert_true(i < 2 ? stats.restore_ns > 0 && stats.restore_ns < 60000 * SL_NS_PER_MS : stats.restore_ns == 0);
        sl_offload_close(&f->offload);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_offloaded_pages_come_down_and_go_up, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_wait_for_a_disk_is_counted, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
