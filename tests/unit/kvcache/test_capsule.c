// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a session survives the way through a capsule bit by bit, and no header that was tampered with gets further
 *          than a status. Run it with AddressSanitizer: headers lie in blocks of exactly their size.
 */
#include <math.h>

#include "proto/sluice/v1/capsule.pb-c.h"
#include "tests/unit/kvcache/fixture.h"
#include "tests/unit/capsule_body.h"

static const struct sl_capsule_id an_id = {0x1111222233334444u, 0x5555666677778888u, {{0x99, 0xaa, [15] = 0xff}}};

// A capsule as it lies on the other side.
struct landed {
    uint8_t *header;
    size_t header_bytes, body_bytes;
    char *body; // block of the other arena
    size_t arrived, max_piece, n_pieces;
};

static enum sl_status land_piece(void *arg, const struct sl_capsule_piece *piece) {
    struct landed *to = arg;
    assert_int_equal(piece->offset, to->arrived); // in order, without a gap
    assert_true(piece->bytes > 0 && piece->offset + piece->bytes <= to->body_bytes);
    assert_true(piece->bytes <= to->max_piece);
    memcpy(to->body + piece->offset, piece->data, piece->bytes);
    to->arrived += piece->bytes;
    to->n_pieces++;
    return SL_OK;
}

static struct landed ship(const struct sl_session *session, struct sl_arena *arena, size_t max_piece) {
    struct landed to = {.body_bytes = sl_capsule_body_bytes(session), .max_piece = max_piece};
    to.body = to.body_bytes > 0 ? sl_arena_alloc(arena, to.body_bytes) : NULL;
    assert_true(to.body != NULL || to.body_bytes == 0);
    for (int l = 0; l < session->geometry.n_layers; l++) {
        size_t offset = to.arrived;
        assert_int_equal(sl_capsule_layer_pieces(session, l, offset, max_piece, land_piece, &to), SL_OK);
        assert_int_equal(to.arrived - offset, sl_capsule_layer_bytes(session, l));
    }
    assert_int_equal(to.arrived, to.body_bytes);
    assert_int_equal(sl_capsule_write_header(session, &an_id, &to.header, &to.header_bytes, NULL), SL_OK);
    return to;
}

static enum sl_status open_landed(const struct landed *from, struct sl_arena *arena,
                                  const struct sl_kv_geometry *geometry, struct sl_session **session_out) {
    struct sl_capsule_bytes capsule = {from->body, from->body_bytes, from->header, from->header_bytes};
    return sl_capsule_open(&capsule, arena, geometry, &an_id, 500, session_out, NULL);
}

static void assert_same_session(const struct sl_session *a, const struct sl_session *b) {
    assert_memory_equal(&a->geometry, &b->geometry, sizeof a->geometry);
    assert_int_equal(a->positions, b->positions);
    assert_int_equal(a->n_tokens, b->n_tokens);
    for (int l = 0; l < a->geometry.n_layers; l++) {
        assert_memory_equal(&a->layers[l].work, &b->layers[l].work, sizeof a->layers[l].work);
        assert_memory_equal(&a->layers[l].packed, &b->layers[l].packed, sizeof a->layers[l].packed);
        assert_true(a->layers[l].merge_threshold == b->layers[l].merge_threshold);
        for (int h = 0; h < a->geometry.n_kv_heads; h++) {
            const struct sl_head *x = &a->layers[l].heads[h], *y = &b->layers[l].heads[h];
            assert_int_equal(x->n_slots, y->n_slots);
            assert_int_equal(x->n_packed, y->n_packed);
            assert_int_equal(x->n_pages, y->n_pages);
            for (uint32_t p = 0; p < x->n_pages; p++) { // rows, scales, positions and states at once
                size_t bytes = p < x->n_packed ? a->layers[l].packed.bytes : a->layers[l].work.bytes;
                assert_memory_equal(x->pages[p], y->pages[p], bytes);
            }
        }
    }
    struct sl_session_stats s, t;
    sl_session_get_stats(a, &s);
    sl_session_get_stats(b, &t);
    assert_memory_equal(&s, &t, sizeof s);
}

