// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a program of the engine alone: reads a prompt, compresses it and writes an answer, and links nothing of the
 *          network. test_engine.py compares its answer with `sluice run --local`, and reads what it links.
 *
 *     sluice-engine-smoke MODEL RECIPE PROMPT N_TOKENS
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/runner/local.h"
#include "engine/text/tokenizer/tokenizer.h"

static int fail(const struct sl_error *err) {
    fprintf(stderr, "sluice-engine-smoke: %s\n", err->text);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: sluice-engine-smoke MODEL RECIPE PROMPT N_TOKENS\n");
        return 2;
    }
    struct sl_local_config config = {.model_dir = argv[1], .arena_bytes = (size_t)64 << 20};
    struct sl_local *local;
    struct sl_local_result result = {0};
    struct sl_error err = {0};
    if (sl_local_open(&config, &local, &err) != SL_OK) {
        return fail(&err);
    }
    int32_t *ids = NULL;
    size_t n_ids = 0;
    enum sl_status status =
        sl_tokenizer_encode(sl_local_tokenizer(local), argv[3], strlen(argv[3]), true, &ids, &n_ids, &err);
    if (status == SL_OK) {
        struct sl_local_request request = {.recipe = argv[2],
                                           .prompt = ids,
                                           .n_prompt = (int64_t)n_ids,
                                           .sampling = {.top_p = 1, .repetition_penalty = 1},
                                           .max_new_tokens = atoll(argv[4]),
                                           .ignore_eos = true};
        status = sl_local_generate(local, &request, &result, &err);
    }
    if (status == SL_OK) {
        printf("%s\n", result.text);
    }
    free(result.text);
    free(ids);
    sl_local_close(&local);
    return status == SL_OK ? 0 : fail(&err);
}
