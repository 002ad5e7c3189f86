// SPDX-License-Identifier: Apache-2.0
// Purpose: for tests of what measures a model: models/demo and the text that comes with the tool.
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "lab/eval_model.h"
#include "engine/tensor/cpu/tiers.h"

struct model_fixture {
    struct sl_eval_model m;
    int32_t *tokens;
    int64_t n_tokens;
};

/*
 * For a group's set-up: what it returns, with the fixture in *state. What is computed by hand, or bit by bit the same, is
 * so on a tier that rounds nothing to bf16, as the fastest may: on the first one after the reference, which is not slow.
 */
static inline int model_fixture_open(void **state, int64_t least_tokens) {
    struct model_fixture *f = calloc(1, sizeof *f);
    struct sl_eval_model_config config = {
        .dir = "models/demo", .threads = 2, .max_rows = 512, .cache_tokens = 4096, .tokenizer = true};
    struct sl_error err = {0};
    const char *const *tiers = sl_ops_tiers();
    setenv("SLUICE_TIER", tiers[1] != NULL ? tiers[1] : tiers[0], 1);
    if (f == NULL || sl_eval_model_open(&config, &f->m, &err) != SL_OK ||
        sl_eval_model_read(&f->m, NULL, &f->tokens, &f->n_tokens, &err) != SL_OK) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    *state = f;
    return f->n_tokens < least_tokens;
}

// For the tear-down: every session must have gone back.
static inline int model_fixture_close(void **state) {
    struct model_fixture *f = *state;
    struct sl_arena_stats stats;
    sl_arena_get_stats(f->m.arena, &stats);
    sl_eval_model_close(&f->m);
    free(f->tokens);
    free(f);
    return stats.n_blocks != 0;
}
