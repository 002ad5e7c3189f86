// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: computes the logits of a model on given tokens, for tools/beside_transformers.py.
 *
 *     golden_logits TIER MODEL CHUNK < IDS > LOGITS      a line of ids a text; f32 [tokens][n_vocab], text after text
 *
 * CHUNK tokens are read at once. A KV cache in f16, as recipe `full` keeps it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/runtime/runtime.h"

#define MAX_TOKENS  4096
#define ARENA_BYTES ((size_t)512 << 20)

static enum sl_status open_session(const struct sl_model_config *model, struct sl_arena *arena, int n_tokens,
                                   struct sl_session **session_out, struct sl_error *err) {
    struct sl_kv_geometry geometry = sl_model_geometry(model);
    struct sl_page_layout layouts[SL_MAX_LAYERS];
    enum sl_status status = SL_OK;
    for (int l = 0; status == SL_OK && l < geometry.n_layers; l++) {
        status = sl_page_layout_init(&layouts[l], SL_KV_F16, geometry.head_dim, 0, false);
    }
    struct sl_session_config config = {geometry, SL_POSITION_ORIGINAL, n_tokens, layouts, layouts};
    if (status == SL_OK) {
        status = sl_session_create(&config, arena, session_out, err);
    }
    if (status == SL_OK) {
        (*session_out)->rope_set = sl_model_rope_set(model, n_tokens);
    }
    return status;
}

static enum sl_status write_text(struct sl_runtime *runtime, struct sl_arena *arena, const int32_t *tokens,
                                 int n_tokens, int chunk, struct sl_error *err) {
    size_t n_vocab = (size_t)runtime->config->n_vocab;
    struct sl_session *session = NULL;
    float *logits = malloc((size_t)chunk * n_vocab * sizeof *logits);
    enum sl_status status = logits != NULL ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for logits");
    if (status == SL_OK) {
        status = open_session(runtime->config, arena, n_tokens, &session, err);
    }
    for (int at = 0; status == SL_OK && at < n_tokens; at += chunk) {
        int n = n_tokens - at < chunk ? n_tokens - at : chunk;
        struct sl_input input = {.session = session, .tokens = tokens + at, .n_tokens = n, .all_logits = logits};
        status = sl_engine_forward(runtime->engine, &input, 1, err);
        if (status == SL_OK && fwrite(logits, sizeof *logits, (size_t)n * n_vocab, stdout) != (size_t)n * n_vocab) {
            status = sl_fail(err, SL_ERR_IO, "cannot write");
        }
    }
    sl_session_destroy(&session);
    free(logits);
    return status;
}

static enum sl_status write_texts(struct sl_runtime *runtime, int chunk, struct sl_error *err) {
    static char line[16 * MAX_TOKENS];
    static int32_t tokens[MAX_TOKENS];
    struct sl_arena *arena = NULL;
    void *memory = aligned_alloc(SL_ARENA_UNIT, ARENA_BYTES);
    enum sl_status status = memory != NULL ? sl_arena_create(memory, ARENA_BYTES, &arena, err)
                                           : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for KV");
    while (status == SL_OK && fgets(line, sizeof line, stdin) != NULL) {
        int n = 0;
        for (char *at = strtok(line, " \n"); at != NULL && n < MAX_TOKENS; at = strtok(NULL, " \n")) {
            tokens[n++] = (int32_t)strtol(at, NULL, 10);
        }
        status = write_text(runtime, arena, tokens, n, chunk, err);
    }
    sl_arena_destroy(&arena);
    free(memory);
    return status;
}

int main(int argc, char **argv) {
    int chunk = argc == 4 ? atoi(argv[3]) : 0;
    if (chunk < 1 || chunk > MAX_TOKENS) {
        fprintf(stderr, "Usage: golden_logits TIER MODEL CHUNK < IDS > LOGITS, CHUNK from 1 to %d\n", MAX_TOKENS);
        return 2;
    }
    struct sl_error err = {0};
    struct sl_runtime runtime = {0};
    struct sl_runtime_config config = {.model_dir = argv[2], .tier = argv[1], .max_rows = chunk};
    enum sl_status status = sl_runtime_open(&config, &runtime, &err);
    status = status == SL_OK ? write_texts(&runtime, chunk, &err) : status;
    if (status != SL_OK) {
        fprintf(stderr, "golden_logits: %s\n", err.text[0] != '\0' ? err.text : sl_status_text(status));
    }
    sl_runtime_close(&runtime);
    return status == SL_OK ? 0 : 1;
}
