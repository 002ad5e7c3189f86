// SPDX-License-Identifier: Apache-2.0
// Purpose: the table of metrics. See metric.h.
#include "lab/eval/metrics/metric_internal.h"

#include <string.h>

// To add one: a row, and a function (lab/eval/metrics/metric_internal.h).
static const struct sl_metric metrics[] = {
    {"contains-all", "share of the answers that the text contains, case ignored", sl_score_contains_all},
    {"contains-any", "1 if the text contains one of the answers, case ignored", sl_score_contains_any},
    {"exact", "1 if the text, trimmed, is one of the answers", sl_score_exact},
    {"f1", "F1 of words, without case, punctuation and articles", sl_score_f1},
    {"f1-zh", "F1 of characters, without case, punctuation and spaces", sl_score_f1_zh},
    {"rouge-l", "F of the longest common subsequences of words, by sentences that end with a dot", sl_score_rouge_l},
    {"rouge-l-zh", "the same of characters", sl_score_rouge_l_zh},
    {"rouge-lsum", "F of the longest common subsequences of words, by lines", sl_score_rouge_lsum},
    {"edit-similarity", "of the first line that is code, in steps of a percent", sl_score_edit_similarity},
    {"classification", "1/n if n classes are in the text and the right one is among them", sl_score_classification},
    {"count", "share of the text's numbers that are the answer", sl_score_count},
    {"paragraph", "share of the text's numbers that are N of the answer \"Paragraph N\"", sl_score_paragraph},
    {"paragraph-zh", "the same of the Chinese form of the answer", sl_score_paragraph_zh},
    {"first-number", "1 if the first run of digits is an answer", sl_score_first_number},
    {"first-decimal", "1 if the first number, with a fraction or without, equals an answer", sl_score_first_decimal},
    {"last-integer", "1 if the last word is a number that equals an answer", sl_score_last_integer},
    {"kv", "1 if an answer is one of the text's words", sl_score_kv},
    {"speaker", "1 if the first answer is one of the text's words, in capitals", sl_score_speaker},
    {"choice", "1 if the letter A to D or the option that the text settles on is an answer", sl_score_choice},
    {"code-choice", "the same, more strictly: the letter comes first, or behind \"answer is:\"", sl_score_code_choice},
    {0},
};

const struct sl_metric *sl_metrics(void) {
    return metrics;
}

const struct sl_metric *sl_metric_find(const char *name) {
    for (const struct sl_metric *metric = metrics; metric->name; metric++) {
        if (strcmp(metric->name, name) == 0) {
            return metric;
        }
    }
    return NULL;
}

char *sl_metric_first_line(char *text) {
    const char *begin = text + strspn(text, "\n");
    size_t n_bytes = strcspn(begin, "\n");
    memmove(text, begin, n_bytes);
    text[n_bytes] = '\0';
    return text;
}