static void test_capsule_carries_a_session_bit_by_bit(void **state) {
    (void)state;
    struct fixture here = fixture_create(ARENA_BYTES), there = fixture_create(ARENA_BYTES);
    for (uint64_t seed = 1; seed <= 120; seed++) {
        uint64_t random = seed;
        bool evicted = seed % 2 == 0;
        struct sl_session *session = random_session(&random, here.arena, evicted), *opened = NULL;
        for (int l = 0; l < session->geometry.n_layers; l++) {
            session->layers[l].merge_threshold = (float)random_int(&random, -1000, 1000) / 1000;
        }
        session->rope_set = (int)(seed % SL_MAX_ROPE_SETS);
        struct landed to = ship(session, there.arena, seed % 3 == 0 ? SIZE_MAX : 300000);
        struct sl_capsule_info info;
        assert_int_equal(sl_capsule_read_header(to.header, to.header_bytes, &info, NULL), SL_OK);
        assert_memory_equal(&info.id, &an_id, sizeof an_id);
        assert_int_equal(info.body_bytes, to.body_bytes);
        assert_int_equal(info.n_tokens, session->n_tokens);
        assert_int_equal(open_landed(&to, there.arena, &session->geometry, &opened), SL_OK);
        assert_same_session(session, opened);
        assert_int_equal(opened->rope_set, session->rope_set);
        if (!evicted) {
            assert_false(info.evicted);
        }

        // The span stays whole while pages come and go; later pages are the arena's.
        assert_int_equal(gauges(&there).n_blocks, to.body_bytes > 0);
        int last = opened->geometry.n_layers - 1;
        assert_int_equal(opened->taken_bytes, 0);
        assert_int_equal(sl_session_reserve(opened, last, 70), SL_OK);
        assert_true(opened->taken_bytes >= opened->layers[last].work.bytes * (size_t)opened->geometry.n_kv_heads);
        for (int h = 0; h < opened->geometry.n_kv_heads; h++) {
            struct sl_head *head = &opened->layers[last].heads[h];
            sl_session_set_slots(opened, last, h, head->n_slots + 70);
            sl_session_set_slots(opened, last, h, head->n_packed * SL_PAGE_SLOTS);
        }
        assert_int_equal(gauges(&there).n_blocks, to.body_bytes > 0);
        assert_int_equal(opened->taken_bytes, 0);
        sl_session_destroy(&opened);
        sl_session_destroy(&session);
        free(to.header);
        assert_int_equal(gauges(&here).n_blocks, 0);
        assert_int_equal(gauges(&there).n_blocks, 0);
    }
    fixture_destroy(&here);
    fixture_destroy(&there);
}

static void test_capsule_is_without_offloaded_layers(void **state) {
    (void)state;
    struct fixture here = fixture_create(ARENA_BYTES), there = fixture_create(ARENA_BYTES);
    struct sl_page_layout layout;
    assert_int_equal(sl_page_layout_init(&layout, SL_KV_F16, 64, 0, false), SL_OK);
    struct sl_page_layout layouts[3] = {layout, layout, layout};
    struct sl_session_config config = {{3, 2, 64}, SL_POSITION_ORIGINAL, 4096, layouts, layouts};
    struct sl_session *session, *opened;
    assert_int_equal(sl_session_create(&config, here.arena, &session, NULL), SL_OK);
    session->layers[1].offloaded = true;
    for (int l = 0; l < 3; l++) {
        assert_int_equal(sl_session_reserve(session, l, 200), SL_OK);
        for (int h = 0; h < 2; h++) {
            sl_session_set_slots(session, l, h, 200);
        }
    }
    session->n_tokens = 200;
    sl_session_drop_pages(session, 1, 0, 2); // whatever it still holds
    struct landed to = ship(session, there.arena, SIZE_MAX);
    assert_int_equal(to.body_bytes, 2 * 2 * 4 * layout.bytes);
    assert_int_equal(sl_capsule_layer_bytes(session, 1), 0);
    struct sl_capsule_info info;
    assert_int_equal(sl_capsule_read_header(to.header, to.header_bytes, &info, NULL), SL_OK);
    assert_false(info.evicted);
    assert_int_equal(open_landed(&to, there.arena, &session->geometry, &opened), SL_OK);
    assert_true(opened->layers[1].offloaded && !opened->layers[0].offloaded && !opened->layers[2].offloaded);
    assert_int_equal(opened->layers[1].heads[0].n_slots, 0);
    assert_int_equal(opened->layers[2].heads[1].n_slots, 200);
    assert_int_equal(sl_session_truncate(opened, 128, NULL), SL_OK);
    assert_int_equal(opened->layers[2].heads[1].n_slots, 128);
    assert_int_equal(sl_session_reserve(opened, 1, 70), SL_OK); // what decode fetches of it
    for (int h = 0; h < 2; h++) {
        sl_session_set_slots(opened, 1, h, 70);
    }
    sl_session_destroy(&opened);
    sl_session_destroy(&session);
    free(to.header);
    fixture_destroy(&here);
    fixture_destroy(&there);
}

