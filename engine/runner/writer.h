// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one session that an answer is written into: its plan, a compressor if the recipe evicts at steps, and a
 *          retriever if layers are offloaded. engine/runner/writing.h runs passes over the next tokens of many
 *          writers.
 * Threads: one at a time per writer.
 */
#pragma once

#include "engine/compress/evict/compressor.h"
#include "engine/compress/plan/plan.h"
#include "engine/offload/retriever/local_retriever.h"
#include "engine/runtime/transfer.h"

struct sl_writer {
    struct sl_plan *plan;             // owned
    struct sl_session *session;       // owned
    struct sl_compressor *compressor; // owned; NULL: the recipe does not change the session while writing
    struct sl_pass_wants wants;       // extra results of the forward pass
    struct sl_retrieval retrieval;    // zeros: nothing is offloaded
    struct sl_mirror searched;        // host copy of what is offloaded in this process
    struct sl_input input;            // input of the next pass: sl_writer_feed()
    enum sl_status status;            // a failure of this writer alone, which must write no more
    struct sl_error err;
};

struct sl_writer_config {
    const struct sl_plan *plan; // copied; the plan under which writer->session was read
    int64_t n_read;             // tokens that prefill has read, in this process or another
    bool estimate_errors;       // sl_compressor_estimate()
    // false: the session holds every slot of offloaded layers. true: it holds none yet; they are with
    // writer->retrieval.source (NULL if n_read is 0). The other members are as in struct sl_retriever_config.
    bool is_remote;
    int64_t deadline_ms, lost_ms;
    void (*on_fallback)(void *arg, int layer, const char *why);
    void *arg;
};

// Opens the writer; from now on it writes into writer->session. Blocks until a retriever has fetched what it needs.
// After a failure the writer can only be closed.
enum sl_status sl_writer_open(struct sl_writer *writer, const struct sl_runtime *runtime,
                              const struct sl_writer_config *config, struct sl_error *err);
void sl_writer_close(struct sl_writer *writer); // accepts zeros, leaves zeros

// Starts or stops estimating errors (sl_compressor_estimate()). The writer has a compressor.
enum sl_status sl_writer_estimate(struct sl_writer *writer, bool wanted, struct sl_error *err);

// Returns whether tokens go one by one: every step evicts, or retrieves with one query.
static inline bool sl_writer_one_by_one(const struct sl_writer *writer) {
    return writer->compressor != NULL || writer->retrieval.retriever != NULL;
}

// Sets the tokens that the next pass reads. choice: chooses the token after them, or NULL.
static inline void sl_writer_feed(struct sl_writer *writer, const int32_t *tokens, int n_tokens,
                                  struct sl_choice *choice) {
    writer->input =
        (struct sl_input){.session = writer->session, .tokens = tokens, .n_tokens = n_tokens, .choice = choice};
}

// Returns the writer's status, and the reason in err (may be NULL).
static inline enum sl_status sl_writer_status(const struct sl_writer *writer, struct sl_error *err) {
    if (writer->status != SL_OK && err != NULL) {
        *err = writer->err;
    }
    return writer->status;
}

struct sl_session *sl_writer_take_session(struct sl_writer *writer); // the caller's to destroy
