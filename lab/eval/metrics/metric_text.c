// SPDX-License-Identifier: Apache-2.0
// Purpose: code points and words. See metric_text.h.
#include "lab/eval/metrics/metric_text.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#define REPLACEMENT 0xFFFD

static enum sl_status no_memory(struct sl_error *err) {
    return sl_fail(err, SL_ERR_EXHAUSTED, "no memory to compare an answer");
}

// Maps to lower case. Python's lower() turns a sigma at the end of a word into another letter; both map to the same
// one here, so that words stay equal.
static uint32_t lower(uint32_t point) {
    return point == 0x3A3 || point == 0x3C2 ? 0x3C3 : (uint32_t)utf8proc_tolower((utf8proc_int32_t)point);
}

static enum sl_status read_points(const char *text, bool to_lower, struct sl_points *points_out, struct sl_error *err) {
    size_t n_bytes = strlen(text), n = 0;
    uint32_t *at = malloc((n_bytes + 1) * sizeof *at); // a character has at most as many points as bytes
    if (!at) {
        return no_memory(err);
    }
    for (size_t i = 0; i < n_bytes;) {
        utf8proc_int32_t point;
        utf8proc_ssize_t length =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(n_bytes - i), &point);
        if (length <= 0) {
            point = REPLACEMENT;
            length = 1;
        }
        i += (size_t)length;
        if (to_lower && point == 0x130) {
            at[n++] = 'i';
            at[n++] = 0x307;
        } else {
            at[n++] = to_lower ? lower((uint32_t)point) : (uint32_t)point;
        }
    }
    *points_out = (struct sl_points){at, n};
    return SL_OK;
}

enum sl_status sl_points_read(const char *text, struct sl_points *points_out, struct sl_error *err) {
    return read_points(text, false, points_out, err);
}

enum sl_status sl_points_read_lower(const char *text, struct sl_points *points_out, struct sl_error *err) {
    return read_points(text, true, points_out, err);
}

void sl_points_cleanup(struct sl_points *points) {
    free(points->at);
    *points = (struct sl_points){0};
}

// --- kinds of characters -----------------------------------------------------------------------------------------

bool sl_point_is_space(uint32_t point) {
    return (point >= 0x09 && point <= 0x0D) || (point >= 0x1C && point <= 0x20) || point == 0x85 || point == 0xA0 ||
           point == 0x1680 || (point >= 0x2000 && point <= 0x200A) || point == 0x2028 || point == 0x2029 ||
           point == 0x202F || point == 0x205F || point == 0x3000;
}

bool sl_point_is_digit(uint32_t point) {
    return utf8proc_category((utf8proc_int32_t)point) == UTF8PROC_CATEGORY_ND;
}

bool sl_point_is_word(uint32_t point) {
    static const uint32_t categories = 1u << UTF8PROC_CATEGORY_LU | 1u << UTF8PROC_CATEGORY_LL |
                                       1u << UTF8PROC_CATEGORY_LT | 1u << UTF8PROC_CATEGORY_LM |
                                       1u << UTF8PROC_CATEGORY_LO | 1u << UTF8PROC_CATEGORY_ND |
                                       1u << UTF8PROC_CATEGORY_NL | 1u << UTF8PROC_CATEGORY_NO;
    return point == '_' || (categories >> utf8proc_category((utf8proc_int32_t)point) & 1);
}

bool sl_point_is_punctuation(uint32_t point) {
    return (point >= '!' && point <= '/') || (point >= ':' && point <= '@') || (point >= '[' && point <= '`') ||
           (point >= '{' && point <= '~');
}

// --- parts of a text ---------------------------------------------------------------------------------------------

struct sl_text_span sl_span_trim(struct sl_text_span span) {
    while (span.n > 0 && sl_point_is_space(span.at[0])) {
        span.at++;
        span.n--;
    }
    while (span.n > 0 && sl_point_is_space(span.at[span.n - 1])) {
        span.n--;
    }
    return span;
}

static int compare_spans(struct sl_text_span a, struct sl_text_span b) {
    if (a.n != b.n) {
        return a.n < b.n ? -1 : 1;
    }
    return a.n == 0 ? 0 : memcmp(a.at, b.at, a.n * sizeof *a.at);
}

