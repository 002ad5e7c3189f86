// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shared by the tests of offloaded layers in a kvstore: prompts and their hashes, blocks as prefill ships them, and a store's
 *          parts without its processes: fabric, arena, ledger, inbound, capsule cache, segments, room.
 */
#pragma once

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "engine/kvcache/capsule.h"
#include "kvstore/memory/room.h"
#include "engine/tensor/cpu/tiers.h"

#define MAX_PROMPT 1024

// A prompt whose first `shared` tokens are common to all and whose others are `seed`'s own.
struct prompt {
    int32_t tokens[MAX_PROMPT];
    struct sl_hash128 prefixes[MAX_PROMPT / SL_PREFIX_BLOCK];
    struct sl_prompt_hashes hashes; // points into prefixes
};
void make_prompt(struct prompt *prompt, int seed, int shared, int64_t n_tokens);

extern const struct sl_kv_family test_family; // two offloaded heads from offloaded head 2 on, f16

// Fills the block that prefill would ship as [begin, end) of test_family: numbers that depend on seed, begin and index alone.
void fill_block(void *block, const struct sl_kv_segment_config *config, int seed);
// A segment built in `arena`; one reference.
struct sl_kv_segment *make_segment(struct sl_arena *arena, const struct sl_kv_family *family, int64_t begin,
                                   int64_t end, int seed);

// A capsule of one head without its body, whose block is the caller's to take; an evicting one holds half as many slots as
// tokens. The arena has room for its pages, which are free again on return.
struct sl_capsule_bytes make_capsule(struct sl_arena *arena, const struct sl_capsule_id *id, int64_t n_tokens,
                                     bool evicting);

struct parts {
    struct sl_fabric *receiver, *sender;
    struct sl_arena *arena;
    struct sl_ledger *ledger;
    struct sl_inbound *inbound;
    struct sl_capsule_cache *capsule_cache;
    struct sl_kv_segments *segments;
    struct sl_room room;
    uint8_t *source; // of the sender: a block to ship
    size_t source_bytes;
};
void open_parts(struct parts *parts, size_t arena_bytes, int64_t lease_ms, int64_t keep_ms);
// Evicts everything, then demands that no lease, promise or block is left.
void close_parts(struct parts *parts);
size_t promised_bytes(struct parts *parts);

// Ship a capsule into a grant.
void ship_capsule(struct parts *parts, const struct sl_inbound_ticket *ticket, const struct sl_capsule_bytes *capsule);
// Ship [begin, end) of a prompt made by `seed` into a grant; the whole block, or the first half and then give up.
void ship_block(struct parts *parts, const struct sl_inbound_ticket *ticket, int64_t begin, int64_t end, int seed,
                bool whole);
