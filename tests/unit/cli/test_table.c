// SPDX-License-Identifier: Apache-2.0
// Purpose: columns are as wide as their widest cell, and cells cannot break the table.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "client/cli/table.h"

static char *print(const struct sl_table *table) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    sl_table_print(table, file);
    fclose(file);
    return text;
}

static const struct sl_column columns[] = {{"NAME", false}, {"N", true}, {"LAST", false}};

static void test_table_aligns_columns(void **state) {
    (void)state;
    struct sl_table table;
    sl_table_init(&table, columns, 3);
    sl_table_add(&table, "a");
    sl_table_add(&table, "%d", 12345);
    sl_table_add(&table, "x");
    sl_table_add(&table, "longer");
    sl_table_add(&table, "%d", 1);
    sl_table_add(&table, "yy");
    char *text = print(&table);
    assert_string_equal(text, "NAME        N  LAST\n"
                              "a       12345  x\n"
                              "longer      1  yy\n");
    free(text);
    sl_table_cleanup(&table);
}

static void test_table_takes_several_cells_at_once(void **state) {
    (void)state;
    struct sl_table table = SL_TABLE(columns);
    sl_table_add(&table, "%s\t%d\t%s", "a", 1, "x\ty"); // a tab of an argument is one of the last cell's characters
    sl_table_add(&table, "\t%d", 2);
    sl_table_add(&table, "%s", "z\t");
    char *text = print(&table);
    assert_string_equal(text, "NAME  N  LAST\n"
                              "a     1  x y\n"
                              "      2  z \n");
    free(text);
    sl_table_cleanup(&table);
}

static void test_table_counts_characters_and_hides_controls(void **state) {
    (void)state;
    struct sl_table table;
    sl_table_init(&table, columns, 3);
    sl_table_add(&table, "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9");
    sl_table_add(&table, "1");
    sl_table_add(&table, "a\033[2Jb\nc\xc2\x9b");
    char *text = print(&table);
    assert_string_equal(text, "NAME   N  LAST\n"
                              "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9  1  a?[2Jb c??\n");
    free(text);
    sl_table_cleanup(&table);
}

static void test_table_of_nothing_has_titles(void **state) {
    (void)state;
    struct sl_table table;
    sl_table_init(&table, columns, 3);
    char *text = print(&table);
    assert_string_equal(text, "NAME  N  LAST\n");
    free(text);
    sl_table_cleanup(&table);
}

static void test_table_fits_a_narrow_terminal(void **state) {
    (void)state;
    static const struct sl_column narrow[] = {{"JOB", false}, {"STATE", false}, {"TTFT", true}, {"RECIPE", false}};
    struct sl_table table = SL_TABLE(narrow);
    sl_table_add(&table, "job-1\tDONE\t12 ms\th2o,budget=0.2");
    sl_table_add(&table, "job-22\tCANCELLED\t-\tfull");
    static const struct {
        int width;
        const char *text;
    } cases[] = {
        {40, "JOB     STATE       TTFT  RECIPE\njob-1   DONE       12 ms  h2o,budget=0.2\n"
             "job-22  CANCELLED      -  full\n"},
        {30, "JOB     STATE       TTFT\n    RECIPE\njob-1   DONE       12 ms\n    h2o,budget=0.2\n"
             "job-22  CANCELLED      -\n    full\n"},
        {5, "JOB\n    STATE\n     TTFT\n    RECIPE\njob-1\n    DONE\n    12 ms\n    h2o,budget=0.2\n"
            "job-22\n    CANCELLED\n        -\n    full\n"}, // nothing is left out
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text;
        size_t n;
        FILE *file = open_memstream(&text, &n);
        sl_table_print_within(&table, cases[i].width, file);
        fclose(file);
        assert_string_equal(text, cases[i].text);
        free(text);
    }
    sl_table_cleanup(&table);
}

static void test_table_breaks_texts_that_no_line_has_room_for(void **state) {
    (void)state;
    static const struct sl_column two[] = {{"PRESET", false}, {"SUMMARY", false}};
    struct sl_table table = SL_TABLE(two);
    sl_table_add(&table, "locret\tretaining heads trained to predict \xc3\xa9\xc3\xa9");
    sl_table_add(&table, "x\ta_word_that_is_longer_than_a_line b");
    char *text;
    size_t n;
    FILE *file = open_memstream(&text, &n);
    sl_table_print_within(&table, 20, file);
    fclose(file);
    assert_string_equal(
        text, "PRESET\n    SUMMARY\nlocret\n    retaining heads\n    trained to\n    predict \xc3\xa9\xc3\xa9\n"
              "x\n    a_word_that_is_longer_than_a_line\n    b\n");
    free(text);
    sl_table_cleanup(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_fits_a_narrow_terminal),
        cmocka_unit_test(test_table_breaks_texts_that_no_line_has_room_for),
        cmocka_unit_test(test_table_aligns_columns),
        cmocka_unit_test(test_table_takes_several_cells_at_once),
        cmocka_unit_test(test_table_counts_characters_and_hides_controls),
        cmocka_unit_test(test_table_of_nothing_has_titles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