// A copy has the slots of the session's tokens, whatever its memory held before, and zeros in the others.
static void test_copied_body_has_nothing_in_unused_slots(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t random = seed;
        struct sl_session *session = random_session(&random, f.arena, seed % 2 == 0);
        size_t bytes = sl_capsule_body_bytes(session);
        char *body = malloc(bytes + 1), *page = body;
        copy_body(session, body);
        sl_capsule_clear_body(session, body);
        for (int l = 0; l < session->geometry.n_layers; l++) {
            for (int h = 0; h < session->geometry.n_kv_heads; h++) {
                const struct sl_kv kv = sl_session_kv(session, l, h);
                for (uint32_t p = 0; p < sl_pages_for(kv.n_slots); p++) {
                    const struct sl_page_layout *layout = p < kv.n_packed ? kv.packed : kv.work;
                    uint32_t left = kv.n_slots - p * SL_PAGE_SLOTS, n = left < SL_PAGE_SLOTS ? left : SL_PAGE_SLOTS;
                    size_t row = layout->bytes;
                    if (n < SL_PAGE_SLOTS) {
                        row = (size_t)layout->head_dim * (size_t)sl_kv_format_bits(layout->format) / 8;
                        for (size_t at = n * row; at < SL_PAGE_SLOTS * row; at++) {
                            assert_true(page[layout->k + at] == 0 && page[layout->v + at] == 0);
                        }
                        row *= n;
                    }
                    assert_memory_equal(page, kv.pages[p], row); // what has tokens stays
                    page += layout->bytes;
                }
            }
        }
        assert_ptr_equal(page, body + bytes);
        free(body);
        sl_session_destroy(&session);
    }
    fixture_destroy(&f);
}

static void test_capsule_pieces_join_neighbours(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    struct sl_page_layout layout;
    assert_int_equal(sl_page_layout_init(&layout, SL_KV_F16, 64, 0, false), SL_OK);
    struct sl_session_config config = {{1, 2, 64}, SL_POSITION_ORIGINAL, 4096, &layout, &layout};
    struct sl_session *session;
    assert_int_equal(sl_session_create(&config, f.arena, &session, NULL), SL_OK);
    assert_int_equal(sl_session_reserve(session, 0, 2048), SL_OK);
    sl_session_set_slots(session, 0, 0, 2048);
    sl_session_set_slots(session, 0, 1, 2048);
    session->n_tokens = 2048;
    struct landed to = ship(session, f.arena, SIZE_MAX);
    assert_int_equal(to.n_pieces, 1); // a fresh arena gives one run
    sl_arena_free(f.arena, to.body);
    free(to.header);
    to = ship(session, f.arena, 3 * layout.bytes + 1);
    assert_int_equal(to.n_pieces, (64 + 2) / 3);
    sl_arena_free(f.arena, to.body);
    free(to.header);
    sl_session_destroy(&session);
    fixture_destroy(&f);
}

static enum sl_status stop_at_once(void *arg, const struct sl_capsule_piece *piece) {
    (void)piece;
    (*(int *)arg)++;
    return SL_ERR_DEADLINE;
}

static void test_capsule_pieces_stop_at_the_first_failure(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    uint64_t seed = 2;
    struct sl_session *session;
    do { // one that has something to send
        session = random_session(&seed, f.arena, false);
    } while (session->n_tokens == 0 && (sl_session_destroy(&session), true));
    int n_calls = 0;
    assert_int_equal(sl_capsule_layer_pieces(session, 0, 0, 1, stop_at_once, &n_calls), SL_ERR_DEADLINE);
    assert_int_equal(n_calls, 1);
    sl_session_destroy(&session);
    fixture_destroy(&f);
}

