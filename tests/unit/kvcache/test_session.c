// SPDX-License-Identifier: Apache-2.0
// Purpose: pages between a session and its arena: what is taken, what comes back, and that failures change nothing.
#include "tests/unit/kvcache/fixture.h"
#include "tests/unit/scarce.h"

static struct sl_session *simple_session(struct sl_arena *arena, int64_t max_slots, enum sl_kv_format packed_format) {
    struct sl_page_layout work[2], packed[2];
    for (int l = 0; l < 2; l++) {
        assert_int_equal(sl_page_layout_init(&work[l], SL_KV_F16, 64, 0, false), SL_OK);
        assert_int_equal(sl_page_layout_init(&packed[l], packed_format, 64, 0, false), SL_OK);
    }
    struct sl_session_config config = {{2, 3, 64}, SL_POSITION_ORIGINAL, max_slots, work, packed};
    struct sl_session *session;
    assert_int_equal(sl_session_create(&config, arena, &session, NULL), SL_OK);
    return session;
}

static void test_session_takes_pages_when_they_are_needed(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    struct sl_session *s = simple_session(f.arena, 1000, SL_KV_F16);
    assert_int_equal(gauges(&f).n_blocks, 0);
    assert_int_equal(sl_session_reserve(s, 0, 64), SL_OK);
    assert_int_equal(gauges(&f).n_blocks, 3);
    assert_int_equal(sl_session_reserve(s, 0, 64), SL_OK); // still room
    assert_int_equal(gauges(&f).n_blocks, 3);
    assert_int_equal(sl_session_reserve(s, 0, 65), SL_OK);
    assert_int_equal(gauges(&f).n_blocks, 6);
    sl_session_add_slots(s, 0, 60);
    sl_session_add_slots(s, 0, 5);
    struct sl_kv kv[3];
    struct sl_kv_heads heads = sl_session_heads(s, 0, kv);
    for (int h = 0; h < 3; h++) {
        assert_int_equal(heads.kv[h].n_slots, 65);
        assert_ptr_equal(heads.kv[h].pages, s->layers[0].heads[h].pages);
    }
    assert_int_equal(heads.n, 3);
    assert_int_equal(s->layers[1].heads[0].n_slots, 0);
    assert_int_equal(gauges(&f).n_blocks, 6);
    sl_session_set_slots(s, 0, 1, 64);
    assert_int_equal(gauges(&f).n_blocks, 5);
    sl_session_set_slots(s, 0, 1, 0);
    assert_int_equal(gauges(&f).n_blocks, 4);
    sl_session_destroy(&s);
    assert_null(s);
    sl_session_destroy(&s);
    fixture_destroy(&f);
}

static void test_session_reserve_fails_without_a_trace(void **state) {
    (void)state;
    size_t page_bytes = 64 * 64 * 2 * 2;
    struct fixture f = fixture_create(7 * page_bytes); // room for two pages of each of three heads, and one more
    struct sl_session *s = simple_session(f.arena, 1000, SL_KV_F16);
    assert_int_equal(sl_session_reserve(s, 0, 70), SL_OK);
    sl_session_set_slots(s, 0, 0, 64); // head 0 keeps a page, the others two
    sl_session_set_slots(s, 0, 1, 70);
    sl_session_set_slots(s, 0, 2, 70);
    struct sl_arena_stats before = gauges(&f);
    assert_int_equal(sl_session_reserve(s, 0, 64), SL_ERR_EXHAUSTED);
    assert_int_equal(gauges(&f).n_blocks, before.n_blocks);
    assert_int_equal(gauges(&f).used_bytes, before.used_bytes);
    assert_int_equal(s->layers[0].heads[0].n_pages, 1);
    assert_int_equal(s->layers[0].heads[1].n_pages, 2);
    assert_int_equal(s->layers[0].heads[0].n_slots, 64);
    assert_int_equal(sl_session_reserve(s, 0, 1), SL_OK); // what fits still fits
    sl_session_destroy(&s);
    fixture_destroy(&f);
}

