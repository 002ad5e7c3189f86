// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: for tests and fuzzers: a GGUF file from lines of text, one a value or a tensor:
 *
 *     s KEY TEXT      u KEY NUMBER     f KEY NUMBER     b KEY 0|1         the rest of a line is the text; ~ is a line feed
 *     S KEY A|B|C     i KEY 1,2,3      F KEY 1,2.5                        lists
 *     t NAME TYPE EXTENT EXTENT ...                                       a tensor, the extent that varies fastest first
 *
 * Design: lengths, counts and offsets are written here, so that a mutation of the text is still a file. Byte i of the data is
 *         1 + i % 31, which makes small numbers of most types. A line that is none of these is left out.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/gguf/blocks.h"

#define GGUF_FILE_BYTES (1u << 18)
#define GGUF_FILE_ALIGN 32

struct gguf_file {
    unsigned char bytes[GGUF_FILE_BYTES];
    size_t n;      // of bytes; what does not fit is left out
    size_t n_data; // of tensors so far
    uint64_t n_values, n_tensors;
};

static inline void gguf_put(struct gguf_file *f, const void *bytes, size_t n) {
    if (n <= sizeof f->bytes - f->n) {
        memcpy(f->bytes + f->n, bytes, n);
        f->n += n;
    }
}

static inline void gguf_put_u32(struct gguf_file *f, uint32_t value) {
    gguf_put(f, &value, sizeof value);
}

static inline void gguf_put_u64(struct gguf_file *f, uint64_t value) {
    gguf_put(f, &value, sizeof value);
}

static inline void gguf_put_text(struct gguf_file *f, const char *text, size_t n) {
    gguf_put_u64(f, n);
    gguf_put(f, text, n);
}

// The next part of [*at, end) up to `separator`; false at the end.
static inline bool gguf_next(const char **at, const char *end, char separator, const char **part_out, size_t *n_out) {
    if (*at == NULL || *at > end) {
        return false;
    }
    const char *stop = memchr(*at, separator, (size_t)(end - *at));
    *part_out = *at;
    *n_out = (size_t)((stop != NULL ? stop : end) - *at);
    *at = stop != NULL ? stop + 1 : NULL;
    return true;
}

static inline double gguf_number(const char *text, size_t n) {
    char copy[32] = {0};
    memcpy(copy, text, n < sizeof copy ? n : sizeof copy - 1);
    return strtod(copy, NULL);
}

static inline void gguf_put_number(struct gguf_file *f, bool is_float, double number) {
    float value = (float)number;
    int32_t integer = number > -2e9 && number < 2e9 ? (int32_t)number : 0;
    gguf_put(f, is_float ? (void *)&value : (void *)&integer, 4);
}

static inline void gguf_put_list(struct gguf_file *f, char kind, const char *at, const char *end) {
    size_t count_at = f->n + 4, n;
    uint64_t count = 0;
    const char *part;
    gguf_put_u32(f, kind == 'S' ? 8 : kind == 'i' ? 5 : 6);
    gguf_put_u64(f, 0);
    for (; gguf_next(&at, end, kind == 'S' ? '|' : ',', &part, &n); count++) {
        if (kind == 'S') {
            gguf_put_text(f, part, n);
        } else {
            gguf_put_number(f, kind == 'F', gguf_number(part, n));
        }
    }
    if (count_at + sizeof count <= f->n) {
        memcpy(f->bytes + count_at, &count, sizeof count);
    }
}

static inline void gguf_put_value(struct gguf_file *f, char kind, const char *rest, const char *end) {
    const char *key;
    size_t n;
    if (!gguf_next(&rest, end, ' ', &key, &n) || rest == NULL) {
        return;
    }
    gguf_put_text(f, key, n);
    bool is_list = kind == 'S' || kind == 'i' || kind == 'F';
    gguf_put_u32(f, is_list ? 9 : kind == 's' ? 8 : kind == 'f' ? 6 : kind == 'b' ? 7 : 4);
    if (is_list) {
        gguf_put_list(f, kind, rest, end);
    } else if (kind == 's') {
        size_t from = f->n + 8;
        gguf_put_text(f, rest, (size_t)(end - rest));
        for (size_t i = from; i < f->n; i++) {
            f->bytes[i] = f->bytes[i] == '~' ? '\n' : f->bytes[i];
        }
    } else if (kind == 'b') {
        gguf_put(f, rest < end && rest[0] == '1' ? "\1" : "\0", 1);
    } else {
        gguf_put_number(f, kind == 'f', gguf_number(rest, (size_t)(end - rest)));
    }
    f->n_values++;
}

static inline void gguf_put_tensor(struct gguf_file *f, const char *rest, const char *end) {
    const char *name, *type, *part;
    size_t n_name, n_type, n;
    uint64_t extents[8], weights = 1;
    uint32_t n_dims = 0;
    if (!gguf_next(&rest, end, ' ', &name, &n_name) || !gguf_next(&rest, end, ' ', &type, &n_type)) {
        return;
    }
    for (; n_dims < 8 && gguf_next(&rest, end, ' ', &part, &n); n_dims++) {
        double extent = gguf_number(part, n);
        extents[n_dims] = extent > 0 && extent < 1e6 ? (uint64_t)extent : 0;
        weights *= extents[n_dims] < GGUF_FILE_BYTES ? extents[n_dims] : GGUF_FILE_BYTES;
        weights = weights < GGUF_FILE_BYTES ? weights : GGUF_FILE_BYTES;
    }
    double number = gguf_number(type, n_type);
    uint32_t id = number >= 0 && number < 1e9 ? (uint32_t)number : UINT32_MAX;
    const char *known;
    const struct sl_block_type *block = sl_block_type(id, &known);
    gguf_put_text(f, name, n_name);
    gguf_put_u32(f, n_dims);
    gguf_put(f, extents, n_dims * sizeof extents[0]);
    gguf_put_u32(f, id);
    gguf_put_u64(f, f->n_data);
    size_t bytes = block != NULL ? (size_t)weights / (size_t)block->n_weights * block->bytes : 0;
    f->n_data += (bytes + GGUF_FILE_ALIGN - 1) / GGUF_FILE_ALIGN * GGUF_FILE_ALIGN;
    f->n_tensors++;
}

// `text` of n bytes: lines as above, tensors behind the values.
static inline void gguf_file_make(struct gguf_file *f, const char *text, size_t n) {
    *f = (struct gguf_file){0};
    gguf_put(f, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
    for (int pass = 0; pass < 2; pass++) {
        const char *at = text, *end = text + n, *line;
        size_t length;
        while (gguf_next(&at, end, '\n', &line, &length)) {
            if (length < 4 || line[1] != ' ') {
                continue;
            }
            if (pass == 0 && strchr("sufbSiF", line[0]) != NULL) {
                gguf_put_value(f, line[0], line + 2, line + length);
            } else if (pass == 1 && line[0] == 't') {
                gguf_put_tensor(f, line + 2, line + length);
            }
        }
    }
    while (f->n % GGUF_FILE_ALIGN != 0) {
        gguf_put(f, "", 1);
    }
    for (size_t i = 0; i < f->n_data && f->n < sizeof f->bytes; i++) {
        f->bytes[f->n++] = (unsigned char)(1 + i % 31);
    }
    memcpy(f->bytes + 8, &f->n_tensors, 8);
    memcpy(f->bytes + 16, &f->n_values, 8);
}
