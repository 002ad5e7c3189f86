// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: ROUGE-L at the level of summaries (Lin, 2004): for every sentence of the answer the union of its longest
 *          common subsequences with all sentences of the text. F = 2PR / (P + R) with P over the text's words, R over
 *          the answer's.
 *
 * Two packages that benchmarks use count differently, and the result depends on which of several longest subsequences
 * is chosen:
 *
 *     rouge-l      `rouge` (LongBench): sentences end with a dot, words with white space, case counts. Words are sets:
 *                  each counts once however often it occurs. An empty sentence has one empty word.
 *     rouge-lsum   `rouge_score` (InfiniteBench): sentences are lines, words are runs of a-z and 0-9 in lower case. A
 *                  word counts as often as it occurs in both.
 */
#include "lab/eval/metrics/metric_internal.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TABLE_CELLS (256u << 20)

// --- longest common subsequences ---------------------------------------------------------------------------------

struct sentence {
    const uint32_t *ids;
    size_t n;
};

static struct sentence sentence_at(const struct sl_words *words, size_t index) {
    size_t begin = index > 0 ? words->ends[index - 1] : 0;
    return (struct sentence){words->ids + begin, words->ends[index] - begin};
}

static size_t longest_sentence(const struct sl_words *words) {
    size_t longest = 0;
    for (size_t s = 0; s < words->n_sentences; s++) {
        size_t n = sentence_at(words, s).n;
        longest = n > longest ? n : longest;
    }
    return longest;
}

// Fills [answer.n + 1][text.n + 1] with the lengths of the longest common subsequences of all prefixes.
static void fill_table(struct sentence answer, struct sentence text, uint32_t *table) {
    size_t width = text.n + 1;
    memset(table, 0, width * sizeof *table);
    for (size_t i = 1; i <= answer.n; i++) {
        uint32_t *above = table + (i - 1) * width, *row = table + i * width;
        row[0] = 0;
        for (size_t j = 1; j <= text.n; j++) {
            row[j] = answer.ids[i - 1] == text.ids[j - 1] ? above[j - 1] + 1
                     : above[j] > row[j - 1]              ? above[j]
                                                          : row[j - 1];
        }
    }
}

/*
 * Marks one of the longest subsequences, traced from the end: sets taken_inout[i] for its words of the answer. On
 * ties, answer_first skips the answer's word, otherwise the text's.
 */
static void mark_longest(struct sentence answer, struct sentence text, bool answer_first, uint32_t *table,
                         bool *taken_inout) {
    fill_table(answer, text, table);
    size_t width = text.n + 1;
    for (size_t i = answer.n, j = text.n; i > 0 && j > 0;) {
        uint32_t without_answer = table[(i - 1) * width + j], without_text = table[i * width + j - 1];
        if (answer.ids[i - 1] == text.ids[j - 1]) {
            taken_inout[i - 1] = true;
            i--, j--;
        } else if (answer_first ? without_text <= without_answer : without_text < without_answer) {
            i--;
        } else {
            j--;
        }
    }
}

// --- counting ----------------------------------------------------------------------------------------------------

struct pair {
    struct sl_words text, answer; // numbered
    uint32_t n_ids;
    uint32_t *table; // of the longest sentences
    bool *taken;     // [answer.n]
    uint32_t *seen;  // [2][n_ids], zeros
};

static enum sl_status prepare(struct pair *pair, struct sl_error *err) {
    enum sl_status status = sl_words_number(&pair->text, &pair->answer, &pair->n_ids, err);
    if (status != SL_OK) {
        return status;
    }
    size_t rows = longest_sentence(&pair->answer) + 1, columns = longest_sentence(&pair->text) + 1;
    if (rows > MAX_TABLE_CELLS / columns) {
        return sl_fail(err, SL_ERR_RANGE,
                       "ROUGE of sentences of %zu and %zu words is too much work: 2^28 pairs is the most", rows - 1,
                       columns - 1);
    }
    pair->table = malloc(rows * columns * sizeof *pair->table);
    pair->taken = calloc(pair->answer.n + 1, sizeof *pair->taken);
    pair->seen = calloc(2 * (size_t)pair->n_ids + 1, sizeof *pair->seen);
    if (!pair->table || !pair->taken || !pair->seen) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for ROUGE of %zu words", pair->text.n + pair->answer.n);
    }
    return SL_OK;
}

static void pair_cleanup(struct pair *pair) {
    sl_words_cleanup(&pair->text);
    sl_words_cleanup(&pair->answer);
    free(pair->table);
    free(pair->taken);
    free(pair->seen);
}

// Compares every sentence of the answer with every one of the text.
static void mark_all(struct pair *pair, bool answer_first) {
    bool *taken = pair->taken;
    for (size_t a = 0; a < pair->answer.n_sentences; a++) {
        struct sentence answer = sentence_at(&pair->answer, a);
        for (size_t t = 0; t < pair->text.n_sentences; t++) {
            mark_longest(answer, sentence_at(&pair->text, t), answer_first, pair->table, taken);
        }
        taken += answer.n;
    }
}

static size_t count_distinct(const struct sl_words *words, const bool *which, uint32_t *seen) {
    size_t n = 0;
    for (size_t w = 0; w < words->n; w++) {
        if (!which || which[w]) {
            n += seen[words->ids[w]]++ == 0;
        }
    }
    return n;
}

