// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what commands that measure a model in this process begin with: the model, an engine, memory for sessions,
 *          a text as tokens; and lists of texts.
 */
#pragma once

#include "base/arena.h"
#include "base/options/config.h"
#include "engine/runtime/runtime.h"

struct sl_eval_model {
    struct sl_runtime runtime; // tokenizer only where it was asked for
    struct sl_arena *arena;
};

struct sl_eval_model_config {
    const char *dir;      // what --model says; NULL, when it says nothing, is refused
    const char *weights;  // what --weights says; NULL: as stored
    const char *device;   // what --device says; NULL: cpu. These commands look into tensors: others are refused
    int threads;          // 0: one per processor
    int max_rows;         // of the engine
    int64_t cache_tokens; // the arena has room for so many, uncompressed, all sessions together; touched as it is used
    bool tokenizer;       // load it too
};

// On failure nothing is left behind. SL_ERR_INVALID: no dir, or no format of weights.
enum sl_status sl_eval_model_open(const struct sl_eval_model_config *config, struct sl_eval_model *m,
                                  struct sl_error *err);
void sl_eval_model_close(struct sl_eval_model *m);

// An empty session that keeps everything in f16, for up to n_tokens.
enum sl_status sl_eval_model_session(const struct sl_eval_model *m, enum sl_position_mode positions, int64_t n_tokens,
                                     struct sl_session **session_out, struct sl_error *err);

// The file as the model reads it, the begin token in front. path NULL: the text that comes with the tool (its licence).
// *ids_out is the caller's to free.
enum sl_status sl_eval_model_read(const struct sl_eval_model *m, const char *path, int32_t **ids_out, int64_t *n_out,
                                  struct sl_error *err);

// The same in two steps, for who reads before the model is there. Of path NULL the text is NULL, and that is the tool's
// licence. *text_out is the caller's to free.
enum sl_status sl_eval_text_read(const char *path, char **text_out, struct sl_error *err);
enum sl_status sl_eval_model_encode(const struct sl_eval_model *m, const char *text, int32_t **ids_out, int64_t *n_out,
                                    struct sl_error *err);

// Texts of which each is owned.
struct sl_list {
    char **items;
    size_t n;
};

// Append the parts of `text` between separators; empty ones are left out. '\0' separates nothing.
enum sl_status sl_list_add(struct sl_list *list, const char *text, char separator, struct sl_error *err);
void sl_list_cleanup(struct sl_list *list);
