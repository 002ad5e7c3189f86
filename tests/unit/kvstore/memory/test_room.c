// SPDX-License-Identifier: Apache-2.0
// The store's memory when it is full: what may be evicted makes room, what may not is refused with the numbers and counted, and
// metadata has its own bound.
#include "tests/unit/kvstore/harness.h"

#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES   ((size_t)96 << 20)
#define SCRATCH_BYTES ((size_t)2 << 20)
#define N_TOKENS      1026 // a capsule of 263 KiB, under the most keys that one may have
#define N_PREFIXES    (SL_CAPSULE_CACHE_MAX_PREFIXES - 1)
#define MAX_BESIDE    ((size_t)16 << 20)

struct fixture {
    struct parts parts;
    void *memory;
    struct sl_arena *scratch; // headers are made here: the parts' arena is to be full
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    open_parts(&fixture->parts, ARENA_BYTES, 60000, 0);
    fixture->memory = aligned_alloc(4096, SCRATCH_BYTES);
    assert_int_equal(sl_arena_create(fixture->memory, SCRATCH_BYTES, &fixture->scratch, NULL), SL_OK);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    close_parts(&fixture->parts);
    sl_arena_destroy(&fixture->scratch);
    free(fixture->memory);
    free(fixture);
    return 0;
}

static struct sl_capsule_id id_of(int seed) {
    return (struct sl_capsule_id){11, 22, {{(uint8_t)(seed >> 8), (uint8_t)seed}}};
}

// Room for a capsule, and the capsule; with n_hashes prefixes of a token each.
static enum sl_status put(struct fixture *fixture, int seed, size_t n_hashes, struct sl_error *err) {
    struct parts *parts = &fixture->parts;
    struct sl_hash128 hashes[N_PREFIXES] = {0};
    for (size_t i = 0; i < n_hashes; i++) {
        uint64_t bits = ((uint64_t)seed << 32) + i + 1;
        memcpy(&hashes[i], &bits, sizeof bits);
    }
    struct sl_capsule_id id = id_of(seed);
    struct sl_capsule_bytes capsule = make_capsule(fixture->scratch, &id, N_TOKENS, false);
    enum sl_status status = sl_room_take_block(&parts->room, "test", capsule.body_bytes, &capsule.body, err);
    if (status == SL_OK) {
        struct sl_capsule_keys keys = {.id = id, .hashes = hashes, .n_hashes = n_hashes, .stride = 1};
        status = sl_capsule_cache_put(parts->capsule_cache, &keys, &capsule, err);
    }
    if (status != SL_OK) {
        sl_capsule_bytes_free(&capsule, parts->arena);
    }
    return status;
}

static struct sl_capsule_cache_stats stats_of(struct parts *parts) {
    struct sl_capsule_cache_stats stats;
    sl_capsule_cache_get_stats(parts->capsule_cache, &stats);
    return stats;
}

// Millions of keys would take any memory: here memory outside of the arena runs out first, and the oldest keys go.
static void test_room_metadata_is_bounded(void **state) {
    struct fixture *fixture = *state;
    struct parts *parts = &fixture->parts;
    size_t n_bytes = 0;
    for (int i = 0; i < 600; i++) {
        assert_int_equal(put(fixture, i, N_PREFIXES, NULL), SL_OK);
        struct sl_capsule_cache_stats stats = stats_of(parts);
        assert_true(stats.beside_bytes <= MAX_BESIDE);
        n_bytes = stats.beside_bytes > n_bytes ? stats.beside_bytes : n_bytes;
    }
    struct sl_capsule_cache_stats stats = stats_of(parts);
    assert_true(n_bytes > MAX_BESIDE / 10 * 9);
    assert_in_range(stats.n_capsules, 150, 300); // where 330 have room by their bodies
    assert_int_equal(stats.n_capsules + stats.n_evicted, 600);
    struct sl_capsule_id first = id_of(0), last = id_of(599);
    assert_false(sl_capsule_cache_has(parts->capsule_cache, &first));
    assert_true(sl_capsule_cache_has(parts->capsule_cache, &last));
    while (sl_capsule_cache_evict_one(parts->capsule_cache, INT64_MAX)) {
    }
    assert_int_equal(stats_of(parts).beside_bytes, 0);
    assert_int_equal(parts->room.n_refused, 0);
}

