// SPDX-License-Identifier: Apache-2.0
// Eviction policies: their ranks, and for each of them in a store's memory: what is pinned stays, no bound is exceeded, and small
// cases go in an order that is worked out by hand.
#include "tests/unit/kvstore/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define ARENA_BYTES   ((size_t)8 << 20)
#define SCRATCH_BYTES ((size_t)8 << 20)
#define STRIDE        64

struct fixture {
    struct parts parts;
    void *memory;
    struct sl_arena *scratch; // headers are made here
    int64_t now_ns;
};

static int64_t virtual_ns(void *arg) {
    return ((struct fixture *)arg)->now_ns;
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    open_parts(&fixture->parts, ARENA_BYTES, 60000, 0);
    fixture->memory = aligned_alloc(4096, SCRATCH_BYTES);
    assert_int_equal(sl_arena_create(fixture->memory, SCRATCH_BYTES, &fixture->scratch, NULL), SL_OK);
    fixture->now_ns = SL_NS_PER_S;
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    close_parts(&fixture->parts);
    sl_arena_destroy(&fixture->scratch);
    free(fixture->memory);
    free(fixture);
    return 0;
}

static void evict_by(struct fixture *fixture, const struct sl_eviction_policy *policy, int64_t ttl_ms) {
    sl_capsule_cache_evict_by(fixture->parts.capsule_cache,
                              &(struct sl_eviction_config){policy, ttl_ms, virtual_ns, fixture});
}

// A capsule: its prompt begins with the first shared_tokens of every other prompt, and goes on with its own.
struct made {
    int name; // of the capsule, 1..255
    int64_t n_tokens, shared_tokens;
    uint64_t tenant;
    double read_ms;
};

static struct sl_capsule_id id_of(int name) {
    return (struct sl_capsule_id){11, 22, {{(uint8_t)name, 1, (uint8_t)(name >> 8)}}};
}

static enum sl_status put(struct fixture *fixture, struct made made) {
    struct parts *parts = &fixture->parts;
    struct sl_hash128 hashes[64] = {0};
    size_t n_hashes = 0;
    for (; (int64_t)(n_hashes + 1) * STRIDE < made.n_tokens; n_hashes++) {
        bool is_shared = (int64_t)(n_hashes + 1) * STRIDE <= made.shared_tokens;
        hashes[n_hashes] = (struct sl_hash128){{is_shared ? 0 : (uint8_t)made.name, 2, (uint8_t)n_hashes}};
    }
    struct sl_capsule_id id = id_of(made.name);
    struct sl_capsule_bytes capsule = make_capsule(fixture->scratch, &id, made.n_tokens, false);
    enum sl_status status = sl_room_take_block(&parts->room, "test", capsule.body_bytes, &capsule.body, NULL);
    if (status == SL_OK) {
        struct sl_capsule_keys keys = {.id = id,
                                       .hashes = hashes,
                                       .n_hashes = n_hashes,
                                       .stride = STRIDE,
                                       .tenant = made.tenant,
                                       .read_ms = made.read_ms,
                                       .read_tokens = made.n_tokens};
        status = sl_capsule_cache_put(parts->capsule_cache, &keys, &capsule, NULL);
    }
    if (status != SL_OK) {
        sl_capsule_bytes_free(&capsule, parts->arena);
    }
    fixture->now_ns += SL_NS_PER_S;
    return status;
}

static struct sl_stored *pin(struct fixture *fixture, int name) {
    struct sl_capsule_id id = id_of(name);
    int64_t covered;
    return sl_capsule_cache_pin(fixture->parts.capsule_cache, &id, &covered);
}

static void use(struct fixture *fixture, int name) {
    struct sl_stored *stored = pin(fixture, name);
    assert_non_null(stored);
    sl_capsule_cache_unpin(fixture->parts.capsule_cache, stored);
    fixture->now_ns += SL_NS_PER_S;
}

// Evicts everything and expects the capsules to go in this order, which ends with 0.
static void expect_order(struct fixture *fixture, const int *names) {
    struct sl_capsule_cache *cache = fixture->parts.capsule_cache;
    for (; *names != 0; names++) {
        struct sl_capsule_id id = id_of(*names);
        assert_true(sl_capsule_cache_has(cache, &id));
        assert_true(sl_capsule_cache_evict_one(cache, INT64_MAX));
        assert_false(sl_capsule_cache_has(cache, &id));
    }
    assert_false(sl_capsule_cache_evict_one(cache, INT64_MAX));
}

