// SPDX-License-Identifier: Apache-2.0
// Purpose: a report as JSON lines: {"row": ...} for every recipe, {"claim": ...}, {"choice": ...}. Scores from 0 to 1.
#include <jansson.h>
#include <math.h>

#include "client/cli/message_json.h"
#include "lab/eval/report/eval_report.h"

static json_t *number(double value) { // JSON has no NaN
    return isnan(value) ? json_null() : json_real(value);
}

static json_t *interval(const struct sl_interval *i) {
    return json_pack("{s:o, s:o, s:o}", "mean", number(i->mean), "low", number(i->low), "high", number(i->high));
}

static json_t *cells_of(const struct sl_eval_report *r, const struct sl_eval_row *row) {
    json_t *cells = json_array();
    for (size_t i = 0; i < r->plan->n_cells; i++) {
        const struct sl_plan_cell *cell = &r->plan->cells[i];
        json_t *object = json_pack("{s:o, s:I, s:I, s:o}", "cell", sl_text_json(cell->name), "tokens",
                                   (json_int_t)(cell->task ? cell->n_tokens : 0), "answers",
                                   (json_int_t)row->cells[i].n, "score", number(row->cells[i].mean));
        if (object && cell->task && cell->depth >= 0) {
            json_object_set_new(object, "depth", json_real(cell->depth));
        }
        if (object && row->cells[i].refused) {
            json_object_set_new(object, "refused", sl_text_json(row->cells[i].refused));
        }
        json_array_append_new(cells, object);
    }
    return cells;
}

static json_t *row_json(const struct sl_eval_report *r, const struct sl_eval_row *row) {
    json_t *tasks = json_object();
    for (size_t t = 0; t < r->n_tasks; t++) {
        json_object_set_new(tasks, r->tasks[t], number(row->tasks[t]));
    }
    return json_pack("{s:{s:o, s:o, s:o, s:o, s:b, s:b, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}}", "row", "name",
                     sl_text_json(row->recipe->name), "budget", sl_text_json(row->recipe->budget), "recipe",
                     sl_text_json(row->recipe->recipe), "mean", number(row->mean), "complete", row->complete,
                     "offloads", row->offloads, "answers", (json_int_t)row->n_answers, "shipped", number(row->shipped),
                     "offloaded", number(row->offloaded), "resident", number(row->resident), "slots_per_head",
                     number(row->slots_per_head), "to_full", interval(&row->to_full), "tasks", tasks, "cells",
                     cells_of(r, row));
}

static json_t *verdict_json(const struct sl_eval_verdict *v) {
    return json_pack("{s:{s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:f, s:o, s:I}}", "claim", "paper",
                     sl_text_json(v->claim->paper), "text", sl_text_json(v->claim->text), "better",
                     sl_text_json(v->claim->better), "worse", sl_text_json(v->claim->worse), "budget",
                     sl_text_json(v->budget), "verdict", sl_verdict_text(v->verdict), "better_score", number(v->better),
                     "worse_score", number(v->worse), "full_score", number(v->full), "by", v->claim->by, "difference",
                     interval(&v->difference), "pairs", (json_int_t)v->n_pairs);
}

static json_t *choice_json(const struct sl_eval_report *r, const struct sl_eval_choice *choice) {
    const struct sl_eval_row *row = &r->rows[choice->row];
    return json_pack("{s:{s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b}}", "choice", "most", choice->most, "name",
                     sl_text_json(row->recipe->name), "budget", sl_text_json(row->recipe->budget), "recipe",
                     sl_text_json(row->recipe->recipe), "mean", number(row->mean), "shipped", number(row->shipped),
                     "offloaded", number(row->offloaded), "offloads", choice->offloads, "not_worse", choice->not_worse);
}

// Prints the line and takes ownership of it.
static enum sl_status print_line(json_t *line, FILE *file, struct sl_error *err) {
    bool printed = sl_json_print(line, JSON_REAL_PRECISION(6), file);
    return printed ? SL_OK : sl_fail(err, SL_ERR_IO, "the report cannot be written");
}

enum sl_status sl_eval_report_print_json(const struct sl_eval_report *r, FILE *file, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < r->n_rows; i++) {
        status = print_line(row_json(r, &r->rows[i]), file, err);
    }
    for (size_t i = 0; status == SL_OK && i < r->n_verdicts; i++) {
        status = print_line(verdict_json(&r->verdicts[i]), file, err);
    }
    for (size_t i = 0; status == SL_OK && i < r->n_choices; i++) {
        status = print_line(choice_json(r, &r->choices[i]), file, err);
    }
    return status;
}
