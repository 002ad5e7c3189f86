// SPDX-License-Identifier: Apache-2.0
// Retained sessions between two turns: which turn gets one, and which session goes first.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/clock.h"
#include "decode/kept.h"

struct names {
    char of[3][SL_LEASE_ID_BYTES];
};

// Without sessions: their place in the list is what matters. keep_ms: of each.
static struct names keep(struct sl_kept *kept, const int64_t keep_ms[3]) {
    struct names names;
    struct sl_capsule_id id = {0};
    struct sl_error err = {0};
    sl_kept_init(kept);
    for (int i = 0; i < 3; i++) {
        struct sl_session *session = NULL;
        assert_int_equal(sl_kept_put(kept, &id, &session, keep_ms[i], names.of[i], &err), SL_OK);
    }
    assert_int_equal(sl_kept_count(kept), 3);
    return names;
}

static bool has(struct sl_kept *kept, const char *name) {
    struct sl_kept_session *one = sl_kept_take(kept, name, 0);
    if (one) {
        sl_kept_put_back(kept, one);
    }
    return one != NULL;
}

static void test_kept_is_taken_once_and_by_its_name(void **state) {
    (void)state;
    struct sl_kept kept;
    struct names names = keep(&kept, (int64_t[]){600000, 600000, 600000});
    struct sl_kept_session *one = sl_kept_take(&kept, names.of[1], 0);
    assert_non_null(one);
    assert_string_equal(one->lease_id, names.of[1]);
    assert_null(sl_kept_take(&kept, names.of[1], 0));
    assert_null(sl_kept_take(&kept, "kept-of-nobody", 0));
    assert_int_equal(sl_kept_count(&kept), 2);
    sl_kept_free(one);
    sl_kept_release(&kept, names.of[0]);
    sl_kept_release(&kept, names.of[0]);
    assert_int_equal(sl_kept_count(&kept), 1);
    sl_kept_cleanup(&kept);
}

static void test_kept_drops_what_has_been_idle_for_longest(void **state) {
    (void)state;
    struct sl_kept kept;
    struct names names = keep(&kept, (int64_t[]){600000, 600000, 600000});
    assert_true(has(&kept, names.of[0])); // used, and so the youngest
    assert_true(sl_kept_drop_oldest(&kept));
    assert_false(has(&kept, names.of[1]));
    assert_true(sl_kept_drop_oldest(&kept));
    assert_true(has(&kept, names.of[0]));
    assert_true(sl_kept_drop_oldest(&kept));
    assert_false(sl_kept_drop_oldest(&kept));
    sl_kept_cleanup(&kept);
}

static void test_kept_reaps_whose_time_is_over(void **state) {
    (void)state;
    struct sl_kept kept;
    struct names names = keep(&kept, (int64_t[]){600000, 0, 600000});
    sl_kept_reap(&kept);
    assert_int_equal(sl_kept_count(&kept), 2);
    assert_false(has(&kept, names.of[1]));
    sl_kept_cleanup(&kept);
    assert_null(kept.first);
}

// Taking a session that is being copied waits until the copy is done.
static void *give_back_soon(void *arg) {
    struct sl_kept *kept = ((void **)arg)[0];
    sl_sleep_ms(20);
    sl_kept_return(kept, ((void **)arg)[1]);
    return NULL;
}

static void test_kept_is_waited_for_while_it_is_lent(void **state) {
    (void)state;
    struct sl_kept kept;
    struct names names = keep(&kept, (int64_t[]){600000, 600000, 0});
    struct sl_kept_session *one = sl_kept_lend(&kept, names.of[0]);
    assert_non_null(one);
    assert_null(sl_kept_lend(&kept, names.of[0]));
    assert_null(sl_kept_take(&kept, names.of[0], 0));
    assert_int_equal(sl_kept_count(&kept), 3);
    assert_true(sl_kept_drop_oldest(&kept)); // which is not the one that is lent
    assert_null(sl_kept_lend(&kept, names.of[1]));
    void *arg[] = {&kept, one};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, give_back_soon, arg), 0);
    assert_ptr_equal(sl_kept_take(&kept, names.of[0], sl_deadline_in_ms(60000)), one);
    pthread_join(thread, NULL);
    sl_kept_free(one);

    // Released, or over, while it is lent: it goes with its return.
    one = sl_kept_lend(&kept, names.of[2]);
    sl_kept_reap(&kept);
    sl_kept_release(&kept, names.of[2]);
    sl_kept_release(&kept, names.of[2]);
    assert_int_equal(sl_kept_count(&kept), 1);
    sl_kept_return(&kept, one);
    assert_int_equal(sl_kept_count(&kept), 0);
    sl_kept_cleanup(&kept);
}

