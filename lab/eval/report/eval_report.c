// SPDX-License-Identifier: Apache-2.0
// Purpose: computes a report's numbers from answers. See eval_report.h.
#include "lab/eval/report/eval_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compress/recipe/recipe.h"
#include "lab/eval/run/eval_run.h"

// Sums of one (recipe, cell) that become means.
struct sums {
    double score, shipped, full, resident, slots;
    double offloaded, offloaded_full; // of answers that report it
};

static void add_answer(struct sl_eval_cell_score *cell, size_t index, const struct sl_eval_answer *answer,
                       struct sums *sums) {
    if (answer->refused) {
        cell->refused = answer->refused;
        return;
    }
    cell->scores[index] = answer->score;
    cell->n++;
    sums->score += answer->score;
    sums->shipped += (double)answer->shipped_bytes;
    sums->full += (double)answer->full_bytes;
    sums->resident += (double)answer->resident_bytes;
    if (answer->offloaded_bytes > 0) {
        sums->offloaded += (double)answer->offloaded_bytes;
        sums->offloaded_full += (double)answer->full_bytes;
    }
    sums->slots += answer->slots_per_head;
}

static enum sl_status read_cell(const struct sl_eval_report *r, const char *const *canonical,
                                const struct sl_eval_results *results, size_t row, size_t cell, struct sums *sums,
                                struct sl_error *err) {
    size_t n = r->n_samples[cell];
    struct sl_eval_cell_score *score = &r->rows[row].cells[cell];
    score->scores = malloc((n > 0 ? n : 1) * sizeof *score->scores);
    if (!score->scores) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the scores of %zu samples", n);
    }
    for (size_t i = 0; i < n; i++) {
        struct sl_eval_key key = sl_eval_key_of(r->plan, canonical, row, cell, i);
        struct sl_eval_answer answer;
        score->scores[i] = NAN;
        if (sl_eval_results_find(results, &key, &answer)) {
            add_answer(score, i, &answer, sums);
        }
    }
    score->mean = score->n > 0 ? sums->score / (double)score->n : NAN;
    return SL_OK;
}

static bool offloads(const char *text) {
    struct sl_recipe recipe;
    return sl_recipe_parse(text, &recipe, NULL) == SL_OK &&
           (sl_recipe_offloads(&recipe) || recipe.offload_auto || recipe.offload_from >= 0);
}

// Reads a row. Every cell has the same weight, regardless of the number of its samples.
static enum sl_status read_row(const struct sl_eval_report *r, const char *const *canonical,
                               const struct sl_eval_results *results, size_t index, struct sl_error *err) {
    struct sl_eval_row *row = &r->rows[index];
    size_t n_cells = r->plan->n_cells, n = 0, n_offloaded = 0;
    struct sums means = {0};
    row->recipe = &r->plan->recipes[index];
    row->offloads = offloads(row->recipe->recipe);
    row->cells = calloc(n_cells, sizeof *row->cells);
    row->tasks = calloc(r->n_tasks, sizeof *row->tasks);
    row->lengths = calloc(r->n_lengths + 1, sizeof *row->lengths);
    if (!row->cells || !row->tasks || !row->lengths) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a row of %zu cells", n_cells);
    }
    for (size_t i = 0; i < n_cells; i++) {
        struct sums sums = {0};
        enum sl_status status = read_cell(r, canonical, results, index, i, &sums, err);
        if (status != SL_OK) {
            return status;
        }
        double answers = (double)row->cells[i].n;
        if (answers > 0) {
            n++;
            row->n_answers += row->cells[i].n;
            means.score += row->cells[i].mean;
            means.shipped += sums.full > 0 ? sums.shipped / sums.full : 0;
            means.resident += sums.full > 0 ? sums.resident / sums.full : 0;
            means.slots += sums.slots / answers;
            means.offloaded += sums.offloaded_full > 0 ? sums.offloaded / sums.offloaded_full : 0;
            n_offloaded += sums.offloaded_full > 0;
        }
    }
    row->complete = n == n_cells;
    row->mean = n > 0 ? means.score / (double)n : NAN;
    row->shipped = n > 0 ? means.shipped / (double)n : NAN;
    row->resident = n > 0 ? means.resident / (double)n : NAN;
    row->offloaded = n_offloaded > 0 ? means.offloaded / (double)n_offloaded : 0;
    row->slots_per_head = n > 0 ? means.slots / (double)n : NAN;
    return SL_OK;
}

