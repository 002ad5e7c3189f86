// SPDX-License-Identifier: Apache-2.0
// Tests of engine/offload/remote_kv/remote_kv.c, segment.c and offloaded_heads.c: what is kept, what is given back, and
// what is refused.
#include <math.h>

#include "fixture.h"

// Checks the rows of an offloaded head: K and V of the pages as kept, in the work format.
static void check_rows(struct offloaded_heads *offloaded_heads, const struct sl_remote_kv *remote_kv,
                       int offloaded_head) {
    size_t row_bytes = 2 * (size_t)offloaded_heads->d * (size_t)sl_kv_format_bits(offloaded_heads->work.format) / 8;
    uint32_t n = offloaded_heads->n_tokens < 600 ? offloaded_heads->n_tokens : 600;
    uint32_t *tokens = malloc(n * sizeof *tokens);
    char *rows = malloc(n * row_bytes), expected[2 * 512 * sizeof(float)];
    assert_true(tokens != NULL && rows != NULL);
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = i < n / 2 ? i : (uint32_t)random_int(&offloaded_heads->seed, 0, (int)offloaded_heads->n_tokens - 1);
    }
    sl_remote_kv_rows(remote_kv, offloaded_head, tokens, n, rows);
    for (uint32_t i = 0; i < n; i++) {
        int index = 0;
        while (sl_kv_segment_end(sl_remote_kv_segment(remote_kv, index)) <= tokens[i]) {
            index++;
        }
        const struct sl_kv_segment *s = sl_remote_kv_segment(remote_kv, index);
        uint32_t slot = tokens[i] - (uint32_t)s->config.begin;
        offloaded_heads->ops->host.copy_rows(&s->kv[offloaded_head - remote_kv->first_offloaded_head], &slot, 1,
                                             expected);
        assert_memory_equal(rows + i * row_bytes, expected, row_bytes);
    }
    free(tokens);
    free(rows);
}

static void check_absmax(struct offloaded_heads *offloaded_heads, const struct sl_remote_kv *remote_kv,
                         int offloaded_head) {
    float absmax[512], expected[512] = {0};
    const struct sl_kv_segment *s;
    for (int i = 0; (s = sl_remote_kv_segment(remote_kv, i)) != NULL; i++) {
        for (uint32_t j = 0; j < s->config.n_slots; j++) {
            float key[512];
            offloaded_heads->ops->read_rows(&s->kv[offloaded_head - remote_kv->first_offloaded_head], j, j + 1, key,
                                            NULL);
            for (int c = 0; c < offloaded_heads->d; c++) {
                expected[c] = fmaxf(expected[c], fabsf(key[c]));
            }
        }
    }
    sl_remote_kv_absmax(remote_kv, offloaded_head, absmax);
    assert_memory_equal(absmax, expected, (size_t)offloaded_heads->d * sizeof(float));
}

static void test_remote_kv_keeps_rows_and_maxima(void **state) {
    (void)state;
    static const enum sl_kv_format formats[] = {SL_KV_F16, SL_KV_BF16, SL_KV_F32};
    static const uint32_t n_tokens[] = {1, 63, 64, 65, 4000};
    for (size_t i = 0; i < 3 * 5 * 2; i++) {
        struct offloaded_heads offloaded_heads;
        offloaded_heads_create(&offloaded_heads, formats[i % 3], 3, 24, n_tokens[i / 3 % 5], i);
        struct make make = {1, 2, i < 15 ? offloaded_heads.work.format : SL_KV_INT8, SL_KV_INT1, i % 2};
        struct sl_remote_kv *remote_kv = make_remote_kv(&offloaded_heads, &make);
        for (int offloaded_head = FIRST_HEAD + 1; offloaded_head < FIRST_HEAD + 3; offloaded_head++) {
            check_rows(&offloaded_heads, remote_kv, offloaded_head);
            check_absmax(&offloaded_heads, remote_kv, offloaded_head);
        }
        sl_remote_kv_destroy(&remote_kv);
        offloaded_heads_destroy(&offloaded_heads);
    }
}