static void test_eviction_lru_goes_by_the_last_use(void **state) {
    struct fixture *fixture = *state;
    evict_by(fixture, sl_eviction_find("lru"), 0);
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(put(fixture, (struct made){.name = i, .n_tokens = 128}), SL_OK);
    }
    use(fixture, 1);
    expect_order(fixture, (int[]){2, 3, 1, 0});
}

static void test_eviction_ttl_drops_the_expired_first(void **state) {
    struct fixture *fixture = *state;
    evict_by(fixture, sl_eviction_find("ttl"), 2500);
    for (int i = 1; i <= 3; i++) { // at 1, 2 and 3 s
        assert_int_equal(put(fixture, (struct made){.name = i, .n_tokens = 128}), SL_OK);
    }
    use(fixture, 1); // at 4 s; at 5 s, 1 and 2 are older than 2.5 s, and 2 was not used for longer
    expect_order(fixture, (int[]){2, 1, 3, 0});
}

// Tenant 1 has three of four equal capsules and loses one, then another, until both have the same.
static void test_eviction_share_takes_from_the_tenant_that_has_most(void **state) {
    struct fixture *fixture = *state;
    evict_by(fixture, sl_eviction_find("share"), 0);
    assert_int_equal(put(fixture, (struct made){.name = 9, .n_tokens = 4096, .tenant = 2}), SL_OK); // 1 MiB
    for (int i = 1; i <= 5; i++) {                                                                  // 5 MiB of 8 / 2
        assert_int_equal(put(fixture, (struct made){.name = i, .n_tokens = 4096, .tenant = 1}), SL_OK);
    }
    expect_order(fixture, (int[]){1, 9, 2, 3, 4, 5, 0}); // the least recently used where no tenant exceeds the share
}

static void test_eviction_cost_spares_what_takes_long_to_read_again(void **state) {
    struct fixture *fixture = *state;
    evict_by(fixture, sl_eviction_find("cost"), 0);
    // Equal bytes: 1 took 100 times as long as 2 and 3, so it outranks them though it is the oldest.
    assert_int_equal(put(fixture, (struct made){.name = 1, .n_tokens = 128, .read_ms = 12800}), SL_OK);
    assert_int_equal(put(fixture, (struct made){.name = 2, .n_tokens = 128, .read_ms = 128}), SL_OK);
    assert_int_equal(put(fixture, (struct made){.name = 3, .n_tokens = 128, .read_ms = 128}), SL_OK);
    fixture->now_ns += 60 * SL_NS_PER_S;
    expect_order(fixture, (int[]){2, 3, 1, 0});
}

// The most expensive byte is not worth a prompt that was stored just now, and among those the last use decides.
static void test_eviction_cost_spares_what_was_used_just_now(void **state) {
    struct fixture *fixture = *state;
    evict_by(fixture, sl_eviction_find("cost"), 0);
    assert_int_equal(put(fixture, (struct made){.name = 1, .n_tokens = 128, .read_ms = 12800}), SL_OK);
    fixture->now_ns += 11 * SL_NS_PER_S;
    assert_int_equal(put(fixture, (struct made){.name = 2, .n_tokens = 128, .read_ms = 256}), SL_OK);
    assert_int_equal(put(fixture, (struct made){.name = 3, .n_tokens = 128, .read_ms = 128}), SL_OK);
    expect_order(fixture, (int[]){1, 2, 3, 0});
}

static void test_eviction_cost_finds_a_cheap_one_among_many_in_rounds(void **state) {
    struct fixture *fixture = *state;
    const int n = 2 * SL_EVICTION_RANKED + 10;
    struct sl_capsule_id cheap = id_of(n);
    evict_by(fixture, sl_eviction_find("cost"), 0);
    for (int i = 1; i <= n; i++) {
        assert_int_equal(put(fixture, (struct made){.name = i, .n_tokens = 8, .read_ms = i < n ? 1e9 : 1e-3}), SL_OK);
    }
    fixture->now_ns += 60 * SL_NS_PER_S;
    int n_evicted = 0;
    for (; sl_capsule_cache_has(fixture->parts.capsule_cache, &cheap); n_evicted++) {
        assert_true(sl_capsule_cache_evict_one(fixture->parts.capsule_cache, INT64_MAX));
    }
    assert_true(n_evicted <= 3); // the rounds had begun, for room
}

