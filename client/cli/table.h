// SPDX-License-Identifier: Apache-2.0
// Purpose: prints a table of text for people: columns as wide as their widest cell, numbers aligned to the right.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct sl_column {
    const char *title;
    bool right; // align to the right
};

struct sl_table {
    const struct sl_column *columns;
    size_t n_columns;
    char **cells;
    size_t n_cells, n_allocated;
    bool out_of_memory; // sticky; sl_table_print() reports it
};

// Initializes an empty table from an array of columns.
#define SL_TABLE(array)                                                                                                \
    (struct sl_table) {                                                                                                \
        .columns = (array), .n_columns = sizeof(array) / sizeof *(array)                                               \
    }
void sl_table_init(struct sl_table *table, const struct sl_column *columns, size_t n_columns);
// Adds the next cells, left to right and row by row: one more than the tabs in the format. Control characters are
// replaced (sl_log_disarm), because names come from other machines. If a name may contain a tab, pass it in a call of its
// own, or after the format's last tab.
void sl_table_add(struct sl_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Prints the table, on a terminal within its width.
void sl_table_print(const struct sl_table *table, FILE *file);
// Prints the table within `width` columns (0: no limit). Columns that do not fit go to a further, indented line of the
// row; no cell is left out.
void sl_table_print_within(const struct sl_table *table, int width, FILE *file);
void sl_table_finish(struct sl_table *table, FILE *file); // print and clean up
void sl_table_cleanup(struct sl_table *table);