static void test_session_reserve_stops_at_max_slots(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    struct sl_session *s = simple_session(f.arena, 100, SL_KV_F16);
    assert_int_equal(sl_session_reserve(s, 1, 101), SL_ERR_EXHAUSTED);
    assert_int_equal(gauges(&f).n_blocks, 0);
    assert_int_equal(sl_session_reserve(s, 1, 100), SL_OK);
    sl_session_set_slots(s, 1, 2, 90);
    assert_int_equal(sl_session_reserve(s, 1, 11), SL_ERR_EXHAUSTED);
    sl_session_destroy(&s);
    fixture_destroy(&f);
}

static void test_session_refuses_bad_configurations(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    struct sl_page_layout f16, f32, int4, other;
    assert_int_equal(sl_page_layout_init(&f16, SL_KV_F16, 64, 1, true), SL_OK);
    assert_int_equal(sl_page_layout_init(&f32, SL_KV_F32, 64, 1, true), SL_OK);
    assert_int_equal(sl_page_layout_init(&int4, SL_KV_INT4, 64, 2, true), SL_OK);
    assert_int_equal(sl_page_layout_init(&other, SL_KV_F16, 128, 1, true), SL_OK);
    struct sl_page_layout forged = f16;
    forged.v = 0;
    const struct sl_session_config bad[] = {
        {{0, 1, 64}, 0, 10, &f16, &f16},       {{1, 0, 64}, 0, 10, &f16, &f16},
        {{257, 1, 64}, 0, 10, &f16, &f16},     {{1, 1025, 64}, 0, 10, &f16, &f16},
        {{1, 1, 64}, 0, 0, &f16, &f16},        {{1, 1, 64}, 0, INT64_MAX, &f16, &f16},
        {{1, 1, 64}, 0, 10, &f16, &f32},       {{1, 1, 64}, 0, 10, &int4, &int4},
        {{1, 1, 64}, 0, 10, &f16, &int4},      {{1, 1, 64}, 0, 10, &other, &other},
        {{1, 1, 64}, 0, 10, &forged, &forged},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sl_session *session = NULL;
        struct sl_error err;
        assert_int_equal(sl_session_create(&bad[i], f.arena, &session, &err), SL_ERR_INVALID);
        assert_null(session);
        assert_true(strlen(err.text) > 10);
    }
    fixture_destroy(&f);
}

// A session that is being read is not packed before the last full page of its last head is.
static void test_session_is_packed_when_every_full_page_is(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    struct sl_session *s = simple_session(f.arena, 200, SL_KV_INT2), *plain = simple_session(f.arena, 200, SL_KV_F16);
    assert_true(sl_session_is_packed(s)); // empty
    for (int l = 0; l < 2; l++) {
        assert_int_equal(sl_session_reserve(s, l, 130), SL_OK);
        assert_int_equal(sl_session_reserve(plain, l, 130), SL_OK);
        sl_session_add_slots(s, l, 130);
        sl_session_add_slots(plain, l, 130);
    }
    s->n_tokens = plain->n_tokens = 130;
    assert_true(sl_session_is_packed(plain));
    for (int i = 0; i < 2 * 3 * 2; i++) {
        assert_false(sl_session_is_packed(s));
        sl_session_pack_page(s, i / 6, i / 2 % 3, sl_arena_alloc(f.arena, s->layers[0].packed.bytes));
    }
    assert_true(sl_session_is_packed(s));
    sl_session_destroy(&s);
    sl_session_destroy(&plain);
    fixture_destroy(&f);
}

