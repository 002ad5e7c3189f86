// SPDX-License-Identifier: Apache-2.0
// The index of segments: found by prompt however it was cut, evicted by age, never while used, late while kept.
#include "tests/unit/kvstore/harness.h"

#include <stdlib.h>

#include "base/clock.h"

#define ARENA_BYTES ((size_t)16 << 20)
#define KEEP_MS     60000

struct fixture {
    void *memory;
    struct sl_arena *arena;
    struct sl_kv_segments *segments;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->memory = aligned_alloc(4096, ARENA_BYTES);
    assert_non_null(fixture->memory);
    assert_int_equal(sl_arena_create(fixture->memory, ARENA_BYTES, &fixture->arena, NULL), SL_OK);
    assert_int_equal(sl_kv_segments_create(KEEP_MS, &fixture->segments, NULL), SL_OK);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    sl_kv_segments_destroy(&fixture->segments);
    struct sl_arena_stats stats;
    sl_arena_get_stats(fixture->arena, &stats);
    assert_int_equal(stats.n_blocks, 0);
    sl_arena_destroy(&fixture->arena);
    free(fixture->memory);
    free(fixture);
    return 0;
}

static void put(struct fixture *fixture, const struct prompt *prompt, int64_t begin, int64_t end) {
    struct sl_kv_segment *segment = make_segment(fixture->arena, &test_family, begin, end, 0);
    assert_int_equal(
        sl_kv_segments_put(fixture->segments, &test_family, sl_prompt_hash_at(&prompt->hashes, end), &segment, NULL),
        SL_OK);
    sl_kv_segment_unref(&segment);
}

/*
 * Writes the ends of the chain for a prompt, in order, and a final 0.
 */
static void chain_ends(struct fixture *fixture, const struct sl_kv_family *family, const struct prompt *prompt,
                       int64_t ends_out[8]) {
    struct sl_kv_segment **chain;
    size_t n_chain;
    int64_t end = 0;
    assert_int_equal(sl_kv_segments_chain(fixture->segments, family, &prompt->hashes, &chain, &n_chain, NULL), SL_OK);
    assert_in_range(n_chain, 0, 7);
    for (size_t i = 0; i < n_chain; i++) {
        const struct sl_kv_segment_config *config = sl_kv_segment_get_config(chain[i]);
        assert_int_equal(config->begin, end);
        ends_out[i] = end = config->begin + config->n_slots;
        sl_kv_segment_unref(&chain[i]);
    }
    ends_out[n_chain] = 0;
    free(chain);
}

static void test_segments_of_a_common_beginning_are_found(void **state) {
    struct fixture *fixture = *state;
    struct prompt first, second, longer;
    int64_t ends[8];
    make_prompt(&first, 1, 200, 400);
    make_prompt(&second, 2, 200, 400);
    put(fixture, &first, 0, 128);
    put(fixture, &first, 128, 192);
    put(fixture, &first, 192, 384);
    put(fixture, &first, 384, 400);
    chain_ends(fixture, &test_family, &first, ends);
    assert_int_equal(ends[0], 128);
    assert_int_equal(ends[1], 192);
    assert_int_equal(ends[2], 384);
    assert_int_equal(ends[3], 400); // the partial page, since it is the prompt's end
    assert_int_equal(ends[4], 0);
    chain_ends(fixture, &test_family, &second, ends);
    assert_int_equal(ends[1], 192); // 200 tokens are common; [192, 384) is another one's
    assert_int_equal(ends[2], 0);
    make_prompt(&longer, 1, 200, 500); // the next turn: the partial page is not whole now
    chain_ends(fixture, &test_family, &longer, ends);
    assert_int_equal(ends[2], 384);
    assert_int_equal(ends[3], 0);
}

