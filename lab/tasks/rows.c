// SPDX-License-Identifier: Apache-2.0
/*
 * Design: reads line by line: one line is parsed at a time; the rest of the file is samples or unread.
 */
#include "lab/tasks/rows.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lab/tasks/rows_line.h"

#define MAX_LINE_BYTES (64u << 20) // a book of two million tokens, every character escaped, is 20 MiB

// --- lines -------------------------------------------------------------------------------------------------------

struct line {
    char *text; // [allocated]
    size_t n_bytes, allocated;
    size_t number; // from 1
};

// Reads the next line, without its newline. *end_out: the file has ended.
static enum sl_status read_line(FILE *file, struct line *line, bool *end_out, struct sl_error *err) {
    line->n_bytes = 0;
    line->number++;
    int c;
    while ((c = getc_unlocked(file)) != EOF && c != '\n') {
        SL_FAIL_IF(line->n_bytes == MAX_LINE_BYTES, err, SL_ERR_INVALID,
                   "longer than %u MiB; JSON lines have one object a line", MAX_LINE_BYTES >> 20);
        if (line->n_bytes == line->allocated) {
            size_t allocated = line->allocated ? 2 * line->allocated : 1 << 16;
            char *text = realloc(line->text, allocated);
            SL_FAIL_IF(!text, err, SL_ERR_EXHAUSTED, "no memory for a line of %zu bytes", line->n_bytes);
            line->text = text;
            line->allocated = allocated;
        }
        line->text[line->n_bytes++] = (char)c;
    }
    SL_FAIL_IF(ferror(file), err, SL_ERR_IO, "%s", strerror(errno));
    *end_out = c == EOF && line->n_bytes == 0;
    return SL_OK;
}

static bool is_blank(const char *text, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++) {
        if (!strchr(" \t\r", text[i]) || text[i] == '\0') {
            return false;
        }
    }
    return true;
}

static enum sl_status add_sample(struct sl_training_rows *rows, const struct sl_sample *sample, size_t *allocated,
                                 struct sl_error *err) {
    if (rows->n == *allocated) {
        size_t more = *allocated ? 2 * *allocated : 64;
        struct sl_sample *samples = realloc(rows->samples, more * sizeof *samples);
        SL_FAIL_IF(!samples, err, SL_ERR_EXHAUSTED, "no memory for %zu samples", more);
        rows->samples = samples;
        *allocated = more;
    }
    rows->samples[rows->n++] = *sample;
    return SL_OK;
}

static enum sl_status read_lines(FILE *file, struct sl_training_rows *rows, struct line *line, struct sl_error *err) {
    size_t allocated = 0;
    for (;;) {
        bool end = false;
        enum sl_status status = read_line(file, line, &end, err);
        if (status != SL_OK || end) {
            return status;
        }
        // Some editors begin a file with a byte order mark.
        size_t skip = line->number == 1 && line->n_bytes >= 3 && memcmp(line->text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
        if (is_blank(line->text + skip, line->n_bytes - skip)) {
            continue;
        }
        struct sl_sample sample;
        SL_TRY(sl_row_read(line->text + skip, line->n_bytes - skip, &sample, err));
        status = add_sample(rows, &sample, &allocated, err);
        if (status != SL_OK) {
            sl_sample_cleanup(&sample);
            return status;
        }
    }
    return SL_OK;
}

// --- files -------------------------------------------------------------------------------------------------------

static enum sl_status open_file(const char *path, FILE **file_out, struct sl_error *err) {
    FILE *file = fopen(path, "rb");
    SL_FAIL_IF(!file, err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    struct stat st;
    if (fstat(fileno(file), &st) != 0 || S_ISDIR(st.st_mode)) {
        fclose(file);
        return sl_fail(err, SL_ERR_IO, "%s is not a file", path);
    }
    *file_out = file;
    return SL_OK;
}

enum sl_status sl_training_rows_open(const char *path, struct sl_training_rows *rows_out, struct sl_error *err) {
    FILE *file;
    SL_TRY(open_file(path, &file, err));
    struct sl_training_rows rows = {0};
    struct line line = {0};
    enum sl_status status = read_lines(file, &rows, &line, err);
    if (status != SL_OK) {
        char where[256];
        snprintf(where, sizeof where, "%s:%zu", path, line.number);
        sl_error_prefix(err, where);
    } else if (rows.n == 0) {
        status = sl_fail(err, SL_ERR_INVALID, "%s: there is no question in it", path);
    }
    free(line.text);
    fclose(file);
    if (status == SL_OK) {
        *rows_out = rows;
    } else {
        sl_training_rows_cleanup(&rows);
    }
    return status;
}

void sl_training_rows_cleanup(struct sl_training_rows *rows) {
    for (size_t i = 0; i < rows->n; i++) {
        sl_sample_cleanup(&rows->samples[i]);
    }
    free(rows->samples);
    *rows = (struct sl_training_rows){0};
}
