// SPDX-License-Identifier: Apache-2.0
#include "lab/train/example_pool.h"

#include <stdlib.h>

#include "base/hash.h"
#include "lab/random.h"

#define N_DIGESTED 16 // prompts that represent all if none is kept

struct sl_example_pool {
    struct sl_example_pool_config config;
    struct sl_teacher teacher;
    struct sl_training_prompt *prompts; // [n], until they have been read
    struct sl_example *examples;        // [n]
    int64_t n, n_tokens;
    size_t n_bytes;
    uint64_t digest;
    struct sl_example latest; // if none is kept
};

// --- making prompts --------------------------------------------------------------------------------------------------

static enum sl_status make_prompts(struct sl_example_pool *pool, int64_t n, struct sl_error *err) {
    pool->prompts = calloc((size_t)n, sizeof *pool->prompts);
    pool->examples = calloc((size_t)n, sizeof *pool->examples);
    SL_FAIL_IF(!pool->prompts || !pool->examples, err, SL_ERR_EXHAUSTED, "out of memory for %lld prompts",
               (long long)n);
    int64_t n_fit = -1;
    for (; pool->n < n; pool->n++) {
        struct sl_training_prompt *prompt = &pool->prompts[pool->n];
        enum sl_status status = sl_training_prompts_get(pool->config.prompts, (uint64_t)pool->n, prompt, err);
        if (status == SL_OK) {
            status = pool->config.progress_fn(pool->config.arg, 0, 0); // checks for a stop
        }
        SL_TRY_OR(status, free(prompt->tokens));
        pool->digest = sl_hash(prompt->tokens, (size_t)prompt->n_tokens * sizeof *prompt->tokens, pool->digest);
        pool->digest = sl_hash(&prompt->n_prompt, sizeof prompt->n_prompt, pool->digest);
        pool->n_tokens += prompt->n_prompt;
        pool->n_bytes += sl_example_bytes(pool->config.model->runtime.config, prompt->n_prompt);
        n_fit = n_fit < 0 && pool->n_bytes > pool->config.memory_bytes ? pool->n : n_fit;
    }
    if (pool->config.n_prompts > 0 && n_fit >= 0) {
        char needed[32], allowed[32];
        return sl_fail(
            err, SL_ERR_INVALID,
            "%lld prompts take %s and --memory is %s, enough for %lld: use --prompts %lld, or --prompts 0 to "
            "read them anew for every step",
            (long long)n, sl_format_bytes((double)pool->n_bytes, needed, sizeof needed),
            sl_format_bytes((double)pool->config.memory_bytes, allowed, sizeof allowed), (long long)n_fit,
            (long long)n_fit);
    }
    return SL_OK;
}

static void free_prompts(struct sl_example_pool *pool) {
    for (int64_t i = 0; pool->prompts && i < pool->n; i++) {
        free(pool->prompts[i].tokens);
    }
    free(pool->prompts);
    pool->prompts = NULL;
}

// --- life ------------------------------------------------------------------------------------------------------------

static enum sl_status read_prompts(struct sl_example_pool *pool, struct sl_error *err) {
    int64_t done = 0;
    enum sl_status status = pool->config.progress_fn(pool->config.arg, 0, pool->n_tokens);
    for (int64_t i = 0; i < pool->n && status == SL_OK; i++) {
        const struct sl_training_prompt *prompt = &pool->prompts[i];
        status = sl_example_read(&pool->teacher, prompt->tokens, prompt->n_tokens, prompt->n_prompt, &pool->examples[i],
                                 err);
        if (status == SL_OK) {
            done += prompt->n_prompt;
            status = pool->config.progress_fn(pool->config.arg, done, pool->n_tokens);
        }
    }
    return status;
}

enum sl_status sl_example_pool_open(const struct sl_example_pool_config *config, struct sl_example_pool **pool_out,
                                    struct sl_error *err) {
    struct sl_example_pool *pool = calloc(1, sizeof *pool);
    SL_FAIL_IF(!pool, err, SL_ERR_EXHAUSTED, "out of memory");
    const struct sl_eval_model *m = config->model;
    pool->config = *config;
    pool->teacher = (struct sl_teacher){
        .engine = m->runtime.engine, .model = m->runtime.model, .arena = m->arena, .chunk = config->chunk};
    enum sl_status status = make_prompts(pool, config->n_prompts > 0 ? config->n_prompts : N_DIGESTED, err);
    SL_THEN(status, config->n_prompts > 0 ? read_prompts(pool, err) : SL_OK);
    free_prompts(pool);
    if (config->n_prompts == 0) {
        pool->n = pool->n_tokens = 0;
        pool->n_bytes = 0;
    }
    SL_TRY_OR(status, sl_example_pool_close(&pool));
    *pool_out = pool;
    return SL_OK;
}

void sl_example_pool_close(struct sl_example_pool **pool_inout) {
    struct sl_example_pool *pool = *pool_inout;
    if (pool) {
        for (int64_t i = 0; pool->examples && i < pool->n; i++) {
            sl_example_cleanup(&pool->examples[i]);
        }
        free(pool->examples);
        sl_example_cleanup(&pool->latest);
        free(pool);
        *pool_inout = NULL;
    }
}

uint64_t sl_example_pool_digest(const struct sl_example_pool *pool) {
    return pool->digest;
}

int64_t sl_example_pool_tokens(const struct sl_example_pool *pool) {
    return pool->n_tokens;
}

size_t sl_example_pool_bytes(const struct sl_example_pool *pool) {
    return pool->n_bytes;
}

// --- one example -----------------------------------------------------------------------------------------------------

static enum sl_status read_anew(struct sl_example_pool *pool, uint64_t index, struct sl_error *err) {
    struct sl_training_prompt prompt;
    SL_TRY(sl_training_prompts_get(pool->config.prompts, index, &prompt, err));
    sl_example_cleanup(&pool->latest);
    enum sl_status status =
        sl_example_read(&pool->teacher, prompt.tokens, prompt.n_tokens, prompt.n_prompt, &pool->latest, err);
    free(prompt.tokens);
    return status;
}

static enum sl_status get(void *arg, uint64_t index, const struct sl_example **example_out, struct sl_error *err) {
    struct sl_example_pool *pool = arg;
    if (pool->n == 0) {
        *example_out = &pool->latest;
        return read_anew(pool, index, err);
    }
    uint64_t n = (uint64_t)pool->n, key = sl_random_start("order", pool->config.seed, index / n).state;
    *example_out = &pool->examples[sl_random_permute(index % n, n, key)];
    return SL_OK;
}

struct sl_example_source sl_example_pool_source(struct sl_example_pool *pool) {
    return (struct sl_example_source){get, pool};
}
