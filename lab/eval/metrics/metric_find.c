// SPDX-License-Identifier: Apache-2.0
// Purpose: metrics that search the text for answers, numbers, words.
#include "lab/eval/metrics/metric_internal.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

// --- the answer itself -------------------------------------------------------------------------------------------

static enum sl_status compare_contains(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                       struct sl_error *err) {
    (void)err;
    *score_out = sl_span_find(text, answer) <= text.n;
    return SL_OK;
}

enum sl_status sl_score_contains_all(const struct sl_sample *sample, const char *text, double *score_out,
                                     struct sl_error *err) {
    struct sl_comparisons all;
    enum sl_status status = sl_metric_compare(sample, text, sl_points_read_lower, compare_contains, &all, err);
    if (status == SL_OK) {
        *score_out = all.mean;
    }
    return status;
}

enum sl_status sl_score_contains_any(const struct sl_sample *sample, const char *text, double *score_out,
                                     struct sl_error *err) {
    return sl_metric_best(sample, text, sl_points_read_lower, compare_contains, score_out, err);
}

static enum sl_status compare_exact(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                    struct sl_error *err) {
    (void)err;
    *score_out = sl_span_equal(sl_span_trim(text), sl_span_trim(answer));
    return SL_OK;
}

enum sl_status sl_score_exact(const struct sl_sample *sample, const char *text, double *score_out,
                              struct sl_error *err) {
    return sl_metric_best(sample, text, sl_points_read, compare_exact, score_out, err);
}

// --- numbers -----------------------------------------------------------------------------------------------------

// Returns the share of the text's numbers (runs of digits) that equal `number` as text.
static double share_of_numbers(struct sl_text_span text, struct sl_text_span number) {
    size_t n = 0, n_right = 0, at = 0;
    struct sl_text_span found;
    while (sl_span_next_number(text, &at, &found)) {
        n++;
        n_right += sl_span_equal(found, number);
    }
    return n > 0 ? (double)n_right / (double)n : 0;
}

static enum sl_status compare_count(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                    struct sl_error *err) {
    (void)err;
    *score_out = share_of_numbers(text, answer);
    return SL_OK;
}

enum sl_status sl_score_count(const struct sl_sample *sample, const char *text, double *score_out,
                              struct sl_error *err) {
    return sl_metric_best(sample, text, sl_points_read, compare_count, score_out, err);
}

