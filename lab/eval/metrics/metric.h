// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: scores an answer, by the published definitions of the benchmarks: a number from 0 to 1.
 *
 *     contains-all      share of the answers that the text contains, case ignored (RULER's string match, all)
 *     contains-any      1 if it contains one of them (RULER's, part)
 *     exact             the text, trimmed, is one of the answers
 *     f1                word F1 after SQuAD's normalization, best over the answers (LongBench's question answering)
 *     f1-zh             the same by characters, as in InfiniteBench (LongBench segments words)
 *     rouge-l           F-measure of the longest common subsequence of words, best over the answers (LongBench's
 *                       summaries: its sentences end with a dot); rouge-l-zh the same by characters
 *     rouge-lsum        the same by lines, for InfiniteBench's summaries
 *     edit-similarity   of the first line that is code (LongBench's lcc, repobench-p)
 *     classification    classes found in the text; 1/n if the right one is among n (LongBench's trec, lsht)
 *     count             share of the numbers in the text that are the answer (LongBench's passage_count)
 *     paragraph         the same for "Paragraph N" (passage_retrieval); paragraph-zh for its Chinese form
 *     first-number      the first run of digits is the answer (InfiniteBench's passkey, number string)
 *     first-decimal     the first number equals the answer (InfiniteBench's math find)
 *     last-integer      the last word equals the answer (code run)
 *     kv                the answer is among the text's words (InfiniteBench's key-value retrieval)
 *     speaker           the first answer is among them, in capitals (InfiniteBench's dialogues)
 *     choice            the first A to D that is named, or the option's text (InfiniteBench's multiple choice); the
 *                       answers are that text and that letter
 *     code-choice       the same, if it comes first or after "answer is:" (InfiniteBench's code debug)
 */
#pragma once

#include "lab/eval/metrics/sample.h"

struct sl_metric {
    const char *name;
    const char *summary;
    // Scores a text (UTF-8, the model's output) from 0 to 1; never NaN. SL_ERR_INVALID: the sample does not fit this
    // metric. SL_ERR_RANGE: the text is too long to be compared. SL_ERR_EXHAUSTED: no memory.
    enum sl_status (*score)(const struct sl_sample *sample, const char *text, double *score_out, struct sl_error *err);
};

const struct sl_metric *sl_metrics(void); // all, up to one whose name is NULL
const struct sl_metric *sl_metric_find(const char *name);

// Does what the benchmarks do before scoring some tasks (LongBench's trec, triviaqa, samsum, lsht): drops leading
// newlines and everything after the first line. Works in place; returns text.
char *sl_metric_first_line(char *text);
