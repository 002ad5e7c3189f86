// SPDX-License-Identifier: Apache-2.0
// Tests of engine/offload/remote_kv/near_memory.c: an asker that believes what it is told always has the right rows in
// its places.
#include "fixture.h"
#include "engine/offload/remote_kv/near_internal.h"
#include "engine/offload/remote_kv/source.h"
#include "engine/tensor/cpu/tiers.h"
#include "tests/unit/scarce.h"

enum { D = 8, HEADS = 2, N = 1500, CHANNELS = 4 };

// One asker and its hot caches.
struct asker {
    struct offloaded_heads offloaded_heads;
    struct sl_remote_kv *remote_kv;
    struct sl_near_memory *memory;
    struct sl_remote_kv_scratch *scratch;
    uint32_t topk, places;
    uint64_t sequence;
    size_t row_bytes;
    char *rows; // [LANES][places][row_bytes]
    float *scanned[HEADS];
    float q[HEADS][D];
    uint8_t *answer;
};

static void asker_create(struct asker *a, uint32_t topk, uint32_t places) {
    *a = (struct asker){.topk = topk, .places = places, .row_bytes = 2 * D * 2};
    offloaded_heads_create(&a->offloaded_heads, SL_KV_BF16, HEADS, D, N, topk);
    struct make make = {0, HEADS, SL_KV_BF16, SL_KV_BF16, 0};
    a->remote_kv = make_remote_kv(&a->offloaded_heads, &make);
    a->scratch = sl_remote_kv_scratch_create(NULL);
    a->rows = calloc(HEADS * (size_t)places, a->row_bytes);
    a->answer = aligned_alloc(64, 1 << 20);
    assert_true(a->scratch != NULL && a->rows != NULL && a->answer != NULL);
    assert_int_equal(sl_near_memory_create(a->remote_kv, &a->memory, NULL), SL_OK);
    for (int offloaded_head = 0; offloaded_head < HEADS; offloaded_head++) {
        a->scanned[offloaded_head] = malloc(sizeof(float) * N * D);
        read_scanned(a->remote_kv, FIRST_HEAD + offloaded_head, a->scanned[offloaded_head]);
        random_query(&a->offloaded_heads, a->q[offloaded_head]);
    }
}

static void asker_destroy(struct asker *a) {
    free(a->rows);
    free(a->answer);
    for (int offloaded_head = 0; offloaded_head < HEADS; offloaded_head++) {
        free(a->scanned[offloaded_head]);
    }
    sl_near_memory_destroy(&a->memory);
    sl_near_memory_destroy(&a->memory);
    sl_remote_kv_scratch_destroy(&a->scratch);
    sl_remote_kv_destroy(&a->remote_kv);
    offloaded_heads_destroy(&a->offloaded_heads);
}

// Ask; the answer's size. n_new: of all offloaded heads.
static size_t ask(struct asker *a, uint32_t flags, struct sl_near_request *request_out) {
    struct {
        struct sl_near_request head;
        float q[HEADS][D];
    } request = {.head = {.magic = SL_NEAR_MAGIC,
                          .version = SL_NEAR_VERSION,
                          .kind = SL_NEAR_TOPK,
                          .flags = flags,
                          .first_offloaded_head = FIRST_HEAD,
                          .n_offloaded_heads = HEADS,
                          .n_channels = CHANNELS,
                          .topk = a->topk,
                          .places = a->places,
                          .last = N,
                          .sequence = a->sequence}};
    memcpy(request.q, a->q, sizeof a->q);
    size_t limit = sl_near_answer_bytes(a->remote_kv, &request, sizeof request), bytes;
    assert_true(limit > 0 && limit <= 1 << 20);
    sl_near_serve(a->remote_kv, a->memory, a->scratch, &request, sizeof request, a->answer, &bytes);
    assert_true(bytes <= limit);
    *request_out = request.head;
    return bytes;
}

