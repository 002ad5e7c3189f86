// SPDX-License-Identifier: Apache-2.0
// Purpose: the scratch of a forward pass. m rows of a pass, E hidden, F intermediate, H query heads and Hk KV heads
// of d, R rows of the retaining heads' W1, V vocabulary.
#pragma once

#include "engine/model/forward.h"
#include "engine/model/model_internal.h"

#define SL_LOGIT_ROWS 64 // rows whose logits are computed at once: bounds the scratch of V floats per row

struct sl_engine {
    const struct sl_model *model;
    struct sl_stream *stream;
    int max_rows;
    size_t n_bytes;             // of the following four, and of the engine's own activations
    void *replicated;           // one block of replicated memory for h to up
    void *scratch;              // one of device memory for the other tensors
    void *shared;               // one of shared memory for inputs and results
    void *described;            // one of host memory for calls, some and kv
    float *h;                   // [m][E] after a norm
    float *qkv;                 // [m][(H + 2 Hk) d]
    float *a;                   // [m][H d] attention's output
    float *up;                  // [m][F] the MLP's values between its products
    float *hidden;              // [m][R] of the retaining heads, until they have scored: shares the memory of up
    float *next_q;              // [m][H d], during attention: shares the memory of up
    float *scores;              // [m][Hk] of the retaining heads
    float *lse;                 // [H][m] of every input
    float *logits;              // [SL_LOGIT_ROWS][V]
    float *logits_here;         // the same in memory that the host can read
    struct sl_picked *picked;   // [SL_LOGIT_ROWS] the best of them, in shared memory; NULL if logits_here is logits
    void *products;             // scratch of ops->matmul
    struct sl_activations *own; // of max_rows
    // in host memory:
    struct sl_attend *calls; // [inputs], at most m
    struct sl_attend *some;  // [inputs] those that sl_pass_attend_some() chose
    struct sl_kv *kv;        // [inputs][Hk]
};

// See forward.h. m rows, at most max_rows.
struct sl_activations {
    struct sl_engine *engine;
    int max_rows;
    void *tensors;           // one block of device memory for x, cosines, sines
    void *shared;            // one block of shared memory for the inputs
    struct sl_input *own;    // [m] host memory: sl_activations_inputs()
    size_t n_bytes;          // of all three
    float *x;                // [m][E] the residual stream
    float *cosines;          // [m][rotary_dim / 2] of every row's position
    float *sines;            // the same
    struct sl_given {        // inputs of a pass, two sets: the device may still read the last pass's
        int64_t *positions;  // [m]
        int32_t *tokens;     // [m]
        struct sl_mark used; // after the last pass that reads it
    } given[2];
    int turn; // index into given[] of the current pass
};

static inline int64_t sl_qkv_dim(const struct sl_model_config *c) {
    return ((int64_t)c->n_heads + 2 * (int64_t)c->n_kv_heads) * c->head_dim;
}

// Computes a product with packed rows on both sides: sets its strides and its scratch; the caller sets the rest.
void sl_engine_multiply(struct sl_engine *engine, const struct sl_matrix *w, struct sl_matmul product);

// retaining_score.c: computes scores[m][Hk] of a layer's retaining heads from its projections before RoPE, qkv[m].
void sl_retaining_score(struct sl_engine *engine, int layer, int64_t m);

// forward_logits.c: computes norm and head for the rows whose logits are wanted, and delivers each row's results.
enum sl_status sl_pass_logits(struct sl_pass *pass, struct sl_error *err);
