// SPDX-License-Identifier: Apache-2.0
// Purpose: a report as tables, for a terminal or for a page in Markdown. Scores and differences in points of 100.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/table.h"
#include "lab/eval/report/eval_report.h"

// Functions that write a table and a heading.
struct writer {
    FILE *file;
    bool markdown;
};

static void print_table(const struct writer *w, const struct sl_table *table) {
    if (w->markdown) {
        sl_table_print_markdown(table, w->file);
    } else {
        sl_table_print(table, w->file);
    }
}

static void print_heading(const struct writer *w, const char *text) {
    fprintf(w->file, w->markdown ? "\n## %s\n\n" : "\n%s\n\n", text);
}

static void add_points(struct sl_table *table, double share) {
    if (isnan(share)) {
        sl_table_add(table, "-");
    } else {
        sl_table_add(table, "%.1f", 100 * share);
    }
}

// Adds "-3.2 [-5.0, -1.1] *": a star if the interval does not contain 0.
static void add_difference(struct sl_table *table, const struct sl_interval *d) {
    if (isnan(d->mean)) {
        sl_table_add(table, "-");
    } else if (isnan(d->low)) {
        sl_table_add(table, "%+.1f", 100 * d->mean);
    } else {
        sl_table_add(table, "%+.1f [%+.1f, %+.1f]%s", 100 * d->mean, 100 * d->low, 100 * d->high,
                     d->low > 0 || d->high < 0 ? " *" : "");
    }
}

// Adds "4.2% +47.9%": the shares sent to decode, and to stores; "4.2% +" if no answer reports the latter.
static void add_shipped(struct sl_table *table, const struct sl_eval_row *row) {
    if (row->offloaded > 0) {
        sl_table_add(table, "%.1f%% +%.1f%%", 100 * row->shipped, 100 * row->offloaded);
    } else {
        sl_table_add(table, "%.1f%%%s", 100 * row->shipped, row->offloads ? " +" : "");
    }
}

static bool has_budgets(const struct sl_eval_report *r) {
    for (size_t i = 0; i < r->n_rows; i++) {
        if (r->rows[i].recipe->budget[0]) {
            return true;
        }
    }
    return false;
}

// Returns whether there is more than one length to average over.
static bool has_lengths(const struct sl_eval_report *r) {
    return r->n_lengths > 1;
}

// --- scores -----------------------------------------------------------------------------------------------------

static const char *refusal_of(const struct sl_eval_report *r, const struct sl_eval_row *row, const char *task) {
    for (size_t i = 0; i < r->plan->n_cells; i++) {
        if (strcmp(r->plan->cells[i].name, task) == 0 && row->cells[i].refused) {
            return row->cells[i].refused;
        }
    }
    return NULL;
}

static void add_row(struct sl_table *table, const struct sl_eval_report *r, const struct sl_eval_row *row,
                    bool budgets) {
    sl_table_add(table, "%s", row->recipe->name);
    if (budgets) {
        sl_table_add(table, "%s", row->recipe->budget);
    }
    for (size_t t = 0; t < r->n_tasks; t++) {
        if (isnan(row->tasks[t]) && refusal_of(r, row, r->tasks[t])) {
            sl_table_add(table, "n/a");
        } else {
            add_points(table, row->tasks[t]);
        }
    }
    for (size_t l = 0; has_lengths(r) && l < r->n_lengths; l++) {
        add_points(table, row->lengths[l]);
    }
    if (isnan(row->mean)) {
        sl_table_add(table, "-\t-");
    } else {
        sl_table_add(table, "%.1f%s", 100 * row->mean, row->complete ? "" : "?");
        add_shipped(table, row);
    }
    if (row == r->rows) {
        sl_table_add(table, " ");
    } else {
        add_difference(table, &row->to_full);
    }
}

static void print_scores(const struct writer *w, const struct sl_eval_report *r) {
    bool budgets = has_budgets(r);
    struct sl_column *columns = calloc(r->n_tasks + r->n_lengths + 5, sizeof *columns);
    char(*titles)[24] = calloc(r->n_lengths + 1, sizeof *titles);
    if (!columns || !titles) {
        free(columns);
        free(titles);
        fprintf(w->file, "(out of memory: no table)\n");
        return;
    }
    size_t n = 0;
    columns[n++] = (struct sl_column){"RECIPE", false};
    if (budgets) {
        columns[n++] = (struct sl_column){"BUDGET", true};
    }
    for (size_t t = 0; t < r->n_tasks; t++) {
        columns[n++] = (struct sl_column){r->tasks[t], true};
    }
    for (size_t l = 0; has_lengths(r) && l < r->n_lengths; l++) {
        snprintf(titles[l], sizeof titles[l], "AT %lld", (long long)r->lengths[l]);
        columns[n++] = (struct sl_column){titles[l], true};
    }
    columns[n++] = (struct sl_column){"MEAN", true};
    columns[n++] = (struct sl_column){"SHIPPED", true};
    columns[n++] = (struct sl_column){"TO FULL, 95%", false};
    struct sl_table table;
    sl_table_init(&table, columns, n);
    for (size_t i = 0; i < r->n_rows; i++) {
        add_row(&table, r, &r->rows[i], budgets);
    }
    print_table(w, &table);
    sl_table_cleanup(&table);
    free(columns);
    free(titles);
}