bool sl_span_equal(struct sl_text_span a, struct sl_text_span b) {
    return compare_spans(a, b) == 0;
}

bool sl_span_starts(struct sl_text_span text, struct sl_text_span with) {
    return text.n >= with.n && sl_span_equal((struct sl_text_span){text.at, with.n}, with);
}

size_t sl_span_find(struct sl_text_span text, struct sl_text_span what) {
    for (size_t i = 0; i + what.n <= text.n; i++) {
        if (sl_span_starts((struct sl_text_span){text.at + i, text.n - i}, what)) {
            return i;
        }
    }
    return text.n + 1;
}

bool sl_span_is(struct sl_text_span span, const char *ascii) {
    return span.n == strlen(ascii) && sl_span_find_ascii(span, ascii) == 0;
}

size_t sl_span_find_ascii(struct sl_text_span text, const char *what) {
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= text.n; i++) {
        size_t same = 0;
        while (same < n && text.at[i + same] == (unsigned char)what[same]) {
            same++;
        }
        if (same == n) {
            return i;
        }
    }
    return text.n + 1;
}

bool sl_span_next_run(struct sl_text_span text, bool (*belongs)(uint32_t point), size_t *at,
                      struct sl_text_span *run_out) {
    size_t begin = *at, end;
    while (begin < text.n && !belongs(text.at[begin])) {
        begin++;
    }
    for (end = begin; end < text.n && belongs(text.at[end]);) {
        end++;
    }
    *at = end;
    *run_out = (struct sl_text_span){text.at + begin, end - begin};
    return end > begin;
}

static bool is_not_space(uint32_t point) {
    return !sl_point_is_space(point);
}

bool sl_span_next_word(struct sl_text_span text, size_t *at, struct sl_text_span *word_out) {
    return sl_span_next_run(text, is_not_space, at, word_out);
}

bool sl_span_next_number(struct sl_text_span text, size_t *at, struct sl_text_span *number_out) {
    return sl_span_next_run(text, sl_point_is_digit, at, number_out);
}

// --- words -------------------------------------------------------------------------------------------------------

enum sl_status sl_words_init(struct sl_words *words, size_t n_points, struct sl_error *err) {
    size_t most = n_points + 1; // an empty sentence may count as a word and takes at least one character
    *words = (struct sl_words){.spans = malloc(most * sizeof *words->spans),
                               .ids = calloc(most, sizeof *words->ids),
                               .ends = malloc(most * sizeof *words->ends)};
    if (!words->spans || !words->ids || !words->ends) {
        sl_words_cleanup(words);
        return no_memory(err);
    }
    return SL_OK;
}

void sl_words_cleanup(struct sl_words *words) {
    free(words->spans);
    free(words->ids);
    free(words->ends);
    *words = (struct sl_words){0};
}

void sl_words_add(struct sl_words *words, struct sl_text_span word) {
    words->spans[words->n++] = word;
}

void sl_words_end_sentence(struct sl_words *words) {
    words->ends[words->n_sentences++] = words->n;
}

struct place {
    struct sl_text_span span;
    uint32_t *id;
};

static int compare_places(const void *a, const void *b) {
    return compare_spans(((const struct place *)a)->span, ((const struct place *)b)->span);
}

enum sl_status sl_words_number(struct sl_words *a, struct sl_words *b, uint32_t *n_ids_out, struct sl_error *err) {
    size_t n = a->n + b->n;
    struct place *places = malloc((n + 1) * sizeof *places);
    if (!places) {
        return no_memory(err);
    }
    for (size_t i = 0; i < n; i++) {
        struct sl_words *words = i < a->n ? a : b;
        size_t w = i < a->n ? i : i - a->n;
        places[i] = (struct place){words->spans[w], &words->ids[w]};
    }
    qsort(places, n, sizeof *places, compare_places);
    uint32_t n_ids = 0;
    for (size_t i = 0; i < n; i++) {
        n_ids += i == 0 || compare_places(&places[i - 1], &places[i]) != 0;
        *places[i].id = n_ids - 1;
    }
    free(places);
    *n_ids_out = n_ids;
    return SL_OK;
}