// Returns a session whose pages lie in one block of the arena.
static struct sl_session *capsule_session(struct sl_arena *arena, int n_tokens) {
    const struct sl_kv_geometry geometry = {1, 1, 64};
    struct sl_capsule_id id = {0};
    struct sl_session *s;
    assert_int_equal(sl_session_create_plain(&geometry, SL_KV_F16, SL_POSITION_ORIGINAL, 200, arena, &s, NULL), SL_OK);
    assert_int_equal(sl_session_reserve(s, 0, n_tokens), SL_OK);
    sl_session_add_slots(s, 0, n_tokens);
    s->n_tokens = n_tokens;
    struct sl_capsule_bytes capsule = {.body_bytes = sl_capsule_body_bytes(s)};
    capsule.body = sl_arena_alloc(arena, capsule.body_bytes);
    assert_int_equal(sl_capsule_write_header(s, &id, &capsule.header, &capsule.header_bytes, NULL), SL_OK);
    sl_session_destroy(&s);
    assert_int_equal(sl_capsule_adopt(&capsule, arena, &geometry, &id, 200, &s, NULL), SL_OK);
    return s;
}

#define ARENA_BYTES ((size_t)1 << 20)

struct worker {
    struct sl_arena *arena;
    struct sl_ledger *ledger;
    struct sl_kept kept;
};

static void open_worker(struct worker *worker) {
    assert_int_equal(sl_arena_create_mapped(ARENA_BYTES, &worker->arena, NULL), SL_OK);
    assert_int_equal(sl_ledger_create(worker->arena, &worker->ledger, NULL), SL_OK);
    sl_kept_init(&worker->kept);
}

static void close_worker(struct worker *worker) {
    sl_kept_cleanup(&worker->kept);
    sl_ledger_destroy(&worker->ledger);
    sl_arena_destroy(&worker->arena);
}

// Idle sessions go for a request that fits without them, and for no other one.
static void test_kept_makes_room_only_where_that_helps(void **state) {
    (void)state;
    struct worker w;
    struct sl_capsule_id id = {0};
    char name[SL_LEASE_ID_BYTES];
    open_worker(&w);
    for (int i = 0; i < 2; i++) {
        struct sl_session *session = capsule_session(w.arena, 128);
        assert_int_equal(sl_kept_put(&w.kept, &id, &session, 600000, name, NULL), SL_OK);
    }
    assert_int_equal(sl_ledger_try_promise(w.ledger, ARENA_BYTES / 2), SL_OK); // of a job
    assert_false(sl_kept_make_room(&w.kept, w.ledger, SIZE_MAX));
    assert_false(sl_kept_make_room(&w.kept, w.ledger, ARENA_BYTES + 1));
    assert_false(sl_kept_make_room(&w.kept, w.ledger, ARENA_BYTES));
    assert_int_equal(sl_kept_count(&w.kept), 2);
    assert_true(sl_kept_make_room(&w.kept, w.ledger, ARENA_BYTES / 2));
    assert_int_equal(sl_ledger_try_promise(w.ledger, ARENA_BYTES / 2), SL_AGAIN);
    assert_true(sl_kept_make_room(&w.kept, w.ledger, ARENA_BYTES / 2));
    assert_false(sl_kept_make_room(&w.kept, w.ledger, ARENA_BYTES / 2)); // there is none
    assert_int_equal(sl_ledger_try_promise(w.ledger, ARENA_BYTES / 2), SL_OK);
    sl_ledger_return(w.ledger, ARENA_BYTES);
    close_worker(&w);
}

