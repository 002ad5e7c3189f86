// SPDX-License-Identifier: Apache-2.0
// Purpose: decides which claims of a plan hold, and which recipe is the best for a given number of bytes.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/eval/report/eval_report.h"

#define FLOOR 0.05 // share of full's score: two recipes below it cannot be compared

const char *sl_verdict_text(enum sl_verdict verdict) {
    switch (verdict) {
    case SL_VERDICT_PRECONDITION_ABSENT:
        return "precondition absent";
    case SL_VERDICT_BOTH_FAIL:
        return "precondition absent: both fail";
    case SL_VERDICT_REPRODUCED:
        return "reproduced";
    case SL_VERDICT_NOT_REPRODUCED:
        return "not reproduced";
    case SL_VERDICT_UNDECIDED:
        return "undecided";
    case SL_VERDICT_NOT_MEASURED:
        break;
    }
    return "not measured";
}

// --- claims -----------------------------------------------------------------------------------------------------

static bool claims_about(const struct sl_plan_claim *claim, const char *cell) {
    for (size_t i = 0; i < claim->n_tasks; i++) {
        if (strcmp(claim->tasks[i], cell) == 0) {
            return true;
        }
    }
    return claim->n_tasks == 0;
}

// Returns the mean of a row over the wanted cells in which `other` has answers, too.
static double mean_of(const struct sl_eval_report *r, size_t row, size_t other, const bool *wanted) {
    double sum = 0, n = 0;
    for (size_t i = 0; i < r->plan->n_cells; i++) {
        if (wanted[i] && r->rows[row].cells[i].n > 0 && r->rows[other].cells[i].n > 0) {
            sum += r->rows[row].cells[i].mean;
            n++;
        }
    }
    return n > 0 ? sum / n : NAN;
}

static enum sl_verdict verdict_of(const struct sl_eval_verdict *v) {
    if (v->n_pairs == 0) {
        return SL_VERDICT_NOT_MEASURED;
    }
    if (v->claim->needs_least > 0 && !(v->full >= v->claim->needs_least)) {
        return SL_VERDICT_PRECONDITION_ABSENT;
    }
    if (!(v->better > FLOOR * v->full || v->worse > FLOOR * v->full)) {
        return SL_VERDICT_BOTH_FAIL;
    }
    if (v->difference.low > v->claim->by) {
        return SL_VERDICT_REPRODUCED;
    }
    return v->difference.high < v->claim->by ? SL_VERDICT_NOT_REPRODUCED : SL_VERDICT_UNDECIDED;
}

static enum sl_status judge(const struct sl_eval_report *r, const struct sl_plan_claim *claim, size_t better,
                            size_t worse, struct sl_eval_verdict *verdict_out, struct sl_error *err) {
    bool *wanted = calloc(r->plan->n_cells, sizeof *wanted);
    if (!wanted) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a claim");
    }
    for (size_t i = 0; i < r->plan->n_cells; i++) {
        wanted[i] = claims_about(claim, r->plan->cells[i].name);
    }
    const char *budget = r->rows[better].recipe->budget;
    struct sl_eval_verdict v = {.claim = claim,
                                .budget = budget[0] ? budget : r->rows[worse].recipe->budget,
                                .better = mean_of(r, better, worse, wanted),
                                .worse = mean_of(r, worse, better, wanted),
                                .full = mean_of(r, 0, 0, wanted)};
    enum sl_status status = sl_eval_compare(r, better, worse, wanted, &v.difference, &v.n_pairs, err);
    free(wanted);
    if (status == SL_OK) {
        v.verdict = verdict_of(&v);
        *verdict_out = v;
    }
    return status;
}

// Returns whether the claim is about these two rows: its recipes, at one budget if both have one.
static bool is_pair(const struct sl_eval_report *r, const struct sl_plan_claim *claim, size_t better, size_t worse) {
    const struct sl_plan_recipe *b = r->rows[better].recipe, *w = r->rows[worse].recipe;
    return strcmp(b->name, claim->better) == 0 && strcmp(w->name, claim->worse) == 0 &&
           (strcmp(b->budget, w->budget) == 0 || !b->budget[0] || !w->budget[0]);
}