// A segment of pages as they came holds them bit by bit; int8 rows are what ops->quantize makes of full pages.
static void test_segment_keeps_pages(void **state) {
    (void)state;
    struct offloaded_heads offloaded_heads;
    offloaded_heads_create(&offloaded_heads, SL_KV_F16, 2, 64, 2 * SL_PAGE_SLOTS + 9, 4);
    struct sl_page_layout packed;
    assert_int_equal(sl_page_layout_init(&packed, SL_KV_INT8, 64, 0, false), SL_OK);
    char *page = aligned_alloc(64, packed.bytes);
    assert_non_null(page);
    for (int is_int8 = 0; is_int8 < 2; is_int8++) {
        struct make make = {0, 2, is_int8 ? SL_KV_INT8 : SL_KV_F16, SL_KV_INT8, 0};
        struct sl_kv_segment *s = make_segment(&offloaded_heads, &make, 0, offloaded_heads.n_tokens);
        size_t stride;
        const char *pages = sl_kv_segment_pages(s, &stride);
        assert_int_equal(stride,
                         is_int8 ? 2 * packed.bytes + offloaded_heads.work.bytes : 3 * offloaded_heads.work.bytes);
        for (int offloaded_head = 0; offloaded_head < 2; offloaded_head++) {
            const char *at = pages + (size_t)offloaded_head * stride;
            for (uint32_t p = 0; p < 2; p++) {
                memset(page, 0, packed.bytes);
                offloaded_heads.ops->host.quantize(&offloaded_heads.work, offloaded_heads.kv[offloaded_head].pages[p],
                                                   &packed, page);
                assert_memory_equal(at, is_int8 ? page : offloaded_heads.kv[offloaded_head].pages[p],
                                    (is_int8 ? packed.bytes : offloaded_heads.work.bytes));
                at += is_int8 ? packed.bytes : offloaded_heads.work.bytes;
            }
            assert_memory_equal(at, offloaded_heads.kv[offloaded_head].pages[2], offloaded_heads.work.bytes);
        }
        struct sl_arena_stats stats;
        sl_arena_get_stats(offloaded_heads.arena, &stats);
        assert_int_equal(stats.used_bytes, sl_kv_segment_bytes(sl_kv_segment_get_config(s)));
        sl_kv_segment_unref(&s);
    }
    free(page);
    offloaded_heads_destroy(&offloaded_heads);
}

// Borrowed pages, quantized ones among them, give what a segment with pages of its own gives.
static void test_segment_of_borrowed_pages(void **state) {
    (void)state;
    struct offloaded_heads offloaded_heads;
    offloaded_heads_create(&offloaded_heads, SL_KV_BF16, 2, 32, 500, 8);
    for (int is_int8 = 0; is_int8 < 2; is_int8++) {
        struct make make = {0, 2, is_int8 ? SL_KV_INT8 : SL_KV_BF16, SL_KV_BF16, 8};
        struct sl_remote_kv *own = make_remote_kv(&offloaded_heads, &make), *lent;
        const struct sl_kv_segment *s = sl_remote_kv_segment(own, 0);
        struct sl_kv_segment *borrowed;
        struct sl_error err;
        assert_int_equal(
            sl_kv_segment_borrow(&s->config, offloaded_heads.ops, NULL, offloaded_heads.arena, s->kv, &borrowed, &err),
            SL_OK);
        assert_memory_equal(borrowed->indexes, s->indexes, 2 * s->scan.bytes);
        assert_int_equal(sl_remote_kv_create(offloaded_heads.ops, FIRST_HEAD, 2, 32, 500, &lent, &err), SL_OK);
        assert_int_equal(sl_remote_kv_append(lent, borrowed, &err), SL_OK);
        sl_kv_segment_unref(&borrowed);
        check_rows(&offloaded_heads, lent, FIRST_HEAD + 1);
        struct sl_kv few[2] = {s->kv[0], s->kv[1]};
        few[1].n_slots = 499;
        assert_int_equal(
            sl_kv_segment_borrow(&s->config, offloaded_heads.ops, NULL, offloaded_heads.arena, few, &borrowed, &err),
            SL_ERR_INVALID);
        sl_remote_kv_destroy(&lent);
        sl_remote_kv_destroy(&own);
    }
    offloaded_heads_destroy(&offloaded_heads);
}