// Compares with the number right after `label` in the answer.
static enum sl_status compare_labelled(struct sl_text_span label, struct sl_text_span text, struct sl_text_span answer,
                                       double *score_out, struct sl_error *err) {
    for (size_t i = 0; i + label.n < answer.n; i++) {
        struct sl_text_span rest = {answer.at + i, answer.n - i};
        size_t at = label.n;
        struct sl_text_span number;
        if (sl_span_starts(rest, label) && sl_point_is_digit(rest.at[at]) && sl_span_next_number(rest, &at, &number)) {
            *score_out = share_of_numbers(text, number);
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_INVALID,
                   "an answer names no paragraph: the metric needs \"Paragraph 7\", or its Chinese form");
}

static enum sl_status compare_paragraph(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                        struct sl_error *err) {
    static const uint32_t label[] = {'P', 'a', 'r', 'a', 'g', 'r', 'a', 'p', 'h', ' '};
    return compare_labelled((struct sl_text_span){label, sizeof label / sizeof *label}, text, answer, score_out, err);
}

static enum sl_status compare_paragraph_zh(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                           struct sl_error *err) {
    static const uint32_t label[] = {0x6BB5, 0x843D};
    return compare_labelled((struct sl_text_span){label, 2}, text, answer, score_out, err);
}

enum sl_status sl_score_paragraph(const struct sl_sample *sample, const char *text, double *score_out,
                                  struct sl_error *err) {
    return sl_metric_best(sample, text, sl_points_read, compare_paragraph, score_out, err);
}

enum sl_status sl_score_paragraph_zh(const struct sl_sample *sample, const char *text, double *score_out,
                                     struct sl_error *err) {
    return sl_metric_best(sample, text, sl_points_read, compare_paragraph_zh, score_out, err);
}

static bool is_ascii_digit(uint32_t point) {
    return point >= '0' && point <= '9';
}

static enum sl_status compare_first_number(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                           struct sl_error *err) {
    (void)err;
    size_t at = 0;
    struct sl_text_span number;
    *score_out = sl_span_next_run(text, is_ascii_digit, &at, &number) && sl_span_equal(number, answer);
    return SL_OK;
}

enum sl_status sl_score_first_number(const struct sl_sample *sample, const char *text, double *score_out,
                                     struct sl_error *err) {
    return sl_metric_best(sample, text, sl_points_read, compare_first_number, score_out, err);
}

// Reads a decimal number; returns false unless the whole span is one.
static bool read_number(struct sl_text_span span, double *number_out) {
    char text[64], *end;
    if (span.n == 0 || span.n >= sizeof text) {
        return false;
    }
    for (size_t i = 0; i < span.n; i++) {
        if (!is_ascii_digit(span.at[i]) && span.at[i] != '.' && span.at[i] != '-' && span.at[i] != '+') {
            return false;
        }
        text[i] = (char)span.at[i];
    }
    text[span.n] = '\0';
    *number_out = strtod(text, &end);
    return end == text + span.n;
}

static bool equal_numbers(struct sl_text_span a, struct sl_text_span b) {
    double x, y;
    return read_number(a, &x) && read_number(b, &y) && x == y;
}

static enum sl_status compare_first_decimal(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                            struct sl_error *err) {
    (void)err;
    size_t at = 0;
    struct sl_text_span number, fraction;
    bool found = sl_span_next_run(text, is_ascii_digit, &at, &number);
    if (found && at + 1 < text.n && text.at[at] == '.' && is_ascii_digit(text.at[at + 1])) {
        sl_span_next_run(text, is_ascii_digit, &at, &fraction);
        number.n += 1 + fraction.n;
    }
    *score_out = found && equal_numbers(number, sl_span_trim(answer));
    return SL_OK;
}

enum sl_status sl_score_first_decimal(const struct sl_sample *sample, const char *text, double *score_out,
                                      struct sl_error *err) {
    return sl_metric_best(sample, text, sl_points_read, compare_first_decimal, score_out, err);
}

// --- words -------------------------------------------------------------------------------------------------------

// Returns whether InfiniteBench counts the character as part of a word when it searches keys and names.
static bool is_of_word(uint32_t point) {
    return !sl_point_is_space(point) && !(point < 128 && strchr(":\"'.,?!{}", (int)point));
}

static enum sl_status compare_kv(struct sl_text_span text, struct sl_text_span answer, double *score_out, struct sl_error *err) {
    (void)err;
    size_t at = 0;
    struct sl_text_span word;
    bool found = false;
    while (!found && sl_span_next_run(text, is_of_word, &at, &word)) {
        found = sl_span_equal(word, answer);
    }
    *score_out = found;
    return SL_OK;
}

enum sl_status sl_score_kv(const struct sl_sample *sample, const char *text, double *score_out, struct sl_error *err) {
    return sl_metric_best(sample, text, sl_points_read, compare_kv, score_out, err);
}

static bool equal_in_capitals(struct sl_text_span word, struct sl_text_span answer) {
    size_t same = 0;
    while (same < word.n && same < answer.n &&
           (uint32_t)utf8proc_toupper((utf8proc_int32_t)word.at[same]) == answer.at[same]) {
        same++;
    }
    return word.n == answer.n && same == word.n;
}

static enum sl_status compare_speaker(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                      struct sl_error *err) {
    (void)err;
    size_t at = 0;
    struct sl_text_span word;
    bool found = false;
    while (!found && sl_span_next_run(text, is_of_word, &at, &word)) {
        found = equal_in_capitals(word, answer);
    }
    *score_out = found;
    return SL_OK;
}

enum sl_status sl_score_speaker(const struct sl_sample *sample, const char *text, double *score_out,
                                struct sl_error *err) {
    struct sl_comparisons all;
    enum sl_status status = sl_metric_compare(sample, text, sl_points_read, compare_speaker, &all, err);
    if (status == SL_OK) {
        *score_out = all.first;
    }
    return status;
}

static bool is_of_code_word(uint32_t point) {
    return !sl_point_is_space(point) && !(point < 128 && strchr(".`'\":", (int)point));
}

static enum sl_status compare_last_integer(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                           struct sl_error *err) {
    (void)err;
    size_t at = 0;
    struct sl_text_span word, last = {0};
    while (sl_span_next_run(text, is_of_code_word, &at, &word)) {
        last = word;
    }
    *score_out = equal_numbers(last, sl_span_trim(answer));
    return SL_OK;
}

enum sl_status sl_score_last_integer(const struct sl_sample *sample, const char *text, double *score_out,
                                     struct sl_error *err) {
    return sl_metric_best(sample, text, sl_points_read, compare_last_integer, score_out, err);
}
