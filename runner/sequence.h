// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a sequence: one session, its plan, and exactly what its recipe needs beside the forward pass.
 *
 *     reading   a prompt, chunk by chunk. The compressor evicts and packs; `offload` takes the slots of offloaded layers;
 *               layers that are final go to `outbound`
 *     writing   an answer, token by token. A compressor where the recipe evicts at steps; a retriever where layers are
 *               offloaded
 *
 * Design: whoever drives sequences (prefill, decode, a conversation, a measurement) says what each reads next, in `input`,
 *         and calls sl_step() (runner/step.h) with all of them.
 */
#pragma once

#include "compress/evict/compressor.h"
#include "compress/plan/plan.h"
#include "offload/retriever/local_retriever.h"
#include "runtime/transfer.h"

struct sl_offload;
struct sl_outbound;

struct sl_sequence {
    struct sl_plan *plan;             // owned
    struct sl_session *session;       // owned
    struct sl_compressor *compressor; // owned; NULL: the recipe leaves the session alone while writing
    struct sl_pass_wants wants;       // of the forward pass
    bool writing;

    // Reading:
    struct sl_offload *offload;   // not owned; NULL: the plan has no offloaded layers
    struct sl_outbound *outbound; // not owned; NULL: the session stays here
    bool final[SL_MAX_LAYERS];    // its pages will not change any more
    int n_handed;                 // layers handed on: always the first ones, because a capsule has them in order
    size_t peak_bytes; // the most that session and tiles have held between a layer's attention and its compression

    // Writing:
    struct sl_retrieval retrieval; // zeros: nothing is offloaded
    struct sl_mirror searched;     // of what is offloaded in this process

    // Of the next step; session and tokens by sl_sequence_feed():
    struct sl_input input;
    bool last; // reading: the prompt ends with this input
    // How the recipe's work has failed: it spoils this sequence alone, which must not step again.
    enum sl_status status;
    struct sl_error err;
};

struct sl_sequence_config {
    const struct sl_plan *plan; // copied
    const struct sl_runtime *runtime;
    struct sl_arena *arena;
    int64_t extra_slots;        // room for decoding in the same session, beyond what reading needs
    bool estimate_errors;       // sl_compressor_estimate()
    struct sl_session *resumed; // holds the first resumed->n_tokens tokens, or NULL for an empty session; taken over
    struct sl_offload *offload; // see struct sl_sequence
    struct sl_outbound *outbound;
};

// A sequence that reads. On failure `resumed` stays the caller's. SL_ERR_INVALID: the plan has offloaded layers and
// `offload` is NULL.
enum sl_status sl_sequence_open(const struct sl_sequence_config *config, struct sl_sequence *sequence_out,
                                struct sl_error *err);

struct sl_writing {
    const struct sl_plan *plan; // copied; what sequence->session was read under
    int64_t n_read;             // tokens that prefill has read, here or elsewhere
    bool estimate_errors;       // sl_compressor_estimate()
    // false: of offloaded layers the session holds every slot. true: it holds none yet, they are with
    // sequence->retrieval.source (NULL where n_read is 0); the others are as in struct sl_retriever_config.
    bool is_remote;
    int64_t deadline_ms, lost_ms;
    void (*on_fallback)(void *arg, int layer, const char *why);
    void *arg;
};

// From here on the sequence writes into sequence->session. Blocks for what a retriever must fetch. After a failure the
// sequence can only be closed.
enum sl_status sl_sequence_begin_writing(struct sl_sequence *sequence, const struct sl_runtime *runtime,
                                         const struct sl_writing *writing, struct sl_error *err);

// Estimate errors from now on, or no more (sl_compressor_estimate()). The sequence has a compressor.
enum sl_status sl_sequence_estimate(struct sl_sequence *sequence, bool wanted, struct sl_error *err);

// Tokens that go one by one while writing: every step evicts, or asks with one query.
static inline bool sl_sequence_one_by_one(const struct sl_sequence *sequence) {
    return sequence->compressor != NULL || sequence->retrieval.retriever != NULL;
}

// The next step reads these. choice: of the token behind them, or NULL.
static inline void sl_sequence_feed(struct sl_sequence *sequence, const int32_t *tokens, int n_tokens,
                                    struct sl_choice *choice) {
    sequence->input =
        (struct sl_input){.session = sequence->session, .tokens = tokens, .n_tokens = n_tokens, .choice = choice};
}

// Its status, and why, in err (may be NULL).
static inline enum sl_status sl_sequence_status(const struct sl_sequence *sequence, struct sl_error *err) {
    if (sequence->status != SL_OK && err != NULL) {
        *err = sequence->err;
    }
    return sequence->status;
}

struct sl_session *sl_sequence_take_session(struct sl_sequence *sequence); // the caller's to destroy
void sl_sequence_close(struct sl_sequence *sequence);                      // accepts zeros, leaves zeros
