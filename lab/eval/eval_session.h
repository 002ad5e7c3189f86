// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: runs an evaluation from its plan to its report, for `sluice eval suites` and `grid`. It opens the
 *          answerer, asks and closes it, and shows progress on standard error; Ctrl-C ends it with the answers so
 *          far.
 */
#pragma once

#include "client/cli/tool.h"
#include "lab/eval/report/eval_report.h"
#include "lab/eval/run/eval_options.h"
#include "lab/eval/run/eval_run.h"

struct sl_eval_session {
    const char *command; // for messages: "eval suites"
    const struct sl_eval_options *options;
    struct sl_eval_plan plan; // owned by the session from the beginning
    int64_t part, n_parts;    // see struct sl_eval_runner

    const char **canonical;
    struct sl_eval_questions questions;
    struct sl_eval_results *results;
    struct sl_eval_report report;
    char subject[512]; // what was evaluated, in a line

    struct sl_signals signals;
    int width; // of the terminal on standard error; 0: no terminal
    int64_t drawn_ns;
    bool shown;
};

/*
 * Asks the unanswered questions, and makes the report. SL_ERR_CANCELLED: a signal came; the report covers the answers
 * so far (report.n_rows 0: there are none). After any other failure there is no report.
 */
enum sl_status sl_eval_session_run(struct sl_eval_session *session, struct sl_error *err);
void sl_eval_session_cleanup(struct sl_eval_session *session);