// Conversations on a document do not go for a request that cannot fit: their pages are there once.
static void test_kept_makes_no_room_from_pages_that_are_shared(void **state) {
    (void)state;
    struct worker w;
    char name[SL_LEASE_ID_BYTES];
    open_worker(&w);
    const struct sl_hash128 keys[2] = {{{1}}, {{2}}};
    const struct sl_kept_prompt prompt = {.id = {1, 2, {{9}}}, .keys = keys, .n_keys = 2, .max_slots = 200};
    struct sl_session *session = capsule_session(w.arena, 128);
    sl_kept_put_base(&w.kept, &prompt, 128, &session);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sl_kept_share(&w.kept, &prompt, 128, &session, NULL), SL_OK);
        assert_int_equal(sl_kept_put(&w.kept, &prompt.id, &session, 600000, name, NULL), SL_OK);
    }
    const size_t base_bytes = (size_t)sl_kept_base_bytes(&w.kept);
    assert_int_equal(sl_ledger_try_promise(w.ledger, ARENA_BYTES / 2), SL_OK); // of a job
    assert_false(sl_kept_make_room(&w.kept, w.ledger, ARENA_BYTES / 2 + base_bytes));
    assert_int_equal(sl_kept_count(&w.kept), 3);
    for (int i = 0; i < 4; i++) { // the base is the last one that goes
        assert_int_equal(sl_ledger_try_promise(w.ledger, ARENA_BYTES / 2), SL_AGAIN);
        assert_true(sl_kept_make_room(&w.kept, w.ledger, ARENA_BYTES / 2));
    }
    assert_int_equal(sl_ledger_try_promise(w.ledger, ARENA_BYTES / 2), SL_OK);
    sl_ledger_return(w.ledger, ARENA_BYTES);
    close_worker(&w);
}

static void test_kept_bases_are_shared_and_stay_while_they_are(void **state) {
    (void)state;
    struct sl_arena *arena;
    struct sl_kept kept;
    struct sl_error err;
    assert_int_equal(sl_arena_create_mapped((size_t)1 << 20, &arena, NULL), SL_OK);
    sl_kept_init(&kept);
    const struct sl_hash128 keys[2] = {{{1}}, {{2}}}, other_keys[2] = {{{1}}, {{3}}};
    struct sl_kept_prompt prompt = {.id = {1, 2, {{9}}}, .keys = keys, .n_keys = 2, .max_slots = 200};
    struct sl_session *one = NULL, *base = capsule_session(arena, 128);
    assert_int_equal(sl_kept_share(&kept, &prompt, 128, &one, &err), SL_ERR_NOT_FOUND);
    sl_kept_put_base(&kept, &prompt, 128, &base);
    assert_null(base);
    assert_int_equal(sl_kept_count(&kept), 0); // of conversations
    assert_true(sl_kept_base_bytes(&kept) > 0);
    assert_null(sl_kept_take(&kept, "", 0)); // a base has no name
    assert_null(sl_kept_lend(&kept, ""));
    sl_kept_release(&kept, "");

    assert_int_equal(sl_kept_share(&kept, &prompt, 192, &one, &err), SL_ERR_INVALID);
    prompt.id.prefix_hash.bytes[0] = 8;
    assert_int_equal(sl_kept_share(&kept, &prompt, 128, &one, &err), SL_ERR_NOT_FOUND);
    assert_int_equal(sl_kept_share_longest(&kept, &prompt, &one, &err), SL_OK);
    assert_int_equal(one->n_tokens, 128);
    assert_false(sl_kept_drop_oldest(&kept)); // that would free no memory
    sl_session_destroy(&one);
    prompt.keys = other_keys;
    assert_int_equal(sl_kept_share_longest(&kept, &prompt, &one, &err), SL_ERR_NOT_FOUND);
    prompt.keys = keys;
    prompt.id.recipe_fingerprint = 3;
    assert_int_equal(sl_kept_share_longest(&kept, &prompt, &one, &err), SL_ERR_NOT_FOUND);
    assert_true(sl_kept_drop_oldest(&kept));
    assert_int_equal(sl_kept_base_bytes(&kept), 0);
    sl_kept_cleanup(&kept);
    struct sl_arena_stats stats;
    sl_arena_get_stats(arena, &stats);
    assert_int_equal(stats.used_bytes, 0);
    sl_arena_destroy(&arena);
}

