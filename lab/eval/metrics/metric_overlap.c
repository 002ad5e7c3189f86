// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: overlap of a text and an answer: F1 and edit similarity.
 *
 *     F1               2PR / (P + R) with P and R the shared words (a word as often as in both) over either's words
 *     edit similarity  1 - (insertions + deletions) / (characters of both), rounded to a percent as fuzz.ratio does
 */
#include "lab/eval/metrics/metric_internal.h"

#include <math.h>
#include <stdlib.h>

// A line of code and its answer have some hundred characters; for longer texts the table would take too long.
#define MAX_LINE_POINTS 100000

static int compare_numbers(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

// Computes F1; sorts both arrays.
static double f1(uint32_t *a, size_t n_a, uint32_t *b, size_t n_b) {
    qsort(a, n_a, sizeof *a, compare_numbers);
    qsort(b, n_b, sizeof *b, compare_numbers);
    size_t shared = 0;
    for (size_t i = 0, j = 0; i < n_a && j < n_b;) {
        if (a[i] == b[j]) {
            shared++, i++, j++;
        } else if (a[i] < b[j]) {
            i++;
        } else {
            j++;
        }
    }
    if (shared == 0) {
        return 0;
    }
    double precision = (double)shared / (double)n_a, recall = (double)shared / (double)n_b;
    return 2 * precision * recall / (precision + recall);
}

// --- SQuAD's words -----------------------------------------------------------------------------------------------

static bool is_article(struct sl_text_span word) {
    return sl_span_is(word, "a") || sl_span_is(word, "an") || sl_span_is(word, "the");
}

// In place: removes punctuation and joins what it separated; then replaces separate articles by spaces.
static void normalize(struct sl_points *points) {
    size_t n = 0;
    for (size_t i = 0; i < points->n; i++) {
        if (!sl_point_is_punctuation(points->at[i])) {
            points->at[n++] = points->at[i];
        }
    }
    points->n = n;
    for (size_t begin = 0, end; begin < n; begin = end + 1) {
        for (end = begin; end < n && sl_point_is_word(points->at[end]);) {
            end++;
        }
        if (is_article((struct sl_text_span){points->at + begin, end - begin})) {
            for (size_t i = begin; i < end; i++) {
                points->at[i] = ' ';
            }
        }
    }
}

static enum sl_status read_normalized(const char *text, struct sl_points *points_out, struct sl_error *err) {
    enum sl_status status = sl_points_read_lower(text, points_out, err);
    if (status == SL_OK) {
        normalize(points_out);
    }
    return status;
}

static enum sl_status split_words(struct sl_text_span text, struct sl_words *words, struct sl_error *err) {
    enum sl_status status = sl_words_init(words, text.n, err);
    size_t at = 0;
    struct sl_text_span word;
    while (status == SL_OK && sl_span_next_word(text, &at, &word)) {
        sl_words_add(words, word);
    }
    return status;
}

static enum sl_status compare_split(enum sl_status (*split)(struct sl_text_span, struct sl_words *, struct sl_error *),
                                    struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                    struct sl_error *err) {
    struct sl_words a = {0}, b = {0};
    uint32_t n_ids;
    enum sl_status status = split(text, &a, err);
    if (status == SL_OK) {
        status = split(answer, &b, err);
    }
    if (status == SL_OK) {
        status = sl_words_number(&a, &b, &n_ids, err);
    }
    if (status == SL_OK) {
        *score_out = f1(a.ids, a.n, b.ids, b.n);
    }
    sl_words_cleanup(&a);
    sl_words_cleanup(&b);
    return status;
}

static enum sl_status compare_words(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                    struct sl_error *err) {
    return compare_split(split_words, text, answer, score_out, err);
}

enum sl_status sl_score_f1(const struct sl_sample *sample, const char *text, double *score_out, struct sl_error *err) {
    return sl_metric_best(sample, text, read_normalized, compare_words, score_out, err);
}

// --- Chinese: every character is a word --------------------------------------------------------------------------

// Returns whether a character is non-ASCII Chinese punctuation: the incomplete list of LongBench and InfiniteBench.
static bool is_wide_punctuation(uint32_t point) {
    static const struct {
        uint32_t first, last;
    } ranges[] = {
        {0x2013, 0x2014}, {0x2018, 0x2019}, {0x201B, 0x201F}, {0x2026, 0x2027}, {0x3001, 0x3003},
        {0x300B, 0x3011}, {0x3014, 0x301F}, {0x3030, 0x3030}, {0x303E, 0x303F}, {0xFE4F, 0xFE4F},
        {0xFF01, 0xFF0D}, {0xFF0F, 0xFF0F}, {0xFF1A, 0xFF20}, {0xFF3B, 0xFF40}, {0xFF5B, 0xFF64},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (point >= ranges[i].first && point <= ranges[i].last) {
            return true;
        }
    }
    return false;
}

static enum sl_status read_characters(const char *text, struct sl_points *points_out, struct sl_error *err) {
    struct sl_points points;
    enum sl_status status = sl_points_read_lower(text, &points, err);
    if (status != SL_OK) {
        return status;
    }
    size_t n = 0;
    for (size_t i = 0; i < points.n; i++) {
        uint32_t point = points.at[i];
        if (!sl_point_is_punctuation(point) && !is_wide_punctuation(point) && !sl_point_is_space(point)) {
            points.at[n++] = point;
        }
    }
    *points_out = (struct sl_points){points.at, n};
    return SL_OK;
}

static enum sl_status split_characters(struct sl_text_span text, struct sl_words *words, struct sl_error *err) {
    enum sl_status status = sl_words_init(words, text.n, err);
    for (size_t i = 0; status == SL_OK && i < text.n; i++) {
        sl_words_add(words, (struct sl_text_span){text.at + i, 1});
    }
    return status;
}

static enum sl_status compare_characters(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                         struct sl_error *err) {
    return compare_split(split_characters, text, answer, score_out, err);
}

enum sl_status sl_score_f1_zh(const struct sl_sample *sample, const char *text, double *score_out,
                              struct sl_error *err) {
    return sl_metric_best(sample, text, read_characters, compare_characters, score_out, err);
}

// --- a line of code ----------------------------------------------------------------------------------------------

// Returns the length of the longest common subsequence, whose characters are neither deleted nor inserted. row: [b.n
// + 1], zeros.
static size_t common_length(struct sl_text_span a, struct sl_text_span b, size_t *row) {
    for (size_t i = 0; i < a.n; i++) {
        size_t diagonal = 0;
        for (size_t j = 0; j < b.n; j++) {
            size_t above = row[j + 1];
            row[j + 1] = a.at[i] == b.at[j] ? diagonal + 1 : above > row[j] ? above : row[j];
            diagonal = above;
        }
    }
    return row[b.n];
}

static enum sl_status similarity(struct sl_text_span a, struct sl_text_span b, double *score_out, struct sl_error *err) {
    if (a.n == 0 || b.n == 0 || sl_span_equal(a, b)) {
        *score_out = sl_span_equal(a, b);
        return SL_OK;
    }
    if (a.n > MAX_LINE_POINTS || b.n > MAX_LINE_POINTS) {
        return sl_fail(err, SL_ERR_RANGE, "edit-similarity compares lines of at most %d characters, and one has %zu",
                       MAX_LINE_POINTS, a.n > b.n ? a.n : b.n);
    }
    size_t *row = calloc(b.n + 1, sizeof *row);
    if (!row) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory to compare a line");
    }
    size_t total = a.n + b.n, edits = total - 2 * common_length(a, b, row);
    free(row);
    *score_out = rint(100 * (1 - (double)edits / (double)total)) / 100; // halves to even, as Python rounds
    return SL_OK;
}

// Returns the first code line. Lines with a backquote, # or // count as comments and fences. Empty if there is no
// other line.
static struct sl_text_span first_code_line(struct sl_text_span text) {
    size_t begin = 0, end;
    while (begin < text.n && text.at[begin] == '\n') {
        begin++;
    }
    for (; begin <= text.n; begin = end + 1) {
        for (end = begin; end < text.n && text.at[end] != '\n';) {
            end++;
        }
        struct sl_text_span line = {text.at + begin, end - begin};
        if (sl_span_find_ascii(line, "`") > line.n && sl_span_find_ascii(line, "#") > line.n &&
            sl_span_find_ascii(line, "//") > line.n) {
            return line;
        }
    }
    return (struct sl_text_span){text.at, 0};
}

static enum sl_status compare_code(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                   struct sl_error *err) {
    return similarity(first_code_line(text), answer, score_out, err);
}

enum sl_status sl_score_edit_similarity(const struct sl_sample *sample, const char *text, double *score_out,
                                        struct sl_error *err) {
    return sl_metric_best(sample, text, sl_points_read, compare_code, score_out, err);
}
