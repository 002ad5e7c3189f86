// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: running text, cut into sentences between which facts can stand. What lab/eval/tasks/task.h opens for callers, for those
 *          who write prompts.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "lab/eval/tasks/task.h"

// A sentence is cut after this many bytes where its text has no `. ` for longer.
#define SL_SENTENCE_MAX_BYTES 600

// The same four sentences over and over.
const struct sl_haystack *sl_haystack_noise(void);

int64_t sl_haystack_n_sentences(const struct sl_haystack *haystack); // > 0

// Write n sentences from the first'th on; behind the last comes the first again. Each begins with a
// space, but what follows a cut within a word.
void sl_haystack_write(const struct sl_haystack *haystack, int64_t first, int64_t n, FILE *out);

bool sl_haystack_contains(const struct sl_haystack *haystack, const char *text);