static void test_session_pack_page_swaps_one_page(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    struct sl_session *s = simple_session(f.arena, 200, SL_KV_INT2);
    for (int l = 0; l < 2; l++) {
        assert_int_equal(sl_session_reserve(s, l, 130), SL_OK);
        for (int h = 0; h < 3; h++) {
            sl_session_set_slots(s, l, h, 130);
        }
    }
    s->n_tokens = 130;
    size_t used = gauges(&f).used_bytes, n_blocks = gauges(&f).n_blocks;
    void *page = sl_arena_alloc(f.arena, s->layers[0].packed.bytes);
    sl_session_pack_page(s, 0, 1, page);
    assert_ptr_equal(s->layers[0].heads[1].pages[0], page);
    assert_int_equal(s->layers[0].heads[1].n_packed, 1);
    assert_int_equal(gauges(&f).n_blocks, n_blocks);
    assert_true(gauges(&f).used_bytes < used);

    struct sl_session_stats stats;
    sl_session_get_stats(s, &stats);
    assert_int_equal(stats.n_tokens, 130);
    assert_int_equal(stats.n_slots_min, 130);
    assert_int_equal(stats.n_slots_max, 130);
    assert_true(stats.n_slots_mean == 130.0);
    assert_int_equal(stats.bytes_by_format[SL_KV_INT2], s->layers[0].packed.bytes);
    assert_int_equal(stats.bytes_by_format[SL_KV_F16], 17 * s->layers[0].work.bytes);
    assert_int_equal(stats.resident_bytes, s->layers[0].packed.bytes + 17 * s->layers[0].work.bytes);
    assert_int_equal(s->taken_bytes, stats.resident_bytes);

    // The packed page may go whole, but not in part; a refusal changes nothing.
    struct sl_error err;
    assert_int_equal(sl_session_truncate(s, 63, &err), SL_ERR_INVALID);
    assert_int_equal(sl_session_truncate(s, 131, &err), SL_ERR_INVALID);
    assert_int_equal(s->n_tokens, 130);
    assert_int_equal(gauges(&f).n_blocks, n_blocks);
    assert_int_equal(sl_session_truncate(s, 65, &err), SL_OK);
    assert_int_equal(s->n_tokens, 65);
    assert_int_equal(gauges(&f).n_blocks, 12);
    assert_int_equal(s->layers[0].heads[1].n_packed, 1);
    assert_int_equal(s->taken_bytes, s->layers[0].packed.bytes + 11 * s->layers[0].work.bytes);
    assert_int_equal(sl_session_truncate(s, 0, &err), SL_OK);
    assert_int_equal(s->taken_bytes, 0);
    assert_int_equal(s->layers[0].heads[1].n_packed, 0);
    assert_int_equal(gauges(&f).n_blocks, 0);
    sl_session_destroy(&s);
    fixture_destroy(&f);
}

static void test_session_stats_look_at_every_head(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    for (int odd = 0; odd < 6; odd++) { // the head that holds less, then more than the others
        struct sl_session *s = simple_session(f.arena, 200, SL_KV_F16);
        struct sl_session_stats stats;
        for (int i = 0; i < 6; i++) {
            assert_int_equal(sl_session_reserve(s, i / 3, i % 3 == 0 ? 80 : 0), SL_OK);
            sl_session_set_slots(s, i / 3, i % 3, i == odd ? 7 : 50);
        }
        sl_session_get_stats(s, &stats);
        assert_int_equal(stats.n_slots_min, 7);
        assert_int_equal(stats.n_slots_max, 50);
        assert_true(stats.n_slots_mean * 6 == 5 * 50 + 7);
        for (int i = 0; i < 6; i++) {
            sl_session_set_slots(s, i / 3, i % 3, i == odd ? 7 : 3);
        }
        sl_session_get_stats(s, &stats);
        assert_int_equal(stats.n_slots_min, 3);
        assert_int_equal(stats.n_slots_max, 7);
        sl_session_destroy(&s);
    }
    fixture_destroy(&f);
}

static void test_session_that_evicted_cannot_be_truncated(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    struct sl_session *s = simple_session(f.arena, 200, SL_KV_F16);
    for (int l = 0; l < 2; l++) {
        assert_int_equal(sl_session_reserve(s, l, 100), SL_OK);
        for (int h = 0; h < 3; h++) {
            sl_session_set_slots(s, l, h, l == 1 && h == 2 ? 99 : 100);
        }
    }
    s->n_tokens = 100;
    assert_int_equal(sl_session_truncate(s, 50, NULL), SL_ERR_PRECONDITION);
    assert_int_equal(s->n_tokens, 100);
    assert_int_equal(s->layers[0].heads[0].n_slots, 100);
    sl_session_destroy(&s);
    fixture_destroy(&f);
}

// Layer 1 is offloaded: of `n` tokens it holds those from `held` on, layer 0 all.
static struct sl_session *offloading_session(struct sl_arena *arena, int64_t n, uint32_t held) {
    struct sl_session *s = simple_session(arena, 400, SL_KV_F16);
    s->layers[1].offloaded = true;
    for (int l = 0; l < 2; l++) {
        assert_int_equal(sl_session_reserve(s, l, (int)n), SL_OK);
        for (int h = 0; h < 3; h++) {
            sl_session_set_slots(s, l, h, (uint32_t)n);
        }
    }
    s->n_tokens = n;
    for (int h = 0; h < 3; h++) {
        sl_session_drop_pages(s, 1, h, held / SL_PAGE_SLOTS);
    }
    return s;
}

