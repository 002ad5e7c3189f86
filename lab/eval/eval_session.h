// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: an evaluation from its plan to its report, as `sluice eval suites` and `grid` run it: whoever answers is
 *          opened, asked and closed, progress is shown on standard error, Ctrl-C ends it with what there is.
 */
#pragma once

#include "client/cli/tool.h"
#include "lab/eval/report/eval_report.h"
#include "lab/eval/run/eval_options.h"
#include "lab/eval/run/eval_run.h"

struct sl_eval_session {
    const char *command; // for messages: "eval suites"
    const struct sl_eval_options *options;
    struct sl_eval_plan plan; // the session's from the beginning
    int64_t part, n_parts;    // see struct sl_eval_runner

    const char **canonical;
    struct sl_eval_questions questions;
    struct sl_eval_results *results;
    struct sl_eval_report report;
    char subject[512]; // what was evaluated, in a line

    struct sl_signals signals;
    int width; // of the terminal behind standard error; 0: it is none
    int64_t drawn_ns;
    bool shown;
};

/*
 * Ask what is not answered yet, and make the report. SL_ERR_CANCELLED: by a signal, and the report is about what there
 * is (report.n_rows 0: the signal came before anything). After any other failure there is none.
 */
enum sl_status sl_eval_session_run(struct sl_eval_session *session, struct sl_error *err);
void sl_eval_session_cleanup(struct sl_eval_session *session);
