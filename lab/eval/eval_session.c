// SPDX-License-Identifier: Apache-2.0
// Purpose: runs an evaluation from its plan to its report. See eval_session.h.
#include "lab/eval/eval_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/cli/progress.h"

#define REDRAW_NS (100 * SL_NS_PER_MS)
#define LINE_NS   (30 * SL_NS_PER_S) // between lines if there is no terminal to draw on

// --- progress ---------------------------------------------------------------------------------------------------

// Writes "1 h 20 min left", or nothing while the time is unknown.
static void format_left(double seconds, char *buf, size_t buf_bytes) {
    int minutes = (int)(seconds / 60 + 0.5);
    if (seconds < 0) {
        buf[0] = '\0';
    } else if (seconds < 90) {
        snprintf(buf, buf_bytes, "%.0f s left", seconds);
    } else if (minutes < 60) {
        snprintf(buf, buf_bytes, "%d min left", minutes);
    } else {
        snprintf(buf, buf_bytes, "%d h %02d min left", minutes / 60, minutes % 60);
    }
}

static void draw(struct sl_eval_session *s, const struct sl_eval_state *state, const char *left) {
    char phase[160];
    const struct sl_plan_cell *cell = &s->plan.cells[state->cell];
    const struct sl_plan_recipe *recipe = &s->plan.recipes[state->recipe];
    snprintf(phase, sizeof phase, "%.30s %zu/%zu, %.40s %.8s", cell->name, state->index + 1, state->n_samples,
             recipe->name, recipe->budget);
    struct sl_progress progress = {
        .phase = phase, .done = (int64_t)state->done, .total = (int64_t)state->total, .unit = "answers"};
    snprintf(progress.note, sizeof progress.note, "%s", left);
    sl_progress_draw(&progress, s->width, stderr);
    s->shown = true;
}

static void hide(struct sl_eval_session *s) {
    if (s->shown) {
        sl_progress_clear(stderr);
        s->shown = false;
    }
}

static void on_progress(void *arg, const struct sl_eval_state *state) {
    struct sl_eval_session *s = arg;
    int64_t now_ns = sl_now_ns();
    bool over = state->done == state->total;
    char left[48];
    if (!over && now_ns - s->drawn_ns < (s->width > 0 ? REDRAW_NS : LINE_NS)) {
        return;
    }
    s->drawn_ns = now_ns;
    format_left(state->left_s, left, sizeof left);
    if (s->width > 0 && !over) {
        draw(s, state, left);
    } else if (s->width == 0) {
        fprintf(stderr, "sluice %s: %zu of %zu answers%s%s\n", s->command, state->done, state->total,
                left[0] && !over ? ", about " : "", over ? "" : left);
    }
}

static bool stopped(void *arg) {
    struct sl_eval_session *s = arg;
    return sl_signals_received(&s->signals) > 0;
}

// --- the session ------------------------------------------------------------------------------------------------

static void describe(struct sl_eval_session *s) {
    size_t n_done = 0, n_all = 0;
    for (size_t i = 0; i < s->report.n_rows; i++) {
        n_done += s->report.rows[i].n_answers;
    }
    for (size_t i = 0; i < s->plan.n_cells; i++) {
        n_all += s->questions.n_samples[i] * s->plan.n_recipes;
    }
    snprintf(s->subject, sizeof s->subject, "%s, weights %s%s%s; seed %llu; %zu recipes, %zu cells, %zu of %zu answers",
             s->options->model, s->options->weights, s->options->coordinator ? ", by the cluster at " : "",
             s->options->coordinator ? s->options->coordinator : "", (unsigned long long)s->plan.seed,
             s->plan.n_recipes, s->plan.n_cells, n_done, n_all);
}

