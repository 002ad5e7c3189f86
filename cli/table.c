// SPDX-License-Identifier: Apache-2.0
// Purpose: a table of text for people.
#include "cli/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void sl_table_init(struct sl_table *table, const struct sl_column *columns, size_t n_columns) {
    *table = (struct sl_table){.columns = columns, .n_columns = n_columns};
}

static void add_cell(struct sl_table *table, const char *text) {
    if (table->n_cells == table->n_allocated) {
        size_t n = table->n_allocated ? table->n_allocated * 2 : 64;
        char **cells = realloc(table->cells, n * sizeof *cells);
        if (!cells) {
            table->out_of_memory = true;
            return;
        }
        table->cells = cells;
        table->n_allocated = n;
    }
    char *cell = strdup(text);
    if (!cell) {
        table->out_of_memory = true;
        return;
    }
    for (char *c = cell; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f) {
            *c = '?';
        }
    }
    table->cells[table->n_cells++] = cell;
}

void sl_table_add(struct sl_table *table, const char *format, ...) {
    char *text;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0) {
        table->out_of_memory = true;
        return;
    }
    char *rest = text;
    for (const char *tab = strchr(format, '\t'); tab; tab = strchr(tab + 1, '\t')) {
        add_cell(table, strsep(&rest, "\t"));
    }
    add_cell(table, rest);
    free(text);
}

// Columns that a text takes: its characters, not its bytes.
static size_t width_of(const char *text) {
    size_t n = 0;
    for (; *text; text++) {
        n += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return n;
}

static void print_cell(const struct sl_table *table, size_t column, const char *text, size_t width, FILE *file) {
    int padding = (int)(width - width_of(text));
    bool last = column + 1 == table->n_columns;
    if (table->columns[column].right) {
        fprintf(file, "%*s%s", padding, "", text);
    } else {
        fprintf(file, "%s%*s", text, last ? 0 : padding, "");
    }
    fputs(last ? "\n" : "  ", file);
}

void sl_table_print(const struct sl_table *table, FILE *file) {
    for (size_t row = 0; row <= table->n_cells / table->n_columns; row++) { // row 0: the titles
        for (size_t column = 0; column < table->n_columns; column++) {
            size_t width = width_of(table->columns[column].title);
            for (size_t i = column; i < table->n_cells; i += table->n_columns) {
                size_t n = width_of(table->cells[i]);
                width = n > width ? n : width;
            }
            const char *text =
                row == 0 ? table->columns[column].title : table->cells[(row - 1) * table->n_columns + column];
            print_cell(table, column, text, width, file);
        }
    }
    if (table->out_of_memory) {
        fprintf(file, "(out of memory: the table is not complete)\n");
    }
}

static void print_markdown_cell(const char *text, FILE *file) {
    fputs("| ", file);
    for (; *text; text++) {
        if (*text == '|') {
            fputc('\\', file);
        }
        fputc(*text, file);
    }
    fputc(' ', file);
}

void sl_table_print_markdown(const struct sl_table *table, FILE *file) {
    for (size_t column = 0; column < table->n_columns; column++) {
        print_markdown_cell(table->columns[column].title, file);
    }
    fputs("|\n", file);
    for (size_t column = 0; column < table->n_columns; column++) {
        fputs(table->columns[column].right ? "|-:" : "|-", file);
    }
    fputs("|\n", file);
    for (size_t i = 0; i < table->n_cells; i++) {
        print_markdown_cell(table->cells[i], file);
        fputs((i + 1) % table->n_columns == 0 ? "|\n" : "", file);
    }
    if (table->out_of_memory) {
        fprintf(file, "\n(out of memory: the table is not complete)\n");
    }
}

void sl_table_finish(struct sl_table *table, FILE *file) {
    sl_table_print(table, file);
    sl_table_cleanup(table);
}

void sl_table_cleanup(struct sl_table *table) {
    for (size_t i = 0; i < table->n_cells; i++) {
        free(table->cells[i]);
    }
    free(table->cells);
    *table = (struct sl_table){0};
}
