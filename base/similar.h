// SPDX-License-Identifier: Apache-2.0
// Purpose: suggests the known name that a user may have meant by an unknown one.
#pragma once

// The most similar one of the names that were offered; NULL: none is similar. Begin with {.word = ...}.
struct sl_similar {
    const char *word, *name;
    int distance;
};

/*
 * Offers a name. A name is similar if its edit distance to the word, ignoring case, is at most two and at most a third
 * of its letters. One insertion, deletion, substitution or swap of two neighbors counts as one (the restricted
 * Damerau-Levenshtein distance). Of equally similar names the first stays. Words of more than 31 bytes are similar to
 * none.
 */
void sl_similar_offer(struct sl_similar *best, const char *name);
