// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: metrics of questions with a choice: named classes (LongBench), options with letters (InfiniteBench).
 *
 * Design: published scores come from exactly these steps, including odd ones, so they are reproduced exactly.
 */
#include "lab/eval/metrics/metric_internal.h"

#include <stdlib.h>
#include <string.h>

// --- classes -----------------------------------------------------------------------------------------------------

/*
 * Drops classes that are only part of the right answer's name. found: [*n] classes that the text contains, in the
 * order of the list. After removing a class the loop skips the one that moves up, as in the published code.
 */
static void drop_parts(const char **found, size_t *n, const char *answer) {
    for (size_t i = 0; i < *n; i++) {
        if (strstr(answer, found[i]) && strcmp(answer, found[i]) != 0) {
            size_t first = 0;
            while (strcmp(found[first], found[i]) != 0) {
                first++;
            }
            memmove(found + first, found + first + 1, (--*n - first) * sizeof *found);
        }
    }
}

enum sl_status sl_score_classification(const struct sl_sample *sample, const char *text, double *score_out,
                                       struct sl_error *err) {
    if (sample->n_classes == 0 || sample->n_answers == 0) {
        return sl_fail(err, SL_ERR_INVALID, "classification needs the classes and the right one of them");
    }
    const char **found = malloc(sample->n_classes * sizeof *found);
    if (!found) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %zu classes", sample->n_classes);
    }
    double best = 0;
    for (size_t a = 0; a < sample->n_answers; a++) {
        size_t n = 0;
        for (size_t c = 0; c < sample->n_classes; c++) {
            if (strstr(text, sample->classes[c])) {
                found[n++] = sample->classes[c];
            }
        }
        drop_parts(found, &n, sample->answers[a]);
        for (size_t i = 0; i < n; i++) {
            if (strcmp(found[i], sample->answers[a]) == 0) {
                best = 1 / (double)n > best ? 1 / (double)n : best;
                break;
            }
        }
    }
    free(found);
    *score_out = best;
    return SL_OK;
}

// --- options -----------------------------------------------------------------------------------------------------

/*
 * answers: the right option's text and its letter. The steps compare with all of them, so both are read once, and the
 * text is changed in the process.
 */
struct options {
    struct sl_points text;
    struct sl_points *answers; // [n_answers]
    size_t n_answers;
};

static void options_cleanup(struct options *options) {
    sl_points_cleanup(&options->text);
    for (size_t i = 0; i < options->n_answers; i++) {
        sl_points_cleanup(&options->answers[i]);
    }
    free(options->answers);
}

static enum sl_status options_read(const struct sl_sample *sample, const char *text, struct options *options,
                                   struct sl_error *err) {
    *options = (struct options){0};
    if (sample->n_answers == 0) {
        return sl_fail(err, SL_ERR_INVALID, "a question without answers cannot be judged");
    }
    options->answers = calloc(sample->n_answers, sizeof *options->answers);
    enum sl_status status =
        options->answers ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %zu answers", sample->n_answers);
    if (status == SL_OK) {
        status = sl_points_read(text, &options->text, err);
    }
    for (size_t i = 0; status == SL_OK && i < sample->n_answers; i++) {
        status = sl_points_read(sample->answers[i], &options->answers[i], err);
        options->n_answers += status == SL_OK;
    }
    if (status != SL_OK) {
        options_cleanup(options);
    }
    return status;
}

static bool is_answer(const struct options *options, struct sl_text_span text) {
    for (size_t i = 0; i < options->n_answers; i++) {
        if (sl_span_equal(sl_points_all(&options->answers[i]), text)) {
            return true;
        }
    }
    return false;
}

static bool starts_with_answer(const struct options *options, struct sl_text_span text) {
    for (size_t i = 0; i < options->n_answers; i++) {
        if (sl_span_starts(text, sl_points_all(&options->answers[i]))) {
            return true;
        }
    }
    return false;
}

static bool is_letter(uint32_t point) {
    return point >= 'A' && point <= 'D';
}