static void print_name(FILE *file, const struct sl_plan_recipe *recipe) {
    fprintf(file, "%s%s%s", recipe->name, recipe->budget[0] ? " at " : "", recipe->budget);
}

// Prints the reasons of rejections, one per recipe and task.
static void print_refused(const struct writer *w, const struct sl_eval_report *r) {
    bool any = false;
    for (size_t i = 0; i < r->n_rows; i++) {
        const char *last = "";
        for (size_t c = 0; c < r->plan->n_cells; c++) {
            const struct sl_eval_cell_score *cell = &r->rows[i].cells[c];
            if (!cell->refused || strcmp(cell->refused, last) == 0) {
                continue;
            }
            fprintf(w->file, "%s%sn/a: ", any ? "" : "\n", w->markdown ? "- " : "");
            print_name(w->file, r->rows[i].recipe);
            fprintf(w->file, ", %s", r->plan->cells[c].name);
            if (r->plan->cells[c].task) {
                fprintf(w->file, " of %lld tokens", (long long)r->plan->cells[c].n_tokens);
            }
            fprintf(w->file, ": %s\n", cell->refused);
            last = cell->refused;
            any = true;
        }
    }
}

static void print_legend(const struct writer *w, const struct sl_eval_report *r) {
    bool all_complete = true, some_offload = false;
    for (size_t i = 0; i < r->n_rows; i++) {
        all_complete = all_complete && r->rows[i].complete;
        some_offload = some_offload || r->rows[i].offloads;
    }
    fprintf(w->file,
            "\nScores in points of 100. SHIPPED: bytes of the full cache in f16. TO FULL: difference on the same "
            "questions, "
            "with the\ninterval of a paired bootstrap; * where that does not reach 0.%s%s\n",
            some_offload ? " +: what stores get beside it." : "",
            all_complete ? "" : "\n?: not of all cells, not to be compared.");
}

// --- claims -----------------------------------------------------------------------------------------------------

static void add_verdict(struct sl_table *table, const struct sl_eval_verdict *v) {
    sl_table_add(table, "%s\t%s\t%s", v->claim->paper, v->claim->text, v->budget);
    add_points(table, v->better);
    add_points(table, v->worse);
    add_difference(table, &v->difference);
    sl_table_add(table, "%+.1f", 100 * v->claim->by);
    if (v->verdict == SL_VERDICT_PRECONDITION_ABSENT) {
        sl_table_add(table, "%s: full has %.1f of %.1f", sl_verdict_text(v->verdict), 100 * v->full,
                     100 * v->claim->needs_least);
    } else {
        sl_table_add(table, "%s", sl_verdict_text(v->verdict));
    }
}

static void print_verdicts(const struct writer *w, const struct sl_eval_report *r) {
    static const struct sl_column columns[] = {{"PAPER", false}, {"CLAIM", false},  {"BUDGET", true},
                                               {"BETTER", true}, {"WORSE", true},   {"DIFFERENCE, 95%", false},
                                               {"LEAST", true},  {"VERDICT", false}};
    if (r->n_verdicts == 0) {
        return;
    }
    print_heading(w, "Claims");
    struct sl_table table = SL_TABLE(columns);
    for (size_t i = 0; i < r->n_verdicts; i++) {
        add_verdict(&table, &r->verdicts[i]);
    }
    print_table(w, &table);
    sl_table_cleanup(&table);
}

// --- choices ----------------------------------------------------------------------------------------------------

static void print_choices(const struct writer *w, const struct sl_eval_report *r) {
    static const struct sl_column columns[] = {{"SHIPS ABOUT", true}, {"OFFLOADS", false}, {"RECIPE", false},
                                               {"MEAN", true},        {"SHIPPED", true},   {"TO FULL, 95%", false},
                                               {"TEXT", false}};
    struct sl_table table = SL_TABLE(columns);
    for (size_t i = 0; i < r->n_choices; i++) {
        const struct sl_eval_choice *choice = &r->choices[i];
        const struct sl_eval_row *row = &r->rows[choice->row];
        sl_table_add(&table, "%.0f%%\t%s\t%s%s%s\t%.1f", 100 * choice->most, choice->offloads ? "yes" : "no",
                     row->recipe->name, row->recipe->budget[0] ? " at " : "", row->recipe->budget, 100 * row->mean);
        add_shipped(&table, row);
        add_difference(&table, &row->to_full);
        sl_table_add(&table, "%s", row->recipe->recipe);
    }
    if (table.n_cells > 0) {
        print_heading(w, "The best recipe for so many bytes");
        print_table(w, &table);
    }
    sl_table_cleanup(&table);
}

// --- all of it --------------------------------------------------------------------------------------------------

static void print_report(const struct writer *w, const struct sl_eval_report *r, const char *subject) {
    if (r->plan->title) {
        fprintf(w->file, w->markdown ? "# %s\n\n" : "%s\n", r->plan->title);
    }
    fprintf(w->file, "%s\n\n", subject);
    print_scores(w, r);
    print_legend(w, r);
    print_refused(w, r);
    print_verdicts(w, r);
    print_choices(w, r);
}

void sl_eval_report_print(const struct sl_eval_report *report, const char *subject, FILE *file) {
    print_report(&(struct writer){.file = file}, report, subject);
}

void sl_eval_report_print_markdown(const struct sl_eval_report *report, const char *subject, FILE *file) {
    print_report(&(struct writer){.file = file, .markdown = true}, report, subject);
}