static void test_capsule_of_another_model_is_refused(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    uint64_t seed = 9;
    struct sl_session *session = random_session(&seed, f.arena, false), *opened = NULL;
    struct landed to = ship(session, f.arena, SIZE_MAX);
    struct sl_kv_geometry g = session->geometry;
    struct sl_error err;
    for (int i = 0; i < 7; i++) {
        struct sl_kv_geometry geometry = g;
        struct sl_capsule_id id = an_id;
        size_t body_bytes = to.body_bytes;
        geometry.n_layers += i == 0;
        geometry.n_kv_heads += i == 1;
        geometry.head_dim += i == 2 ? 8 : 0;
        id.model_fingerprint ^= i == 3;
        id.recipe_fingerprint ^= i == 4;
        id.prefix_hash.bytes[15] ^= i == 5;
        body_bytes += i == 6 ? 64 : 0;
        struct sl_capsule_bytes capsule = {to.body, body_bytes, to.header, to.header_bytes};
        assert_int_equal(sl_capsule_open(&capsule, f.arena, &geometry, &id, 500, &opened, &err),
                         i == 6 ? SL_ERR_INVALID : SL_ERR_PRECONDITION);
        assert_null(opened);
    }
    struct sl_capsule_id any = an_id;
    any.prefix_hash = (struct sl_hash128){{0}};
    struct sl_capsule_bytes capsule = {to.body, to.body_bytes, to.header, to.header_bytes};
    assert_int_equal(sl_capsule_adopt(&capsule, f.arena, &g, &any, 1, &opened, &err), SL_OK);
    assert_true(capsule.body == NULL && capsule.header == NULL);                        // used up
    assert_int_equal(opened->max_slots, session->n_tokens > 1 ? session->n_tokens : 1); // raised to what it holds
    sl_session_destroy(&opened);                                                        // takes the body with it
    sl_session_destroy(&session);
    fixture_destroy(&f);
}

static void test_capsule_header_gets_another_key_and_nothing_else(void **state) {
    (void)state;
    static const struct sl_hash128 other = {{1, 2, 3}};
    struct fixture f = fixture_create(ARENA_BYTES);
    uint64_t seed = 11;
    struct sl_session *session = random_session(&seed, f.arena, false);
    struct landed to = ship(session, f.arena, SIZE_MAX);
    struct sl_capsule_info before, after;
    uint8_t *rekeyed = NULL, *back = NULL;
    size_t n_rekeyed, n_back;
    assert_int_equal(sl_capsule_read_header(to.header, to.header_bytes, &before, NULL), SL_OK);
    assert_int_equal(sl_capsule_rekey_header(to.header, to.header_bytes, &other, &rekeyed, &n_rekeyed, NULL), SL_OK);
    assert_int_equal(sl_capsule_read_header(rekeyed, n_rekeyed, &after, NULL), SL_OK);
    assert_memory_equal(&after.id.prefix_hash, &other, sizeof other);
    assert_int_equal(sl_capsule_rekey_header(rekeyed, n_rekeyed, &before.id.prefix_hash, &back, &n_back, NULL), SL_OK);
    assert_int_equal(n_back, to.header_bytes);
    assert_memory_equal(back, to.header, n_back);
    free(back);
    assert_int_equal(sl_capsule_rekey_header(to.header, to.header_bytes - 1, &other, &back, &n_back, NULL),
                     SL_ERR_INVALID);
    free(rekeyed);
    free(to.header);
    sl_arena_free(f.arena, to.body);
    sl_session_destroy(&session);
    fixture_destroy(&f);
}

// One wrong field at a time in an otherwise good header, by way of the message itself.
static void test_capsule_with_a_lying_field_is_refused(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    uint64_t seed = 21;
    struct sl_session *session;
    do {
        session = random_session(&seed, f.arena, false);
    } while (session->n_tokens < 64 && (sl_session_destroy(&session), true));
    struct landed to = ship(session, f.arena, SIZE_MAX);
    static const float thresholds[] = {1.001f, -1.001f, INFINITY, -INFINITY, NAN};
    for (int i = 0; i <= 24; i++) {
        Sluice__V1__CapsuleHeader *m = sluice__v1__capsule_header__unpack(NULL, to.header_bytes, to.header);
        assert_non_null(m);
        Sluice__V1__CapsuleLayer *l = m->layers[0];
        size_t n_layers = m->n_layers, n_counts = l->n_n_slots;
        m->version += i == 1;
        m->n_kv_heads = i == 2 ? 0 : i == 3 ? 100000 : m->n_kv_heads;
        m->head_dim += i == 4 ? 1 : i == 5 ? 8 : 0;
        m->position_mode = i == 6 ? 2 : m->position_mode;
        m->n_tokens = i == 7 ? UINT64_MAX : i == 8 ? m->n_tokens - 1 : m->n_tokens;
        m->body_bytes += i == 9;
        m->n_layers = i == 10 ? 0 : m->n_layers;
        l->work_format = i == 11 ? SL_KV_INT8 : i == 12 ? 99 : l->work_format;
        l->work_states = i == 13 ? UINT32_MAX : l->work_states;
        l->n_packed[0] = i == 14 ? UINT32_MAX : l->n_packed[0];
        l->n_n_slots -= i == 15;
        l->merge_threshold = i >= 16 && i <= 20 ? thresholds[i - 16] : l->merge_threshold;
        l->offloaded = i == 22; // and slots all the same
        m->rope_set = i == 21 ? SL_MAX_ROPE_SETS : m->rope_set;
        m->prefix_hash.len -= i == 23 ? 1 : i == 24 ? m->prefix_hash.len : 0;
        size_t n_bytes = sluice__v1__capsule_header__get_packed_size(m);
        uint8_t *bytes = malloc(n_bytes);
        sluice__v1__capsule_header__pack(m, bytes);
        struct sl_capsule_info info;
        struct sl_error err;
        enum sl_status status = sl_capsule_read_header(bytes, n_bytes, &info, &err);
        if (status != (i == 0 ? SL_OK : SL_ERR_INVALID)) {
            fail_msg("lie %d: %s", i, sl_status_text(status));
        }
        free(bytes);
        m->n_layers = n_layers;
        l->n_n_slots = n_counts;
        sluice__v1__capsule_header__free_unpacked(m, NULL);
    }
    sl_arena_free(f.arena, to.body);
    free(to.header);
    sl_session_destroy(&session);
    fixture_destroy(&f);
}

