// SPDX-License-Identifier: Apache-2.0
// Purpose: tests of the losses of recommended recipes at each length of text, and of the caution for longer texts.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "engine/compress/recipe/recipe.h"

#define SIXTH "kvzip,heads=pages,budget=0.56,format=int4"
#define TENTH "kvzip,heads=pages,budget=0.33,format=int4"
#define WRITTEN                                                                                                        \
    "score=reconstruct,scope=sinks:4,budget=0.33,heads=pages,when=end,format=int4" // a tenth, as documents have it

static const char *caution(const char *recipe, int64_t n_tokens) {
    static char text[SL_CAUTION_BYTES];
    memset(text, 'x', sizeof text);
    sl_recipe_caution(recipe, n_tokens, text);
    assert_true(strlen(text) + 1 < sizeof text); // whole
    return text;
}

static void test_losses_are_those_of_the_length(void **state) {
    (void)state;
    static const struct {
        const char *recipe;
        int64_t n_tokens;
        int tokens;
    } cases[] = {{TENTH, 1, 1024},      {TENTH, 1024, 1024},   {TENTH, 1025, 2048}, {WRITTEN, 2048, 2048},
                 {WRITTEN, 2049, 8192}, {TENTH, 100000, 8192}, {"full", 9999, 0},   {"full,format=int8", 9999, 1024}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct sl_loss *loss = sl_recipe_loss(cases[i].recipe, cases[i].n_tokens);
        assert_non_null(loss);
        assert_int_equal(loss->tokens, cases[i].tokens);
        char text[SL_LOSS_BYTES];
        sl_loss_format(loss, text);
        assert_true((strcmp(text, "0") == 0) == (cases[i].tokens == 0));
        assert_true(loss->low <= loss->points && loss->points <= loss->high);
    }
    assert_true(sl_recipe_loss(TENTH, 8192)->points > sl_recipe_loss(TENTH, 2048)->points);
    assert_null(sl_recipe_loss("full,format=int2", 1));
    assert_null(sl_recipe_loss("no recipe", 1));
}

// Every recommended recipe but full: nothing is said where it holds, and above that the figures and what is more
// careful.
static void test_texts_that_are_longer_than_a_recipe_holds_at_are_told(void **state) {
    (void)state;
    assert_string_equal(caution("full", INT64_MAX), "");
    assert_string_equal(caution("h2o,budget=0.5", 8192), ""); // not measured
    assert_string_equal(caution("full,format=int8", 8192), "");
    assert_string_equal(caution("full,format=int4", 8192), "");
    assert_non_null(strstr(caution("full,format=int4", 8193), "was measured up to 8192 tokens: at 8192 it lost "));
    assert_null(strstr(caution("full,format=int4", 8193), "% of the bytes"));
    assert_string_equal(caution(SIXTH, 8192), "");
    assert_non_null(strstr(caution(SIXTH, 8193), "was measured up to 8192 tokens: at 8192 it lost "));
    static const char *const long_ones[] = {TENTH, WRITTEN};
    for (int i = 0; i < 2; i++) {
        assert_string_equal(caution(long_ones[i], 2048), "");
        for (int64_t n = 2049; n < 1000000; n *= 4) {
            const char *text = caution(long_ones[i], n);
            char lost[SL_LOSS_BYTES], wanted[160];
            sl_loss_format(sl_recipe_loss(long_ones[i], n), lost);
            snprintf(wanted, sizeof wanted,
                     "was measured to hold up to 2048 tokens: at 8192 it lost %s of 100 points (", lost);
            assert_non_null(strstr(text, wanted));
            sl_loss_format(sl_recipe_loss(SIXTH, n), lost);
            snprintf(wanted, sizeof wanted, ", and " SIXTH " (17%% of the bytes) %s", lost);
            assert_non_null(strstr(text, wanted));
        }
    }
    // Held at no length: the next that does is named with its loss at the same length.
    const char *text = caution("kvzip,heads=pages,budget=0.2,format=int4", 1);
    assert_non_null(strstr(text, "held at no length that was measured: at 1024 it lost "));
    assert_non_null(strstr(text, ", and " TENTH " (10% of the bytes) "));
}

static void test_needs_name_the_length(void **state) {
    (void)state;
    char needs[SL_CAUTION_BYTES];
    for (int later = 0; later < 2; later++) {
        for (const struct sl_recommendation *r = sl_recipe_recommendations(later); r->recipe; r++) {
            sl_recommendation_needs(r, needs);
            bool has_length = strstr(needs, " tokens") != NULL;
            assert_int_equal(has_length, strncmp(r->recipe, "kvzip", 5) == 0 && strcmp(r->recipe, SIXTH) != 0);
            if (strcmp(r->recipe, TENTH) == 0) {
                assert_string_equal(needs, "a second reading of the text, at most 2048 tokens");
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_are_those_of_the_length),
        cmocka_unit_test(test_texts_that_are_longer_than_a_recipe_holds_at_are_told),
        cmocka_unit_test(test_needs_name_the_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
