// SPDX-License-Identifier: Apache-2.0
// Purpose: random sessions on a small arena, for the tests of this folder.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/kvcache/capsule.h"

#define ARENA_BYTES ((size_t)32 << 20)

static inline uint64_t next_random(uint64_t *state) { // splitmix64
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline int random_int(uint64_t *state, int low, int high) { // low .. high
    return low + (int)(next_random(state) % (uint64_t)(high - low + 1));
}

struct fixture {
    void *memory;
    struct sl_arena *arena;
};

static inline struct fixture fixture_create(size_t bytes) {
    struct fixture f;
    f.memory = aligned_alloc(SL_ARENA_UNIT, bytes);
    assert_non_null(f.memory);
    assert_int_equal(sl_arena_create(f.memory, bytes, &f.arena, NULL), SL_OK);
    return f;
}

static inline struct sl_arena_stats gauges(const struct fixture *f) {
    struct sl_arena_stats stats;
    sl_arena_get_stats(f->arena, &stats);
    return stats;
}

// Everything must have come back.
static inline void fixture_destroy(struct fixture *f) {
    assert_int_equal(gauges(f).n_blocks, 0);
    assert_int_equal(gauges(f).used_bytes, 0);
    sl_arena_destroy(&f->arena);
    free(f->memory);
}

// Returns any format of pages with codes.
static inline enum sl_kv_format random_packed_format(uint64_t *seed) {
    static const enum sl_kv_format formats[] = {
#define X(name, ...) SL_KV_##name,
        SL_KV_CODE_FORMATS(X)
#undef X
#define X(word, wire, ...) (enum sl_kv_format) wire,
            SL_KV_PAIRS(X)
#undef X
    };
    return formats[random_int(seed, 0, (int)(sizeof formats / sizeof formats[0]) - 1)];
}

// One layer's layouts: f32, f16 or bf16 working; packed is the same or any quantized format.
static inline void random_layouts(uint64_t *seed, int head_dim, struct sl_page_layout *work,
                                  struct sl_page_layout *packed) {
    bool positions = random_int(seed, 0, 1);
    int n_states = random_int(seed, 0, SL_MAX_STATES);
    assert_int_equal(
        sl_page_layout_init(work, (enum sl_kv_format)random_int(seed, 0, 2), head_dim, n_states, positions), SL_OK);
    *packed = *work;
    if (random_int(seed, 0, 1)) {
        assert_int_equal(
            sl_page_layout_init(packed, random_packed_format(seed), head_dim, random_int(seed, 0, n_states), positions),
            SL_OK);
    }
}

static inline void fill_random(uint64_t *seed, void *page, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 8) { // pages are multiples of 64
        uint64_t word = next_random(seed);
        memcpy((char *)page + i, &word, 8);
    }
}

// A session of random shape whose pages hold random bytes; evicted: heads of different lengths.
static inline struct sl_session *random_session(uint64_t *seed, struct sl_arena *arena, bool evicted) {
    static const int dims[] = {8, 16, 40, 64, 128};
    struct sl_page_layout work[4], packed[4];
    struct sl_session_config config = {
        .geometry = {random_int(seed, 1, 4), random_int(seed, 1, 3), dims[random_int(seed, 0, 4)]},
        .positions = (enum sl_position_mode)random_int(seed, 0, 1),
        .max_slots = 400,
        .work = work,
        .packed = packed};
    for (int l = 0; l < config.geometry.n_layers; l++) {
        random_layouts(seed, config.geometry.head_dim, &work[l], &packed[l]);
    }
    struct sl_session *session;
    assert_int_equal(sl_session_create(&config, arena, &session, NULL), SL_OK);
    int n_tokens = random_int(seed, 0, 400);
    for (int l = 0; l < config.geometry.n_layers; l++) {
        assert_int_equal(sl_session_reserve(session, l, n_tokens), SL_OK);
        for (int h = 0; h < config.geometry.n_kv_heads; h++) {
            struct sl_head *head = &session->layers[l].heads[h];
            sl_session_set_slots(session, l, h, (uint32_t)(evicted ? random_int(seed, 0, n_tokens) : n_tokens));
            int n_full = (int)head->n_slots / SL_PAGE_SLOTS;
            int n_pack = sl_kv_format_is_quantized(packed[l].format) ? random_int(seed, 0, n_full) : 0;
            for (int p = 0; p < n_pack; p++) {
                void *page = sl_arena_alloc(arena, packed[l].bytes);
                assert_non_null(page);
                sl_session_pack_page(session, l, h, page);
            }
            for (uint32_t p = 0; p < head->n_pages; p++) {
                fill_random(seed, head->pages[p], p < head->n_packed ? packed[l].bytes : work[l].bytes);
            }
        }
    }
    session->n_tokens = n_tokens;
    return session;
}
