// SPDX-License-Identifier: Apache-2.0
// The capsule cache: found by prefix, evicted by age, never while pinned.
#include "tests/unit/kvstore/harness.h"

#include <stdlib.h>
#include <string.h>

#include "kvstore/memory/capsule_cache.h"

#define ARENA_BYTES ((size_t)8 << 20)
#define N_TOKENS    256

struct fixture {
    void *memory;
    struct sl_arena *arena;
    struct sl_capsule_cache *capsule_cache;
    int64_t stride_blocks; // from one key of a capsule to the next
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->memory = aligned_alloc(4096, ARENA_BYTES);
    assert_non_null(fixture->memory);
    assert_int_equal(sl_arena_create(fixture->memory, ARENA_BYTES, &fixture->arena, NULL), SL_OK);
    assert_int_equal(sl_capsule_cache_create(fixture->arena, 0, &fixture->capsule_cache, NULL), SL_OK);
    fixture->stride_blocks = 1;
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    sl_capsule_cache_destroy(&fixture->capsule_cache);
    struct sl_arena_stats stats;
    sl_arena_get_stats(fixture->arena, &stats);
    assert_int_equal(stats.n_blocks, 0);
    sl_arena_destroy(&fixture->arena);
    free(fixture->memory);
    free(fixture);
    return 0;
}

static const struct sl_hash128 salt = {{7}};

// A prompt whose first `shared` tokens are common to all and whose others are `seed`'s own.
static void make_tokens(int seed, int shared, int32_t *tokens) {
    for (int i = 0; i < N_TOKENS; i++) {
        tokens[i] = i < shared ? i : i * 7 + seed * 1000;
    }
}

// Caches a capsule of n_tokens tokens under this id.
static enum sl_status put_as(struct fixture *fixture, const int32_t *tokens, int64_t n_tokens, bool evicting,
                             bool is_checkpoint, const struct sl_capsule_id *given) {
    struct sl_capsule_id id = *given;
    struct sl_capsule_bytes capsule = make_capsule(fixture->arena, &id, n_tokens, evicting);
    capsule.body = sl_arena_alloc(fixture->arena, capsule.body_bytes);
    assert_non_null(capsule.body);
    struct sl_hash128 hashes[N_TOKENS / SL_PREFIX_BLOCK];
    int64_t n_hashes = sl_prefix_keys(&salt, tokens, n_tokens, hashes, N_TOKENS / SL_PREFIX_BLOCK);
    n_hashes /= fixture->stride_blocks; // fewer keys, as of a long prompt
    for (int64_t i = 0; i < n_hashes; i++) {
        hashes[i] = hashes[(i + 1) * fixture->stride_blocks - 1];
    }
    struct sl_capsule_keys keys = {.id = id,
                                   .hashes = hashes,
                                   .n_hashes = (size_t)n_hashes,
                                   .stride = fixture->stride_blocks * SL_PREFIX_BLOCK,
                                   .is_checkpoint = is_checkpoint};
    enum sl_status status = sl_capsule_cache_put(fixture->capsule_cache, &keys, &capsule, NULL);
    if (status != SL_OK) {
        sl_capsule_bytes_free(&capsule, fixture->arena);
    }
    return status;
}

/*
 * Caches a capsule of N_TOKENS tokens. `evicting` leaves fewer slots than tokens.
 */
static enum sl_status put(struct fixture *fixture, const int32_t *tokens, bool evicting, struct sl_capsule_id *id_out) {
    *id_out = (struct sl_capsule_id){11, 22, sl_prefix_hash(&salt, tokens, N_TOKENS)};
    return put_as(fixture, tokens, N_TOKENS, evicting, false, id_out);
}

static struct sl_stored *pin_prefix(struct fixture *fixture, const int32_t *tokens, int64_t n_tokens,
                                    int64_t *covered_out) {
    struct sl_capsule_id key = {11, 22, sl_prefix_hash(&salt, tokens, n_tokens)};
    return sl_capsule_cache_pin(fixture->capsule_cache, &key, covered_out);
}

