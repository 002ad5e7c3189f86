// SPDX-License-Identifier: Apache-2.0
#include "lab/train/trainer.h"

#include <math.h>
#include <stdlib.h>

enum sl_status sl_trainer_init(struct sl_trainer *trainer, const struct sl_trainer_config *config,
                               struct sl_heads *heads, struct sl_error *err) {
    size_t n = (size_t)config->n_steps;
    *trainer = (struct sl_trainer){.config = *config, .heads = heads};
    trainer->curve_memory = calloc(n, 3 * sizeof(float));
    SL_FAIL_IF(trainer->curve_memory == NULL, err, SL_ERR_EXHAUSTED, "out of memory for %zu steps", n);
    trainer->curve = (struct sl_trainer_curve){.smooth_l1 = trainer->curve_memory,
                                               .smoothness = trainer->curve_memory + n,
                                               .overlap = trainer->curve_memory + 2 * n};
    return SL_OK;
}

void sl_trainer_cleanup(struct sl_trainer *trainer) {
    free(trainer->curve_memory);
    *trainer = (struct sl_trainer){0};
}

int64_t sl_trainer_step_number(const struct sl_trainer *trainer) {
    return sl_heads_get_state(trainer->heads)->n_steps;
}

bool sl_trainer_done(const struct sl_trainer *trainer) {
    return sl_trainer_step_number(trainer) >= trainer->config.n_steps;
}

enum sl_status sl_trainer_step(struct sl_trainer *trainer, const struct sl_example_source *source,
                               struct sl_error *err) {
    const struct sl_trainer_config *c = &trainer->config;
    int64_t step = sl_trainer_step_number(trainer);
    struct sl_heads_loss loss = {0};
    trainer->n_tokens = 0;
    for (int i = 0; i < c->batch; i++) {
        const struct sl_example *example;
        enum sl_status status =
            source->get(source->arg, (uint64_t)step * (uint64_t)c->batch + (uint64_t)i, &example, err);
        for (int l = 0; status == SL_OK && l < example->n_layers; l++) {
            struct sl_heads_example layer = sl_example_layer(example, l);
            status = sl_heads_backward(trainer->heads, l, &layer, c->smooth, 1.0 / c->batch, &loss, err);
        }
        SL_TRY(status);
        trainer->n_tokens += example->n_tokens;
    }
    SL_FAIL_IF(!isfinite(loss.smooth_l1) || !isfinite(loss.smoothness), err, SL_ERR_INVALID,
               "training has diverged: the loss of step %lld is %g; use a smaller "
               "learning rate",
               (long long)step + 1, loss.smooth_l1);
    struct sl_adamw adamw = c->adamw;
    adamw.lr = sl_heads_lr(c->adamw.lr, step, c->warm_up, c->n_steps);
    sl_heads_step(trainer->heads, &adamw);
    trainer->curve.smooth_l1[step] = (float)loss.smooth_l1;
    trainer->curve.smoothness[step] = (float)loss.smoothness;
    trainer->curve.overlap[step] = (float)loss.overlap;
    return SL_OK;
}

struct sl_heads_loss sl_trainer_recent(const struct sl_trainer *trainer, int64_t n) {
    int64_t end = sl_trainer_step_number(trainer), begin = end > n ? end - n : 0;
    struct sl_heads_loss mean = {0};
    for (int64_t i = begin; i < end; i++) {
        mean.smooth_l1 += (double)trainer->curve.smooth_l1[i] / (double)(end - begin);
        mean.smoothness += (double)trainer->curve.smoothness[i] / (double)(end - begin);
        mean.overlap += (double)trainer->curve.overlap[i] / (double)(end - begin);
    }
    return mean;
}
