// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the scores that rank slots: a row each, with its requirements and uses.
 *
 * Design: engine/compress/evict/scores/ computes them. Code that needs a property of a score reads its row.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

// The rows whose attention a score is computed from.
enum sl_score_rows {
    SL_ROWS_NONE,     // no rows
    SL_ROWS_LAST,     // the last of the rows at hand (a chunk's, a step's) when slots are evicted
    SL_ROWS_WINDOW,   // the recipe's last `window` of the rows at hand
    SL_ROWS_ALL,      // all rows, summed in the slots' state as they are read
    SL_ROWS_REPEATED, // rows that repeat the prompt to the model after it has been read (engine/runner/repeat.h)
};

/*
 * To add a score: add a row here, and one with its computation in engine/compress/evict/scores/score.c.
 *     X(NAME, word, traits...)
 */
#define SL_SCORE_MAP(X)                                                                                                \
    X(NONE, none, .help = "nothing: what keeps all")                                                                   \
    X(RANDOM, random, .help = "chance, to compare with", .is_seeded = true, .is_lasting = true)                        \
    X(RECENCY, recency, .help = "age: the newest stay")                                                                \
    X(AAS, aas, .help = "attention, summed over all rows (H2O)", .rows = SL_ROWS_ALL, .n_states = 1,                   \
      .sums_attention = true)                                                                                          \
    X(AQAS, aqas, .help = "rows that gave more than their mean (ScissorHands)", .rows = SL_ROWS_ALL, .n_states = 1,    \
      .newest_of_ties = true)                                                                                          \
    X(LTAS, ltas, .help = "attention of the last row (TOVA)", .rows = SL_ROWS_LAST)                                    \
    X(MAS, mas, .help = "mean attention of the rows since (RoCo)", .rows = SL_ROWS_ALL, .n_states = 2,                 \
      .sums_attention = true, .sums_squares = true)                                                                    \
    X(SNAPKV, snapkv, .help = "attention of a window of the last rows, pooled", .rows = SL_ROWS_WINDOW,                \
      .is_pooled = true)                                                                                               \
    X(CIS, cis, .help = "what retaining heads expect (Locret)", .n_states = 1, .wants_importance = true,               \
      .is_lasting = true)                                                                                              \
    X(KEYDIFF, keydiff, .help = "how far a key is from the mean of keys (KeyDiff)")                                    \
    X(RECONSTRUCT, reconstruct, .help = "most attention while the prompt is read again (KVzip)",                       \
      .rows = SL_ROWS_REPEATED, .n_states = 1)                                                                         \
    X(RECONSTRUCT_SUM, reconstruct_sum, .help = "attention while the prompt is read again, summed",                    \
      .rows = SL_ROWS_REPEATED, .n_states = 1)

// Only the words are stored, never these numbers.
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
    bool wants_importance; // output of retaining heads: the model must have them
    bool sums_attention;   // plane 0 is attention summed over rows: layers=d2o
    bool sums_squares;     // and plane 1 its squares: scope=std
    bool newest_of_ties;   // if scores are equal the newest slot stays; otherwise the oldest
    bool is_pooled;        // axis pool
    bool is_seeded;        // axis seed
    bool is_lasting;       // known when a token has been read, and constant: can thin offloaded layers
};

// Returns the traits; never NULL for a score of the enum.
const struct sl_score_traits *sl_score_get_traits(enum sl_score score);

// Returns true if the score is computed from attention: it needs lse from the forward pass, and value=... can use it
// as weights.
static inline bool sl_score_is_attention(const struct sl_score_traits *traits) {
    return traits->rows != SL_ROWS_NONE;
}

// Returns true if the score uses the rows at hand, for every query head.
static inline bool sl_score_is_of_rows(const struct sl_score_traits *traits) {
    return traits->rows == SL_ROWS_LAST || traits->rows == SL_ROWS_WINDOW;
}

static inline bool sl_score_is_seeded(const struct sl_score_traits *traits) {
    return traits->is_seeded;
}

// Returns true if the prompt is read a second time: nothing is evicted before that.
static inline bool sl_score_repeats(const struct sl_score_traits *traits) {
    return traits->rows == SL_ROWS_REPEATED;
}

// Writes "aas, mas or cis": the scores for which has() returns true. Returns buf.
char *sl_scores_list(bool (*has)(const struct sl_score_traits *traits), char *buf, size_t buf_bytes);