// Nothing is evicted that is pinned, whatever for.
static void test_room_pinned_metadata_is_refused_for(void **state) {
    struct fixture *fixture = *state;
    struct parts *parts = &fixture->parts;
    struct sl_stored *pinned[400];
    int n = 0;
    int64_t covered;
    struct sl_error err = {0};
    while (n < 400 && put(fixture, n, N_PREFIXES, &err) == SL_OK) {
        struct sl_capsule_id id = id_of(n);
        pinned[n] = sl_capsule_cache_pin(parts->capsule_cache, &id, &covered);
        assert_non_null(pinned[n++]);
    }
    assert_in_range(n, 150, 300);
    assert_non_null(strstr(err.text, "pinned"));
    assert_int_equal(put(fixture, 1000, 0, NULL), SL_OK); // a small one has room
    sl_capsule_cache_unpin(parts->capsule_cache, pinned[--n]);
    assert_int_equal(put(fixture, 1001, N_PREFIXES, NULL), SL_OK);
    while (n > 0) {
        sl_capsule_cache_unpin(parts->capsule_cache, pinned[--n]);
    }
}

// A store whose memory is all in use refuses with that reason, and continues when memory is released.
static void test_room_full_of_what_is_in_use_refuses_and_counts(void **state) {
    struct fixture *fixture = *state;
    struct parts *parts = &fixture->parts;
    struct sl_stored *pinned[400];
    int n = 0;
    int64_t covered;
    struct sl_error err = {0};
    while (n < 400 && put(fixture, n, 0, &err) == SL_OK) {
        struct sl_capsule_id id = id_of(n);
        pinned[n] = sl_capsule_cache_pin(parts->capsule_cache, &id, &covered);
        assert_non_null(pinned[n++]);
    }
    assert_in_range(n, 300, 390);
    assert_non_null(strstr(err.text, "cannot be evicted"));
    assert_int_equal(parts->room.n_refused, 1);
    assert_int_equal(stats_of(parts).n_evicted, 0);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(put(fixture, 1000 + i, 0, NULL), SL_ERR_EXHAUSTED);
    }
    assert_int_equal(parts->room.n_refused, 11);
    while (n > 0) {
        sl_capsule_cache_unpin(parts->capsule_cache, pinned[--n]);
    }
    for (int i = 0; i < 500; i++) { // and eviction makes progress for as many as come
        assert_int_equal(put(fixture, 2000 + i, 0, NULL), SL_OK);
    }
    assert_int_equal(parts->room.n_refused, 11);
    assert_true(stats_of(parts).n_evicted >= 500);
}

// A block that memory in use leaves no place for is refused, and nothing is evicted for it in vain.
static void test_room_evicts_nothing_for_a_block_that_cannot_be(void **state) {
    struct fixture *fixture = *state;
    struct parts *parts = &fixture->parts;
    struct sl_stored *pinned[400];
    int n = 0, n_pinned = 0;
    int64_t covered;
    struct sl_error err = {0};
    while (stats_of(parts).n_evicted == 0) {
        assert_int_equal(put(fixture, n++, 0, NULL), SL_OK);
    }
    for (int i = 0; i < n; i += 2) { // every second one is in use
        struct sl_capsule_id id = id_of(i);
        pinned[n_pinned] = sl_capsule_cache_pin(parts->capsule_cache, &id, &covered);
        n_pinned += pinned[n_pinned] != NULL;
    }
    struct sl_capsule_cache_stats before = stats_of(parts);
    struct sl_arena_stats arena;
    sl_arena_get_stats(parts->arena, &arena);
    size_t bytes = arena.capacity_bytes / 3;
    void *block = NULL;
    assert_true(before.evictable_bytes + arena.capacity_bytes - arena.used_bytes > bytes);
    assert_int_equal(sl_room_take_block(&parts->room, "test", bytes, &block, &err), SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "memory in use lies between"));
    assert_int_equal(stats_of(parts).n_evicted, before.n_evicted);
    while (n_pinned > 0) {
        sl_capsule_cache_unpin(parts->capsule_cache, pinned[--n_pinned]);
    }
    assert_int_equal(sl_room_take_block(&parts->room, "test", bytes, &block, &err), SL_OK);
    assert_true(stats_of(parts).n_evicted > before.n_evicted);
    sl_arena_free(parts->arena, block);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_room_metadata_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_room_evicts_nothing_for_a_block_that_cannot_be, setup, teardown),
        cmocka_unit_test_setup_teardown(test_room_pinned_metadata_is_refused_for, setup, teardown),
        cmocka_unit_test_setup_teardown(test_room_full_of_what_is_in_use_refuses_and_counts, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
