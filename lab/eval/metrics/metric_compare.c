// SPDX-License-Identifier: Apache-2.0
// Purpose: compares a text with each answer of its sample, for metrics that differ in the comparison of two texts.
// See metric_internal.h.
#include "lab/eval/metrics/metric_internal.h"

enum sl_status sl_metric_compare(const struct sl_sample *sample, const char *text, sl_read_fn *read,
                                 sl_compare_fn *compare, struct sl_comparisons *comparisons_out, struct sl_error *err) {
    if (sample->n_answers == 0) {
        return sl_fail(err, SL_ERR_INVALID, "a question without answers cannot be judged");
    }
    struct sl_points points = {0};
    struct sl_comparisons all = {0};
    enum sl_status status = read(text, &points, err);
    for (size_t i = 0; status == SL_OK && i < sample->n_answers; i++) {
        struct sl_points answer = {0};
        double score = 0;
        status = read(sample->answers[i], &answer, err);
        if (status == SL_OK) {
            status = compare(sl_points_all(&points), sl_points_all(&answer), &score, err);
        }
        sl_points_cleanup(&answer);
        all.best = score > all.best ? score : all.best;
        all.mean += score;
        all.first = i == 0 ? score : all.first;
    }
    sl_points_cleanup(&points);
    if (status == SL_OK) {
        all.mean /= (double)sample->n_answers; // divided once, so that a mean of ones is exactly 1
        *comparisons_out = all;
    }
    return status;
}

enum sl_status sl_metric_best(const struct sl_sample *sample, const char *text, sl_read_fn *read,
                              sl_compare_fn *compare, double *score_out, struct sl_error *err) {
    struct sl_comparisons all;
    enum sl_status status = sl_metric_compare(sample, text, read, compare, &all, err);
    if (status == SL_OK) {
        *score_out = all.best;
    }
    return status;
}
