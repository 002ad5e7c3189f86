// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: logits of the rows that want them: final norm and head, a block of rows at a time; and the tokens chosen
 *          from them.
 *
 * Design: on a device with its own memory, a row stays there if only a token is wanted and the row's best logits
 *         determine it (ops->pick). Otherwise a second copy fetches the row.
 */
#include <string.h>

#include "engine/model/forward_internal.h"

// The results that are wanted of a row.
struct wanted {
    float *copies[2]; // NULL: unused
    struct sl_choice *choice;
};

static struct wanted who_wants(const struct sl_input *input, int i, int64_t n_vocab) {
    bool is_last = i == input->n_tokens - 1;
    return (struct wanted){
        .copies = {input->all_logits != NULL ? input->all_logits + i * n_vocab : NULL, is_last ? input->logits : NULL},
        .choice = is_last ? input->choice : NULL};
}

static bool is_wanted(const struct wanted *wanted) {
    return wanted->copies[0] != NULL || wanted->copies[1] != NULL || wanted->choice != NULL;
}

// A run of adjacent rows, and the state of each.
struct run {
    struct sl_engine *engine;
    float *x; // of the pass
    int64_t count, n_vocab;
    struct wanted wanted[SL_LOGIT_ROWS];
    struct sl_pick asked[SL_LOGIT_ROWS]; // most 0: not asked
    bool chosen[SL_LOGIT_ROWS], here[SL_LOGIT_ROWS];
};

// --- on the device ---------------------------------------------------------------------------------------------------

// Copies the rows that are still needed to memory that the host can read. Returns whether there were any.
static bool bring_rows(struct run *run) {
    struct sl_engine *e = run->engine;
    bool any = false;
    for (int64_t r = 0; r < run->count; r++) {
        const struct wanted *w = &run->wanted[r];
        bool copied = w->copies[0] != NULL || w->copies[1] != NULL;
        bool chosen = w->choice == NULL || run->chosen[r] || run->asked[r].most > 0;
        if (!run->here[r] && (copied || !chosen)) {
            size_t bytes = (size_t)run->n_vocab * sizeof *e->logits;
            sl_stream_copy(e->stream, e->logits_here + r * run->n_vocab, e->logits + r * run->n_vocab, bytes);
            run->here[r] = any = true;
        }
    }
    return any;
}

// Asks for the best logits of rows that may not need more.
static void ask(struct run *run) {
    struct sl_engine *e = run->engine;
    bool any = false;
    for (int64_t r = 0; r < run->count; r++) {
        const struct sl_choice *choice = run->wanted[r].choice;
        if (choice != NULL && sl_sampler_asks(choice->sampling, choice->n_history, &run->asked[r])) {
            any = true;
        }
    }
    if (any) {
        e->model->ops->pick(e->stream, e->logits, run->n_vocab, run->asked, run->count, e->picked);
    }
}

// --- on the host -----------------------------------------------------------------------------------------------------

// Chooses by candidates if there are some; then from rows that have arrived, and copies these to their destinations.
static void hand_out_tasks(void *arg, int64_t begin, int64_t end, int member) {
    struct run *run = arg;
    size_t bytes = (size_t)run->n_vocab * sizeof(float);
    (void)member;
    for (int64_t r = begin; r < end; r++) {
        struct wanted *w = &run->wanted[r];
        const float *logits = run->engine->logits_here + r * run->n_vocab;
        if (w->choice != NULL && run->asked[r].most > 0 && !run->chosen[r]) {
            run->chosen[r] = sl_choice_take_candidates(w->choice, &run->engine->picked[r]);
            run->asked[r].most = 0;
        }
        if (w->choice != NULL && run->here[r] && !run->chosen[r]) {
            sl_choice_take_row(w->choice, logits);
            run->chosen[r] = true;
        }
        for (int i = 0; i < 2 && run->here[r]; i++) {
            if (w->copies[i] != NULL) {
                memcpy(w->copies[i], logits, bytes);
                w->copies[i] = NULL;
            }
        }
    }
}

// --- both ------------------------------------------------------------------------------------------------------------

// Computes norm and head for the adjacent rows from `row` on, then delivers every row.
static enum sl_status project_run(struct run *run, int64_t row, struct sl_error *err) {
    struct sl_engine *e = run->engine;
    int64_t hidden = e->model->config.hidden;
    const struct sl_row_vectors x = {run->x + row * hidden, hidden, run->count, 1};
    e->model->ops->norm(e->stream, &e->model->final_norm, x, e->h, hidden);
    struct sl_matmul product = {.x = e->h, .m = run->count, .y = e->logits}; // not `reading`: some rows of a prompt
    sl_engine_multiply(e, &e->model->head, product);
    for (int64_t r = 0; r < run->count; r++) {
        run->asked[r] = (struct sl_pick){0};
        run->chosen[r] = false;
        run->here[r] = e->logits_here == e->logits;
    }
    if (e->logits_here != e->logits) {
        ask(run);
        bring_rows(run);
    }
    enum sl_status status;
    do {
        status = sl_stream_wait(e->stream, err);
        if (status == SL_OK) {
            sl_stream_run(e->stream, run->count, 1, hand_out_tasks, run);
        }
    } while (status == SL_OK && bring_rows(run));
    return status;
}

// Processes the wanted rows in runs of adjacent ones: a decode step of many sessions is one run.
enum sl_status sl_pass_logits(struct sl_pass *pass, struct sl_error *err) {
    struct run run = {
        .engine = pass->engine, .x = pass->activations->x, .n_vocab = pass->engine->model->config.n_vocab};
    enum sl_status status = SL_OK;
    int64_t row = 0;
    for (int s = 0; s < pass->n_inputs; s++) {
        for (int i = 0; status == SL_OK && i < pass->inputs[s].n_tokens; i++, row++) {
            struct wanted wanted = who_wants(&pass->inputs[s], i, run.n_vocab);
            if (run.count > 0 && (!is_wanted(&wanted) || run.count == SL_LOGIT_ROWS)) {
                status = project_run(&run, row - run.count, err);
                run.count = 0;
            }
            if (is_wanted(&wanted)) {
                run.wanted[run.count++] = wanted;
            }
        }
    }
    return status == SL_OK && run.count > 0 ? project_run(&run, row - run.count, err) : status;
}
