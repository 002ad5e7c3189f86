// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a run of training: so many steps of so many prompts each, and how to stop and go on.
 *
 * Design: nothing but the first parameters is random here, and example i is the same whenever it is asked for. So a run
 *         that is loaded from a checkpoint goes on to the same bits as one that was never stopped.
 */
#pragma once

#include "lab/train/example.h"
#include "lab/train/heads.h"

struct sl_trainer_config {
    int64_t n_steps, warm_up;
    int batch;             // prompts a step
    double smooth;         // of the smoothness loss: the paper's 0.0025
    struct sl_adamw adamw; // lr: the highest
};

// Where prompts come from. Example `index` must always be the same one; it stays valid until the next call.
struct sl_example_source {
    enum sl_status (*get)(void *arg, uint64_t index, const struct sl_example **example_out, struct sl_error *err);
    void *arg;
};

// Of every step taken.
struct sl_trainer_curve {
    float *smooth_l1, *smoothness, *overlap; // [n_steps]
};

struct sl_trainer {
    struct sl_trainer_config config;
    struct sl_heads *heads; // not owned
    struct sl_trainer_curve curve;
    float *curve_memory;
    int64_t n_tokens; // of prompts, in the last step
};

// SL_ERR_EXHAUSTED.
enum sl_status sl_trainer_init(struct sl_trainer *trainer, const struct sl_trainer_config *config,
                               struct sl_heads *heads, struct sl_error *err);
void sl_trainer_cleanup(struct sl_trainer *trainer);

int64_t sl_trainer_step_number(const struct sl_trainer *trainer); // steps taken
bool sl_trainer_done(const struct sl_trainer *trainer);

// One step. SL_ERR_INVALID: the loss is not finite.
enum sl_status sl_trainer_step(struct sl_trainer *trainer, const struct sl_example_source *source,
                               struct sl_error *err);

// Means over the last steps, at most n of them.
struct sl_heads_loss sl_trainer_recent(const struct sl_trainer *trainer, int64_t n);

// --- checkpoints -----------------------------------------------------------------------------------------------------

// What a run was made with: {"--hidden", "1024"}. No newlines.
struct sl_trainer_fact {
    const char *name;
    char value[128];
};

// Written whole or not at all. SL_ERR_IO.
enum sl_status sl_trainer_save(struct sl_trainer *trainer, const char *path, const struct sl_trainer_fact *facts,
                               size_t n_facts, struct sl_error *err);

/*
 * Go on where the checkpoint was written. SL_ERR_NOT_FOUND: there is none. SL_ERR_PRECONDITION: it was made with other
 * facts, of which the first is named. SL_ERR_INVALID: it is broken; the run is then to be given up.
 */
enum sl_status sl_trainer_load(struct sl_trainer *trainer, const char *path, const struct sl_trainer_fact *facts,
                               size_t n_facts, struct sl_error *err);
