// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: training data of retaining heads, prompt by prompt: read once, kept and used repeatedly; or read again for
 *          every step, if the prompts exceed memory.
 */
#pragma once

#include "lab/eval_model.h"
#include "lab/train/trainer.h"
#include "lab/train/training_prompts.h"

struct sl_example_pool_config {
    const struct sl_eval_model *model; // its arena has room for the longest prompt
    struct sl_training_prompts *prompts;
    int chunk;           // tokens per call of the model's engine
    int64_t n_prompts;   // to keep; 0: none
    size_t memory_bytes; // limit for kept prompts
    uint64_t seed;       // seed of the order
    enum sl_status (*progress_fn)(void *arg, int64_t tokens_done,
                                  int64_t tokens_total); // while they are read; not NULL
    void *arg;
};

struct sl_example_pool;

/*
 * Makes the prompts and reads those that are kept. SL_ERR_INVALID, before any is read: memory_bytes is too small (err
 * gives the number of prompts that fit). A status of progress_fn other than SL_OK ends the work.
 */
enum sl_status sl_example_pool_open(const struct sl_example_pool_config *config, struct sl_example_pool **pool_out,
                                    struct sl_error *err);
void sl_example_pool_close(struct sl_example_pool **pool);

// Returns a hash of the prompts: of all kept ones, or of the first ones.
uint64_t sl_example_pool_digest(const struct sl_example_pool *pool);
int64_t sl_example_pool_tokens(const struct sl_example_pool *pool); // tokens of the kept prompts
size_t sl_example_pool_bytes(const struct sl_example_pool *pool);

struct sl_example_source sl_example_pool_source(struct sl_example_pool *pool);
