// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: offloaded heads of made-up keys and values, and remote KVs that hold them, cut as a test likes.
 *
 * Design: keys and queries are small integers. In each channel of a page keys go from -254 to 1 or from -1 to 254, ends
 *         included: the scale of int8 pages is 1 and that of int8 key indexes 2, every product and sum is exact in f32
 *         whatever the order, and ties are everywhere.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/offload/remote_kv/near.h"
#include "engine/offload/remote_kv/remote_kv_internal.h"

#define FIRST_HEAD 3 // of the fixture's offloaded heads

struct offloaded_heads {
    const struct sl_ops *ops;
    struct sl_arena *arena;
    void *memory;
    struct sl_page_layout work;
    int n_offloaded_heads, d;
    uint32_t n_tokens;
    char *pages;      // [n_offloaded_heads] of sl_pages_for(n_tokens)
    void **page_list; // [n_offloaded_heads][pages of an offloaded head]
    struct sl_kv *kv; // [n_offloaded_heads]
    uint64_t seed;
};

uint64_t next_random(uint64_t *seed);
int random_int(uint64_t *seed, int low, int high); // low .. high

// Its pages point into it: it stays where it is.
void offloaded_heads_create(struct offloaded_heads *offloaded_heads, enum sl_kv_format work, int n_offloaded_heads,
                            int d, uint32_t n_tokens, uint64_t seed);
void offloaded_heads_destroy(struct offloaded_heads *offloaded_heads); // everything must have come back to the arena

// Describes a remote KV made of the offloaded heads [first_offloaded_head, first_offloaded_head + n_offloaded_heads),
// numbered from 0 within the fixture.
struct make {
    int first_offloaded_head, n_offloaded_heads;
    enum sl_kv_format rows, scan;
    uint32_t cut; // pages a segment; 0: random
};
struct sl_kv_segment *make_segment(struct offloaded_heads *offloaded_heads, const struct make *make, int64_t begin,
                                   uint32_t n_slots);
struct sl_remote_kv *make_remote_kv(struct offloaded_heads *offloaded_heads, const struct make *make);

void random_query(struct offloaded_heads *offloaded_heads, float *q); // [d] small integers

// Key index values K^ of channel c of token j as engine/kvcache/key_index.h has them, from what the pages of the segment stand for.
void read_scanned(const struct sl_remote_kv *remote_kv, int offloaded_head, float *k_out); // [n_tokens][d]

// Writes the tokens that the search must find: tokens_out [topk], ascending. Returns their number.
uint32_t expected_topk(const struct sl_remote_kv *remote_kv, const struct sl_remote_kv_query *query,
                       const float *scanned, uint32_t *tokens_out);

// Walks an answer as sl_near_next_offloaded_head() does, with its scratch.
static inline enum sl_status next_offloaded_head(const struct sl_near_request *request, size_t row_bytes,
                                                 const uint8_t **at, const uint8_t *end,
                                                 struct sl_near_offloaded_head_view *view_out, struct sl_error *err) {
    static uint64_t seen[SL_NEAR_SEEN_WORDS(SL_NEAR_MAX_PLACES)];
    return sl_near_next_offloaded_head(request, row_bytes, seen, at, end, view_out, err);
}
