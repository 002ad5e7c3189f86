// SPDX-License-Identifier: Apache-2.0
// Purpose: the name that somebody may have meant who wrote another word.
#pragma once

// Of the names that are offered, the most similar one; NULL: none is. Begin with {.word = ...}.
struct sl_similar {
    const char *word, *name;
    int distance;
};

/*
 * A name is similar whose letters differ from the word's, case aside, by at most a third of them, and by two: one more, one less, another one,
 * or two neighbours swapped count as one each (the restricted Damerau-Levenshtein distance). The first of equals stays. Words of more
 * than 31 bytes are like none.
 */
void sl_similar_offer(struct sl_similar *best, const char *name);
