// SPDX-License-Identifier: Apache-2.0
#include "harness.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

const struct sl_kv_family test_family = {.model_fingerprint = 11,
                                         .first_offloaded_head = 2,
                                         .n_offloaded_heads = 2,
                                         .head_dim = 64,
                                         .work = SL_KV_F16,
                                         .rows = SL_KV_F16,
                                         .scan = SL_KV_F16};

void make_prompt(struct prompt *prompt, int seed, int shared, int64_t n_tokens) {
    for (int i = 0; i < n_tokens; i++) {
        prompt->tokens[i] = i < shared ? i : i * 7 + seed * 1000;
    }
    static const struct sl_hash128 salt = {{1}};
    sl_prefix_keys(&salt, prompt->tokens, n_tokens, prompt->prefixes, MAX_PROMPT / SL_PREFIX_BLOCK);
    struct sl_hash128 whole = sl_prefix_hash(&salt, prompt->tokens, n_tokens);
    prompt->hashes = (struct sl_prompt_hashes){n_tokens, prompt->prefixes, whole};
}

void fill_block(void *block, const struct sl_kv_segment_config *config, int seed) {
    uint16_t *numbers = block;
    uint64_t x = 0x9e3779b97f4a7c15u * (uint64_t)(seed + 1) + (uint64_t)config->begin;
    for (size_t i = 0; i < sl_kv_segment_block_bytes(config) / sizeof *numbers; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        // f16 of both signs between 1/64 and 2: exponents 9 to 15.
        numbers[i] = (uint16_t)((x >> 63 << 15) | (9 + (x >> 20) % 7) << 10 | (x >> 40 & 1023));
    }
}

struct sl_kv_segment *make_segment(struct sl_arena *arena, const struct sl_kv_family *family, int64_t begin,
                                   int64_t end, int seed) {
    const struct sl_ops *ops;
    struct sl_kv_segment_config config;
    struct sl_kv_segment *segment = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_ops_select("auto", &ops, &err), SL_OK);
    assert_int_equal(sl_kv_family_config(family, begin, end, &config, &err), SL_OK);
    void *block = sl_arena_alloc(arena, sl_kv_segment_block_bytes(&config));
    assert_non_null(block);
    fill_block(block, &config, seed);
    if (sl_kv_segment_create(&config, ops, NULL, arena, block, &segment, &err) != SL_OK) {
        fail_msg("no segment: %s", err.text);
    }
    return segment;
}

struct sl_capsule_bytes make_capsule(struct sl_arena *arena, const struct sl_capsule_id *id, int64_t n_tokens,
                                     bool evicting) {
    struct sl_page_layout layout;
    struct sl_session *session;
    assert_int_equal(sl_page_layout_init(&layout, SL_KV_F16, 64, 0, evicting), SL_OK);
    struct sl_session_config config = {
        .geometry = {1, 1, 64}, .max_slots = n_tokens, .work = &layout, .packed = &layout};
    int n_slots = (int)(evicting ? n_tokens / 2 : n_tokens);
    assert_int_equal(sl_session_create(&config, arena, &session, NULL), SL_OK);
    assert_int_equal(sl_session_reserve(session, 0, n_slots), SL_OK);
    sl_session_set_slots(session, 0, 0, (uint32_t)n_slots);
    session->n_tokens = n_tokens;
    struct sl_capsule_bytes capsule = {.body_bytes = sl_capsule_body_bytes(session)};
    assert_int_equal(sl_capsule_write_header(session, id, &capsule.header, &capsule.header_bytes, NULL), SL_OK);
    sl_session_destroy(&session);
    return capsule;
}

