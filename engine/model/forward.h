// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the forward pass as a loop that its caller writes, so that code that compresses or measures runs inside
 *          the loop:
 *
 *     sl_pass_begin(activations, inputs, n_inputs, wants, &pass, err)
 *     for (int layer = 0; layer < n_layers; layer++) {
 *         sl_pass_project(&pass, layer)        pass.projections: q, k, v before RoPE
 *         sl_pass_append(&pass, err)           writes keys and values to the caches; pass.attends describes attention
 *         ops->attend(..., pass.attends, n)    or anything else that fills every out
 *         ...                                  evict and pack the layer, or measure it
 *         sl_pass_finish(&pass)                output projection and MLP
 *     }
 *     sl_pass_end(&pass, err)                  logits and chosen tokens; the sessions advance
 *
 * Design: an input is consecutive tokens of one session: a chunk of a prompt, or the token that a decode step reads.
 *         A pass concatenates the inputs of many sessions as rows. engine/runner/reading.c and
 *         engine/runner/writing.c are the loops for serving; sl_engine_forward() is the loop that only computes. A
 *         pass keeps its state between layers in its activations. So a pass may pause after sl_pass_finish() of any
 *         layer, while another pass with other activations runs on the same engine.
 * Threads: one thread at a time uses an engine (scratch memory and stream) and its activations.
 */
#pragma once

#include "engine/model/model.h"
#include "engine/sampling/sampler.h"

// Creates scratch for up to max_rows tokens per pass. `model` and `stream` must outlive it. Uses the model's ops.
struct sl_engine;
enum sl_status sl_engine_create(const struct sl_model *model, struct sl_stream *stream, int max_rows,
                                struct sl_engine **engine_out, struct sl_error *err);
void sl_engine_destroy(struct sl_engine **engine);
struct sl_stream *sl_engine_stream(struct sl_engine *engine);
const struct sl_ops *sl_engine_ops(const struct sl_engine *engine);
size_t sl_engine_bytes(const struct sl_engine *engine); // bytes of its scratch, which is touched as passes grow

/*
 * The residual stream, angles, tokens and positions of the rows of one pass: up to max_rows, at most the engine's.
 * The engine has its own activations for all its rows; destroy others before the engine. SL_ERR_EXHAUSTED: no memory.
 */
struct sl_activations;
enum sl_status sl_activations_create(struct sl_engine *engine, int max_rows, struct sl_activations **activations_out,
                                     struct sl_error *err);
void sl_activations_destroy(struct sl_activations **activations);
struct sl_activations *sl_engine_activations(struct sl_engine *engine);
int sl_activations_rows(const struct sl_activations *activations);

// Consecutive tokens of one session; the inputs of a pass belong to different sessions. Position of tokens[i]:
// session->n_tokens + i.
struct sl_input {
    struct sl_session *session;
    const int32_t *tokens;
    int n_tokens;
    int n_reading;     // in a pass that is not `reading`: this many of its first tokens are a prompt's nevertheless
    float *logits;     // [n_vocab] of the last token, or NULL if not wanted
    float *all_logits; // [n_tokens][n_vocab] or NULL; for perplexity and tests
    struct sl_choice *choice; // chooses a token from the last token's logits, on any device; NULL: none
};
// Returns memory for the inputs of the next pass of these activations, sl_activations_rows() of them: for callers whose
// inputs are too many for a stack.
struct sl_input *sl_activations_inputs(struct sl_activations *activations);

// Additional results that a pass computes for its caller.
struct sl_pass_wants {
    bool lse;        // attend.lse
    bool importance; // attend.importance; SL_ERR_PRECONDITION if the model has no retaining heads
    bool next_q;     // attend.next_q, not in the last layer: costs one more projection in the others
    bool reading;    // the inputs are parts of prompts: sl_matmul.reading
};

struct sl_pass {
    struct sl_engine *engine;
    struct sl_activations *activations;
    struct sl_input *inputs; // [n_inputs]
    int n_inputs;
    struct sl_pass_wants wants;
    int64_t n_rows; // rows of all inputs
    int layer;      // the current layer
    // After sl_pass_project(): all heads of q, then of k, then of v, before RoPE [n_rows][(H + 2 Hk) d]
    const float *projections;
    const struct sl_attend *attends; // [n_inputs], after sl_pass_append(), until sl_pass_finish()
};

/*
 * Begins a pass. SL_ERR_RANGE: a token id outside the vocabulary, a position beyond max_positions, or more rows than
 * the activations have. SL_ERR_UNSUPPORTED: the model has sliding windows and a session's keys are rotated by slot.
 * On these errors nothing has changed. SL_ERR_INTERNAL: the device has failed. `inputs` must stay valid until the
 * pass ends. An abandoned pass needs no end, but its sessions must be destroyed.
 */
enum sl_status sl_pass_begin(struct sl_activations *activations, struct sl_input *inputs, int n_inputs,
                             struct sl_pass_wants wants, struct sl_pass *pass_out, struct sl_error *err);
void sl_pass_project(struct sl_pass *pass, int layer);
// Appends keys and values. SL_ERR_EXHAUSTED (arena): nothing has been appended to the layer. If the page lists cannot
// be published, the sessions must be destroyed.
enum sl_status sl_pass_append(struct sl_pass *pass, struct sl_error *err);
void sl_pass_finish(struct sl_pass *pass);
// Ends the pass. Waits for the device only if logits or choices are wanted. A failed choice is reported only in the
// choice's status.
enum sl_status sl_pass_end(struct sl_pass *pass, struct sl_error *err);

// Runs ops->attend for the inputs i with wanted[i], in one call; between sl_pass_append() and sl_pass_finish().
void sl_pass_attend_some(struct sl_pass *pass, const bool *wanted);
// Runs project, append and ops->attend, for callers that read a layer after its attention and change nothing.
enum sl_status sl_pass_attend(struct sl_pass *pass, int layer, struct sl_error *err);

// Runs the whole loop with ops->attend and nothing else.
enum sl_status sl_engine_forward(struct sl_engine *engine, struct sl_input *inputs, int n_inputs, struct sl_error *err);
