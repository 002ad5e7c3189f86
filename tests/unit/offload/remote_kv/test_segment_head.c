// SPDX-License-Identifier: Apache-2.0
// A segment's head that is not the one of its text, model, recipe and place is refused, with what differs.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/offload/remote_kv/segment_head.h"

#define BEGIN 64
#define END   100

static const struct sl_kv_family family = {7, 0, 4, 64, SL_KV_F16, SL_KV_F16, SL_KV_INT1};

static struct sl_kv_segment_head good_head(void) {
    return (struct sl_kv_segment_head){.index = 1, .family = family, .begin = BEGIN, .n_slots = END - BEGIN};
}

static void check(const struct sl_kv_segment_head *head, const char *differs) {
    struct sl_error err = {0};
    char said[64];
    snprintf(said, sizeof said, "its %s differs", differs);
    assert_int_equal(sl_kv_segment_head_follows(head, &family, 1, BEGIN, END, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, said));
}

static void test_segment_head_follows_those_before_it(void **state) {
    (void)state;
    struct sl_kv_segment_head head = good_head();
    assert_int_equal(sl_kv_segment_head_follows(&head, &family, 1, BEGIN, END, NULL), SL_OK);
    head.n_slots--; // another one follows
    assert_int_equal(sl_kv_segment_head_follows(&head, &family, 1, BEGIN, END, NULL), SL_OK);
}

#define REFUSED(change, differs)                                                                                       \
    do {                                                                                                               \
        struct sl_kv_segment_head head = good_head();                                                                  \
        head.change;                                                                                                   \
        check(&head, differs);                                                                                         \
    } while (0)

static void test_segment_head_of_another_text_model_or_recipe_is_named(void **state) {
    (void)state;
    REFUSED(family.model_fingerprint = 8, "model or recipe");
    REFUSED(family.first_offloaded_head = 1, "heads");
    REFUSED(family.n_offloaded_heads = 5, "heads");
    REFUSED(family.head_dim = 32, "heads");
    REFUSED(family.work = SL_KV_BF16, "format of pages");
    REFUSED(family.rows = SL_KV_INT8, "format of rows");
    REFUSED(family.scan = SL_KV_INT8, "format of key indexes");
    REFUSED(index = 0, "place");
    REFUSED(begin = 0, "place");
    REFUSED(n_slots = END - BEGIN + 1, "place");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segment_head_follows_those_before_it),
        cmocka_unit_test(test_segment_head_of_another_text_model_or_recipe_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
