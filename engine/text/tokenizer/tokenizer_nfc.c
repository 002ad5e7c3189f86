// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: Unicode normalization form C of untrusted text.
 *
 * Design: the tables, the decomposition and the composition are utf8proc's. The canonical ordering in between is
 *         implemented here: the library swaps neighbors, which takes quadratic time on a run of combining marks, and
 *         a prompt may be one run of a million. Short runs are sorted by insertion, long ones by counting classes.
 *
 * Limits: the `tokenizers` library has tables of an older Unicode. It does not change 98 code points, nearly all of
 *         them rare combining marks assigned since, that are ordered or composed here.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/text/tokenizer/tokenizer_internal.h"

#define N_CLASSES      256 // a combining class is one byte
#define LONG_RUN       32
#define MAX_DECOMPOSED 4 // code points in the longest canonical decomposition

// Returns true if a quick check shows that NFC does not change the text.
static bool is_trivial(const char *text, size_t n_bytes) {
    // Up to U+02FF no character combines, and every decomposition composes again; 0xcc leads U+0300.
    for (size_t i = 0; i < n_bytes; i++) {
        if ((unsigned char)text[i] >= 0xcc) {
            return false;
        }
    }
    return true;
}

static int class_of(int32_t c) {
    return utf8proc_get_property(c)->combining_class;
}

// Sorts one run of combining marks by class, keeping the order within a class. `sorted` has room for the run.
static void order_run(int32_t *run, size_t n, int32_t *sorted) {
    if (n < LONG_RUN) {
        for (size_t i = 1; i < n; i++) {
            int32_t mark = run[i];
            size_t j = i;
            for (; j > 0 && class_of(run[j - 1]) > class_of(mark); j--) {
                run[j] = run[j - 1];
            }
            run[j] = mark;
        }
        return;
    }
    size_t place[N_CLASSES + 1] = {0};
    for (size_t i = 0; i < n; i++) {
        place[class_of(run[i]) + 1]++;
    }
    for (int i = 1; i <= N_CLASSES; i++) {
        place[i] += place[i - 1];
    }
    for (size_t i = 0; i < n; i++) {
        sorted[place[class_of(run[i])]++] = run[i];
    }
    memcpy(run, sorted, n * sizeof(*run));
}

static void order_marks(int32_t *points, size_t n, int32_t *sorted) {
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && class_of(points[end]) != 0) {
            end++;
        }
        if (end - i > 1) {
            order_run(points + i, end - i, sorted);
        }
        i = end > i ? end : i + 1;
    }
}

// Decomposes canonically to code points. SL_ERR_INTERNAL would be a bug: the text is valid and points has the room.
static enum sl_status decompose(const char *text, size_t n_bytes, int32_t *points, size_t capacity, size_t *n_out) {
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)text;
    size_t i = 0, n = 0;
    int boundary = UTF8PROC_BOUNDCLASS_START;
    while (i < n_bytes) {
        utf8proc_int32_t c;
        utf8proc_ssize_t length = utf8proc_iterate(p + i, (utf8proc_ssize_t)(n_bytes - i), &c);
        if (length <= 0 || capacity - n < MAX_DECOMPOSED) {
            return SL_ERR_INTERNAL;
        }
        utf8proc_ssize_t made = utf8proc_decompose_char(c, points + n, (utf8proc_ssize_t)(capacity - n),
                                                        UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
        if (made < 0 || (size_t)made > capacity - n) {
            return SL_ERR_INTERNAL;
        }
        n += (size_t)made;
        i += (size_t)length;
    }
    *n_out = n;
    return SL_OK;
}

enum sl_status sl_text_nfc(struct sl_text *text) {
    if (is_trivial(text->bytes, text->n_bytes)) {
        return SL_OK;
    }
    // Two bytes of UTF-8 decompose to at most three code points (U+01D5), three to four (U+1F82).
    size_t capacity = 2 * text->n_bytes + MAX_DECOMPOSED, n = 0;
    int32_t *points = malloc((capacity + 1) * sizeof(*points)); // utf8proc_reencode() ends it with a NUL
    SL_TRY_OR(points ? decompose(text->bytes, text->n_bytes, points, capacity, &n) : SL_ERR_EXHAUSTED, free(points));
    int32_t *sorted = malloc((n + 1) * sizeof(*sorted));
    if (!sorted) {
        free(points);
        return SL_ERR_EXHAUSTED;
    }
    order_marks(points, n, sorted);
    free(sorted);
    utf8proc_ssize_t n_encoded = utf8proc_reencode(points, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n_encoded < 0) {
        free(points);
        return SL_ERR_INTERNAL;
    }
    free(text->owned);
    *text = (struct sl_text){(char *)points, (size_t)n_encoded, (char *)points};
    return SL_OK;
}