// Computes F as the package `rouge` does; its 1e-8 prevents 0 / 0.
static double f_of_sets(struct pair *pair) {
    mark_all(pair, false);
    uint32_t *seen = pair->seen;
    size_t common = count_distinct(&pair->answer, pair->taken, seen);
    memset(seen, 0, pair->n_ids * sizeof *seen);
    size_t n_answer = count_distinct(&pair->answer, NULL, seen);
    memset(seen, 0, pair->n_ids * sizeof *seen);
    size_t n_text = count_distinct(&pair->text, NULL, seen);
    double recall = (double)common / (double)n_answer, precision = (double)common / (double)n_text;
    return 2 * (precision * recall / (precision + recall + 1e-8));
}

// Computes F as `rouge_score` does: a marked word counts only as often as the text has it.
static double f_of_counts(struct pair *pair) {
    mark_all(pair, true);
    uint32_t *left = pair->seen;
    for (size_t w = 0; w < pair->text.n; w++) {
        left[pair->text.ids[w]]++;
    }
    size_t hits = 0;
    for (size_t w = 0; w < pair->answer.n; w++) {
        if (pair->taken[w] && left[pair->answer.ids[w]] > 0) {
            left[pair->answer.ids[w]]--;
            hits++;
        }
    }
    if (hits == 0) {
        return 0;
    }
    double recall = (double)hits / (double)pair->answer.n, precision = (double)hits / (double)pair->text.n;
    return 2 * precision * recall / (precision + recall);
}

// --- sentences ---------------------------------------------------------------------------------------------------

// Finds the next nonempty sentence between two of `end`. Returns false if none is left.
static bool next_sentence(struct sl_text_span text, uint32_t end, size_t *at, struct sl_text_span *sentence_out) {
    while (*at < text.n && text.at[*at] == end) {
        ++*at;
    }
    size_t begin = *at;
    while (*at < text.n && text.at[*at] != end) {
        ++*at;
    }
    *sentence_out = (struct sl_text_span){text.at + begin, *at - begin};
    return *at > begin;
}

static void add_words(struct sl_words *words, struct sl_text_span sentence) {
    size_t at = 0, before = words->n;
    struct sl_text_span word;
    while (sl_span_next_word(sentence, &at, &word)) {
        sl_words_add(words, word);
    }
    if (words->n == before) {
        sl_words_add(words, (struct sl_text_span){sentence.at, 0});
    }
}

static void add_characters(struct sl_words *words, struct sl_text_span sentence) {
    size_t before = words->n;
    for (size_t i = 0; i < sentence.n; i++) {
        if (!sl_point_is_space(sentence.at[i])) {
            sl_words_add(words, (struct sl_text_span){sentence.at + i, 1});
        }
    }
    if (words->n == before) {
        sl_words_add(words, (struct sl_text_span){sentence.at, 0});
    }
}

static bool is_plain(uint32_t point) {
    return (point >= 'a' && point <= 'z') || (point >= '0' && point <= '9');
}

static void add_plain_words(struct sl_words *words, struct sl_text_span sentence) {
    for (size_t begin = 0, end; begin < sentence.n; begin = end + 1) {
        for (end = begin; end < sentence.n && is_plain(sentence.at[end]);) {
            end++;
        }
        if (end > begin) {
            sl_words_add(words, (struct sl_text_span){sentence.at + begin, end - begin});
        }
    }
}

// --- metrics -----------------------------------------------------------------------------------------------------

struct kind {
    uint32_t sentence_end;
    void (*add)(struct sl_words *words, struct sl_text_span sentence);
    double (*f)(struct pair *pair);
};

static enum sl_status split(const struct kind *kind, struct sl_text_span text, struct sl_words *words,
                            struct sl_error *err) {
    enum sl_status status = sl_words_init(words, text.n, err);
    size_t at = 0;
    struct sl_text_span sentence;
    while (status == SL_OK && next_sentence(text, kind->sentence_end, &at, &sentence)) {
        kind->add(words, sentence);
        sl_words_end_sentence(words);
    }
    return status;
}

static enum sl_status compare(const struct kind *kind, struct sl_text_span text, struct sl_text_span answer, double *score_out,
                              struct sl_error *err) {
    struct pair pair = {0};
    enum sl_status status = split(kind, text, &pair.text, err);
    if (status == SL_OK) {
        status = split(kind, answer, &pair.answer, err);
    }
    if (status == SL_OK) {
        status = prepare(&pair, err);
    }
    if (status == SL_OK) {
        *score_out = pair.text.n > 0 && pair.answer.n > 0 ? kind->f(&pair) : 0;
    }
    pair_cleanup(&pair);
    return status;
}

static enum sl_status compare_by_words(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                       struct sl_error *err) {
    return compare(&(struct kind){'.', add_words, f_of_sets}, text, answer, score_out, err);
}

static enum sl_status compare_by_characters(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                            struct sl_error *err) {
    return compare(&(struct kind){'.', add_characters, f_of_sets}, text, answer, score_out, err);
}

static enum sl_status compare_by_lines(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                       struct sl_error *err) {
    return compare(&(struct kind){'\n', add_plain_words, f_of_counts}, text, answer, score_out, err);
}

enum sl_status sl_score_rouge_l(const struct sl_sample *sample, const char *text, double *score_out,
                                struct sl_error *err) {
    return sl_metric_best(sample, text, sl_points_read, compare_by_words, score_out, err);
}

enum sl_status sl_score_rouge_l_zh(const struct sl_sample *sample, const char *text, double *score_out,
                                   struct sl_error *err) {
    return sl_metric_best(sample, text, sl_points_read, compare_by_characters, score_out, err);
}

enum sl_status sl_score_rouge_lsum(const struct sl_sample *sample, const char *text, double *score_out,
                                   struct sl_error *err) {
    return sl_metric_best(sample, text, sl_points_read_lower, compare_by_lines, score_out, err);
}