static void test_capsule_cache_finds_every_block_of_a_prefix(void **state) {
    struct fixture *fixture = *state;
    int32_t tokens[N_TOKENS];
    struct sl_capsule_id key;
    make_tokens(1, 0, tokens);
    assert_int_equal(put(fixture, tokens, false, &key), SL_OK);
    assert_true(sl_capsule_cache_has(fixture->capsule_cache, &key));
    assert_int_equal(put(fixture, tokens, false, &key), SL_ERR_EXISTS);
    for (int64_t n = SL_PREFIX_BLOCK; n <= N_TOKENS; n += SL_PREFIX_BLOCK) {
        int64_t covered;
        struct sl_stored *stored = pin_prefix(fixture, tokens, n, &covered);
        assert_non_null(stored);
        assert_int_equal(covered, n);
        assert_int_equal(stored->n_tokens, N_TOKENS);
        sl_capsule_cache_unpin(fixture->capsule_cache, stored);
    }
    int64_t covered;
    assert_null(pin_prefix(fixture, tokens, 100, &covered));
    struct sl_capsule_id other = {11, 23, key.prefix_hash};
    assert_null(sl_capsule_cache_pin(fixture->capsule_cache, &other, &covered));
}

static void test_capsule_cache_a_longer_capsule_replaces_a_checkpoint(void **state) {
    struct fixture *fixture = *state;
    int32_t tokens[N_TOKENS], others[N_TOKENS];
    int64_t covered, last = N_TOKENS - SL_PREFIX_BLOCK;
    struct sl_capsule_id first = {11, 22, {{1}}}, second = {11, 22, {{2}}}, whole, other;
    make_tokens(1, N_TOKENS, tokens);
    make_tokens(2, SL_PREFIX_BLOCK, others);
    // A checkpoint is found under its prefixes, not as a whole: its last block is read again.
    assert_int_equal(put_as(fixture, tokens, last, false, true, &first), SL_OK);
    assert_null(pin_prefix(fixture, tokens, last, &covered));
    struct sl_stored *pinned = pin_prefix(fixture, tokens, last - SL_PREFIX_BLOCK, &covered);
    assert_int_equal(covered, last - SL_PREFIX_BLOCK);
    // Another prompt that begins in the same way leaves it there.
    assert_int_equal(put(fixture, others, false, &other), SL_OK);
    assert_true(sl_capsule_cache_has(fixture->capsule_cache, &first));
    // The next one replaces it, and the finished capsule that one; what is being fetched is freed afterwards.
    assert_int_equal(put_as(fixture, tokens, N_TOKENS, false, true, &second), SL_OK);
    assert_false(sl_capsule_cache_has(fixture->capsule_cache, &first));
    struct sl_capsule_cache_stats stats;
    sl_capsule_cache_get_stats(fixture->capsule_cache, &stats);
    assert_int_equal(stats.n_capsules, 3);
    assert_true(stats.checkpoint_bytes > 0 && stats.checkpoint_bytes < stats.bytes);
    sl_capsule_cache_unpin(fixture->capsule_cache, pinned);
    assert_int_equal(put(fixture, tokens, false, &whole), SL_OK);
    assert_false(sl_capsule_cache_has(fixture->capsule_cache, &second));
    sl_capsule_cache_get_stats(fixture->capsule_cache, &stats);
    assert_int_equal(stats.n_capsules, 2);
    assert_int_equal(stats.checkpoint_bytes, 0);
    struct sl_stored *stored = pin_prefix(fixture, tokens, last, &covered);
    assert_int_equal(stored->n_tokens, N_TOKENS);
    sl_capsule_cache_unpin(fixture->capsule_cache, stored);
}

static void test_capsule_cache_a_checkpoint_with_other_strides_is_replaced(void **state) {
    struct fixture *fixture = *state;
    int32_t tokens[N_TOKENS], others[N_TOKENS];
    struct sl_capsule_id checkpoint = {11, 22, {{1}}}, whole, other;
    make_tokens(1, N_TOKENS, tokens);
    make_tokens(2, SL_PREFIX_BLOCK, others);
    // Keys of the checkpoint: blocks 1, 2 and 3. Another prompt that shares the first of them leaves it there.
    assert_int_equal(put_as(fixture, tokens, 3 * SL_PREFIX_BLOCK + 1, false, true, &checkpoint), SL_OK);
    assert_int_equal(put(fixture, others, false, &other), SL_OK);
    assert_true(sl_capsule_cache_has(fixture->capsule_cache, &checkpoint));
    fixture->stride_blocks = 2; // keys of the finished capsule: blocks 2 and 4
    assert_int_equal(put(fixture, tokens, false, &whole), SL_OK);
    assert_false(sl_capsule_cache_has(fixture->capsule_cache, &checkpoint));
}