void open_parts(struct parts *parts, size_t arena_bytes, int64_t lease_ms, int64_t keep_ms) {
    struct sl_error err = {0};
    struct sl_fabric_config config = {.listen = "127.0.0.1:0", .transport = "tcp"};
    void *base, *source;
    memset(parts, 0, sizeof *parts);
    parts->source_bytes = 1 << 20;
    assert_int_equal(sl_fabric_create(&config, &parts->receiver, &err), SL_OK);
    assert_int_equal(sl_fabric_create(&config, &parts->sender, &err), SL_OK);
    assert_int_equal(sl_fabric_region_create(parts->receiver, arena_bytes, 0, &base, &err), SL_OK);
    assert_int_equal(sl_fabric_region_create(parts->sender, parts->source_bytes, 0, &source, &err), SL_OK);
    parts->source = source;
    assert_int_equal(sl_arena_create(base, arena_bytes, &parts->arena, &err), SL_OK);
    assert_int_equal(sl_ledger_create(parts->arena, &parts->ledger, &err), SL_OK);
    assert_int_equal(sl_inbound_create(parts->receiver, parts->ledger, parts->ledger, lease_ms, &parts->inbound, &err),
                     SL_OK);
    assert_int_equal(sl_capsule_cache_create(parts->arena, keep_ms, &parts->capsule_cache, &err), SL_OK);
    assert_int_equal(sl_kv_segments_create(keep_ms, &parts->segments, &err), SL_OK);
    sl_room_init(&parts->room, parts->ledger, parts->inbound, parts->capsule_cache, parts->segments);
}

void close_parts(struct parts *parts) {
    sl_capsule_cache_destroy(&parts->capsule_cache);
    sl_kv_segments_destroy(&parts->segments);
    int64_t n_leases, deadline = sl_deadline_in_ms(5000);
    size_t promised;
    struct sl_arena_stats stats;
    do {
        n_leases = sl_inbound_count(parts->inbound);
        promised = promised_bytes(parts);
        sl_arena_get_stats(parts->arena, &stats);
        sl_sleep_ms(5);
    } while ((n_leases || stats.n_blocks) && sl_now_ns() < deadline);
    assert_int_equal(n_leases, 0);
    assert_int_equal(promised, 0);
    assert_int_equal(stats.n_blocks, 0);
    sl_room_cleanup(&parts->room);
    sl_inbound_destroy(&parts->inbound);
    sl_ledger_destroy(&parts->ledger);
    sl_fabric_destroy(&parts->sender);
    sl_fabric_destroy(&parts->receiver);
    sl_arena_destroy(&parts->arena);
}

size_t promised_bytes(struct parts *parts) {
    return sl_ledger_promised_bytes(parts->ledger);
}

void ship_capsule(struct parts *parts, const struct sl_inbound_ticket *ticket, const struct sl_capsule_bytes *capsule) {
    struct sl_ship *ship;
    struct sl_error err = {0};
    assert_true(capsule->body_bytes <= parts->source_bytes);
    memcpy(parts->source, capsule->body, capsule->body_bytes);
    assert_int_equal(
        sl_ship_open(parts->sender, ticket->ticket, ticket->ticket_bytes, sl_deadline_in_ms(5000), &ship, &err), SL_OK);
    assert_int_equal(sl_ship_piece(ship, 0, parts->source, capsule->body_bytes), SL_OK);
    if (sl_ship_finish(ship, capsule->header, capsule->header_bytes, &err) != SL_OK) {
        fail_msg("not shipped: %s", err.text);
    }
    sl_ship_close(&ship);
}

void ship_block(struct parts *parts, const struct sl_inbound_ticket *ticket, int64_t begin, int64_t end, int seed,
                bool whole) {
    struct sl_kv_segment_config config;
    struct sl_ship *ship;
    struct sl_error err = {0};
    assert_int_equal(sl_kv_family_config(&test_family, begin, end, &config, &err), SL_OK);
    size_t bytes = sl_kv_segment_block_bytes(&config);
    assert_true(bytes <= parts->source_bytes);
    fill_block(parts->source, &config, seed);
    assert_int_equal(
        sl_ship_open(parts->sender, ticket->ticket, ticket->ticket_bytes, sl_deadline_in_ms(5000), &ship, &err), SL_OK);
    assert_int_equal(sl_ship_piece(ship, 0, parts->source, whole ? bytes : bytes / 2), SL_OK);
    if (whole && sl_ship_finish(ship, "segment", 7, &err) != SL_OK) {
        fail_msg("not shipped: %s", err.text);
    }
    sl_ship_close(&ship);
}