static void test_session_drops_first_pages_of_an_offloaded_layer(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    struct sl_session *s = offloading_session(f.arena, 300, 0);
    struct sl_head *head = &s->layers[1].heads[1];
    void *third = head->pages[2], *last = head->pages[4];
    assert_int_equal(gauges(&f).n_blocks, 2 * 3 * 5);
    sl_session_drop_pages(s, 1, 1, 0);
    assert_int_equal(head->n_slots, 300);
    sl_session_drop_pages(s, 1, 1, 2);
    assert_int_equal(head->n_slots, 300 - 128);
    assert_int_equal(head->n_pages, 3);
    assert_ptr_equal(head->pages[0], third);
    assert_ptr_equal(head->pages[2], last);
    assert_null(head->pages[3]);
    assert_int_equal(s->n_tokens, 300);
    assert_int_equal(gauges(&f).n_blocks, 2 * 3 * 5 - 2);
    assert_int_equal(s->taken_bytes, (2 * 3 * 5 - 2) * s->layers[1].work.bytes);
    assert_int_equal(s->layers[1].heads[0].n_slots, 300); // the others are as they were
    sl_session_drop_pages(s, 1, 1, 2);                    // all that is full
    assert_int_equal(head->n_slots, 44);
    assert_ptr_equal(head->pages[0], last);
    assert_int_equal(sl_session_reserve(s, 1, 100), SL_OK); // and continues after it
    assert_int_equal(head->n_pages, 3);
    assert_ptr_equal(head->pages[0], last);
    sl_session_destroy(&s);
    fixture_destroy(&f);
}

static void test_session_with_offloaded_layers_is_truncated(void **state) {
    (void)state;
    static const struct {
        int64_t n_tokens;
        uint32_t held_before, held_after;
    } cases[] = {{300, 172, 172}, {299, 172, 171}, {129, 172, 1}, {128, 172, 0}, {64, 172, 0}, {0, 172, 0}};
    struct fixture f = fixture_create(ARENA_BYTES);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_session *s = offloading_session(f.arena, 300, 128);
        assert_int_equal(s->layers[1].heads[2].n_slots, cases[i].held_before);
        assert_int_equal(sl_session_truncate(s, cases[i].n_tokens, NULL), SL_OK);
        assert_int_equal(s->n_tokens, cases[i].n_tokens);
        for (int h = 0; h < 3; h++) {
            assert_int_equal(s->layers[0].heads[h].n_slots, cases[i].n_tokens);
            assert_int_equal(s->layers[1].heads[h].n_slots, cases[i].held_after);
            assert_int_equal(s->layers[1].heads[h].n_pages, sl_pages_for(cases[i].held_after));
        }
        sl_session_destroy(&s);
        assert_int_equal(gauges(&f).n_blocks, 0);
    }
    struct sl_session *s = offloading_session(f.arena, 300, 128);
    sl_session_set_slots(s, 0, 1, 299); // a resident layer has evicted
    assert_int_equal(sl_session_truncate(s, 128, NULL), SL_ERR_PRECONDITION);
    assert_int_equal(s->layers[1].heads[1].n_slots, 172);
    sl_session_destroy(&s);
    fixture_destroy(&f);
}

// A layout is believed only if every field is what its own parameters make it.
static void test_session_refuses_forged_layouts(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    struct sl_page_layout f16, int4;
    assert_int_equal(sl_page_layout_init(&f16, SL_KV_F16, 64, 1, true), SL_OK);
    assert_int_equal(sl_page_layout_init(&int4, SL_KV_INT4, 64, 1, true), SL_OK);
    static const size_t fields[] = {
        offsetof(struct sl_page_layout, k),      offsetof(struct sl_page_layout, k_scale),
        offsetof(struct sl_page_layout, v),      offsetof(struct sl_page_layout, v_scale),
        offsetof(struct sl_page_layout, states), offsetof(struct sl_page_layout, positions),
        offsetof(struct sl_page_layout, bytes),
    };
    for (size_t i = 0; i < 2 * sizeof fields / sizeof fields[0]; i++) {
        struct sl_page_layout work = f16, packed = int4;
        ((char *)(i % 2 == 0 ? &work : &packed))[fields[i / 2]] ^= 64;
        struct sl_session_config config = {{1, 1, 64}, 0, 10, &work, &packed};
        struct sl_session *session = NULL;
        assert_int_equal(sl_session_create(&config, f.arena, &session, NULL), SL_ERR_INVALID);
    }
    fixture_destroy(&f);
}

