// SPDX-License-Identifier: Apache-2.0
// Purpose: what a copy tells the store's eviction policy: whose capsule it is, and how long its tokens took.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "prefill/copy.h"

#define ARENA_BYTES ((size_t)4 << 20)
#define N_TOKENS    200

static struct sl_copy *copy_of(struct sl_prefill_job *job) {
    void *memory = aligned_alloc(4096, ARENA_BYTES);
    struct sl_arena *arena;
    struct sl_page_layout layout;
    struct sl_copy *copy;
    int32_t tokens[N_TOKENS] = {0};
    assert_int_equal(sl_arena_create(memory, ARENA_BYTES, &arena, NULL), SL_OK);
    assert_int_equal(sl_page_layout_init(&layout, SL_KV_F16, 64, 0, false), SL_OK);
    struct sl_session_config config = {
        .geometry = {1, 1, 64}, .max_slots = N_TOKENS, .work = &layout, .packed = &layout};
    assert_int_equal(sl_session_create(&config, arena, &job->session, NULL), SL_OK);
    assert_int_equal(sl_session_reserve(job->session, 0, N_TOKENS), SL_OK);
    sl_session_set_slots(job->session, 0, 0, N_TOKENS);
    job->session->n_tokens = N_TOKENS;
    job->tokens = tokens;
    job->store_address = "127.0.0.1:1";
    assert_int_equal(sl_copy_of_finished(job, &copy), SL_OK);
    sl_session_destroy(&job->session);
    sl_arena_destroy(&arena);
    free(memory);
    return copy;
}

static void test_copy_says_whose_it_is_and_how_long_it_took(void **state) {
    (void)state;
    struct sl_prefill_job *job = calloc(1, sizeof *job);
    assert_int_equal(sl_recipe_parse("full", &job->plan.recipe, NULL), SL_OK);
    job->started_ns = 5 * SL_NS_PER_S;
    job->ended_ns = 7 * SL_NS_PER_S;
    job->n_reused = 128;
    job->salt = (struct sl_hash128){{1}};
    struct sl_copy *one = copy_of(job), *same = copy_of(job);
    assert_true(one->read_ms == 2000);
    assert_int_equal(one->read_tokens, N_TOKENS - 128);
    assert_true(one->tenant != 0);
    assert_int_equal(one->tenant, same->tenant);
    job->salt = (struct sl_hash128){{2}};
    job->n_reused = N_TOKENS; // nothing was read: nothing was measured
    struct sl_copy *other = copy_of(job);
    assert_true(other->tenant != one->tenant);
    assert_true(other->read_ms == 0);
    job->salt = (struct sl_hash128){{0}};
    struct sl_copy *none = copy_of(job);
    assert_int_equal(none->tenant, 0);
    sl_copy_destroy(&one);
    sl_copy_destroy(&same);
    sl_copy_destroy(&other);
    sl_copy_destroy(&none);
    free(job);
}

// A body that came from a device is cleared in the host's memory, before a store gets it.
static void test_copy_of_a_staged_body_has_nothing_in_unused_slots(void **state) {
    (void)state;
    struct sl_node *node = calloc(1, sizeof *node);
    struct sl_prefill prefill = {.node = node};
    struct sl_prefill_job *job = calloc(1, sizeof *job);
    struct sl_copy copy = {.body = NULL};
    const struct sl_kv_geometry geometry = {1, 1, 64};
    assert_int_equal(sl_arena_create_mapped(ARENA_BYTES, &node->staging, NULL), SL_OK);
    assert_int_equal(sl_session_create_plain(&geometry, SL_KV_F16, SL_POSITION_ORIGINAL, N_TOKENS, node->staging,
                                             &job->session, NULL),
                     SL_OK);
    assert_int_equal(sl_session_reserve(job->session, 0, N_TOKENS), SL_OK);
    sl_session_set_slots(job->session, 0, 0, N_TOKENS);
    copy.body_bytes = sl_capsule_body_bytes(job->session);
    job->prefill = &prefill;
    job->outbound.body = sl_arena_alloc(node->staging, copy.body_bytes);
    job->outbound.way = SL_OUTBOUND_STAGED;
    memset(job->outbound.body, 0x7b, copy.body_bytes);
    assert_int_equal(sl_copy_take_session(&copy, job), SL_OK);
    const char *page = (char *)copy.body + copy.body_bytes / 4 * 3; // the last of four, of which 8 slots are used
    for (size_t half = 0; half < 2; half++, page += copy.body_bytes / 8) {
        for (size_t at = 0; at < copy.body_bytes / 8; at++) {
            assert_int_equal(page[at], at < 8 * 64 * 2 ? 0x7b : 0);
        }
    }
    sl_copy_release_body(&copy);
    sl_session_destroy(&job->session);
    sl_arena_destroy(&node->staging);
    free(job);
    free(node);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy_says_whose_it_is_and_how_long_it_took),
        cmocka_unit_test(test_copy_of_a_staged_body_has_nothing_in_unused_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