static void test_capsule_cache_an_evicting_capsule_is_found_only_whole(void **state) {
    struct fixture *fixture = *state;
    int32_t tokens[N_TOKENS];
    struct sl_capsule_id key;
    int64_t covered;
    make_tokens(1, 0, tokens);
    assert_int_equal(put(fixture, tokens, true, &key), SL_OK);
    assert_null(pin_prefix(fixture, tokens, SL_PREFIX_BLOCK, &covered));
    struct sl_stored *stored = pin_prefix(fixture, tokens, N_TOKENS, &covered);
    assert_non_null(stored);
    sl_capsule_cache_unpin(fixture->capsule_cache, stored);
}

static void test_capsule_cache_evicts_the_least_recently_used_and_never_a_pinned_one(void **state) {
    struct fixture *fixture = *state;
    int32_t tokens[3][N_TOKENS];
    struct sl_capsule_id keys[3];
    int64_t covered;
    for (int i = 0; i < 3; i++) {
        make_tokens(i, 0, tokens[i]);
        assert_int_equal(put(fixture, tokens[i], false, &keys[i]), SL_OK);
    }
    struct sl_capsule_id listed[4] = {0};
    assert_int_equal(sl_capsule_cache_list(fixture->capsule_cache, listed, 2), 2);
    assert_memory_equal(&listed[0], &keys[2], sizeof listed[0]); // the last used first
    assert_memory_equal(&listed[1], &keys[1], sizeof listed[1]);
    assert_int_equal(listed[2].model_fingerprint, 0);
    assert_int_equal(sl_capsule_cache_list(fixture->capsule_cache, listed, 4), 3);
    struct sl_stored *pinned = pin_prefix(fixture, tokens[1], 64, &covered);
    sl_capsule_cache_unpin(fixture->capsule_cache, pin_prefix(fixture, tokens[0], 64, &covered)); // used after 2
    assert_true(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
    assert_false(sl_capsule_cache_has(fixture->capsule_cache, &keys[2]));
    assert_true(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
    assert_false(sl_capsule_cache_has(fixture->capsule_cache, &keys[0]));
    assert_false(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
    assert_true(sl_capsule_cache_has(fixture->capsule_cache, &keys[1]));
    struct sl_capsule_cache_stats stats;
    sl_capsule_cache_get_stats(fixture->capsule_cache, &stats);
    assert_int_equal(stats.n_capsules, 1);
    assert_int_equal(stats.n_pinned, 1);
    assert_int_equal(stats.n_evicted, 2);
    sl_capsule_cache_unpin(fixture->capsule_cache, pinned);
    assert_true(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
}

static void test_capsule_cache_of_a_common_prefix_the_younger_is_found(void **state) {
    struct fixture *fixture = *state;
    int32_t tokens[2][N_TOKENS];
    struct sl_capsule_id keys[2];
    int64_t covered;
    for (int i = 0; i < 2; i++) {
        make_tokens(i + 1, 128, tokens[i]);
        assert_int_equal(put(fixture, tokens[i], false, &keys[i]), SL_OK);
    }
    struct sl_stored *stored = pin_prefix(fixture, tokens[0], 128, &covered);
    assert_non_null(stored);
    assert_true(sl_hash128_equals(&stored->keys.id.prefix_hash, &keys[1].prefix_hash));
    sl_capsule_cache_unpin(fixture->capsule_cache, stored);
    // A prefix of the older one alone still finds it, and goes with it.
    stored = pin_prefix(fixture, tokens[0], 192, &covered);
    assert_true(sl_hash128_equals(&stored->keys.id.prefix_hash, &keys[0].prefix_hash));
    sl_capsule_cache_unpin(fixture->capsule_cache, stored);
    sl_capsule_cache_unpin(fixture->capsule_cache, pin_prefix(fixture, tokens[1], 192, &covered));
    assert_true(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
    assert_null(pin_prefix(fixture, tokens[0], 192, &covered));
    stored = pin_prefix(fixture, tokens[0], 128, &covered);
    assert_non_null(stored);
    sl_capsule_cache_unpin(fixture->capsule_cache, stored);
}

static void test_capsule_cache_refuses_what_was_not_announced(void **state) {
    struct fixture *fixture = *state;
    void *body = sl_arena_alloc(fixture->arena, 4096);
    uint8_t header[16] = {1, 2, 3};
    struct sl_capsule_keys keys = {.id = {1, 2, {{3}}}};
    struct sl_capsule_bytes capsule = {body, 4096, header, sizeof header};
    assert_true(sl_capsule_cache_put(fixture->capsule_cache, &keys, &capsule, NULL) < 0);
    assert_false(sl_capsule_cache_has(fixture->capsule_cache, &keys.id));
    sl_arena_free(fixture->arena, body);
}

static size_t bytes_in_arena(struct fixture *fixture) {
    struct sl_arena_stats stats;
    sl_arena_get_stats(fixture->arena, &stats);
    return stats.used_bytes;
}

static void test_capsule_cache_forgets_at_once_and_frees_behind_the_last_pin(void **state) {
    struct fixture *fixture = *state;
    int32_t tokens[2][N_TOKENS];
    struct sl_capsule_id keys[2], listed[4];
    int64_t covered;
    for (int i = 0; i < 2; i++) {
        make_tokens(i + 1, 128, tokens[i]);
        assert_int_equal(put(fixture, tokens[i], false, &keys[i]), SL_OK);
    }
    size_t both = bytes_in_arena(fixture);
    struct sl_stored *fetched = pin_prefix(fixture, tokens[0], N_TOKENS, &covered);
    struct sl_stored *written = sl_capsule_cache_hold(fixture->capsule_cache, &keys[0]);
    assert_ptr_equal(fetched, written);
    assert_true(sl_capsule_cache_forget(fixture->capsule_cache, &keys[0]));
    assert_false(sl_capsule_cache_forget(fixture->capsule_cache, &keys[0]));
    assert_false(sl_capsule_cache_has(fixture->capsule_cache, &keys[0]));
    assert_null(sl_capsule_cache_hold(fixture->capsule_cache, &keys[0]));
    assert_null(pin_prefix(fixture, tokens[0], 192, &covered));
    assert_int_equal(sl_capsule_cache_list(fixture->capsule_cache, listed, 4), 1);
    assert_memory_equal(&listed[0], &keys[1], sizeof listed[0]);
    assert_int_equal(bytes_in_arena(fixture), both);                   // its reader continues
    assert_int_equal(put(fixture, tokens[0], false, &keys[0]), SL_OK); // and it may come again meanwhile
    sl_capsule_cache_release(fixture->capsule_cache, written);
    assert_int_equal(fetched->n_tokens, N_TOKENS);
    sl_capsule_cache_unpin(fixture->capsule_cache, fetched);
    assert_int_equal(bytes_in_arena(fixture), both);
    assert_true(sl_capsule_cache_has(fixture->capsule_cache, &keys[0]));
    struct sl_capsule_cache_stats stats;
    sl_capsule_cache_get_stats(fixture->capsule_cache, &stats);
    assert_int_equal(stats.n_capsules, 2);
    assert_int_equal(stats.n_pinned, 0);
    assert_int_equal(stats.n_evicted, 0);
    // A prefix that both share still leads to the younger one. Only a whole capsule can be forgotten, not a prefix.
    struct sl_capsule_id shared = {11, 22, sl_prefix_hash(&salt, tokens[1], 128)};
    assert_false(sl_capsule_cache_forget(fixture->capsule_cache, &shared));
    assert_true(sl_capsule_cache_forget(fixture->capsule_cache, &keys[1]));
    assert_true(sl_capsule_cache_forget(fixture->capsule_cache, &keys[0]));
    assert_int_equal(bytes_in_arena(fixture), 0);
}

static void test_capsule_cache_a_document_is_not_evicted(void **state) {
    struct fixture *fixture = *state;
    int32_t tokens[3][N_TOKENS];
    struct sl_capsule_id keys[3], *ids = malloc(sizeof *ids);
    struct sl_protected *protected = NULL;
    struct sl_capsule_cache_stats stats;
    assert_int_equal(sl_protected_create(0, &protected, NULL), SL_OK);
    sl_capsule_cache_protect(fixture->capsule_cache, protected);
    for (int i = 0; i < 3; i++) {
        make_tokens(i, 0, tokens[i]);
        assert_int_equal(put(fixture, tokens[i], false, &keys[i]), SL_OK);
    }
    sl_capsule_cache_get_stats(fixture->capsule_cache, &stats);
    assert_int_equal(stats.evictable_bytes, stats.bytes);
    ids[0] = keys[0]; // the oldest
    sl_protected_set(protected, ids, 1);
    sl_capsule_cache_get_stats(fixture->capsule_cache, &stats);
    assert_int_equal(stats.evictable_bytes, stats.bytes / 3 * 2);
    assert_true(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
    assert_true(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
    assert_false(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
    assert_int_equal(sl_capsule_cache_oldest_ns(fixture->capsule_cache, INT64_MAX), INT64_MAX);
    assert_true(sl_capsule_cache_has(fixture->capsule_cache, &keys[0]));
    // A longer capsule that begins with the document does not take its keys, or they would go with it.
    int32_t longer[N_TOKENS];
    struct sl_capsule_id key;
    int64_t covered;
    memcpy(longer, tokens[0], sizeof longer);
    longer[N_TOKENS - 1]++;
    assert_int_equal(put(fixture, longer, false, &key), SL_OK);
    assert_true(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
    assert_false(sl_capsule_cache_has(fixture->capsule_cache, &key));
    struct sl_stored *stored = pin_prefix(fixture, tokens[0], 128, &covered);
    assert_non_null(stored);
    assert_int_equal(covered, 128);
    sl_capsule_cache_unpin(fixture->capsule_cache, stored);
    assert_true(sl_capsule_cache_forget(fixture->capsule_cache, &keys[0])); // as the document is deleted
    sl_capsule_cache_protect(fixture->capsule_cache, NULL);
    sl_protected_destroy(&protected);
}

static void set_on_disk(struct fixture *fixture, const struct sl_capsule_id *id) {
    struct sl_stored *stored = sl_capsule_cache_hold(fixture->capsule_cache, id);
    assert_non_null(stored);
    atomic_store(&stored->is_on_disk, true);
    sl_capsule_cache_release(fixture->capsule_cache, stored);
}

// A store that was restarted with a smaller arena may read more documents back than have a place.
static void test_capsule_cache_documents_keep_half_of_the_arena(void **state) {
    struct fixture *fixture = *state;
    int32_t tokens[N_TOKENS];
    struct sl_arena_stats arena;
    struct sl_capsule_cache_stats stats;
    struct sl_protected *protected = NULL;
    struct sl_capsule_id *ids = malloc(1000 * sizeof *ids), list[1000], first, id;
    size_t n = 0;
    assert_int_equal(sl_protected_create(0, &protected, NULL), SL_OK);
    sl_capsule_cache_protect(fixture->capsule_cache, protected);
    do {
        make_tokens((int)n, 0, tokens);
        assert_int_equal(put(fixture, tokens, false, &id), SL_OK);
        list[n] = ids[n] = id;
        n++;
        sl_arena_get_stats(fixture->arena, &arena);
    } while (n < 1000 && arena.used_bytes * 4 < arena.capacity_bytes * 3);
    assert_in_range(n, 4, 999);
    first = ids[0];
    sl_protected_set(protected, ids, n);
    sl_capsule_cache_get_stats(fixture->capsule_cache, &stats);
    assert_int_equal(stats.evictable_bytes, stats.bytes - arena.capacity_bytes / 2);
    make_tokens(1000, 0, tokens);
    assert_int_equal(put(fixture, tokens, false, &id), SL_OK); // the youngest, and no document
    assert_true(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
    assert_false(sl_capsule_cache_has(fixture->capsule_cache, &id)); // it goes first
    assert_true(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
    assert_false(sl_capsule_cache_has(fixture->capsule_cache, &first)); // then the oldest document
    while (sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX)) {
    }
    size_t bytes = stats.bytes / n;
    sl_capsule_cache_get_stats(fixture->capsule_cache, &stats);
    assert_in_range(stats.bytes, arena.capacity_bytes / 2 - bytes, arena.capacity_bytes / 2);
    assert_int_equal(stats.evictable_bytes, 0);
    // Offloaded layers of documents take part of the share.
    sl_capsule_cache_share(fixture->capsule_cache, bytes);
    sl_capsule_cache_get_stats(fixture->capsule_cache, &stats);
    assert_in_range(stats.evictable_bytes, 1, bytes);
    sl_capsule_cache_share(fixture->capsule_cache, SIZE_MAX);
    sl_capsule_cache_get_stats(fixture->capsule_cache, &stats);
    assert_int_equal(stats.evictable_bytes, stats.bytes);
    sl_capsule_cache_share(fixture->capsule_cache, 0);
    // Beyond their share, one that is on disk takes its turn among the others; one that is not goes last.
    const size_t first_left = n - stats.bytes / bytes;
    set_on_disk(fixture, &list[first_left + 1]);
    assert_false(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX)); // within their share they stay
    struct sl_capsule_id *more = malloc((n + 2) * sizeof *more);
    memcpy(more, list, n * sizeof *more);
    for (size_t i = 0; i < 3; i++) {
        make_tokens(2000 + (int)i, 0, tokens);
        assert_int_equal(put(fixture, tokens, false, i < 2 ? &more[n + i] : &id), SL_OK);
    }
    sl_protected_set(protected, more, n + 2); // the third one is not a document
    assert_true(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
    assert_false(sl_capsule_cache_has(fixture->capsule_cache, &list[first_left + 1]));
    assert_true(sl_capsule_cache_has(fixture->capsule_cache, &id));
    assert_true(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
    assert_false(sl_capsule_cache_has(fixture->capsule_cache, &id));
    assert_true(sl_capsule_cache_has(fixture->capsule_cache, &list[first_left]));
    // Another capsule that was used earlier goes before one that is on disk.
    make_tokens(2003, 0, tokens);
    assert_int_equal(put(fixture, tokens, false, &id), SL_OK);
    set_on_disk(fixture, &more[n]);
    int64_t covered;
    sl_capsule_cache_unpin(fixture->capsule_cache, sl_capsule_cache_pin(fixture->capsule_cache, &more[n], &covered));
    assert_true(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
    assert_false(sl_capsule_cache_has(fixture->capsule_cache, &id));
    assert_true(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX));
    assert_false(sl_capsule_cache_has(fixture->capsule_cache, &more[n]));
    assert_true(sl_capsule_cache_has(fixture->capsule_cache, &list[first_left]));
    assert_false(sl_capsule_cache_evict_one(fixture->capsule_cache, INT64_MAX)); // they are within their share again
    sl_capsule_cache_protect(fixture->capsule_cache, NULL);
    sl_protected_destroy(&protected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_capsule_cache_finds_every_block_of_a_prefix, setup, teardown),
        cmocka_unit_test_setup_teardown(test_capsule_cache_a_longer_capsule_replaces_a_checkpoint, setup, teardown),
        cmocka_unit_test_setup_teardown(test_capsule_cache_a_checkpoint_with_other_strides_is_replaced, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_capsule_cache_an_evicting_capsule_is_found_only_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(test_capsule_cache_evicts_the_least_recently_used_and_never_a_pinned_one, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_capsule_cache_of_a_common_prefix_the_younger_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(test_capsule_cache_refuses_what_was_not_announced, setup, teardown),
        cmocka_unit_test_setup_teardown(test_capsule_cache_a_document_is_not_evicted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_capsule_cache_documents_keep_half_of_the_arena, setup, teardown),
        cmocka_unit_test_setup_teardown(test_capsule_cache_forgets_at_once_and_frees_behind_the_last_pin, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