static void test_segments_of_another_family_are_not_found(void **state) {
    struct fixture *fixture = *state;
    struct prompt prompt;
    int64_t ends[8];
    make_prompt(&prompt, 1, 0, 128);
    put(fixture, &prompt, 0, 128);
    struct sl_kv_family others[6];
    for (int i = 0; i < 6; i++) {
        others[i] = test_family;
    }
    others[0].model_fingerprint++;
    others[1].first_offloaded_head++;
    others[2].n_offloaded_heads++;
    others[3].work = SL_KV_BF16;
    others[4].rows = SL_KV_INT8;
    others[5].scan = SL_KV_INT1;
    for (int i = 0; i < 6; i++) {
        chain_ends(fixture, &others[i], &prompt, ends);
        assert_int_equal(ends[0], 0);
    }
}

static void test_segments_cut_differently_are_chained_where_they_meet(void **state) {
    struct fixture *fixture = *state;
    struct prompt prompt;
    int64_t ends[8];
    make_prompt(&prompt, 1, 0, 512);
    put(fixture, &prompt, 128, 256); // alone: a gap before it
    chain_ends(fixture, &test_family, &prompt, ends);
    assert_int_equal(ends[0], 0);
    put(fixture, &prompt, 0, 192); // the longest first step is a dead end
    chain_ends(fixture, &test_family, &prompt, ends);
    assert_int_equal(ends[0], 192);
    assert_int_equal(ends[1], 0);
    put(fixture, &prompt, 0, 128);
    chain_ends(fixture, &test_family, &prompt, ends);
    assert_int_equal(ends[0], 128);
    assert_int_equal(ends[1], 256);
    assert_int_equal(ends[2], 0);
    put(fixture, &prompt, 192, 512);
    chain_ends(fixture, &test_family, &prompt, ends);
    assert_int_equal(ends[0], 192);
    assert_int_equal(ends[1], 512);
    assert_int_equal(ends[2], 0);
}

static void test_segments_keep_one_of_two_equals(void **state) {
    struct fixture *fixture = *state;
    struct prompt prompt;
    make_prompt(&prompt, 1, 0, 64);
    struct sl_kv_segment *first = make_segment(fixture->arena, &test_family, 0, 64, 0);
    struct sl_kv_segment *second = make_segment(fixture->arena, &test_family, 0, 64, 0);
    struct sl_kv_segment *kept = first;
    assert_int_equal(sl_kv_segments_put(fixture->segments, &test_family, prompt.hashes.whole, &first, NULL), SL_OK);
    assert_ptr_equal(first, kept);
    assert_int_equal(sl_kv_segments_put(fixture->segments, &test_family, prompt.hashes.whole, &second, NULL), SL_OK);
    assert_ptr_equal(second, kept);
    struct sl_kv_segment *found = sl_kv_segments_find(fixture->segments, &test_family, &prompt.hashes, 0, 64);
    assert_ptr_equal(found, kept);
    assert_int_equal(sl_kv_segment_n_refs(kept), 4); // three here and the index
    struct sl_kv_segments_stats stats;
    sl_kv_segments_get_stats(fixture->segments, &stats);
    assert_int_equal(stats.n_segments, 1);
    assert_int_equal(stats.bytes, sl_kv_segment_bytes(sl_kv_segment_get_config(kept)));
    assert_int_equal(stats.evictable_bytes, 0);
    sl_kv_segment_unref(&first);
    sl_kv_segment_unref(&second);
    sl_kv_segment_unref(&found);
}