static void test_segments_are_shared(void **state) {
    (void)state;
    struct offloaded_heads offloaded_heads;
    offloaded_heads_create(&offloaded_heads, SL_KV_F16, 1, 16, 128, 2);
    struct make make = {0, 1, SL_KV_F16, SL_KV_F16, 1};
    struct sl_remote_kv *first = make_remote_kv(&offloaded_heads, &make), *second;
    struct sl_error err;
    assert_int_equal(sl_remote_kv_create(offloaded_heads.ops, FIRST_HEAD, 1, 16, 128, &second, &err), SL_OK);
    const struct sl_kv_segment *shared = sl_remote_kv_segment(first, 0);
    assert_int_equal(sl_remote_kv_append(second, first->segments[0], &err), SL_OK);
    assert_int_equal(sl_kv_segment_n_refs(shared), 2);
    sl_remote_kv_destroy(&first);
    assert_int_equal(sl_kv_segment_n_refs(shared), 1);
    check_absmax(&offloaded_heads, second, FIRST_HEAD);
    assert_null(sl_remote_kv_segment(second, 1));
    assert_null(sl_remote_kv_segment(second, -1));
    sl_remote_kv_destroy(&second);
    sl_remote_kv_destroy(&second);
    offloaded_heads_destroy(&offloaded_heads);
}

static void test_remote_kv_refuses_segments_that_do_not_follow(void **state) {
    (void)state;
    struct offloaded_heads offloaded_heads;
    offloaded_heads_create(&offloaded_heads, SL_KV_F16, 3, 16, 400, 2);
    struct make make = {0, 2, SL_KV_F16, SL_KV_F16, 0};
    struct make others[] = {{1, 2, SL_KV_F16, SL_KV_F16, 0},
                            {0, 1, SL_KV_F16, SL_KV_F16, 0},
                            {0, 2, SL_KV_INT8, SL_KV_F16, 0},
                            {0, 2, SL_KV_F16, SL_KV_INT8, 0}};
    struct sl_remote_kv *remote_kv;
    struct sl_error err;
    assert_int_equal(sl_remote_kv_create(offloaded_heads.ops, FIRST_HEAD, 2, 16, 300, &remote_kv, &err), SL_OK);
    assert_int_equal(sl_remote_kv_n_tokens(remote_kv), 0);
    struct sl_kv_segment *s = make_segment(&offloaded_heads, &make, 64, 64);
    assert_int_equal(sl_remote_kv_append(remote_kv, s, &err), SL_ERR_INVALID); // does not begin at 0
    sl_kv_segment_unref(&s);
    s = make_segment(&offloaded_heads, &make, 0, 128);
    assert_int_equal(sl_remote_kv_append(remote_kv, s, &err), SL_OK);
    assert_int_equal(sl_remote_kv_append(remote_kv, s, &err), SL_ERR_INVALID); // is there already
    sl_kv_segment_unref(&s);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        s = make_segment(&offloaded_heads, &others[i], 128, 64);
        assert_int_equal(sl_remote_kv_append(remote_kv, s, &err), SL_ERR_INVALID);
        assert_int_equal(sl_kv_segment_n_refs(s), 1);
        sl_kv_segment_unref(&s);
    }
    s = make_segment(&offloaded_heads, &make, 128, 173);
    assert_int_equal(sl_remote_kv_append(remote_kv, s, &err), SL_ERR_INVALID); // more than max_tokens
    sl_kv_segment_unref(&s);
    s = make_segment(&offloaded_heads, &make, 128, 70);
    assert_int_equal(sl_remote_kv_append(remote_kv, s, &err), SL_OK);
    sl_kv_segment_unref(&s);
    s = make_segment(&offloaded_heads, &make, 192, 64);
    assert_int_equal(sl_remote_kv_append(remote_kv, s, &err), SL_ERR_INVALID); // after a partial page
    sl_kv_segment_unref(&s);
    assert_int_equal(sl_remote_kv_n_tokens(remote_kv), 198);
    sl_remote_kv_destroy(&remote_kv);
    offloaded_heads_destroy(&offloaded_heads);
}