// Believe the answer: new rows go where it says. Then what lies in the places named is what the search finds.
static uint32_t use(struct asker *a, const struct sl_near_request *request, size_t bytes) {
    struct sl_near_answer head;
    const uint8_t *at, *end = a->answer + bytes;
    struct sl_error err = {0};
    uint32_t n_new = 0, *expected = malloc(a->topk * sizeof *expected);
    char *row = malloc(a->row_bytes);
    if (sl_near_check(request, a->answer, bytes, &head, &at, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    for (int offloaded_head = 0; offloaded_head < HEADS; offloaded_head++) {
        struct sl_near_offloaded_head_view view;
        if (next_offloaded_head(request, a->row_bytes, &at, end, &view, &err) != SL_OK) {
            fail_msg("%s", err.text);
        }
        char *rows = a->rows + (size_t)offloaded_head * a->places * a->row_bytes;
        for (uint32_t i = 0; i < view.n_new; i++) {
            memcpy(rows + view.places[view.fresh[i]] * a->row_bytes, view.rows + i * a->row_bytes, a->row_bytes);
        }
        struct sl_remote_kv_query query = {
            FIRST_HEAD + offloaded_head, a->q[offloaded_head], NULL, CHANNELS, 0, N, a->topk};
        assert_int_equal(expected_topk(a->remote_kv, &query, a->scanned[offloaded_head], expected), view.n_rows);
        for (uint32_t i = 0; i < view.n_rows; i++) {
            sl_remote_kv_rows(a->remote_kv, FIRST_HEAD + offloaded_head, &expected[i], 1, row);
            assert_memory_equal(rows + view.places[i] * a->row_bytes, row, a->row_bytes);
        }
        n_new += view.n_new;
    }
    assert_ptr_equal(at, end);
    free(expected);
    free(row);
    return n_new;
}

// One channel of one offloaded head's query moves by one: what is wanted changes little by little.
static void walk(struct asker *a) {
    float *x =
        &a->q[random_int(&a->offloaded_heads.seed, 0, HEADS - 1)][random_int(&a->offloaded_heads.seed, 0, D - 1)];
    *x += (float)(2 * random_int(&a->offloaded_heads.seed, 0, 1) - 1);
}

static void test_hot_cache_holds_what_is_wanted(void **state) {
    (void)state;
    static const uint32_t sizes[][2] = {{1, 1}, {40, 40}, {40, 41}, {40, 200}, {200, 1499}, {300, 5000}, {2000, 2000}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct asker a;
        struct sl_near_request request;
        asker_create(&a, sizes[i][0], sizes[i][1]);
        uint64_t n_sent = 0, n_wanted = 0;
        for (int step = 0; step < 60; step++) {
            a.sequence++;
            uint32_t n_new = use(&a, &request, ask(&a, 0, &request));
            if (step > 0) {
                n_sent += n_new;
                n_wanted += HEADS * sl_near_n_rows(&request);
            }
            walk(&a);
        }
        assert_true(a.topk == 1 || n_sent < n_wanted / 2); // without memory they would be equal
        assert_true(a.places < N || n_sent <= HEADS * N);  // with a place for every token each comes once
        size_t bytes = sl_near_memory_bytes(a.memory);
        assert_true(bytes > HEADS * 12 * (a.places < N ? a.places : N) && bytes < 4096 + HEADS * 40 * 2 * N);
        asker_destroy(&a);
    }
}

// An answer that was lost or not used, a reset, a gap in the sequence, other places: all rows come again, and fit.
static void test_hot_cache_after_losses(void **state) {
    (void)state;
    struct asker a;
    struct sl_near_request request;
    asker_create(&a, 30, 60);
    const uint32_t all = HEADS * 30;
    for (int round = 0; round < 40; round++) {
        a.sequence++;
        assert_true(use(&a, &request, ask(&a, round == 0 ? SL_NEAR_RESET : 0, &request)) <= all);
        walk(&a);
        switch (round % 5) {
        case 0: // the answer is lost: the asker says so
            a.sequence++;
            (void)ask(&a, 0, &request);
            walk(&a);
            a.sequence++;
            assert_int_equal(use(&a, &request, ask(&a, SL_NEAR_RESET, &request)), all);
            break;
        case 1: // the request is lost: the remote KV sees it
            a.sequence += 2;
            assert_int_equal(use(&a, &request, ask(&a, 0, &request)), all);
            break;
        case 2: // a probe changes nothing
            (void)ask(&a, SL_NEAR_PROBE, &request);
            a.sequence++;
            assert_true(use(&a, &request, ask(&a, 0, &request)) < all);
            break;
        case 3: // a request comes twice
            (void)ask(&a, 0, &request);
            assert_int_equal(use(&a, &request, ask(&a, 0, &request)), all);
            break;
        default: // fewer places, and back
            a.places = 45;
            a.sequence++;
            assert_int_equal(use(&a, &request, ask(&a, 0, &request)), all);
            a.places = 60;
            a.sequence++;
            assert_int_equal(use(&a, &request, ask(&a, 0, &request)), all);
        }
    }
    asker_destroy(&a);
}

// --- which places --------------------------------------------------------------------------------------------------

struct wanted {
    uint32_t n, tokens[4], places[4], n_new;
};

// Unused places first, then the one wanted longest ago, of those wanted at once the lowest token's; never one wanted now.
static void test_memory_gives_up_what_was_wanted_longest_ago(void **state) {
    (void)state;
    struct asker a;
    asker_create(&a, 3, 4);
    static const struct wanted steps[] = {
        {2, {10, 20}, {0, 1}, 2},
        {2, {5, 20}, {2, 1}, 1},
        {1, {7}, {3}, 1},
        {1, {8}, {0}, 1},             // 10
        {3, {5, 6, 9}, {2, 1, 3}, 2}, // 5 is wanted: 20, then 7
        {1, {11}, {0}, 1},            // 8
        {3, {1, 2, 3}, {2, 1, 3}, 3}, // of 5, 6, 9, in this order
        {3, {1, 3, 11}, {2, 3, 0}, 0},
        {1, {4}, {1}, 1}, // 2
    };
    struct sl_near_request request = {.places = 4, .sequence = 7};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        uint32_t places[4], fresh[4];
        struct sl_row_claim claim = {steps[i].tokens, steps[i].n, .places = places, .fresh = fresh};
        assert_int_equal(sl_near_memory_want(a.memory, FIRST_HEAD + 1, &request, &claim, NULL), SL_OK);
        assert_memory_equal(places, steps[i].places, steps[i].n * sizeof places[0]);
        assert_int_equal(claim.n_fresh, steps[i].n_new);
        request.sequence++;
    }
    asker_destroy(&a);
}

// A remote KV is opened by a few bytes that say how many offloaded heads it has: they cost little until they are asked
// about.
static void test_memory_of_offloaded_heads_that_nobody_asks_about_is_small(void **state) {
    (void)state;
    enum { MANY = SL_MAX_LAYERS * SL_MAX_HEADS };
    const struct sl_ops *ops;
    struct sl_remote_kv *remote_kv;
    struct sl_near_memory *memory;
    assert_int_equal(sl_ops_select("auto", &ops, NULL), SL_OK);
    assert_int_equal(sl_remote_kv_create(ops, 0, MANY, D, N, &remote_kv, NULL), SL_OK);
    assert_int_equal(sl_near_memory_create(remote_kv, &memory, NULL), SL_OK);
    const size_t empty_bytes = sl_near_memory_bytes(memory);
    assert_in_range(empty_bytes, 1, 128 << 10);
    struct sl_near_request request = {.places = 4, .sequence = 1};
    const int offloaded_heads[] = {0, 31, 32, MANY - 1};
    for (size_t i = 0; i < sizeof offloaded_heads / sizeof offloaded_heads[0]; i++) {
        uint32_t token = 7, place, fresh;
        struct sl_row_claim claim = {&token, 1, .places = &place, .fresh = &fresh};
        assert_int_equal(sl_near_memory_want(memory, offloaded_heads[i], &request, &claim, NULL), SL_OK);
        assert_int_equal(claim.n_fresh, 1);
    }
    assert_in_range(sl_near_memory_bytes(memory) - empty_bytes, 1, 16 << 10);
    sl_near_memory_destroy(&memory);
    sl_remote_kv_destroy(&remote_kv);
}

static enum sl_status want_one(void *remote_kv, struct sl_error *err) {
    struct sl_near_memory *memory = NULL;
    enum sl_status status = sl_near_memory_create(remote_kv, &memory, err);
    if (status == SL_OK) {
        struct sl_near_request request = {.places = 4, .sequence = 1};
        uint32_t token = 7, place, fresh;
        struct sl_row_claim claim = {&token, 1, .places = &place, .fresh = &fresh};
        status = sl_near_memory_want(memory, FIRST_HEAD, &request, &claim, err);
    }
    sl_near_memory_destroy(&memory);
    return status;
}

static enum sl_status make_memory(void *remote_kv, struct sl_error *err) {
    struct sl_near_memory *memory = NULL;
    enum sl_status status = sl_near_memory_create(remote_kv, &memory, err);
    sl_near_memory_destroy(&memory);
    return status;
}

static enum sl_status make_source(void *remote_kv, struct sl_error *err) {
    struct sl_source *source = NULL;
    enum sl_status status = sl_local_source_create(remote_kv, NULL, &source, err);
    if (status == SL_OK) {
        source->ops->destroy(&source);
    }
    return status;
}

static enum sl_status make_empty_remote_kv(void *arg, struct sl_error *err) {
    const struct offloaded_heads *offloaded_heads = arg;
    struct sl_remote_kv *remote_kv = NULL;
    enum sl_status status = sl_remote_kv_create(offloaded_heads->ops, FIRST_HEAD, HEADS, D, N, &remote_kv, err);
    sl_remote_kv_destroy(&remote_kv);
    return status;
}

static enum sl_status make_one_segment(void *arg, struct sl_error *err) {
    struct offloaded_heads *offloaded_heads = arg;
    const struct sl_kv_segment_config config = {.n_slots = 64,
                                                .first_offloaded_head = FIRST_HEAD,
                                                .n_offloaded_heads = HEADS,
                                                .work = offloaded_heads->work,
                                                .rows = SL_KV_INT8,
                                                .scan = SL_KV_INT8};
    void *block = sl_arena_alloc(offloaded_heads->arena, sl_kv_segment_block_bytes(&config));
    assert_non_null(block);
    memcpy(block, offloaded_heads->pages, sl_kv_segment_block_bytes(&config));
    struct sl_kv_segment *segment = NULL;
    enum sl_status status =
        sl_kv_segment_create(&config, offloaded_heads->ops, NULL, offloaded_heads->arena, block, &segment, err);
    sl_kv_segment_unref(&segment);
    if (status != SL_OK) {
        sl_arena_free(offloaded_heads->arena, block);
    }
    return status;
}

static void test_what_makes_a_remote_kv_is_refused_without_memory(void **state) {
    (void)state;
    struct asker a;
    asker_create(&a, 40, 200);
    assert_true(assert_refused_without_memory(make_memory, a.remote_kv) > 0);
    assert_int_equal(assert_refused_without_memory(want_one, a.remote_kv), 3);
    assert_true(assert_refused_without_memory(make_source, a.remote_kv) > 0);
    assert_true(assert_refused_without_memory(make_empty_remote_kv, &a.offloaded_heads) > 0);
    assert_true(assert_refused_without_memory(make_one_segment, &a.offloaded_heads) > 0);
    asker_destroy(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hot_cache_holds_what_is_wanted),
        cmocka_unit_test(test_hot_cache_after_losses),
        cmocka_unit_test(test_memory_gives_up_what_was_wanted_longest_ago),
        cmocka_unit_test(test_memory_of_offloaded_heads_that_nobody_asks_about_is_small),
        cmocka_unit_test(test_what_makes_a_remote_kv_is_refused_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
