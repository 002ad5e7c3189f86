// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: lanes of made-up keys and values, and annexes that hold them, cut as a test likes.
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

#include "engine/offload/annex/annex_internal.h"

#define FIRST_LANE 3 // of the fixture's lanes

struct lanes {
    const struct sl_ops *ops;
    struct sl_arena *arena;
    void *memory;
    struct sl_page_layout work;
    int n_lanes, d;
    uint32_t n_tokens;
    char *pages;      // [n_lanes] of sl_pages_for(n_tokens)
    void **page_list; // [n_lanes][pages of a lane]
    struct sl_kv *kv; // [n_lanes]
    uint64_t seed;
};

uint64_t next_random(uint64_t *seed);
int random_int(uint64_t *seed, int low, int high); // low .. high

// Its pages point into it: it stays where it is.
void lanes_create(struct lanes *lanes, enum sl_kv_format work, int n_lanes, int d, uint32_t n_tokens, uint64_t seed);
void lanes_destroy(struct lanes *lanes); // everything must have come back to the arena

// Describes an annex made of the lanes [first_lane, first_lane + n_lanes), numbered from 0 within the fixture.
struct make {
    int first_lane, n_lanes;
    enum sl_kv_format rows, scan;
    uint32_t cut; // pages a segment; 0: random
};
struct sl_kv_segment *make_segment(struct lanes *lanes, const struct make *make, int64_t begin, uint32_t n_slots);
struct sl_annex *make_annex(struct lanes *lanes, const struct make *make);

void random_query(struct lanes *lanes, float *q); // [d] small integers

// Key index values K^ of channel c of token j as engine/kvcache/key_index.h has them, from what the pages of the segment stand for.
void read_scanned(const struct sl_annex *annex, int lane, float *k_out); // [n_tokens][d]

// Writes the tokens that the search must find: tokens_out [topk], ascending. Returns their number.
uint32_t expected_topk(const struct sl_annex *annex, const struct sl_annex_query *query, const float *scanned,
                       uint32_t *tokens_out);
