// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: answers the questions of an evaluation, one after another, greedily: with a model in this process that
 *          stays loaded, or with a cluster.
 *
 * Design: questions are token ids in both cases, made by the tokenizer of the model folder, so both get the same
 *         questions. Opening rejects a cluster that serves another model.
 * Threads: one at a time per answerer.
 */
#pragma once

#include <stdbool.h>

#include "engine/model/model.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "net/trust/tls_files.h"

struct sl_answerer;
struct sl_local;

struct sl_answerer_config {
    const char *model_dir;
    enum sl_weight_format weights;
    const char *device;      // in this process; as --device says
    int threads;             // in this process; 0: one per processor
    int64_t max_tokens;      // of a prompt and its answer, for which memory is reserved; 0: the model's context
    const char *coordinator; // "HOST:PORT"; NULL: in this process
    struct sl_tls_files tls; // client certificates for that cluster
    int64_t deadline_ms;     // for one answer; 0: none
    // Called after every chunk and every token; true ends the answer with SL_ERR_CANCELLED. May be NULL.
    bool (*stopped)(void *arg);
    void *arg;
};

// Opens an answerer. SL_ERR_PRECONDITION: the cluster serves another model, or this one with weights in another
// format.
enum sl_status sl_answerer_open(const struct sl_answerer_config *config, struct sl_answerer **answerer_out,
                                struct sl_error *err);
void sl_answerer_close(struct sl_answerer **answerer); // accepts NULL

const struct sl_tokenizer *sl_answerer_tokenizer(const struct sl_answerer *answerer);
const struct sl_model_config *sl_answerer_model(const struct sl_answerer *answerer);
uint64_t sl_answerer_fingerprint(const struct sl_answerer *answerer); // of model and weights

struct sl_question {
    const char *recipe;
    const int32_t *ids; // [n_ids]
    int64_t n_ids;
    int64_t max_new_tokens;
};

struct sl_reply {
    char *text; // malloc'd, the caller's to free
    int64_t n_output_tokens;
    int64_t n_reused; // prompt tokens not read again: shared between recipes, or found in a cluster's store
    // Bytes shipped to decode, and in addition to kvstores; bytes of the prompt uncompressed in f16; bytes that
    // decode holds at the end. In this process nothing is shipped: the first numbers are what a cluster would ship,
    // for recipes that offload by their plan (engine/compress/recipe/recipe.h). Both include all bytes that stores
    // already had.
    int64_t shipped_bytes, offloaded_bytes, full_bytes, resident_bytes;
    double slots_per_head;   // after the prompt has been read
    double ttft_ms, tpot_ms; // ttft excludes reused tokens
};

/*
 * Asks a question. SL_ERR_INVALID, SL_ERR_PRECONDITION, SL_ERR_UNSUPPORTED: the model, the recipe and the prompt's
 * length do not fit together, and err gives the reason; further questions may be asked. SL_ERR_CANCELLED: it was
 * stopped. All other statuses are failures.
 */
enum sl_status sl_answerer_ask(struct sl_answerer *answerer, const struct sl_question *question,
                               struct sl_reply *reply_out, struct sl_error *err);
