// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: texts as metrics process them: code points, and words as numbers.
 *
 * Design: the benchmarks are Python, so white space, digits and letters follow Python's str (Unicode). Invalid UTF-8
 *         bytes become U+FFFD, one each: a model may be cut off in the middle of a character. The caller releases a
 *         text or words that it has read; all zeros is an empty one, which release leaves.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct sl_points {
    uint32_t *at; // [n] code points
    size_t n;
};

enum sl_status sl_points_read(const char *text, struct sl_points *points_out, struct sl_error *err);
// Does the same in lower case: by Unicode's simple mapping, with U+0130 as "i" and a dot above, and every sigma as
// the common one.
enum sl_status sl_points_read_lower(const char *text, struct sl_points *points_out, struct sl_error *err);
void sl_points_cleanup(struct sl_points *points);

bool sl_point_is_space(uint32_t point);
bool sl_point_is_digit(uint32_t point);       // of any script
bool sl_point_is_word(uint32_t point);        // a letter, a number or an underscore: as \w
bool sl_point_is_punctuation(uint32_t point); // ASCII's 32

// A part of a text; the text must outlive it.
struct sl_text_span {
    const uint32_t *at;
    size_t n;
};

struct sl_text_span sl_span_trim(struct sl_text_span span); // without white space at its ends
bool sl_span_equal(struct sl_text_span a, struct sl_text_span b);
bool sl_span_starts(struct sl_text_span text, struct sl_text_span with);
// Returns the index of the first occurrence; text.n + 1 if there is none. An empty text occurs in every text.
size_t sl_span_find(struct sl_text_span text, struct sl_text_span what);
size_t sl_span_find_ascii(struct sl_text_span text, const char *what);
bool sl_span_is(struct sl_text_span span, const char *ascii);
// Finds the next run of characters for which belongs() is true, from *at on, and moves *at past it. Returns false if
// there is none.
bool sl_span_next_run(struct sl_text_span text, bool (*belongs)(uint32_t point), size_t *at, struct sl_text_span *run_out);
bool sl_span_next_word(struct sl_text_span text, size_t *at, struct sl_text_span *word_out);     // between white space
bool sl_span_next_number(struct sl_text_span text, size_t *at, struct sl_text_span *number_out); // of digits

static inline struct sl_text_span sl_points_all(const struct sl_points *points) {
    return (struct sl_text_span){points->at, points->n};
}

struct sl_words {
    struct sl_text_span *spans; // [n]
    uint32_t *ids;         // [n] equal words have equal ids; 0 until sl_words_number()
    size_t n;
    size_t *ends; // [n_sentences] index after a sentence's last word
    size_t n_sentences;
};

// Makes room for every word and sentence of a text of n_points.
enum sl_status sl_words_init(struct sl_words *words, size_t n_points, struct sl_error *err);
void sl_words_cleanup(struct sl_words *words);
void sl_words_add(struct sl_words *words, struct sl_text_span word);
void sl_words_end_sentence(struct sl_words *words);

// Numbers the words of both: ids are below *n_ids_out.
enum sl_status sl_words_number(struct sl_words *a, struct sl_words *b, uint32_t *n_ids_out, struct sl_error *err);
