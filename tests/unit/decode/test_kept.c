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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept_is_taken_once_and_by_its_name),
        cmocka_unit_test(test_kept_drops_what_has_been_idle_for_longest),
        cmocka_unit_test(test_kept_reaps_whose_time_is_over),
        cmocka_unit_test(test_kept_is_waited_for_while_it_is_lent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
