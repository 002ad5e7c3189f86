// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the scores by which slots are ranked: a row each, with what it needs and what it is good for.
 *
 * Design: what a score computes is a file of its own in engine/compress/evict/scores/. Whoever must know more of a score than its
 *         name asks its row.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

// Whose attention a score is made of.
enum sl_score_rows {
    SL_ROWS_NONE,   // nobody's
    SL_ROWS_LAST,   // of the rows at hand when slots are evicted (a chunk's, a step's) the last
    SL_ROWS_WINDOW, // of those the last `window` of the recipe
    SL_ROWS_ALL,    // all rows', added up in the slots' state as they are read
};

/*
 * To add one: a row here, and engine/compress/evict/scores/<word>.c with what it computes.
 *     X(NAME, word, traits...)
 */
#define SL_SCORE_MAP(X)                                                                                                \
    X(NONE, none, .help = "nothing: what keeps all")                                                                   \
    X(RANDOM, random, .help = "chance, to compare with", .wants_positions = true, .is_seeded = true,                   \
      .is_lasting = true)                                                                                              \
    X(RECENCY, recency, .help = "age: the newest stay")                                                                \
    X(AAS, aas, .help = "attention, summed over all rows (H2O)", .rows = SL_ROWS_ALL, .n_states = 1,                   \
      .sums_attention = true)                                                                                          \
    X(AQAS, aqas, .help = "rows that gave more than their mean (ScissorHands)", .rows = SL_ROWS_ALL, .n_states = 1,    \
      .newest_of_ties = true)                                                                                          \
    X(LTAS, ltas, .help = "attention of the last row (TOVA)", .rows = SL_ROWS_LAST)                                    \
    X(MAS, mas, .help = "mean attention of the rows since (RoCo)", .rows = SL_ROWS_ALL, .n_states = 2,                 \
      .wants_positions = true, .sums_attention = true, .sums_squares = true)                                           \
    X(SNAPKV, snapkv, .help = "attention of a window of the last rows, pooled", .rows = SL_ROWS_WINDOW,                \
      .is_pooled = true)                                                                                               \
    X(CIS, cis, .help = "what retaining heads expect (Locret)", .n_states = 1, .wants_importance = true,               \
      .is_lasting = true)

// The numbers are never stored; the words are.
enum sl_score {
#define X(NAME, word, ...) SL_SCORE_##NAME,
    SL_SCORE_MAP(X)
#undef X
        SL_N_SCORES
};

struct sl_score_traits {
    const char *name, *help;
    enum sl_score_rows rows;
    int n_states;          // score planes that a page needs
    bool wants_importance; // what retaining heads say: the model must have them
    bool wants_positions;  // original positions of the slots
    bool sums_attention;   // plane 0 is attention summed over rows: layers=d2o
    bool sums_squares;     // and plane 1 its squares: scope=std
    bool newest_of_ties;   // of equal scores the newest slot stays; otherwise the oldest
    bool is_pooled;        // axis pool
    bool is_seeded;        // axis seed
    bool is_lasting; // known when a token has been read, and the same ever after: offloaded layers can be thinned by it
};

// Never NULL for a score that is in the enum.
const struct sl_score_traits *sl_score_get_traits(enum sl_score score);

// Its scores are made of attention: they want lse of the forward pass, and value=... can weigh by them.
static inline bool sl_score_is_attention(const struct sl_score_traits *traits) {
    return traits->rows != SL_ROWS_NONE;
}

// It looks at the rows at hand, at every query head of them.
static inline bool sl_score_is_of_rows(const struct sl_score_traits *traits) {
    return traits->rows == SL_ROWS_LAST || traits->rows == SL_ROWS_WINDOW;
}

// "aas, mas or cis": those that has() holds for. Returns buf.
char *sl_scores_list(bool (*has)(const struct sl_score_traits *traits), char *buf, size_t buf_bytes);
