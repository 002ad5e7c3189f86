// SPDX-License-Identifier: Apache-2.0
// Purpose: logits of the rows that want them: final norm and head, a block of rows at a time.
#include <string.h>

#include "model/forward_internal.h"

// Where the logits of row i of an input go, or NULL when nobody wants them. `also_out`: a second place, or NULL.
static float *logits_wanted(const struct sl_input *input, int i, int64_t n_vocab, float **also_out) {
    bool is_last = i == input->n_tokens - 1;
    *also_out = is_last ? input->logits : NULL;
    if (input->all_logits != NULL) {
        return input->all_logits + i * n_vocab;
    }
    float *only = *also_out;
    *also_out = NULL;
    return only;
}

struct hand_out_args {
    const float *logits; // [count][n_vocab]
    int64_t n_vocab;
    float *wanted[SL_LOGIT_ROWS], *also[SL_LOGIT_ROWS];
};

static void hand_out_tasks(void *arg, int64_t begin, int64_t end, int member) {
    const struct hand_out_args *a = arg;
    size_t bytes = (size_t)a->n_vocab * sizeof(float);
    (void)member;
    for (int64_t r = begin; r < end; r++) {
        memcpy(a->wanted[r], a->logits + r * a->n_vocab, bytes);
        if (a->also[r] != NULL) {
            memcpy(a->also[r], a->logits + r * a->n_vocab, bytes);
        }
    }
}

// Norm and head for `count` adjacent rows, then every row to those who want it. (s, i) is the first row's place.
static enum sl_status project_run(struct sl_engine *e, const struct sl_input *inputs, int s, int i, int64_t row,
                                  int64_t count, struct sl_error *err) {
    const struct sl_model *model = e->model;
    const struct sl_ops *ops = model->ops;
    int64_t hidden = model->config.hidden, n_vocab = model->config.n_vocab;
    ops->norm(e->stream, &model->final_norm, e->x + row * hidden, hidden, count, 1, e->h, hidden);
    sl_engine_multiply(e, &model->head, e->h, count, e->logits, false);
    if (e->logits_here != e->logits) {
        sl_stream_copy(e->stream, e->logits_here, e->logits, (size_t)(count * n_vocab) * sizeof *e->logits);
    }
    enum sl_status status = sl_stream_wait(e->stream, err);
    if (status != SL_OK) {
        return status;
    }
    struct hand_out_args args = {.logits = e->logits_here, .n_vocab = n_vocab};
    for (int64_t r = 0; r < count; r++) {
        args.wanted[r] = logits_wanted(&inputs[s], i, n_vocab, &args.also[r]);
        if (++i == inputs[s].n_tokens) {
            s++;
            i = 0;
        }
    }
    sl_stream_run(e->stream, count, 1, hand_out_tasks, &args);
    return SL_OK;
}

// The rows that are wanted, in runs of adjacent ones: a decode step of many sessions is one run.
enum sl_status sl_pass_logits(struct sl_pass *pass, struct sl_error *err) {
    enum sl_status status = SL_OK;
    struct sl_engine *e = pass->engine;
    const struct sl_input *inputs = pass->inputs;
    int64_t row = 0, run = 0;
    int run_s = 0, run_i = 0;
    for (int s = 0; s < pass->n_inputs; s++) {
        for (int i = 0; status == SL_OK && i < inputs[s].n_tokens; i++, row++) {
            float *also;
            bool wanted = logits_wanted(&inputs[s], i, e->model->config.n_vocab, &also) != NULL;
            if (run > 0 && (!wanted || run == SL_LOGIT_ROWS)) {
                status = project_run(e, inputs, run_s, run_i, row - run, run, err);
                run = 0;
            }
            if (wanted && run++ == 0) {
                run_s = s;
                run_i = i;
            }
        }
    }
    return status == SL_OK && run > 0 ? project_run(e, inputs, run_s, run_i, row - run, run, err) : status;
}
