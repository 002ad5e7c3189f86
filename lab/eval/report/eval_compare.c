// SPDX-License-Identifier: Apache-2.0
// Purpose: the difference between two recipes over the questions that both have answered, with its confidence
// interval.
#include <math.h>
#include <stdlib.h>

#include "lab/eval/report/eval_report.h"

#define BOOTSTRAP_SEED 1

enum sl_status sl_eval_compare(const struct sl_eval_report *report, size_t a, size_t b, const bool *wanted,
                               struct sl_interval *interval_out, size_t *n_pairs_out, struct sl_error *err) {
    size_t most = 0, n = 0;
    uint32_t n_strata = 0;
    for (size_t i = 0; i < report->plan->n_cells; i++) {
        most += report->n_samples[i];
    }
    double *differences = malloc((most + 1) * sizeof *differences);
    uint32_t *strata = malloc((most + 1) * sizeof *strata);
    if (!differences || !strata) {
        free(differences);
        free(strata);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory to compare %zu answers", most);
    }
    for (size_t i = 0; i < report->plan->n_cells; i++) {
        size_t before = n;
        for (size_t s = 0; (!wanted || wanted[i]) && s < report->n_samples[i]; s++) {
            double difference = report->rows[a].cells[i].scores[s] - report->rows[b].cells[i].scores[s];
            if (!isnan(difference)) {
                differences[n] = difference;
                strata[n++] = n_strata;
            }
        }
        n_strata += n > before;
    }
    *interval_out = sl_bootstrap_mean(differences, strata, n, n_strata, BOOTSTRAP_SEED);
    *n_pairs_out = n;
    free(differences);
    free(strata);
    return SL_OK;
}