static void copy_page(void *arg, void *to, const void *from, size_t bytes) {
    (void)arg;
    memcpy(to, from, bytes);
}

// A base that ends within a page is shared whole by prompts that begin with all of it; of any other only blocks are compared.
static void test_kept_bases_that_end_within_a_page_are_shared_whole(void **state) {
    (void)state;
    struct sl_arena *arena;
    struct sl_kept kept;
    struct sl_error err;
    assert_int_equal(sl_arena_create_mapped((size_t)1 << 20, &arena, NULL), SL_OK);
    sl_kept_init(&kept);
    const struct sl_hash128 keys[2] = {{{1}}, {{2}}};
    struct sl_kept_prompt prompt = {
        .id = {1, 2, {{9}}}, .keys = keys, .n_keys = 2, .max_slots = 200, .copy = copy_page};
    struct sl_session *one = NULL, *base = capsule_session(arena, 150);
    sl_kept_put_base(&kept, &prompt, 150, &base);
    assert_int_equal(sl_kept_share(&kept, &prompt, 150, &one, &err), SL_OK);
    assert_int_equal(one->n_tokens, 150);
    assert_int_equal(one->layers[0].heads[0].n_pages, 3);
    sl_session_destroy(&one);
    assert_int_equal(sl_kept_share_longest(&kept, &prompt, &one, &err), SL_OK); // it may be followed by other tokens
    assert_int_equal(one->n_tokens, 128);
    sl_session_destroy(&one);
    sl_kept_cleanup(&kept);
    sl_arena_destroy(&arena);
}

struct copying {
    struct sl_kept kept;
    struct sl_kept_prompt prompt;
    struct sl_session *other; // of the same capsule
    int n;
};

// Meanwhile another base takes the place of the one that is copied.
static void copy_and_replace(void *arg, void *to, const void *from, size_t bytes) {
    struct copying *copying = arg;
    copying->n++;
    assert_int_equal(pthread_mutex_trylock(&copying->kept.mutex), 0); // the engine's thread does not wait
    pthread_mutex_unlock(&copying->kept.mutex);
    assert_false(sl_kept_drop_oldest(&copying->kept)); // that would free no memory
    sl_kept_put_base(&copying->kept, &copying->prompt, 150, &copying->other);
    memcpy(to, from, bytes);
}

static void test_kept_bases_are_copied_without_the_lock(void **state) {
    (void)state;
    struct sl_arena *arena;
    struct copying copying = {0};
    assert_int_equal(sl_arena_create_mapped((size_t)1 << 20, &arena, NULL), SL_OK);
    sl_kept_init(&copying.kept);
    const struct sl_hash128 keys[2] = {{{1}}, {{2}}};
    copying.prompt = (struct sl_kept_prompt){.id = {1, 2, {{9}}},
                                             .keys = keys,
                                             .n_keys = 2,
                                             .max_slots = 200,
                                             .copy = copy_and_replace,
                                             .copy_arg = &copying};
    struct sl_session *one = NULL, *base = capsule_session(arena, 150);
    copying.other = capsule_session(arena, 150);
    sl_kept_put_base(&copying.kept, &copying.prompt, 150, &base);
    assert_int_equal(sl_kept_share(&copying.kept, &copying.prompt, 150, &one, NULL), SL_OK);
    assert_int_equal(copying.n, 1);
    assert_int_equal(one->layers[0].heads[0].n_pages, 3); // it keeps the base that has gone
    sl_session_destroy(&one);
    assert_true(sl_kept_drop_oldest(&copying.kept));
    sl_kept_cleanup(&copying.kept);
    struct sl_arena_stats stats;
    sl_arena_get_stats(arena, &stats);
    assert_int_equal(stats.used_bytes, 0);
    sl_arena_destroy(&arena);
}

static void *end_soon(void *arg) {
    sl_sleep_ms(20);
    sl_kept_end_fetch(((void **)arg)[0], ((void **)arg)[1]);
    return NULL;
}