static enum sl_status ask(struct sl_eval_session *s, struct sl_answerer *answerer, struct sl_error *err) {
    struct sl_eval_runner runner = {.plan = &s->plan,
                                    .canonical = s->canonical,
                                    .questions = &s->questions,
                                    .answerer = answerer,
                                    .results = s->results,
                                    .part = s->part,
                                    .n_parts = s->n_parts,
                                    .progress_fn = on_progress,
                                    .arg = s};
    enum sl_status status = sl_eval_runner_run(&runner, err);
    hide(s);
    if (status == SL_ERR_CANCELLED) {
        sl_fail(err, status, "stopped by a signal%s%s", s->options->out ? "; the same command goes on from " : "",
                s->options->out ? s->options->out : "");
    }
    return status;
}

// Opens the results, and asks the open questions.
static enum sl_status work(struct sl_eval_session *s, struct sl_answerer *answerer, struct sl_error *err) {
    const struct sl_eval_options *o = s->options;
    const struct sl_tokenizer *tokenizer = sl_answerer_tokenizer(answerer);
    struct sl_eval_run run = {.model = sl_answerer_fingerprint(answerer),
                              .weights = o->weights,
                              .tokenizer = sl_tokenizer_fingerprint(tokenizer),
                              .seed = s->plan.seed};
    enum sl_status status = sl_eval_results_open(o->out, &run, &s->results, err);
    if (status == SL_OK) {
        status = sl_eval_questions_open(&s->plan, tokenizer, sl_answerer_model(answerer)->max_positions,
                                        o->essays.items, (size_t)o->essays.n, &s->questions, err);
    }
    if (status != SL_OK) {
        return status;
    }
    enum sl_status asked = ask(s, answerer, err);
    if (asked == SL_OK || asked == SL_ERR_CANCELLED) {
        status = sl_eval_report_make(&s->plan, s->canonical, s->questions.n_samples, s->results, &s->report, err);
        if (status == SL_OK) {
            describe(s);
        }
    }
    return status == SL_OK ? asked : status;
}

static enum sl_status check(const struct sl_eval_session *s, enum sl_weight_format *weights_out, struct sl_error *err) {
    if (!s->options->model) {
        return sl_fail(err, SL_ERR_INVALID, "--model DIR is needed");
    }
    if (s->plan.n_cells == 0) {
        return sl_fail(err, SL_ERR_INVALID, "the plan has neither tasks nor data sets");
    }
    return sl_weight_format_parse(s->options->weights, weights_out, err);
}

enum sl_status sl_eval_session_run(struct sl_eval_session *s, struct sl_error *err) {
    const struct sl_eval_options *o = s->options;
    enum sl_weight_format weights;
    struct sl_model_config model;
    enum sl_status status = check(s, &weights, err);
    status = status == SL_OK ? sl_eval_canonical(&s->plan, &s->canonical, err) : status;
    status = status == SL_OK ? sl_model_config_load(o->model, &model, err) : status;
    status = status == SL_OK ? sl_signals_init(&s->signals, err) : status;
    if (status != SL_OK) {
        return status;
    }
    s->width = sl_terminal_width(STDERR_FILENO);
    s->drawn_ns = sl_now_ns();
    struct sl_answerer_config config = {.model_dir = o->model,
                                        .weights = weights,
                                        .device = o->device,
                                        .threads = (int)o->threads,
                                        .max_tokens = sl_eval_plan_tokens(&s->plan, model.max_positions),
                                        .coordinator = o->coordinator,
                                        .tls = o->tls,
                                        .deadline_ms = o->deadline_ms,
                                        .stopped = stopped,
                                        .arg = s};
    struct sl_answerer *answerer;
    status = sl_answerer_open(&config, &answerer, err);
    if (status == SL_OK) {
        status = work(s, answerer, err);
        sl_answerer_close(&answerer);
    }
    sl_signals_cleanup(&s->signals);
    return status;
}

void sl_eval_session_cleanup(struct sl_eval_session *s) {
    sl_eval_report_cleanup(&s->report);
    sl_eval_results_close(&s->results);
    sl_eval_questions_close(&s->questions);
    free(s->canonical);
    sl_eval_plan_cleanup(&s->plan);
}