// Returns the mean of a row over the cells that match `name` (NULL: any) and n_tokens (0: any); NaN if it has no
// answers.
static double mean_of(const struct sl_eval_report *r, const struct sl_eval_row *row, const char *name,
                      int64_t n_tokens) {
    double sum = 0, n = 0;
    for (size_t i = 0; i < r->plan->n_cells; i++) {
        const struct sl_plan_cell *cell = &r->plan->cells[i];
        if ((!name || strcmp(cell->name, name) == 0) && (!n_tokens || cell->n_tokens == n_tokens) &&
            row->cells[i].n > 0) {
            sum += row->cells[i].mean;
            n++;
        }
    }
    return n > 0 ? sum / n : NAN;
}

static void average(const struct sl_eval_report *r, struct sl_eval_row *row) {
    for (size_t t = 0; t < r->n_tasks; t++) {
        row->tasks[t] = mean_of(r, row, r->tasks[t], 0);
    }
    for (size_t l = 0; l < r->n_lengths; l++) {
        row->lengths[l] = mean_of(r, row, NULL, r->lengths[l]);
    }
}

static void add_task(struct sl_eval_report *r, const char *name) {
    for (size_t t = 0; t < r->n_tasks; t++) {
        if (strcmp(r->tasks[t], name) == 0) {
            return;
        }
    }
    r->tasks[r->n_tasks++] = name;
}

static void add_length(struct sl_eval_report *r, int64_t n_tokens) {
    for (size_t l = 0; l < r->n_lengths; l++) {
        if (r->lengths[l] == n_tokens) {
            return;
        }
    }
    r->lengths[r->n_lengths++] = n_tokens;
}

static enum sl_status name_columns(struct sl_eval_report *r, struct sl_error *err) {
    r->tasks = calloc(r->plan->n_cells, sizeof *r->tasks);
    r->lengths = calloc(r->plan->n_cells, sizeof *r->lengths);
    if (!r->tasks || !r->lengths) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a report");
    }
    for (size_t i = 0; i < r->plan->n_cells; i++) {
        const struct sl_plan_cell *cell = &r->plan->cells[i];
        add_task(r, cell->name);
        if (cell->task) {
            add_length(r, cell->n_tokens);
        }
    }
    return SL_OK;
}

enum sl_status sl_eval_report_make(const struct sl_eval_plan *plan, const char *const *canonical,
                                   const size_t *n_samples, const struct sl_eval_results *results,
                                   struct sl_eval_report *report_out, struct sl_error *err) {
    struct sl_eval_report r = {.plan = plan, .n_samples = n_samples};
    enum sl_status status = name_columns(&r, err);
    if (status == SL_OK) {
        r.rows = calloc(plan->n_recipes, sizeof *r.rows);
        status = r.rows ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %zu recipes", plan->n_recipes);
    }
    while (status == SL_OK && r.n_rows < plan->n_recipes) {
        status = read_row(&r, canonical, results, r.n_rows++, err);
        if (status == SL_OK) {
            average(&r, &r.rows[r.n_rows - 1]);
        }
    }
    for (size_t i = 0; status == SL_OK && i < r.n_rows; i++) {
        status = sl_eval_compare(&r, i, 0, NULL, &r.rows[i].to_full, &r.rows[i].n_pairs, err);
    }
    status = status == SL_OK ? sl_eval_judge_claims(&r, err) : status;
    status = status == SL_OK ? sl_eval_choose(&r, err) : status;
    if (status != SL_OK) {
        sl_eval_report_cleanup(&r);
        return status;
    }
    *report_out = r;
    return SL_OK;
}

void sl_eval_report_cleanup(struct sl_eval_report *report) {
    for (size_t i = 0; i < report->n_rows; i++) {
        for (size_t c = 0; report->rows[i].cells && c < report->plan->n_cells; c++) {
            free(report->rows[i].cells[c].scores);
        }
        free(report->rows[i].cells);
        free(report->rows[i].tasks);
        free(report->rows[i].lengths);
    }
    free(report->rows);
    free(report->tasks);
    free(report->lengths);
    free(report->verdicts);
    free(report->choices);
    *report = (struct sl_eval_report){0};
}