static void test_eviction_cost_ages(void **state) {
    struct fixture *fixture = *state;
    evict_by(fixture, sl_eviction_find("cost"), 0);
    assert_int_equal(put(fixture, (struct made){.name = 1, .n_tokens = 128, .read_ms = 12800}), SL_OK);
    fixture->now_ns += 3000 * SL_NS_PER_S; // 274 times as old as 2, and 100 times as expensive
    assert_int_equal(put(fixture, (struct made){.name = 2, .n_tokens = 128, .read_ms = 128}), SL_OK);
    fixture->now_ns += 11 * SL_NS_PER_S;
    expect_order(fixture, (int[]){1, 2, 0});
}

// A turn of a conversation whose tokens the next turn's capsule has too goes first, and that one last when it has the tokens alone.
static void test_eviction_cost_drops_what_another_capsule_covers(void **state) {
    struct fixture *fixture = *state;
    struct sl_capsule_cache *cache = fixture->parts.capsule_cache;
    evict_by(fixture, sl_eviction_find("cost"), 0);
    assert_int_equal(put(fixture, (struct made){.name = 1, .n_tokens = 640}), SL_OK); // alone
    assert_int_equal(put(fixture, (struct made){.name = 2, .n_tokens = 640, .shared_tokens = 640}), SL_OK);
    assert_int_equal(put(fixture, (struct made){.name = 3, .n_tokens = 704, .shared_tokens = 640}), SL_OK);
    struct sl_capsule_id first = id_of(2), prefix = {11, 22, {{0, 2, 8}}}; // of 9 * 64 tokens
    fixture->now_ns += 60 * SL_NS_PER_S;
    assert_true(sl_capsule_cache_evict_one(cache, INT64_MAX));
    assert_false(sl_capsule_cache_has(cache, &first));
    int64_t covered;
    struct sl_stored *stored = sl_capsule_cache_pin(cache, &prefix, &covered);
    assert_non_null(stored);
    assert_int_equal(stored->n_tokens, 704);
    assert_int_equal(covered, 576);
    sl_capsule_cache_unpin(cache, stored);
    expect_order(fixture, (int[]){1, 3, 0});
}

// A prefix that a younger capsule answered for is found again when that one is gone.
static void test_eviction_leaves_the_other_holder_of_a_prefix(void **state) {
    struct fixture *fixture = *state;
    struct sl_capsule_cache *cache = fixture->parts.capsule_cache;
    assert_int_equal(put(fixture, (struct made){.name = 1, .n_tokens = 640, .shared_tokens = 256}), SL_OK);
    assert_int_equal(put(fixture, (struct made){.name = 2, .n_tokens = 640, .shared_tokens = 256}), SL_OK);
    assert_int_equal(put(fixture, (struct made){.name = 3, .n_tokens = 640, .shared_tokens = 256}), SL_OK);
    struct sl_capsule_id prefix = {11, 22, {{0, 2, 3}}}, id;
    const int order[] = {3, 1, 2}; // the first node of the list, the last one, the only one
    for (int i = 0; i < 3; i++) {
        int64_t covered;
        struct sl_stored *stored = sl_capsule_cache_pin(cache, &prefix, &covered);
        assert_non_null(stored);
        assert_int_equal(covered, 256);
        assert_int_equal(stored->keys.id.prefix_hash.bytes[0], i == 0 ? 3 : 2);
        sl_capsule_cache_unpin(cache, stored);
        id = id_of(order[i]);
        assert_true(sl_capsule_cache_forget(cache, &id));
    }
    int64_t covered;
    assert_null(sl_capsule_cache_pin(cache, &prefix, &covered));
}