static void test_segment_refuses_what_is_not_built(void **state) {
    (void)state;
    struct offloaded_heads offloaded_heads;
    offloaded_heads_create(&offloaded_heads, SL_KV_F16, 1, 16, 64, 2);
    struct sl_page_layout positions, states, packed;
    assert_int_equal(sl_page_layout_init(&positions, SL_KV_F16, 16, 0, true), SL_OK);
    assert_int_equal(sl_page_layout_init(&states, SL_KV_F16, 16, 1, false), SL_OK);
    assert_int_equal(sl_page_layout_init(&packed, SL_KV_INT8, 16, 0, false), SL_OK);
    const struct sl_kv_segment_config good = {0, 64, 0, 1, offloaded_heads.work, SL_KV_F16, SL_KV_F16};
    struct sl_kv_segment_config bad[12];
    for (size_t i = 0; i < 12; i++) {
        bad[i] = good;
    }
    bad[0].begin = 32;
    bad[1].begin = -64;
    bad[2].n_slots = 0;
    bad[3].n_offloaded_heads = 0;
    bad[4].first_offloaded_head = -1;
    bad[5].work = positions;
    bad[6].work = states;
    bad[7].work = packed;
    bad[8].rows = SL_KV_INT4;
    bad[9].rows = SL_KV_F32;
    bad[10].scan = SL_KV_INT2;
    bad[11].scan = SL_KV_BF16;
    assert_true(sl_kv_segment_block_bytes(&good) == offloaded_heads.work.bytes &&
                sl_kv_segment_bytes(&good) > offloaded_heads.work.bytes);
    for (size_t i = 0; i < 12; i++) {
        struct sl_kv_segment *s = NULL;
        struct sl_error err = {0};
        assert_int_equal(sl_kv_segment_create(&bad[i], offloaded_heads.ops, NULL, offloaded_heads.arena,
                                              offloaded_heads.memory, &s, &err),
                         SL_ERR_INVALID);
        assert_true(s == NULL && err.text[0] != '\0');
        assert_int_equal(sl_kv_segment_block_bytes(&bad[i]), 0);
        assert_int_equal(sl_kv_segment_bytes(&bad[i]), 0);
    }
    struct sl_remote_kv *remote_kv;
    assert_int_equal(sl_remote_kv_create(offloaded_heads.ops, 0, 0, 16, 64, &remote_kv, NULL), SL_ERR_INVALID);
    assert_int_equal(sl_remote_kv_create(offloaded_heads.ops, -1, 1, 16, 64, &remote_kv, NULL), SL_ERR_INVALID);
    assert_int_equal(sl_remote_kv_create(offloaded_heads.ops, 0, 1, 7, 64, &remote_kv, NULL), SL_ERR_INVALID);
    assert_int_equal(sl_remote_kv_create(offloaded_heads.ops, 0, 1, 16, 0, &remote_kv, NULL), SL_ERR_INVALID);
    offloaded_heads_destroy(&offloaded_heads);
}

