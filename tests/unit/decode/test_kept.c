// SPDX-License-Identifier: Apache-2.0
// Sessions between two turns: who gets one, and which goes first.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

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
    struct sl_kept_session *one = sl_kept_take(kept, name);
    if (one) {
        sl_kept_put_back(kept, one);
    }
    return one != NULL;
}

static void test_kept_is_taken_once_and_by_its_name(void **state) {
    (void)state;
    struct sl_kept kept;
    struct names names = keep(&kept, (int64_t[]){600000, 600000, 600000});
    struct sl_kept_session *one = sl_kept_take(&kept, names.of[1]);
    assert_non_null(one);
    assert_string_equal(one->lease_id, names.of[1]);
    assert_null(sl_kept_take(&kept, names.of[1]));
    assert_null(sl_kept_take(&kept, "kept-of-nobody"));
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept_is_taken_once_and_by_its_name),
        cmocka_unit_test(test_kept_drops_what_has_been_idle_for_longest),
        cmocka_unit_test(test_kept_reaps_whose_time_is_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
