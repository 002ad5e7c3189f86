// SPDX-License-Identifier: Apache-2.0
#include "client/cli/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "client/cli/tool.h"

#define INDENT 4 // indentation of a row's further lines

void sl_table_init(struct sl_table *table, const struct sl_column *columns, size_t n_columns) {
    *table = (struct sl_table){.columns = columns, .n_columns = n_columns};
}

static void add_cell(struct sl_table *table, const char *text) {
    char *cell = SL_GROW(table->cells, table->n_cells, table->n_allocated) ? strdup(text) : NULL;
    if (!cell) {
        table->out_of_memory = true;
        return;
    }
    sl_log_disarm(cell, strlen(cell));
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

// Returns the columns that a text takes: its characters, not its bytes.
static size_t width_of(const char *text) {
    size_t n = 0;
    for (; *text; text++) {
        n += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return n;
}

static const char *cell_at(const struct sl_table *table, size_t row, size_t column) { // row 0: the titles
    return row == 0 ? table->columns[column].title : table->cells[(row - 1) * table->n_columns + column];
}

static size_t column_width(const struct sl_table *table, size_t column) {
    size_t width = width_of(table->columns[column].title);
    for (size_t i = column; i < table->n_cells; i += table->n_columns) {
        size_t n = width_of(table->cells[i]);
        width = n > width ? n : width;
    }
    return width;
}

static void print_cell(const struct sl_table *table, size_t column, const char *text, size_t width, bool last,
                       FILE *file) {
    int padding = (int)(width - width_of(text));
    if (table->columns[column].right) {
        fprintf(file, "%*s%s", padding, "", text);
    } else {
        fprintf(file, "%s%*s", text, last ? 0 : padding, "");
    }
    fputs(last ? "\n" : "  ", file);
}

// Prints a text on lines of its own, broken at the width of the terminal.
static void print_broken(const char *text, int width, FILE *file) {
    size_t column = INDENT;
    while (*text) {
        size_t bytes = strcspn(text, " "), gap = strspn(text + bytes, " ");
        fwrite(text, 1, bytes, file);
        for (size_t i = 0; i < bytes; i++) {
            column += ((unsigned char)text[i] & 0xc0) != 0x80;
        }
        text += bytes + gap;
        size_t next = strcspn(text, " "); // bytes instead of characters: an upper bound of the width
        bool ends = *text && column + gap + next > (size_t)width;
        fprintf(file, "%s%*s", ends ? "\n" : "", ends ? INDENT : *text ? (int)gap : 0, "");
        column = ends ? INDENT : column + gap;
    }
    fputc('\n', file);
}

// Returns the first column of the next line of a row, whose current line begins with column `first`.
static size_t end_of_line(const struct sl_table *table, const size_t *widths, size_t first, int width) {
    size_t used = (first > 0 ? INDENT : 0) + widths[first], column = first + 1;
    while (column < table->n_columns && (width == 0 || used + 2 + widths[column] <= (size_t)width)) {
        used += 2 + widths[column++];
    }
    return column;
}

void sl_table_print_within(const struct sl_table *table, int width, FILE *file) {
    size_t *widths = calloc(table->n_columns, sizeof *widths);
    for (size_t column = 0; widths && column < table->n_columns; column++) {
        widths[column] = column_width(table, column);
    }
    for (size_t row = 0; widths && row <= table->n_cells / table->n_columns; row++) {
        for (size_t first = 0, end; first < table->n_columns; first = end) {
            end = end_of_line(table, widths, first, width);
            fprintf(file, "%*s", first > 0 ? INDENT : 0, "");
            if (first > 0 && end == first + 1 && !table->columns[first].right) {
                print_broken(cell_at(table, row, first), width, file);
                continue;
            }
            for (size_t column = first; column < end; column++) {
                print_cell(table, column, cell_at(table, row, column), widths[column], column + 1 == end, file);
            }
        }
    }
    if (table->out_of_memory || !widths) {
        fprintf(file, "(out of memory: the table is not complete)\n");
    }
    free(widths);
}

void sl_table_print(const struct sl_table *table, FILE *file) {
    int fd = fileno(file); // -1: a stream in memory
    sl_table_print_within(table, fd >= 0 ? sl_terminal_width(fd) : 0, file);
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
