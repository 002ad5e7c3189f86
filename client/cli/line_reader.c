// SPDX-License-Identifier: Apache-2.0
#include "client/cli/line_reader.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_BYTES ((size_t)64 << 10)

static enum sl_status wait_readable(const struct sl_line_reader *l, struct sl_error *err) {
    struct pollfd fds[] = {{.fd = l->fd, .events = POLLIN}, {.fd = l->signals->fd, .events = POLLIN}};
    while (fds[0].revents == 0) { // a signal of the terminal ends no wait
        SL_FAIL_IF(poll(fds, 2, -1) < 0 && errno != EINTR, err, SL_ERR_IO, "standard input: %s", strerror(errno));
        SL_TRY(sl_signals_check(l->signals, err));
    }
    return SL_OK;
}

// Makes room after `end`: moves the rest to the front, or grows up to one byte more than a line may have.
static enum sl_status make_room(struct sl_line_reader *l, struct sl_error *err) {
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

static enum sl_status read_more(struct sl_line_reader *l, struct sl_error *err) {
    SL_TRY(make_room(l, err));
    SL_TRY(wait_readable(l, err));
    ssize_t n = read(l->fd, l->buffer + l->end, l->capacity - l->end);
    SL_FAIL_IF(n < 0 && errno != EINTR && errno != EAGAIN, err, SL_ERR_IO, "standard input: %s", strerror(errno));
    l->has_ended = n == 0;
    l->end += n > 0 ? (size_t)n : 0;
    return SL_OK;
}

// Reads up to a newline, the end of the input, or the bound. Skips bytes beyond the bound.
enum sl_status sl_line_reader_next(struct sl_line_reader *l, struct sl_input_line *line, struct sl_error *err) {
    size_t searched = 0;
    *line = (struct sl_input_line){.number = ++l->number};
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

void sl_line_reader_cleanup(struct sl_line_reader *lines) {
    free(lines->buffer);
    lines->buffer = NULL;
}
