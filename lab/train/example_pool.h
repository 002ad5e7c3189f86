// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what retaining heads learn from, prompt by prompt: read once and kept, to be walked through over and over;
 *          or read anew for every step, where there are more prompts than memory.
 */
#pragma once

#include "lab/eval_model.h"
#include "lab/train/trainer.h"
#include "lab/train/training_prompts.h"

struct sl_example_pool_config {
    const struct sl_eval_model *model; // its arena has room for the longest prompt
    const struct sl_training_prompts *prompts;
    int chunk;           // tokens a call of the model's engine
    int64_t n_prompts;   // to keep; 0: none
    size_t memory_bytes; // that they may take
    uint64_t seed;       // of the order
    enum sl_status (*progress_fn)(void *arg, int64_t tokens_done,
                                  int64_t tokens_total); // while they are read; not NULL
    void *arg;
};

struct sl_example_pool;

/*
 * Make the prompts and read those that are to be kept. SL_ERR_INVALID, before any is read: memory_bytes is too little
 * (says for how many it is enough). What progress_fn returns besides SL_OK ends the work.
 */
enum sl_status sl_example_pool_open(const struct sl_example_pool_config *config, struct sl_example_pool **pool_out,
                                    struct sl_error *err);
void sl_example_pool_close(struct sl_example_pool **pool);

// A number of what is in the prompts: all that are kept, or the first ones.
uint64_t sl_example_pool_digest(const struct sl_example_pool *pool);
int64_t sl_example_pool_tokens(const struct sl_example_pool *pool); // kept
size_t sl_example_pool_bytes(const struct sl_example_pool *pool);

struct sl_example_source sl_example_pool_source(struct sl_example_pool *pool);