// All free memory of the arena, but for `spare` bytes. Returns how many blocks that took.
static int take_all_but(struct sl_arena *arena, size_t spare, void **taken, int most) {
    struct sl_arena_stats stats;
    void *left = spare > 0 ? sl_arena_alloc(arena, spare) : NULL;
    int n = 0;
    for (sl_arena_get_stats(arena, &stats); stats.largest_free_bytes > 0; sl_arena_get_stats(arena, &stats)) {
        assert_true(n < most);
        taken[n++] = sl_arena_alloc(arena, stats.largest_free_bytes);
    }
    sl_arena_free(arena, left);
    return n;
}

// Without room for key indexes or int8 pages the block stays the caller's, and nothing else is taken.
static void test_segment_without_memory(void **state) {
    (void)state;
    struct offloaded_heads offloaded_heads;
    offloaded_heads_create(&offloaded_heads, SL_KV_F16, 1, 16, 256, 2);
    for (int i = 0; i < 2; i++) {
        struct sl_kv_segment_config config = {
            0, 256, 0, 1, offloaded_heads.work, i == 0 ? SL_KV_F16 : SL_KV_INT8, SL_KV_F16};
        void *block = sl_arena_alloc(offloaded_heads.arena, sl_kv_segment_block_bytes(&config)), *taken[64];
        struct sl_arena_stats before, after;
        memcpy(block, offloaded_heads.pages, sl_kv_segment_block_bytes(&config));
        // room for key indexes, none for pages
        int n = take_all_but(offloaded_heads.arena, i == 0 ? 0 : 9 << 10, taken, 64);
        sl_arena_get_stats(offloaded_heads.arena, &before);
        struct sl_kv_segment *s = NULL;
        struct sl_error err = {0};
        assert_int_equal(
            sl_kv_segment_create(&config, offloaded_heads.ops, NULL, offloaded_heads.arena, block, &s, &err),
            SL_ERR_EXHAUSTED);
        assert_true(s == NULL && err.text[0] != '\0');
        sl_arena_get_stats(offloaded_heads.arena, &after);
        assert_int_equal(after.used_bytes, before.used_bytes);
        assert_int_equal(after.n_blocks, before.n_blocks);
        while (n > 0) {
            sl_arena_free(offloaded_heads.arena, taken[--n]);
        }
        sl_arena_free(offloaded_heads.arena, block);
    }
    offloaded_heads_destroy(&offloaded_heads);
}

static void test_offloaded_heads_number_offloaded_layers(void **state) {
    (void)state;
    struct sl_layers offload = {{0}};
    const struct sl_kv_geometry geometry = {6, 4, 64};
    struct sl_offloaded_heads offloaded_heads;
    sl_offloaded_heads_init(&offloaded_heads, &offload, &geometry);
    assert_int_equal(sl_offloaded_heads_count(&offloaded_heads), 0);
    sl_layers_add(&offload, 2);
    sl_layers_add(&offload, 5);
    sl_layers_add(&offload, 6); // beyond the model
    sl_offloaded_heads_init(&offloaded_heads, &offload, &geometry);
    assert_int_equal(sl_offloaded_heads_count(&offloaded_heads), 8);
    assert_int_equal(sl_offloaded_heads_first(&offloaded_heads, 2), 0);
    assert_int_equal(sl_offloaded_heads_first(&offloaded_heads, 5), 4);
    assert_int_equal(offloaded_heads.layers[7 / 4], 5);
    assert_int_equal(offloaded_heads.index_of[3], -1);
    assert_int_equal(offloaded_heads.index_of[6], -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_remote_kv_keeps_rows_and_maxima),
        cmocka_unit_test(test_segment_keeps_pages),
        cmocka_unit_test(test_segment_of_borrowed_pages),
        cmocka_unit_test(test_segments_are_shared),
        cmocka_unit_test(test_remote_kv_refuses_segments_that_do_not_follow),
        cmocka_unit_test(test_segment_refuses_what_is_not_built),
        cmocka_unit_test(test_segment_without_memory),
        cmocka_unit_test(test_offloaded_heads_number_offloaded_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