static enum sl_status make_session(void *arg, struct sl_error *err) {
    struct fixture *f = arg;
    struct sl_session *session = NULL;
    struct sl_kv_geometry geometry = {2, 3, 64};
    enum sl_status status =
        sl_session_create_plain(&geometry, SL_KV_F16, SL_POSITION_SLOT, 100, f->arena, &session, err);
    sl_session_destroy(&session);
    return status;
}

// Returns a session of 130 tokens whose pages lie in one adopted block, as a received capsule's do; filled with a byte.
static struct sl_session *adopted_session(struct sl_arena *arena, char fill) {
    struct sl_session *s = simple_session(arena, 200, SL_KV_F16);
    for (int l = 0; l < 2; l++) {
        assert_int_equal(sl_session_reserve(s, l, 130), SL_OK);
        sl_session_add_slots(s, l, 130);
    }
    s->n_tokens = 130;
    struct sl_capsule_bytes capsule = {.body_bytes = sl_capsule_body_bytes(s)};
    struct sl_capsule_id id = {.model_fingerprint = 1};
    capsule.body = sl_arena_alloc(arena, capsule.body_bytes);
    memset(capsule.body, fill, capsule.body_bytes);
    assert_int_equal(sl_capsule_write_header(s, &id, &capsule.header, &capsule.header_bytes, NULL), SL_OK);
    struct sl_kv_geometry geometry = s->geometry;
    sl_session_destroy(&s);
    assert_int_equal(sl_capsule_adopt(&capsule, arena, &geometry, &id, 200, &s, NULL), SL_OK);
    return s;
}

static void test_session_shares_full_pages_of_a_base(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    struct sl_session *base = adopted_session(f.arena, 7), *one = NULL, *two = NULL;
    struct sl_error err;
    size_t used = gauges(&f).used_bytes;
    assert_false(sl_session_is_shared(base));
    assert_int_equal(sl_session_share(base, 100, 200, NULL, NULL, &one, &err), SL_ERR_INVALID);
    assert_int_equal(sl_session_share(base, 192, 200, NULL, NULL, &one, &err), SL_ERR_INVALID);
    assert_int_equal(sl_session_share(base, 128, 200, NULL, NULL, &one, &err), SL_OK);
    assert_int_equal(sl_session_share(base, 64, 200, NULL, NULL, &two, &err), SL_OK);
    assert_int_equal(gauges(&f).used_bytes, used); // one copy
    assert_true(sl_session_is_shared(base));
    assert_int_equal(one->n_tokens, 128);
    assert_ptr_equal(one->layers[1].heads[2].pages[1], base->layers[1].heads[2].pages[1]);

    // They append to pages of their own. A page that is shared is not cut, written or freed.
    for (int l = 0; l < 2; l++) {
        assert_int_equal(sl_session_reserve(one, l, 10), SL_OK);
        sl_session_add_slots(one, l, 10);
        memset(one->layers[l].heads[0].pages[2], 9, one->layers[l].work.bytes);
    }
    one->n_tokens = 138;
    assert_ptr_not_equal(one->layers[0].heads[0].pages[2], base->layers[0].heads[0].pages[2]);
    assert_int_equal(sl_session_share(one, 64, 200, NULL, NULL, &two, &err), SL_ERR_PRECONDITION);
    assert_int_equal(sl_session_truncate(one, 100, &err), SL_ERR_INVALID);
    assert_int_equal(sl_session_truncate(one, 130, &err), SL_OK);
    assert_int_equal(sl_session_truncate(one, 64, &err), SL_OK);
    assert_int_equal(one->taken_bytes, 0);

    // The last of them frees the base.
    sl_session_destroy(&base);
    assert_null(base);
    assert_int_equal(((char *)two->layers[0].heads[0].pages[0])[0], 7);
    sl_session_destroy(&one);
    assert_int_equal(gauges(&f).used_bytes, used);
    sl_session_destroy(&two);
    fixture_destroy(&f);
}

