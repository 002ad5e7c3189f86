// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how an answer is judged, by the published definitions of the benchmarks: a number from 0 to 1.
 *
 *     contains-all      share of the answers that the text contains, case ignored (RULER's string match, all)
 *     contains-any      1 if it contains one of them (RULER's, part)
 *     exact             the text, trimmed, is one of the answers
 *     f1                word F1 after SQuAD's normalization, best over the answers (LongBench's question answering)
 *     f1-zh             the same by characters, as InfiniteBench has it (LongBench segments words)
 *     rouge-l           F-measure of the longest common subsequence of words, best over the answers (LongBench's
 *                       summaries: its sentences end with a dot); rouge-l-zh the same by characters
 *     rouge-lsum        the same by lines, as InfiniteBench's summaries are judged
 *     edit-similarity   of the first line that is code (LongBench's lcc, repobench-p)
 *     classification    classes found in the text; 1/n if the right one is among n (LongBench's trec, lsht)
 *     count             share of the numbers in the text that are the answer (LongBench's passage_count)
 *     paragraph         the same for "Paragraph N" (passage_retrieval); paragraph-zh for its Chinese form
 *     first-number      the first run of digits is the answer (InfiniteBench's passkey, number string)
 *     first-decimal     the first number equals the answer (InfiniteBench's math find)
 *     last-integer      the last word does (code run)
 *     kv                the answer is among the text's words (InfiniteBench's key-value retrieval)
 *     speaker           the first answer is, in capitals (InfiniteBench's dialogues)
 *     choice            the first A to D that is named, or the option's text (InfiniteBench's multiple choice); the
 *                       answers are that text and that letter
 *     code-choice       the same, if it comes first or behind "answer is:" (InfiniteBench's code debug)
 */
#pragma once

#include "lab/eval/metrics/sample.h"

struct sl_metric {
    const char *name;
    const char *summary;
    // text: UTF-8, what the model wrote. From 0 to 1; NaN never. SL_ERR_INVALID: the sample is not one for this metric.
    // SL_ERR_RANGE: too long to be compared. SL_ERR_EXHAUSTED: out of memory.
    enum sl_status (*score)(const struct sl_sample *sample, const char *text, double *score_out, struct sl_error *err);
};

const struct sl_metric *sl_metrics(void); // all, up to one whose name is NULL
const struct sl_metric *sl_metric_find(const char *name);

// As the benchmarks do before they judge some tasks (LongBench's trec, triviaqa, samsum, lsht): leading newlines are
// dropped, and so is all behind the first line. Works in place; returns text.
char *sl_metric_first_line(char *text);
