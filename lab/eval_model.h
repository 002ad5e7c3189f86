// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: setup shared by commands that measure a model in this process: the model, an engine, memory for sessions,
 *          a text as tokens; and lists of texts.
 */
#pragma once

#include "base/arena.h"
#include "base/options/config.h"
#include "client/cli/tool.h"
#include "engine/runtime/runtime.h"

struct sl_eval_model {
    struct sl_runtime runtime; // tokenizer only if requested
    struct sl_arena *arena;
};

struct sl_eval_model_config {
    const char *dir;            // value of --model; NULL (option missing) is rejected
    const char *weights;        // value of --weights; NULL: as stored
    const char *device;         // value of --device; NULL: cpu. Rejects others: these commands read tensors
    int threads;                // 0: one per processor
    int max_rows;               // of the engine
    int64_t cache_tokens;       // room of the arena, uncompressed, for all sessions together; touched as it is used
    bool tokenizer;             // load it too
    struct sl_signals *signals; // one that comes ends the opening with SL_ERR_CANCELLED; NULL: not checked
};

// Opens the model. On failure everything is closed again. SL_ERR_INVALID: no dir, or an unknown format of weights.
enum sl_status sl_eval_model_open(const struct sl_eval_model_config *config, struct sl_eval_model *m,
                                  struct sl_error *err);
void sl_eval_model_close(struct sl_eval_model *m);

// Creates an empty session that keeps everything in f16, for up to n_tokens.
enum sl_status sl_eval_model_session(const struct sl_eval_model *m, enum sl_position_mode positions, int64_t n_tokens,
                                     struct sl_session **session_out, struct sl_error *err);

// Reads the file as tokens, with the begin token first. path NULL: the text compiled into the tool (its license).
// *ids_out is the caller's to free.
enum sl_status sl_eval_model_read(const struct sl_eval_model *m, const char *path, int32_t **ids_out, int64_t *n_out,
                                  struct sl_error *err);

// Do the same in two steps, for callers that read before the model is loaded. path NULL gives the text NULL, which
// means the tool's license. *text_out is the caller's to free.
enum sl_status sl_eval_text_read(const char *path, char **text_out, struct sl_error *err);
enum sl_status sl_eval_model_encode(const struct sl_eval_model *m, const char *text, int32_t **ids_out, int64_t *n_out,
                                    struct sl_error *err);

// A list of owned texts.
struct sl_list {
    char **items;
    size_t n;
};

// Appends the parts of `text` between separators; skips empty ones. '\0' separates nothing.
enum sl_status sl_list_add(struct sl_list *list, const char *text, char separator, struct sl_error *err);
void sl_list_cleanup(struct sl_list *list);