static void copy_one(void *count, void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    ++*(int *)count;
}

static void test_session_shares_all_of_an_evicted_base(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    struct sl_session *base = adopted_session(f.arena, 7), *one = NULL;
    int n_copies = 0;
    base->layers[1].heads[1].n_slots = 128;
    size_t used = gauges(&f).used_bytes;
    assert_int_equal(sl_session_share(base, 130, 200, copy_one, &n_copies, &one, NULL), SL_OK);
    assert_int_equal(n_copies, 2 * 3 - 1); // the last pages, of which one is full
    assert_int_equal(one->n_tokens, 130);
    assert_int_equal(one->layers[1].heads[1].n_slots, 128);
    assert_int_equal(one->layers[1].heads[1].n_pages, 2);
    const struct sl_head *own = &one->layers[0].heads[0], *from = &base->layers[0].heads[0];
    assert_ptr_equal(own->pages[1], from->pages[1]);
    assert_ptr_not_equal(own->pages[2], from->pages[2]);
    assert_memory_equal(own->pages[2], from->pages[2], one->layers[0].work.bytes);
    assert_int_equal(gauges(&f).used_bytes, used + one->taken_bytes);
    sl_session_destroy(&one);
    assert_int_equal(gauges(&f).used_bytes, used);

    size_t n_taken = 0; // without memory for the last pages nothing is shared
    void *taken[4096];
    while (n_taken < 4096 && (taken[n_taken] = sl_arena_alloc(f.arena, base->layers[0].work.bytes)) != NULL) {
        n_taken++;
    }
    assert_int_equal(sl_session_share(base, 130, 200, copy_one, &n_copies, &one, NULL), SL_ERR_EXHAUSTED);
    assert_false(sl_session_is_shared(base));
    while (n_taken > 0) {
        sl_arena_free(f.arena, taken[--n_taken]);
    }
    sl_session_destroy(&base);
    fixture_destroy(&f);
}

static void test_session_with_pages_that_change_is_not_shared(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    struct sl_session *base = adopted_session(f.arena, 7), *one = NULL;
    base->layers[1].offloaded = true;
    assert_int_equal(sl_session_share(base, 64, 200, NULL, NULL, &one, NULL), SL_ERR_PRECONDITION);
    base->layers[1].offloaded = false;
    base->layers[1].heads[1].n_slots = 129; // evicted
    assert_int_equal(sl_session_share(base, 64, 200, NULL, NULL, &one, NULL), SL_ERR_PRECONDITION);
    base->layers[1].heads[1].n_slots = 130;
    base->layers[0].work.n_states = 1;
    assert_int_equal(sl_session_share(base, 64, 200, NULL, NULL, &one, NULL), SL_ERR_PRECONDITION);
    base->layers[0].work.n_states = 0;
    assert_int_equal(sl_session_reserve(base, 0, 64), SL_OK); // pages of its own
    assert_int_equal(sl_session_share(base, 64, 200, NULL, NULL, &one, NULL), SL_ERR_PRECONDITION);
    sl_session_destroy(&base);
    fixture_destroy(&f);
}

static void test_session_without_memory_is_refused(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    assert_int_equal(assert_refused_without_memory(make_session, &f), 3);
    fixture_destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session_takes_pages_when_they_are_needed),
        cmocka_unit_test(test_session_reserve_fails_without_a_trace),
        cmocka_unit_test(test_session_reserve_stops_at_max_slots),
        cmocka_unit_test(test_session_refuses_bad_configurations),
        cmocka_unit_test(test_session_pack_page_swaps_one_page),
        cmocka_unit_test(test_session_is_packed_when_every_full_page_is),
        cmocka_unit_test(test_session_stats_look_at_every_head),
        cmocka_unit_test(test_session_that_evicted_cannot_be_truncated),
        cmocka_unit_test(test_session_drops_first_pages_of_an_offloaded_layer),
        cmocka_unit_test(test_session_with_offloaded_layers_is_truncated),
        cmocka_unit_test(test_session_refuses_forged_layouts),
        cmocka_unit_test(test_session_shares_full_pages_of_a_base),
        cmocka_unit_test(test_session_shares_all_of_an_evicted_base),
        cmocka_unit_test(test_session_with_pages_that_change_is_not_shared),
        cmocka_unit_test(test_session_without_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
