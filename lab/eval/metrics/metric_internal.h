// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the functions of the rows of lab/eval/metrics/metric.c.
 *
 * Design: most metrics compare the text with one answer at a time (sl_metric_compare()). They differ in how both are
 *         read and compared, and in whether the best, the mean or the first comparison counts.
 */
#pragma once

#include "lab/eval/metrics/metric.h"
#include "lab/eval/metrics/metric_text.h"

typedef enum sl_status sl_metric_score_fn(const struct sl_sample *sample, const char *text, double *score_out,
                                          struct sl_error *err);
typedef enum sl_status sl_read_fn(const char *text, struct sl_points *points_out, struct sl_error *err);
typedef enum sl_status sl_compare_fn(struct sl_text_span text, struct sl_text_span answer, double *score_out,
                                     struct sl_error *err);

struct sl_comparisons {
    double best, mean, first; // over the sample's answers
};

// lab/eval/metrics/metric_compare.c: compares with every answer. SL_ERR_INVALID: no answers.
enum sl_status sl_metric_compare(const struct sl_sample *sample, const char *text, sl_read_fn *read,
                                 sl_compare_fn *compare, struct sl_comparisons *comparisons_out, struct sl_error *err);
// Does the same for metrics that use the best comparison.
enum sl_status sl_metric_best(const struct sl_sample *sample, const char *text, sl_read_fn *read,
                              sl_compare_fn *compare, double *score_out, struct sl_error *err);

// lab/eval/metrics/metric_find.c: search for something in the text
sl_metric_score_fn sl_score_contains_all, sl_score_contains_any, sl_score_exact, sl_score_count, sl_score_paragraph,
    sl_score_paragraph_zh, sl_score_first_number, sl_score_first_decimal, sl_score_last_integer, sl_score_kv,
    sl_score_speaker;
// lab/eval/metrics/metric_choice.c: which of several options the text names
sl_metric_score_fn sl_score_classification, sl_score_choice, sl_score_code_choice;
// lab/eval/metrics/metric_overlap.c: overlap with the answer
sl_metric_score_fn sl_score_f1, sl_score_f1_zh, sl_score_edit_similarity;
// lab/eval/metrics/metric_rouge.c
sl_metric_score_fn sl_score_rouge_l, sl_score_rouge_l_zh, sl_score_rouge_lsum;