static void test_segments_evict_the_oldest_not_the_used_and_the_kept_last(void **state) {
    struct fixture *fixture = *state;
    struct sl_kv_segments *segments = fixture->segments;
    struct prompt used, other;
    make_prompt(&used, 1, 0, 128);
    make_prompt(&other, 2, 0, 64);
    put(fixture, &used, 0, 64);
    put(fixture, &used, 64, 128);
    put(fixture, &other, 0, 64); // the youngest
    const struct sl_ops *ops;
    struct sl_remote_kv *remote_kv;
    assert_int_equal(sl_ops_select("auto", &ops, NULL), SL_OK);
    assert_int_equal(sl_remote_kv_create(ops, 2, 2, 64, 128, &remote_kv, NULL), SL_OK);
    for (int64_t begin = 0; begin < 128; begin += 64) {
        struct sl_kv_segment *segment = sl_kv_segments_find(segments, &test_family, &used.hashes, begin, begin + 64);
        assert_int_equal(sl_remote_kv_append(remote_kv, segment, NULL), SL_OK);
        sl_kv_segment_unref(&segment);
    }
    assert_true(sl_kv_segments_evict_one(segments, INT64_MAX));
    assert_null(sl_kv_segments_find(segments, &test_family, &other.hashes, 0, 64));
    assert_false(sl_kv_segments_evict_one(segments, INT64_MAX)); // all in use
    assert_int_equal(sl_kv_segments_oldest_ns(segments, INT64_MAX), INT64_MAX);

    sl_kv_segments_release(segments, &test_family, &used.hashes, remote_kv);
    sl_remote_kv_destroy(&remote_kv);
    put(fixture, &other, 0, 64); // the youngest again, and yet the first to go
    assert_true(sl_kv_segments_evict_one(segments, sl_now_ns()));
    assert_null(sl_kv_segments_find(segments, &test_family, &other.hashes, 0, 64));
    assert_false(sl_kv_segments_evict_one(segments, sl_now_ns()));
    assert_true(sl_kv_segments_evict_one(segments, sl_now_ns() + 2 * KEEP_MS * SL_NS_PER_MS));
    assert_null(sl_kv_segments_find(segments, &test_family, &used.hashes, 64, 128)); // the end before the beginning
    assert_true(sl_kv_segments_evict_one(segments, INT64_MAX));
    struct sl_kv_segments_stats stats;
    sl_kv_segments_get_stats(segments, &stats);
    assert_int_equal(stats.n_segments, 0);
    assert_int_equal(stats.n_evicted, 4);
    assert_int_equal(stats.bytes, 0);
}

static void test_segment_family_refuses_formats_that_are_not_built(void **state) {
    (void)state;
    struct sl_kv_segment_config config;
    struct sl_kv_family family = test_family;
    assert_int_equal(sl_kv_family_config(&family, 0, 64, &config, NULL), SL_OK);
    family.work = SL_KV_INT4;
    assert_int_equal(sl_kv_family_config(&family, 0, 64, &config, NULL), SL_ERR_INVALID);
    family = test_family;
    family.rows = SL_KV_INT4;
    assert_int_equal(sl_kv_family_config(&family, 0, 64, &config, NULL), SL_ERR_INVALID);
    family = test_family;
    family.scan = SL_KV_INT2;
    assert_int_equal(sl_kv_family_config(&family, 0, 64, &config, NULL), SL_ERR_INVALID);
    family = test_family;
    family.scan = 77;
    assert_int_equal(sl_kv_family_config(&family, 0, 64, &config, NULL), SL_ERR_INVALID);
    family = test_family;
    family.head_dim = 7;
    assert_int_equal(sl_kv_family_config(&family, 0, 64, &config, NULL), SL_ERR_INVALID);
    family = test_family;
    family.n_offloaded_heads = 0;
    assert_int_equal(sl_kv_family_config(&family, 0, 64, &config, NULL), SL_ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_segments_of_a_common_beginning_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(test_segments_of_another_family_are_not_found, setup, teardown),
        cmocka_unit_test_setup_teardown(test_segments_cut_differently_are_chained_where_they_meet, setup, teardown),
        cmocka_unit_test_setup_teardown(test_segments_keep_one_of_two_equals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_segments_evict_the_oldest_not_the_used_and_the_kept_last, setup, teardown),
        cmocka_unit_test(test_segment_family_refuses_formats_that_are_not_built),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
