// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice eval suites`: runs tasks and data sets with recipes beside the full cache, and shows tables and
// plots.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/whole_file.h"
#include "client/cli/table.h"
#include "lab/eval/eval.h"
#include "lab/eval/eval_session.h"
#include "lab/eval/report/eval_plots.h"
#include "lab/plot.h"

struct suites_config {
    struct sl_tool_config tool;
    struct sl_eval_options eval;
    const char *png, *markdown, *part;
    bool list;
};

static const struct sl_option options[] = {
    SL_EVAL_PROMPT_OPTIONS(suites_config),
    SL_EVAL_TASK_OPTIONS(suites_config),
    SL_EVAL_ASK_OPTIONS(suites_config),
    SL_EVAL_CLUSTER_OPTIONS(suites_config),
    {"part", 0, SL_OPTION_STRING, "1/1", "I/N",
     "ask only this part of the samples; N processes with files of their own, put one behind the other, are one run",
     SL_FIELD(suites_config, part)},
    {"png", 0, SL_OPTION_STRING, NULL, "PREFIX", "draw PREFIX-pareto.png, -bars.png and -tasks.png (needs gnuplot)",
     SL_FIELD(suites_config, png)},
    {"markdown", 0, SL_OPTION_STRING, NULL, "FILE", "the tables as a page", SL_FIELD(suites_config, markdown)},
    {"list", 0, SL_OPTION_FLAG, NULL, NULL, "say which tasks there are", SL_FIELD(suites_config, list)},
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice eval suites",
    .usage = "--model DIR (--tasks A,B | --plan FILE) [options]",
    .summary =
        "Ask a model questions with known answers under each recipe, and compare the scores with the full cache's.",
    .epilog = "docs/EVALUATION.md describes tasks, metrics, plans and the tables.\n"
              "Ctrl-C ends it with the tables of what there is; with --out the same command goes on from "
              "there.\n" SL_EXIT_CODES_HELP,
    SL_OPTIONS(options),
};

static void list_tasks(void) {
    static const struct sl_column columns[] = {{"TASK", false}, {"METRIC", false}, {"LEAST TOKENS", true}, {"", false}};
    struct sl_table table = SL_TABLE(columns);
    for (const struct sl_task *task = sl_tasks(); task->name; task++) {
        sl_table_add(&table, "%s\t%s\t%d\t%s", task->name, task->metric, task->min_tokens, task->summary);
    }
    sl_table_finish(&table, stdout);
}

// --- files ------------------------------------------------------------------------------------------------------

static enum sl_status write_markdown(const struct sl_eval_session *s, const char *path, struct sl_error *err) {
    struct sl_whole_file page;
    enum sl_status status = sl_whole_file_open(&page, path, err);
    if (status != SL_OK) {
        return status;
    }
    sl_eval_report_print_markdown(&s->report, s->subject, page.file);
    return sl_whole_file_finish(&page, err);
}

static enum sl_status draw(const struct sl_eval_report *report, const char *prefix, struct sl_error *err) {
    static const struct {
        const char *suffix;
        enum sl_status (*draw)(const struct sl_eval_report *report, const char *path, struct sl_error *err);
    } pictures[] = {
        {"-pareto.png", sl_eval_plot_pareto}, {"-bars.png", sl_eval_plot_bars}, {"-tasks.png", sl_eval_plot_tasks}};
    enum sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < sizeof pictures / sizeof pictures[0]; i++) {
        char *path;
        if (asprintf(&path, "%s%s", prefix, pictures[i].suffix) < 0) {
            return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
        }
        status = pictures[i].draw(report, path, err);
        free(path);
    }
    return status;
}

static size_t n_answers(const struct sl_eval_report *report) {
    size_t n = 0;
    for (size_t i = 0; i < report->n_rows; i++) {
        n += report->rows[i].n_answers;
    }
    return n;
}

static enum sl_status show(const struct suites_config *c, const struct sl_eval_session *s, struct sl_error *err) {
    enum sl_status status = SL_OK;
    if (c->tool.json) {
        status = sl_eval_report_print_json(&s->report, stdout, err);
    } else {
        sl_eval_report_print(&s->report, s->subject, stdout);
    }
    if (status == SL_OK && c->markdown) {
        status = write_markdown(s, c->markdown, err);
    }
    if (status == SL_OK && n_answers(&s->report) == 0) {
        return sl_fail(err, SL_ERR_PRECONDITION, "there is no answer; the reasons are above");
    }
    return status == SL_OK && c->png ? draw(&s->report, c->png, err) : status;
}

// --- the command ------------------------------------------------------------------------------------------------

// Parses "2/4": the second of four processes, which asks samples 1, 5, 9, ...
static enum sl_status read_part(const char *text, struct sl_eval_session *s, struct sl_error *err) {
    long long part, n_parts;
    int used = -1;
    if (sscanf(text, "%9lld/%9lld%n", &part, &n_parts, &used) != 2 || text[used] != '\0' || part < 1 ||
        part > n_parts) {
        return sl_fail(err, SL_ERR_INVALID, "--part %s: expected I/N, such as 2/4", text);
    }
    s->part = part - 1;
    s->n_parts = n_parts;
    return SL_OK;
}

// Checks the outputs before the work, which may take hours.
static enum sl_status check_outputs(const struct suites_config *c, struct sl_error *err) {
    enum sl_status status = sl_plot_check(c->png, err);
    if (status != SL_OK || !c->markdown) {
        return status;
    }
    struct sl_whole_file page;
    status = sl_whole_file_open(&page, c->markdown, err);
    if (status == SL_OK) {
        sl_whole_file_abandon(&page);
    }
    return status;
}

static enum sl_status evaluate(void *config, struct sl_error *err) {
    const struct suites_config *c = config;
    if (c->list) {
        list_tasks();
        return SL_OK;
    }
    struct sl_eval_session session = {.command = "eval suites", .options = &c->eval};
    enum sl_status status = read_part(c->part, &session, err);
    status = status == SL_OK ? check_outputs(c, err) : status;
    status = status == SL_OK ? sl_eval_options_plan(&c->eval, &session.plan, err) : status;
    if (status != SL_OK) {
        return status;
    }
    status = sl_eval_session_run(&session, err);
    if (status == SL_OK) {
        status = show(c, &session, err);
    } else if (status == SL_ERR_CANCELLED && session.report.n_rows > 0) {
        struct sl_error lost; // the cancellation is the more useful error
        show(c, &session, &lost);
    }
    sl_eval_session_cleanup(&session);
    return status;
}

int sl_command_eval_suites(int argc, char **argv) {
    struct suites_config config = {0};
    return sl_tool_run(&program, argc, argv, &config, evaluate);
}