// Random puts, uses and pins under every policy: pinned capsules stay, and the arena's 90% are not exceeded by what may go.
static void check_properties(struct fixture *fixture, const struct sl_eviction_policy *policy) {
    struct parts *parts = &fixture->parts;
    struct sl_stored *pinned[8] = {0};
    int names[8] = {0};
    uint64_t random = 7;
    evict_by(fixture, policy, 5000);
    for (int i = 0; i < 600; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t bits = (uint32_t)(random >> 33);
        struct made made = {1 + (int)(bits % 250), 128 + 64 * (int64_t)(bits / 250 % 40), 64 * (bits % 3), 1 + bits % 3,
                            bits % 2000};
        struct sl_capsule_id id = id_of(made.name);
        if (!sl_capsule_cache_has(parts->capsule_cache, &id)) {
            assert_int_equal(put(fixture, made), SL_OK);
        }
        int slot = i % 8;
        if (pinned[slot]) {
            sl_capsule_cache_unpin(parts->capsule_cache, pinned[slot]);
        }
        pinned[slot] = pin(fixture, made.name);
        names[slot] = made.name;
        for (int k = 0; k < 8; k++) {
            id = id_of(names[k]);
            assert_true(!pinned[k] || sl_capsule_cache_has(parts->capsule_cache, &id));
        }
        struct sl_arena_stats arena;
        sl_arena_get_stats(parts->arena, &arena);
        assert_true(arena.used_bytes <= arena.capacity_bytes / 100 * 90);
    }
    struct sl_capsule_cache_stats stats;
    sl_capsule_cache_get_stats(parts->capsule_cache, &stats);
    assert_true(stats.n_evicted > 100);
    assert_int_equal(stats.n_pinned, 8);
    while (sl_capsule_cache_evict_one(parts->capsule_cache, INT64_MAX)) {
    }
    for (int k = 0; k < 8; k++) {
        struct sl_capsule_id id = id_of(names[k]);
        assert_true(sl_capsule_cache_has(parts->capsule_cache, &id));
        sl_capsule_cache_unpin(parts->capsule_cache, pinned[k]);
    }
}

static void test_eviction_no_policy_evicts_what_is_pinned(void **state) {
    (void)state;
    const struct sl_eviction_policy *policy;
    for (size_t i = 0; (policy = sl_eviction_at(i)) != NULL; i++) {
        void *own;
        setup(&own);
        check_properties(own, policy);
        teardown(&own);
    }
}

static void test_eviction_policies_are_found_by_name(void **state) {
    (void)state;
    size_t n = 0;
    for (const struct sl_eviction_policy *policy; (policy = sl_eviction_at(n)) != NULL; n++) {
        assert_ptr_equal(sl_eviction_find(policy->name), policy);
    }
    assert_int_equal(n, 4);
    assert_non_null(sl_eviction_find(SL_EVICTION_DEFAULT));
    assert_null(sl_eviction_find("fifo"));
}

static void test_eviction_later_tokens_cost_more(void **state) {
    (void)state;
    assert_true(fabs(sl_eviction_read_cost(0, 100) - 100) < 1);
    double late = sl_eviction_read_cost(32768, 32769);
    assert_true(fabs(late - 2) < 0.01);
    assert_true(fabs(sl_eviction_read_cost(0, 5000) + sl_eviction_read_cost(5000, 9000) -
                     sl_eviction_read_cost(0, 9000)) < 1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eviction_policies_are_found_by_name),
        cmocka_unit_test(test_eviction_later_tokens_cost_more),
        cmocka_unit_test(test_eviction_no_policy_evicts_what_is_pinned),
        cmocka_unit_test_setup_teardown(test_eviction_lru_goes_by_the_last_use, setup, teardown),
        cmocka_unit_test_setup_teardown(test_eviction_ttl_drops_the_expired_first, setup, teardown),
        cmocka_unit_test_setup_teardown(test_eviction_share_takes_from_the_tenant_that_has_most, setup, teardown),
        cmocka_unit_test_setup_teardown(test_eviction_cost_spares_what_takes_long_to_read_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_eviction_cost_spares_what_was_used_just_now, setup, teardown),
        cmocka_unit_test_setup_teardown(test_eviction_cost_finds_a_cheap_one_among_many_in_rounds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_eviction_cost_ages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_eviction_cost_drops_what_another_capsule_covers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_eviction_leaves_the_other_holder_of_a_prefix, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
