// SPDX-License-Identifier: Apache-2.0
// Help is generated from the rows of axes and scores; docs/RECIPES.md groups the axes by question, and names each of them.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compress/recipe/recipe.h"

static char page[1 << 16];

static int read_page(void **state) {
    (void)state;
    FILE *file = fopen("docs/RECIPES.md", "r");
    assert_non_null(file);
    size_t n = fread(page, 1, sizeof page - 1, file);
    assert_true(n > 0 && n < sizeof page - 1);
    fclose(file);
    return 0;
}

static void test_every_axis_is_named_in_the_docs(void **state) {
    (void)state;
    struct sl_axis_help axis;
    int n = 0;
    for (; sl_recipe_axis_help(n, &axis); n++) {
        char name[32];
        snprintf(name, sizeof name, "`%s`", axis.name);
        if (strstr(page, name) == NULL) {
            fail_msg("docs/RECIPES.md lacks %s", name);
        }
        assert_true(*axis.values != '\0' && *axis.help != '\0');
    }
    assert_true(n > 20);
}

static void test_every_score_says_what_it_ranks_by(void **state) {
    (void)state;
    for (int i = 0; i < SL_N_SCORES; i++) {
        const struct sl_score_traits *traits = sl_score_get_traits((enum sl_score)i);
        assert_true(*traits->name != '\0' && *traits->help != '\0');
    }
}

// The default that help shows is the value of a recipe that does not name the axis.
static void test_help_shows_the_defaults(void **state) {
    (void)state;
    struct sl_axis_help axis;
    struct sl_recipe unnamed, named;
    assert_int_equal(sl_recipe_parse("place=offload/1-", &unnamed, NULL), SL_OK);
    for (int i = 0; sl_recipe_axis_help(i, &axis); i++) {
        char text[80], a[SL_RECIPE_TEXT_BYTES], b[SL_RECIPE_TEXT_BYTES];
        if (*axis.usual == '\0' || strcmp(axis.name, "place") == 0) {
            continue;
        }
        snprintf(text, sizeof text, "place=offload/1-,%s=%s", axis.name, axis.usual);
        assert_int_equal(sl_recipe_parse(text, &named, NULL), SL_OK);
        assert_string_equal(sl_recipe_format(&named, a, sizeof a), sl_recipe_format(&unnamed, b, sizeof b));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_axis_is_named_in_the_docs),
        cmocka_unit_test(test_every_score_says_what_it_ranks_by),
        cmocka_unit_test(test_help_shows_the_defaults),
    };
    return cmocka_run_group_tests(tests, read_page, NULL);
}
