// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: tasks that ask about a whole text: which words are common in a list, which are frequent in a text.
 *
 * Design: positions and words are matched by one random permutation, so that a list of any length is shuffled as it
 *         is written.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lab/tasks/task_internal.h"
#include "lab/tasks/words.h"

// --- common words: size is how many others there are -----------------------------------------------------------------
#define N_COMMON     10
#define COMMON_TIMES 30 // occurrences of each in the list
#define OTHER_TIMES  3

static_assert(SL_MAX_OTHER_WORDS == (SL_N_WORDS - N_COMMON) * (SL_N_WORDS - N_COMMON),
              "single words and pairs of them");

// Returns word number `word` in the sample's own order, the common ones first. After all single words come pairs of
// them, but not of common words: an answer that names a pair has not named a common word.
static void list_word(uint64_t word, uint64_t key, char *text_out) {
    if (word < SL_N_WORDS) {
        snprintf(text_out, SL_WORD_PAIR_BYTES, "%s", sl_word(sl_random_permute(word, SL_N_WORDS, key)));
        return;
    }
    const uint64_t n = SL_N_WORDS - N_COMMON;
    uint64_t first, second;
    sl_split_pair(sl_random_permute(word - SL_N_WORDS, n * (n - 1), key), n, &first, &second);
    snprintf(text_out, SL_WORD_PAIR_BYTES, "%s-%s", sl_word(sl_random_permute(N_COMMON + first, SL_N_WORDS, key)),
             sl_word(sl_random_permute(N_COMMON + second, SL_N_WORDS, key)));
}

enum sl_status sl_write_common_words(struct sl_draft *draft, int64_t size) {
    uint64_t word_key = sl_random_next(&draft->random), place_key = sl_random_next(&draft->random);
    uint64_t n_common_entries = N_COMMON * COMMON_TIMES, n = n_common_entries + OTHER_TIMES * (uint64_t)size;
    char text[SL_WORD_PAIR_BYTES];
    for (uint64_t i = 0; i < n; i++) {
        uint64_t entry = sl_random_permute(i, n, place_key);
        uint64_t word =
            entry < n_common_entries ? entry / COMMON_TIMES : N_COMMON + (entry - n_common_entries) / OTHER_TIMES;
        list_word(word, word_key, text);
        fprintf(draft->prompt, " %llu. %s", (unsigned long long)(i + 1), text);
    }
    fputs("\nWhat are the 10 most common words in the list above? The 10 most common words are", draft->prompt);
    enum sl_status status = SL_OK;
    for (uint64_t word = 0; word < N_COMMON && status == SL_OK; word++) {
        list_word(word, word_key, text);
        status = sl_add_answer(draft, text);
    }
    return status;
}

// --- frequent words: size is how many there are, but for rounding ----------------------------------------------------
#define ZETA_2     1.6449340668482264 // the sum of all 1 / rank^2
#define N_FREQUENT 3

// Returns how often the word of a rank occurs in the text. The most frequent one, which does not count, has rank 1.
static int64_t times_of_rank(int64_t size, int64_t rank) {
    return (int64_t)((double)size / (ZETA_2 * (double)rank * (double)rank));
}

static int64_t count_ranks(int64_t size, int64_t *n_words_out) {
    int64_t rank = 1;
    *n_words_out = 0;
    for (int64_t times; (times = times_of_rank(size, rank)) > 0; rank++) {
        *n_words_out += times;
    }
    return rank - 1;
}

struct word {
    char text[6];
};

enum sl_status sl_write_frequent_words(struct sl_draft *draft, int64_t size) {
    int64_t n = 0, n_ranks = count_ranks(size, &n);
    struct word *words = malloc((size_t)n_ranks * sizeof *words);      // [n_ranks]
    const struct word **entries = malloc((size_t)n * sizeof *entries); // [n] sorted by rank
    enum sl_status status = SL_OK;
    if (!words || !entries) {
        status = sl_fail(draft->err, SL_ERR_EXHAUSTED, "no memory for a text of %lld words", (long long)n);
        goto out;
    }
    struct sl_supply supply = sl_supply_start(draft);
    uint64_t place_key = sl_random_next(&draft->random);
    int64_t filled = 0;
    for (int64_t i = 0; i < n_ranks; i++) {
        if (i == 0) {
            strcpy(words[i].text, "...");
        } else {
            sl_supply_letters(&supply, 'a', words[i].text);
        }
        for (int64_t end = filled + times_of_rank(size, i + 1); filled < end; filled++) {
            entries[filled] = &words[i];
        }
    }
    for (int64_t i = 0; i < n; i++) {
        fprintf(draft->prompt, " %s", entries[sl_random_permute((uint64_t)i, (uint64_t)n, place_key)]->text);
    }
    fputs("\nWhat are the three most frequent words in the text above? The three most frequent words are",
          draft->prompt);
    for (int i = 1; i <= N_FREQUENT && status == SL_OK; i++) {
        status = sl_add_answer(draft, words[i].text);
    }
out:
    free(words);
    free(entries);
    return status;
}
