// SPDX-License-Identifier: Apache-2.0
#include "client/cli/jsonl/lines.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_BYTES ((size_t)64 << 10)

static enum sl_status wait_readable(const struct sl_jsonl_lines *l, struct sl_error *err) {
    struct pollfd fds[] = {{.fd = l->fd, .events = POLLIN}, {.fd = l->signals->fd, .events = POLLIN}};
    while (poll(fds, 2, -1) < 0) {
        SL_FAIL_IF(errno != EINTR, err, SL_ERR_IO, "standard input: %s", strerror(errno));
    }
    return sl_signals_received(l->signals) > 0 ? sl_fail(err, SL_ERR_CANCELLED, "stopped by a signal") : SL_OK;
}

// Makes room after `end`: moves the rest to the front, or grows up to one byte more than a line may have.
static enum sl_status make_room(struct sl_jsonl_lines *l, struct sl_error *err) {
    if (l->begin > 0) {
        memmove(l->buffer, l->buffer + l->begin, l->end - l->begin);
        l->end -= l->begin;
        l->begin = 0;
    }
    if (l->end < l->capacity) {
        return SL_OK;
    }
    size_t capacity = l->capacity ? 2 * l->capacity : FIRST_BYTES;
    capacity = capacity > l->max_bytes + 1 ? l->max_bytes + 1 : capacity;
    char *more = realloc(l->buffer, capacity);
    SL_FAIL_IF(!more, err, SL_ERR_EXHAUSTED, "no memory for a line of %zu bytes", l->end);
    l->buffer = more;
    l->capacity = capacity;
    return SL_OK;
}

static enum sl_status read_more(struct sl_jsonl_lines *l, struct sl_error *err) {
    SL_TRY(make_room(l, err));
    SL_TRY(wait_readable(l, err));
    ssize_t n = read(l->fd, l->buffer + l->end, l->capacity - l->end);
    SL_FAIL_IF(n < 0 && errno != EINTR && errno != EAGAIN, err, SL_ERR_IO, "standard input: %s", strerror(errno));
    l->has_ended = n == 0;
    l->end += n > 0 ? (size_t)n : 0;
    return SL_OK;
}

// Reads up to a newline, the end of the input, or the bound. Skips bytes beyond the bound.
static enum sl_status read_line(struct sl_jsonl_lines *l, struct sl_jsonl_line *line, struct sl_error *err) {
    size_t searched = 0;
    *line = (struct sl_jsonl_line){.number = ++l->number};
    for (;;) {
        char *newline = l->end > l->begin + searched
                            ? memchr(l->buffer + l->begin + searched, '\n', l->end - l->begin - searched)
                            : NULL;
        size_t n = newline ? (size_t)(newline - l->buffer) - l->begin : l->end - l->begin;
        if (newline || l->has_ended) {
            line->is_end = !newline && n == 0 && !line->is_too_long;
            line->is_too_long = line->is_too_long || n > l->max_bytes;
            line->text = n > 0 ? l->buffer + l->begin : "";
            line->n_bytes = line->is_too_long ? 0 : n;
            l->begin += n + (newline != NULL);
            return SL_OK;
        }
        searched = n;
        if (n > l->max_bytes) {
            line->is_too_long = true;
            l->begin = l->end = searched = 0;
        }
        SL_TRY(read_more(l, err));
    }
}

static bool is_blank(const struct sl_jsonl_line *line) {
    for (size_t i = 0; i < line->n_bytes; i++) {
        if (line->text[i] == '\0' || !strchr(" \t\r", line->text[i])) {
            return false;
        }
    }
    return !line->is_too_long && !line->is_end;
}

enum sl_status sl_jsonl_lines_next(struct sl_jsonl_lines *lines, struct sl_jsonl_line *line_out, struct sl_error *err) {
    enum sl_status status;
    do {
        status = read_line(lines, line_out, err);
    } while (status == SL_OK && is_blank(line_out));
    return status;
}

void sl_jsonl_lines_cleanup(struct sl_jsonl_lines *lines) {
    free(lines->buffer);
    lines->buffer = NULL;
}
