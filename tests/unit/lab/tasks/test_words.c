// SPDX-License-Identifier: Apache-2.0
// Purpose: words differ so much that an answer that contains one of them contains no other by accident.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "lab/tasks/words.h"

static void test_words_are_short_lower_case_words(void **state) {
    (void)state;
    for (uint64_t i = 0; i < SL_N_WORDS; i++) {
        assert_in_range(strlen(sl_word(i)), 4, 9);
        assert_int_equal(strspn(sl_word(i), "abcdefghijklmnopqrstuvwxyz"), strlen(sl_word(i)));
    }
}

static void test_words_no_word_is_a_part_of_another(void **state) {
    (void)state;
    for (uint64_t i = 0; i < SL_N_WORDS; i++) {
        for (uint64_t j = 0; j < SL_N_WORDS; j++) {
            if (i != j && strstr(sl_word(i), sl_word(j))) {
                fail_msg("%s is a part of %s", sl_word(j), sl_word(i));
            }
        }
    }
}

static int by_text(const void *a, const void *b) {
    return strcmp(a, b);
}

static void test_word_pairs_are_all_different(void **state) {
    (void)state;
    char(*pairs)[SL_WORD_PAIR_BYTES] = malloc((size_t)SL_N_WORD_PAIRS * SL_WORD_PAIR_BYTES);
    assert_non_null(pairs);
    for (uint64_t i = 0; i < SL_N_WORD_PAIRS; i++) {
        sl_word_pair(i, pairs[i]);
        const char *hyphen = strchr(pairs[i], '-');
        assert_non_null(hyphen);
        size_t n = (size_t)(hyphen - pairs[i]);
        assert_false(strlen(hyphen + 1) == n && memcmp(pairs[i], hyphen + 1, n) == 0); // two different words
    }
    qsort(pairs, SL_N_WORD_PAIRS, SL_WORD_PAIR_BYTES, by_text);
    for (size_t i = 1; i < SL_N_WORD_PAIRS; i++) {
        assert_string_not_equal(pairs[i - 1], pairs[i]);
    }
    free(pairs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_are_short_lower_case_words),
        cmocka_unit_test(test_words_no_word_is_a_part_of_another),
        cmocka_unit_test(test_word_pairs_are_all_different),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
