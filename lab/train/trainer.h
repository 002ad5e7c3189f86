// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a training run: a number of steps of a number of prompts each, and how to stop and resume.
 *
 * Design: only the first parameters are random here, and example i is the same on every request. So a run that is
 *         loaded from a checkpoint continues to the same bits as an uninterrupted run.
 */
#pragma once

#include "lab/train/example.h"
#include "lab/train/heads.h"

struct sl_trainer_config {
    int64_t n_steps, warm_up;
    int batch;             // prompts per step
    double smooth;         // weight of the smoothness loss: 0.0025 in the paper
    struct sl_adamw adamw; // lr: the peak
};

// A source of examples. Example `index` must always be the same one; it stays valid until the next call.
struct sl_example_source {
    enum sl_status (*get)(void *arg, uint64_t index, const struct sl_example **example_out, struct sl_error *err);
    void *arg;
};

// Values of every step taken.
struct sl_trainer_curve {
    float *smooth_l1, *smoothness, *overlap; // [n_steps]
};

struct sl_trainer {
    struct sl_trainer_config config;
    struct sl_heads *heads; // not owned
    struct sl_trainer_curve curve;
    float *curve_memory;
    int64_t n_tokens; // tokens of prompts, in the last step
};

// Initializes a trainer. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_trainer_init(struct sl_trainer *trainer, const struct sl_trainer_config *config,
                               struct sl_heads *heads, struct sl_error *err);
void sl_trainer_cleanup(struct sl_trainer *trainer);

int64_t sl_trainer_step_number(const struct sl_trainer *trainer); // steps taken
bool sl_trainer_done(const struct sl_trainer *trainer);

// Takes one step. SL_ERR_INVALID: the loss is not finite.
enum sl_status sl_trainer_step(struct sl_trainer *trainer, const struct sl_example_source *source,
                               struct sl_error *err);

// Returns means over the last steps, at most n of them.
struct sl_heads_loss sl_trainer_recent(const struct sl_trainer *trainer, int64_t n);

// --- checkpoints -----------------------------------------------------------------------------------------------------

// A parameter of a run: {"--hidden", "1024"}. No newlines.
struct sl_trainer_fact {
    const char *name;
    char value[128];
};

// Writes a checkpoint, whole or not at all. SL_ERR_IO.
enum sl_status sl_trainer_save(struct sl_trainer *trainer, const char *path, const struct sl_trainer_fact *facts,
                               size_t n_facts, struct sl_error *err);

/*
 * Resumes from a checkpoint. SL_ERR_NOT_FOUND: there is none. SL_ERR_PRECONDITION: it has other facts; err names the
 * first one. SL_ERR_INVALID: it is damaged; the trainer must then not be used.
 */
enum sl_status sl_trainer_load(struct sl_trainer *trainer, const char *path, const struct sl_trainer_fact *facts,
                               size_t n_facts, struct sl_error *err);
