// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: whoever answers the questions of an evaluation, one after another, greedily: a model in this process that
 *          stays loaded, or a cluster.
 *
 * Design: questions are token ids in both cases, made by the tokenizer of the model folder, so that both are asked the
 *         same; a cluster that serves another model is refused when it is opened.
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
    int64_t max_tokens;      // of a prompt and its answer: what memory is set aside for; 0: what the model was made for
    const char *coordinator; // "HOST:PORT"; NULL: in this process
    struct sl_tls_files tls; // who we are to that cluster
    int64_t deadline_ms;     // of one answer; 0: none
    // Asked behind every chunk and every token; true ends the answer with SL_ERR_CANCELLED. May be NULL.
    bool (*stopped)(void *arg);
    void *arg;
};

// SL_ERR_PRECONDITION: the cluster serves another model, or this one with weights in another format.
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
    int64_t n_reused; // of the prompt, read before: for another recipe here, by a cluster in a store
    // What is shipped to decode, and beside it to kvstores; what the prompt takes uncompressed in f16; what decode holds
    // in the end. In this process nothing is shipped: what a cluster would ship, for recipes that offload by their plan
    // (engine/compress/recipe/recipe.h). Of what stores had already both count all.
    int64_t shipped_bytes, offloaded_bytes, full_bytes, resident_bytes;
    double slots_per_head;   // when the prompt had been read
    double ttft_ms, tpot_ms; // ttft without what was reused
};

/*
 * SL_ERR_INVALID, SL_ERR_PRECONDITION, SL_ERR_UNSUPPORTED: the model, the recipe and the prompt's length do not go
 * together, and err says why; other questions may be asked. SL_ERR_CANCELLED: it was stopped. Everything else is
 * trouble.
 */
enum sl_status sl_answerer_ask(struct sl_answerer *answerer, const struct sl_question *question,
                               struct sl_reply *reply_out, struct sl_error *err);
