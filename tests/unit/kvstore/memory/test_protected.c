// SPDX-License-Identifier: Apache-2.0
// The set of capsules that a store does not evict.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>

#include "base/clock.h"
#include "engine/offload/remote_kv/segment_head.h"
#include "kvstore/memory/protected.h"

static struct sl_capsule_id id_of(int i) {
    return (struct sl_capsule_id){11, 22, {{(uint8_t)(i * 37), (uint8_t)i}}};
}

static void set(struct sl_protected *set_of, int from, int to) {
    struct sl_capsule_id *ids = malloc((size_t)(to - from + 1) * sizeof *ids);
    for (int i = from; i < to; i++) {
        ids[i - from] = id_of(i);
    }
    sl_protected_set(set_of, ids, (size_t)(to - from));
}

static void test_protected_has_what_was_set_last(void **state) {
    (void)state;
    struct sl_protected *protected = NULL;
    assert_int_equal(sl_protected_create(0, &protected, NULL), SL_OK);
    for (int round = 0; round < 3; round++) {
        int from = 10 * round, to = round == 2 ? from : from + 15;
        set(protected, from, to);
        for (int i = 0; i < 60; i++) {
            struct sl_capsule_id id = id_of(i), other = id_of(i);
            other.recipe_fingerprint++;
            assert_int_equal(sl_protected_has(protected, &id), i >= from && i < to);
            assert_false(sl_protected_has(protected, &other));
        }
    }
    sl_protected_destroy(&protected);
    assert_null(protected);
    struct sl_capsule_id id = id_of(1);
    assert_false(sl_protected_has(NULL, &id));
    assert_true(sl_protected_is_known(NULL));
}

// The version changes with the set alone: the coordinator sends the same one again and again.
static void test_protected_has_a_version_for_each_set(void **state) {
    (void)state;
    struct sl_protected *protected = NULL;
    assert_int_equal(sl_protected_create(0, &protected, NULL), SL_OK);
    uint64_t version = sl_protected_version(protected);
    assert_int_not_equal(version, sl_protected_version(NULL));
    set(protected, 0, 3);
    assert_int_not_equal(sl_protected_version(protected), version);
    version = sl_protected_version(protected);
    set(protected, 0, 3);
    assert_int_equal(sl_protected_version(protected), version);
    set(protected, 1, 4);
    assert_int_not_equal(sl_protected_version(protected), version);
    version = sl_protected_version(protected);
    set(protected, 0, 0);
    assert_int_not_equal(sl_protected_version(protected), version);
    sl_protected_destroy(&protected);
}

// One key of the set stands for all segments of a document.
static void test_protected_has_the_segments_of_a_document(void **state) {
    (void)state;
    struct sl_protected *protected = NULL;
    assert_int_equal(sl_protected_create(0, &protected, NULL), SL_OK);
    const struct sl_capsule_id capsule = id_of(1), segments = sl_document_segments_id(&capsule, 6, SL_KV_INT1),
                               others = sl_document_segments_id(&capsule, 6, SL_KV_INT8);
    struct sl_capsule_id *ids = malloc(sizeof *ids);
    ids[0] = segments;
    sl_protected_set(protected, ids, 1);
    for (uint32_t i = 0; i < SL_MAX_DOCUMENT_SEGMENTS; i += 13107) {
        uint32_t index;
        const struct sl_capsule_id segment = sl_document_segment_id(&segments, i),
                                   other = sl_document_segment_id(&others, i),
                                   back = sl_document_segments_of(&segment, &index);
        assert_true(sl_protected_has(protected, &segment));
        assert_false(sl_protected_has(protected, &other));
        assert_memory_equal(&back, &segments, sizeof back);
        assert_int_equal(index, i);
    }
    assert_false(sl_protected_has(protected, &capsule));
    sl_protected_destroy(&protected);
}

static void test_protected_is_unknown_until_it_is_set_or_for_a_while(void **state) {
    (void)state;
    struct sl_protected *protected = NULL;
    assert_int_equal(sl_protected_create(60000, &protected, NULL), SL_OK);
    assert_false(sl_protected_is_known(protected));
    set(protected, 0, 0);
    assert_true(sl_protected_is_known(protected));
    sl_protected_destroy(&protected);
    assert_int_equal(sl_protected_create(20, &protected, NULL), SL_OK);
    sl_sleep_ms(30);
    assert_true(sl_protected_is_known(protected));
    sl_protected_destroy(&protected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_protected_has_what_was_set_last),
        cmocka_unit_test(test_protected_has_a_version_for_each_set),
        cmocka_unit_test(test_protected_has_the_segments_of_a_document),
        cmocka_unit_test(test_protected_is_unknown_until_it_is_set_or_for_a_while),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