// Every bit flipped, every truncation: a status, never a crash; what opens nevertheless stays inside the body.
static void test_capsule_header_survives_bit_flips_and_truncation(void **state) {
    (void)state;
    struct fixture f = fixture_create(ARENA_BYTES);
    int n_opened = 0, n_refused = 0;
    for (uint64_t seed = 31; seed < 37; seed++) {
        uint64_t random = seed;
        struct sl_session *session = random_session(&random, f.arena, seed % 2 == 0);
        struct landed to = ship(session, f.arena, SIZE_MAX);
        for (size_t i = 0; i < to.header_bytes * 8 + to.header_bytes; i++) {
            bool flip = i < to.header_bytes * 8;
            size_t n_bytes = flip ? to.header_bytes : i - to.header_bytes * 8;
            uint8_t *bytes = malloc(n_bytes > 0 ? n_bytes : 1);
            memcpy(bytes, to.header, n_bytes);
            if (flip) {
                bytes[i / 8] = (uint8_t)(bytes[i / 8] ^ 1u << i % 8);
            }
            struct sl_session *opened = NULL;
            struct landed tampered = to;
            tampered.header = bytes;
            tampered.header_bytes = n_bytes;
            if (open_landed(&tampered, f.arena, &session->geometry, &opened) == SL_OK) {
                assert_int_equal(sl_capsule_body_bytes(opened), to.body_bytes);
                opened->adopted.at = NULL; // the body is used again: only the tables go
                for (int l = 0; l < opened->geometry.n_layers; l++) {
                    for (int h = 0; h < opened->geometry.n_kv_heads; h++) {
                        struct sl_head *head = &opened->layers[l].heads[h];
                        for (uint32_t p = 0; p < head->n_pages; p++) {
                            size_t bytes_of_page =
                                p < head->n_packed ? opened->layers[l].packed.bytes : opened->layers[l].work.bytes;
                            const char *page = head->pages[p];
                            assert_true(page >= to.body && page + bytes_of_page <= to.body + to.body_bytes);
                        }
                        head->n_pages = 0;
                    }
                }
                sl_session_destroy(&opened);
                n_opened++;
            } else {
                assert_null(opened);
                n_refused++;
            }
            free(bytes);
        }
        sl_arena_free(f.arena, to.body);
        free(to.header);
        sl_session_destroy(&session);
    }
    assert_true(n_refused > 10 * n_opened); // fields without redundancy (states against positions, n_tokens) remain
    fixture_destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capsule_carries_a_session_bit_by_bit),
        cmocka_unit_test(test_capsule_is_without_offloaded_layers),
        cmocka_unit_test(test_copied_body_has_nothing_in_unused_slots),
        cmocka_unit_test(test_capsule_pieces_join_neighbours),
        cmocka_unit_test(test_capsule_pieces_stop_at_the_first_failure),
        cmocka_unit_test(test_capsule_of_another_model_is_refused),
        cmocka_unit_test(test_capsule_header_gets_another_key_and_nothing_else),
        cmocka_unit_test(test_capsule_with_a_lying_field_is_refused),
        cmocka_unit_test(test_capsule_header_survives_bit_flips_and_truncation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