static void test_kept_bases_are_fetched_one_at_a_time(void **state) {
    (void)state;
    struct sl_kept kept;
    sl_kept_init(&kept);
    struct sl_kept_fetch one = {.id = {1, 2, {{9}}}}, same = one, other = {.id = {1, 2, {{8}}}};
    assert_int_equal(sl_kept_begin_fetch(&kept, &one, 0), SL_OK);
    assert_int_equal(sl_kept_begin_fetch(&kept, &same, 0), SL_ERR_DEADLINE);
    assert_int_equal(sl_kept_begin_fetch(&kept, &other, 0), SL_OK);
    void *arg[] = {&kept, &one};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, end_soon, arg), 0);
    assert_int_equal(sl_kept_begin_fetch(&kept, &same, sl_deadline_in_ms(60000)), SL_OK);
    pthread_join(thread, NULL);
    sl_kept_end_fetch(&kept, &same);
    sl_kept_end_fetch(&kept, &other);
    assert_null(kept.fetches);
    sl_kept_cleanup(&kept);
}

// A session that was read for a job has memory promised for its answer, and stays until its time is over.
static void test_kept_hands_over_sessions_with_their_promise(void **state) {
    (void)state;
    _Alignas(4096) static char memory[1 << 20];
    struct sl_arena *arena;
    struct sl_ledger *ledger;
    struct sl_kept kept;
    struct sl_error err = {0};
    assert_int_equal(sl_arena_create(memory, sizeof memory, &arena, &err), SL_OK);
    assert_int_equal(sl_ledger_create(arena, &ledger, &err), SL_OK);
    sl_kept_init(&kept);
    char names[3][SL_LEASE_ID_BYTES];
    for (int i = 0; i < 3; i++) {
        struct sl_capsule_id id = {0};
        struct sl_session *session = NULL;
        assert_int_equal(sl_ledger_try_promise(ledger, 1000), SL_OK);
        assert_int_equal(sl_kept_hand_over(&kept, ledger, &id, &session, 1000, names[i], &err), SL_OK);
    }
    assert_false(sl_kept_drop_oldest(&kept)); // jobs wait for all of them
    assert_int_equal(sl_ledger_promised_bytes(ledger), 3000);
    struct sl_kept_session *one = sl_kept_take(&kept, names[0], 0);
    assert_ptr_equal(one->ledger, ledger);
    assert_int_equal(one->promised_bytes, 1000);
    one->ledger = NULL; // the answer's from now on
    sl_kept_free(one);
    assert_int_equal(sl_ledger_promised_bytes(ledger), 3000);
    sl_kept_release(&kept, names[1]);
    assert_int_equal(sl_ledger_promised_bytes(ledger), 2000);
    one = sl_kept_take(&kept, names[2], 0);
    one->deadline_ns = 0;
    sl_kept_put_back(&kept, one);
    sl_kept_reap(&kept); // its job never came
    assert_int_equal(sl_ledger_promised_bytes(ledger), 1000);
    assert_int_equal(sl_kept_count(&kept), 0);
    sl_kept_cleanup(&kept);
    sl_ledger_return(ledger, 1000);
    sl_ledger_destroy(&ledger);
    sl_arena_destroy(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept_is_taken_once_and_by_its_name),
        cmocka_unit_test(test_kept_drops_what_has_been_idle_for_longest),
        cmocka_unit_test(test_kept_reaps_whose_time_is_over),
        cmocka_unit_test(test_kept_is_waited_for_while_it_is_lent),
        cmocka_unit_test(test_kept_makes_room_only_where_that_helps),
        cmocka_unit_test(test_kept_makes_no_room_from_pages_that_are_shared),
        cmocka_unit_test(test_kept_bases_are_shared_and_stay_while_they_are),
        cmocka_unit_test(test_kept_bases_that_end_within_a_page_are_shared_whole),
        cmocka_unit_test(test_kept_bases_are_copied_without_the_lock),
        cmocka_unit_test(test_kept_bases_are_fetched_one_at_a_time),
        cmocka_unit_test(test_kept_hands_over_sessions_with_their_promise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
