// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: digests of the forward pass itself, for record.py: the logits of every row and the pages that it leaves, of eight
 *          prompts, read in chunks of any size, each by itself or all in the same calls.
 *
 *     bits_forward TIER RANKS TOKENS CHUNK BATCH FOLDER       BATCH: 1 or 8
 *     logits 0123456789abcdef pages 0123456789abcdef
 *
 * Not here: recipes; record.py drives the executables for those.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "engine/kvcache/capsule.h"
#include "engine/runtime/runtime.h"

#define N_PROMPTS   8
#define N_THREADS   2 // of each rank
#define ARENA_BYTES ((size_t)64 << 20)

struct reading {
    struct sl_runtime runtime;
    struct sl_arena *arena;
    int n_tokens, chunk;
    int32_t *tokens; // [N_PROMPTS][n_tokens]
    float *logits;   // [N_PROMPTS][n_tokens][n_vocab]
    struct sl_session *sessions[N_PROMPTS];
};

static enum sl_status open_session(struct reading *r, int prompt, struct sl_error *err) {
    const struct sl_model_config *model = r->runtime.config;
    struct sl_kv_geometry geometry = sl_model_geometry(model);
    struct sl_page_layout layouts[SL_MAX_LAYERS];
    enum sl_status status = SL_OK;
    for (int l = 0; status == SL_OK && l < geometry.n_layers; l++) {
        status = sl_page_layout_init(&layouts[l], SL_KV_F16, geometry.head_dim, 0, false);
    }
    struct sl_session_config config = {geometry, SL_POSITION_ORIGINAL, r->n_tokens, layouts, layouts};
    if (status == SL_OK) {
        status = sl_session_create(&config, r->arena, &r->sessions[prompt], err);
    }
    if (status == SL_OK) {
        r->sessions[prompt]->rope_set = sl_model_rope_set(model, r->n_tokens);
    }
    return status;
}

// Prompts first to last, all in the same calls.
static enum sl_status read_together(struct reading *r, int first, int last, struct sl_error *err) {
    int64_t n_vocab = r->runtime.config->n_vocab;
    enum sl_status status = SL_OK;
    for (int at = 0; status == SL_OK && at < r->n_tokens; at += r->chunk) {
        struct sl_input inputs[N_PROMPTS];
        for (int p = first; p <= last; p++) {
            int64_t row = (int64_t)p * r->n_tokens + at;
            inputs[p - first] = (struct sl_input){
                .session = r->sessions[p],
                .tokens = r->tokens + row,
                .n_tokens = r->n_tokens - at < r->chunk ? r->n_tokens - at : r->chunk,
                .all_logits = r->logits + row * n_vocab,
            };
        }
        status = sl_engine_forward(r->runtime.engine, inputs, last - first + 1, err);
    }
    return status;
}

static enum sl_status hash_piece(void *arg, const struct sl_capsule_piece *piece) {
    uint64_t *digest = arg;
    *digest = sl_hash(piece->data, piece->bytes, *digest);
    return SL_OK;
}

static enum sl_status read_all(struct reading *r, int batch, struct sl_error *err) {
    int n_layers = r->runtime.config->n_layers;
    size_t n_logits = (size_t)N_PROMPTS * (size_t)r->n_tokens * (size_t)r->runtime.config->n_vocab;
    enum sl_status status = SL_OK;
    for (int p = 0; status == SL_OK && p < N_PROMPTS; p++) {
        status = open_session(r, p, err);
    }
    for (int p = 0; status == SL_OK && p < N_PROMPTS; p += batch) {
        status = read_together(r, p, p + batch - 1, err);
    }
    uint64_t pages = 0; // page by page: which of them are neighbours depends on how they were read
    for (int i = 0; status == SL_OK && i < N_PROMPTS * n_layers; i++) {
        status = sl_capsule_layer_pieces(r->sessions[i / n_layers], i % n_layers, 0, 1, hash_piece, &pages);
    }
    if (status == SL_OK) {
        printf("logits %016" PRIx64 " pages %016" PRIx64 "\n", sl_hash(r->logits, n_logits * sizeof(float), 0), pages);
    }
    for (int p = 0; p < N_PROMPTS; p++) {
        sl_session_destroy(&r->sessions[p]);
    }
    return status;
}

static enum sl_status make_prompts(struct reading *r, struct sl_error *err) {
    uint64_t n_vocab = (uint64_t)r->runtime.config->n_vocab;
    size_t n = (size_t)N_PROMPTS * (size_t)r->n_tokens;
    r->tokens = malloc(n * sizeof *r->tokens);
    r->logits = malloc(n * n_vocab * sizeof *r->logits);
    if (r->tokens == NULL || r->logits == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        r->tokens[i] = (int32_t)(sl_mix(i * SL_GOLDEN) % n_vocab);
    }
    return SL_OK;
}

int main(int argc, char **argv) {
    struct reading r = {0};
    int batch = argc == 7 ? atoi(argv[5]) : 0;
    if (batch != 1 && batch != N_PROMPTS) {
        fprintf(stderr, "Usage: bits_forward TIER RANKS TOKENS CHUNK BATCH FOLDER, where BATCH is 1 or %d\n",
                N_PROMPTS);
        return 2;
    }
    r.n_tokens = atoi(argv[3]);
    r.chunk = atoi(argv[4]);
    struct sl_error err = {0};
    struct sl_runtime_config config = {.model_dir = argv[6],
                                       .tier = argv[1],
                                       .ranks = atoi(argv[2]),
                                       .threads = N_THREADS * atoi(argv[2]),
                                       .max_rows = r.chunk * batch};
    void *memory = calloc(1, ARENA_BYTES + SL_ARENA_UNIT); // zeros, so that slots which no token has yet are the same
    char *aligned = (char *)(((uintptr_t)memory + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT);
    enum sl_status status = r.n_tokens > 0 && r.chunk > 0 && memory != NULL
                                ? SL_OK
                                : sl_fail(&err, SL_ERR_INVALID, "no tokens, no chunk, or no memory");
    status = status == SL_OK ? sl_runtime_open(&config, &r.runtime, &err) : status;
    status = status == SL_OK ? sl_arena_create(aligned, ARENA_BYTES, &r.arena, &err) : status;
    status = status == SL_OK ? make_prompts(&r, &err) : status;
    status = status == SL_OK ? read_all(&r, batch, &err) : status;
    if (status != SL_OK) {
        fprintf(stderr, "bits_forward: %s\n", err.text[0] != '\0' ? err.text : sl_status_text(status));
    }
    sl_arena_destroy(&r.arena);
    free(memory);
    free(r.tokens);
    free(r.logits);
    sl_runtime_close(&r.runtime);
    return status == SL_OK ? 0 : 1;
}
