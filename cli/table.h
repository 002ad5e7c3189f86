// SPDX-License-Identifier: Apache-2.0
// Purpose: a table of text for people: columns as wide as their widest cell, numbers to the right.
#ifndef SL_CLI_TABLE_H
#define SL_CLI_TABLE_H

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
    bool out_of_memory; // sticky; sl_table_print() says so
};

void sl_table_init(struct sl_table *table, const struct sl_column *columns, size_t n_columns);
// The next cell, left to right and row by row. Control characters become '?': names come from other machines.
void sl_table_add(struct sl_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sl_table_print(const struct sl_table *table, FILE *file);
void sl_table_print_markdown(const struct sl_table *table, FILE *file); // for pages such as docs/quality.md
void sl_table_cleanup(struct sl_table *table);

#endif
