// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: running text, cut into sentences between which facts can be placed. lab/tasks/task.h opens it for
 *          callers; this interface is for writers of prompts.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "lab/tasks/task.h"

// A sentence is cut after this many bytes if its text has no `. ` for longer.
#define SL_SENTENCE_MAX_BYTES 600

// Returns a haystack that repeats the same four sentences.
const struct sl_haystack *sl_haystack_noise(void);

int64_t sl_haystack_n_sentences(const struct sl_haystack *haystack); // > 0

// Writes n sentences from index `first` on; after the last comes the first again. Each begins with a space, except
// the rest of a word that was cut.
void sl_haystack_write(const struct sl_haystack *haystack, int64_t first, int64_t n, FILE *out);

bool sl_haystack_contains(const struct sl_haystack *haystack, const char *text);