// In place: replaces every character of `separators` by a space, and runs of spaces by one.
static struct sl_text_span squeeze(struct sl_text_span text, uint32_t *into, const char *separators) {
    size_t n = 0;
    for (size_t i = 0; i < text.n; i++) {
        uint32_t point = text.at[i];
        point = point < 128 && strchr(separators, (int)point) ? ' ' : point;
        if (point != ' ' || n == 0 || into[n - 1] != ' ') {
            into[n++] = point;
        }
    }
    return (struct sl_text_span){into, n};
}

// In place: replaces every occurrence of the word by a space.
static struct sl_text_span blank(struct sl_text_span text, uint32_t *into, const char *word) {
    size_t n = 0, length = strlen(word);
    for (size_t i = 0; i < text.n;) {
        bool here = sl_span_find_ascii((struct sl_text_span){text.at + i, text.n - i}, word) == 0;
        into[n++] = here ? ' ' : text.at[i];
        i += here ? length : 1;
    }
    return (struct sl_text_span){into, n};
}

/*
 * Writes the text after the first phrase, in the order of the list, that occurs, and after one more character (the
 * space). Returns false if none occurs. The result is empty if the text ends there.
 */
static bool behind_phrase(struct sl_text_span text, const char *const *phrases, struct sl_text_span *behind_out) {
    for (; *phrases; phrases++) {
        size_t at = sl_span_find_ascii(text, *phrases), length = strlen(*phrases);
        if (at <= text.n) {
            size_t begin = at + length + 1 < text.n ? at + length + 1 : text.n;
            *behind_out = (struct sl_text_span){text.at + begin, text.n - begin};
            return true;
        }
    }
    return false;
}

static bool judge_choice(struct options *options) {
    static const char *const phrases[] = {"answer is:", "answer:", "answer is", "option is", NULL};
    struct sl_text_span text = sl_span_trim(sl_points_all(&options->text)), rest, word;
    if (text.n > 0 && is_letter(text.at[0])) {
        return is_answer(options, (struct sl_text_span){text.at, 1});
    }
    if (text.n == 0 || is_answer(options, text)) {
        return text.n > 0;
    }
    text = squeeze(text, options->text.at, "\n\"'.,?!{}");
    if (behind_phrase(text, phrases, &rest)) {
        return rest.n > 0 && starts_with_answer(options, rest);
    }
    for (size_t at = 0; sl_span_next_word(text, &at, &word);) {
        static const uint32_t letters[] = {'A', 'B', 'C', 'D'};
        if (sl_span_find((struct sl_text_span){letters, 4}, word) <= 4) { // "AB" also counts as a named option, and as wrong
            return is_answer(options, word);
        }
    }
    return false;
}

static bool judge_code_choice(struct options *options) {
    static const char *const phrases[] = {"answer is:", "is:", "answer:", "correct option is:", NULL};
    struct sl_text_span text = sl_span_trim(sl_points_all(&options->text)), rest;
    if (text.n > 1 && (text.at[1] == '.' || text.at[1] == ':') && is_answer(options, (struct sl_text_span){text.at, 1})) {
        return true;
    }
    text = blank(text, options->text.at, "Option");
    text = blank(text, options->text.at, "option");
    text = squeeze(text, options->text.at, "\n`'\"-*");
    return behind_phrase(text, phrases, &rest) && rest.n > 0 && starts_with_answer(options, rest);
}

static enum sl_status judge(bool (*judge_options)(struct options *), const struct sl_sample *sample, const char *text,
                            double *score_out, struct sl_error *err) {
    struct options options;
    enum sl_status status = options_read(sample, text, &options, err);
    if (status == SL_OK) {
        *score_out = judge_options(&options);
        options_cleanup(&options);
    }
    return status;
}

enum sl_status sl_score_choice(const struct sl_sample *sample, const char *text, double *score_out,
                               struct sl_error *err) {
    return judge(judge_choice, sample, text, score_out, err);
}

enum sl_status sl_score_code_choice(const struct sl_sample *sample, const char *text, double *score_out,
                                    struct sl_error *err) {
    return judge(judge_code_choice, sample, text, score_out, err);
}
