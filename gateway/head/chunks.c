// SPDX-License-Identifier: Apache-2.0
#include "gateway/head/chunks.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/types.h>

enum {
    LINE_BYTES = 256, // of a chunk's line at most; of a head's line as many are looked at
    MAX_FDS = 1 << 20,
    MAX_DIGITS = 16,
};

struct sl_chunks {
    int fd;
    enum { HEAD, BODY, CHUNK_LINE, CHUNK, CHUNK_END, OVER } state;
    bool in_clear, is_malformed, is_too_long;
    bool is_chunked, has_line; // of the head
    uint64_t n_left;           // bytes of the body, or of the chunk
    size_t n_line;
    char line[LINE_BYTES];
};

static _Atomic(struct sl_chunks *) followed[MAX_FDS]; // by descriptor

struct sl_chunks *sl_chunks_watch(int fd, bool in_clear) {
    struct sl_chunks *chunks = fd >= 0 && fd < MAX_FDS ? calloc(1, sizeof *chunks) : NULL;
    if (chunks) {
        chunks->fd = fd;
        chunks->in_clear = in_clear;
        atomic_store(&followed[fd], chunks);
    }
    return chunks;
}

void sl_chunks_forget(struct sl_chunks **chunks) {
    if (*chunks) {
        atomic_store(&followed[(*chunks)->fd], NULL);
        free(*chunks);
        *chunks = NULL;
    }
}

struct sl_chunks *sl_chunks_of(int fd) {
    return fd >= 0 && fd < MAX_FDS ? atomic_load(&followed[fd]) : NULL;
}

bool sl_chunks_are_malformed(const struct sl_chunks *chunks) {
    return chunks && chunks->is_malformed;
}

// ---- the line of a chunk: RFC 9112, 7.1 --------------------------------------------------------------------------------

static const char *skip_blanks(const char *at) {
    return at + strspn(at, " \t");
}

// Returns where a token ends; NULL: there is none.
static const char *skip_token(const char *at) {
    const char *begin = at;
    while (isalnum((unsigned char)*at) || (*at && strchr("!#$%&'*+-.^_`|~", *at))) {
        at++;
    }
    return at > begin ? at : NULL;
}

// Returns where a quoted string ends, after its opening quote; NULL: it does not end, or has control characters.
static const char *skip_quoted(const char *at) {
    for (; *at != '"'; at++) {
        at += *at == '\\';
        if ((*at != '\t' && (unsigned char)*at < ' ') || *at == 0x7f) {
            return NULL;
        }
    }
    return at + 1;
}

// Reads "SIZE;NAME=VALUE;NAME", which ends with a zero byte. False: it is malformed.
static bool read_chunk_line(const char *line, uint64_t *size_out) {
    const char *at = line;
    uint64_t size = 0;
    for (; isxdigit((unsigned char)*at); at++) {
        size = size << 4 | (uint64_t)(isdigit((unsigned char)*at) ? *at - '0' : tolower((unsigned char)*at) - 'a' + 10);
    }
    if (at == line || at - line > MAX_DIGITS) {
        return false;
    }
    for (at = skip_blanks(at); *at; at = skip_blanks(at)) {
        at = *at == ';' ? skip_token(skip_blanks(at + 1)) : NULL;
        if (at && *skip_blanks(at) == '=') {
            at = skip_blanks(skip_blanks(at) + 1);
            at = *at == '"' ? skip_quoted(at + 1) : skip_token(at);
        }
        if (!at) {
            return false;
        }
    }
    *size_out = size;
    return true;
}

// ---- following ---------------------------------------------------------------------------------------------------------

// Ends a line of the head. The daemon and sl_head_check() judge its form.
static void end_head_line(struct sl_chunks *chunks) {
    static const char coding[] = "transfer-encoding:", length[] = "content-length:";
    const bool is_empty = chunks->line[0] == '\0' || chunks->line[0] == '\r';
    if (is_empty && chunks->has_line) {
        chunks->state = chunks->is_chunked ? CHUNK_LINE : chunks->n_left > 0 ? BODY : HEAD;
        chunks->has_line = false;
    } else if (!is_empty && !chunks->has_line) { // the request line
        chunks->has_line = true;
        chunks->n_left = 0;
    } else if (strncasecmp(chunks->line, coding, sizeof coding - 1) == 0) {
        chunks->is_chunked = true;
    } else if (strncasecmp(chunks->line, length, sizeof length - 1) == 0) {
        chunks->n_left = strtoull(chunks->line + sizeof length - 1, NULL, 10);
    }
}

static void end_chunk_line(struct sl_chunks *chunks) {
    char *line = chunks->line;
    const size_t n = chunks->n_line;
    const bool is_whole = n > 0 && line[n - 1] == '\r' && !memchr(line, '\0', n);
    if (is_whole) {
        line[n - 1] = '\0';
    }
    if (!is_whole || !read_chunk_line(line, &chunks->n_left)) {
        chunks->is_malformed = true;
        chunks->state = OVER;
        return;
    }
    chunks->state = chunks->n_left > 0 ? CHUNK : OVER;
}

static void end_line(struct sl_chunks *chunks) {
    chunks->line[chunks->n_line] = '\0';
    if (chunks->state == HEAD) {
        end_head_line(chunks);
    } else if (chunks->state == CHUNK_LINE) {
        end_chunk_line(chunks);
    } else { // after a chunk
        chunks->state = CHUNK_LINE;
    }
    chunks->n_line = 0;
}

static void add_to_line(struct sl_chunks *chunks, char byte) {
    if (byte == '\n') {
        end_line(chunks);
    } else if (chunks->n_line < LINE_BYTES - 1) {
        chunks->line[chunks->n_line++] = byte;
    } else if (chunks->state == CHUNK_LINE) {
        chunks->is_malformed = chunks->is_too_long = true;
        chunks->state = OVER;
    }
}

void sl_chunks_follow(struct sl_chunks *chunks, char *bytes, size_t n) {
    while (n > 0 && chunks->state != OVER) {
        size_t n_taken = 1;
        if (chunks->state == BODY || chunks->state == CHUNK) {
            n_taken = n < chunks->n_left ? n : (size_t)chunks->n_left;
            chunks->n_left -= n_taken;
            if (chunks->n_left == 0) {
                chunks->state = chunks->state == BODY ? HEAD : CHUNK_END;
            }
        } else {
            add_to_line(chunks, *bytes);
        }
        bytes += n_taken;
        n -= n_taken;
    }
    if (chunks->is_too_long) {
        memset(bytes, '\n', n);
    }
}

// Calls the next recv() in link order: the C library's, or that of a library which overrides it.
static ssize_t next_recv(int fd, void *to, size_t n, int flags) {
    static _Atomic(void *) known;
    ssize_t (*next)(int fd, void *to, size_t n, int flags);
    void *found = atomic_load(&known);
    if (!found) {
        found = dlsym(RTLD_NEXT, "recv");
        atomic_store(&known, found);
    }
    memcpy(&next, &found, sizeof next); // ISO C has no conversion between the two kinds of pointers
    return next(fd, to, n, flags);
}

__attribute__((visibility("default"))) ssize_t recv(int fd, void *to, size_t n, int flags) {
    const ssize_t n_got = next_recv(fd, to, n, flags);
    struct sl_chunks *chunks = n_got > 0 && !(flags & MSG_PEEK) ? sl_chunks_of(fd) : NULL;
    if (chunks && chunks->in_clear) {
        sl_chunks_follow(chunks, to, (size_t)n_got);
    }
    return n_got;
}