// Appends; capacity doubles from 1.
static enum sl_status add_verdict(struct sl_eval_report *r, const struct sl_eval_verdict *verdict,
                                  struct sl_error *err) {
    if ((r->n_verdicts & (r->n_verdicts - 1)) == 0) {
        size_t n = r->n_verdicts ? 2 * r->n_verdicts : 1;
        struct sl_eval_verdict *more = realloc(r->verdicts, n * sizeof *more);
        if (!more) {
            return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the claims");
        }
        r->verdicts = more;
    }
    r->verdicts[r->n_verdicts++] = *verdict;
    return SL_OK;
}

enum sl_status sl_eval_judge_claims(struct sl_eval_report *r, struct sl_error *err) {
    for (size_t c = 0; c < r->plan->n_claims; c++) {
        const struct sl_plan_claim *claim = &r->plan->claims[c];
        size_t n_before = r->n_verdicts;
        enum sl_status status = SL_OK;
        struct sl_eval_verdict verdict;
        for (size_t b = 0; status == SL_OK && b < r->n_rows; b++) {
            for (size_t w = 0; status == SL_OK && w < r->n_rows; w++) {
                if (is_pair(r, claim, b, w)) {
                    status = judge(r, claim, b, w, &verdict, err);
                    status = status == SL_OK ? add_verdict(r, &verdict, err) : status;
                }
            }
        }
        if (status == SL_OK && r->n_verdicts == n_before) { // this run does not have the recipes
            verdict = (struct sl_eval_verdict){
                .claim = claim, .budget = "", .better = NAN, .worse = NAN, .full = NAN, .difference = {NAN, NAN, NAN}};
            status = add_verdict(r, &verdict, err);
        }
        if (status != SL_OK) {
            return status;
        }
    }
    return SL_OK;
}

// --- which recipe for how many bytes ----------------------------------------------------------------------------

static bool is_not_worse(const struct sl_eval_row *row) {
    return !(row->to_full.high < 0);
}

// Prefers the better mean; for equal means the smaller recipe, then the one that the plan names first.
static bool is_preferred(const struct sl_eval_row *row, const struct sl_eval_row *before) {
    return row->mean != before->mean ? row->mean > before->mean : row->shipped < before->shipped;
}

// Returns the best recipe that ships at most such a share; n_rows if there is none.
static size_t best_within(const struct sl_eval_report *r, double most, bool offloads) {
    size_t best = r->n_rows;
    for (size_t i = 0; i < r->n_rows; i++) {
        const struct sl_eval_row *row = &r->rows[i];
        // Up to a tenth above the share still counts: scores and positions are shipped with the slots, and pages are
        // not divided.
        if (row->complete && row->offloads == offloads && row->shipped <= 1.1 * most &&
            (best == r->n_rows || is_preferred(row, &r->rows[best]))) {
            best = i;
        }
    }
    return best;
}

enum sl_status sl_eval_choose(struct sl_eval_report *r, struct sl_error *err) {
    static const double shares[] = {0.02, 0.05, 0.1, 0.2, 0.35, 0.5};
    const size_t n_shares = sizeof shares / sizeof shares[0];
    r->choices = calloc(2 * n_shares, sizeof *r->choices);
    if (!r->choices) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a report");
    }
    for (int offloads = 0; offloads < 2; offloads++) {
        size_t before = r->n_rows;
        for (size_t i = 0; i < n_shares; i++) {
            size_t row = best_within(r, shares[i], offloads);
            if (row != before) {
                r->choices[r->n_choices++] = (struct sl_eval_choice){
                    .most = shares[i], .offloads = offloads, .row = row, .not_worse = is_not_worse(&r->rows[row])};
            }
            before = row;
        }
    }
    return SL_OK;
}
