// SPDX-License-Identifier: Apache-2.0
// Purpose: the scratch that a forward pass works in. m rows of a pass, E hidden, F intermediate, H query heads and Hk KV
// heads of d, R rows of the retaining heads' W1, V vocabulary.
#pragma once

#include "engine/model/forward.h"
#include "engine/model/model_internal.h"

#define SL_LOGIT_ROWS 64 // rows whose logits are computed at once: bounds the scratch, which is V floats a row

struct sl_engine {
    const struct sl_model *model;
    struct sl_stream *stream;
    int max_rows;
    size_t n_bytes;             // of the following four, and of the engine's own activations
    void *replicated;           // one block of replicated memory: h to up
    void *scratch;              // one of the device behind the other tensors
    void *shared;               // one of shared memory behind what is given
    void *described;            // one of the host behind calls and kv
    float *h;                   // [m][E] after a norm
    float *qkv;                 // [m][(H + 2 Hk) d]
    float *a;                   // [m][H d] attention's output
    float *up;                  // [m][F] what the MLP has between its products
    float *hidden;              // [m][R] of the retaining heads, until they have scored: the memory of up
    float *next_q;              // [m][H d], during attention: the memory of up
    float *scores;              // [m][Hk] of the retaining heads
    float *lse;                 // [H][m] of every input
    float *logits;              // [SL_LOGIT_ROWS][V]
    float *logits_here;         // the same where the host can read it
    struct sl_picked *picked;   // [SL_LOGIT_ROWS] the best of them, in shared memory; NULL where logits_here is logits
    void *products;             // scratch of ops->matmul
    struct sl_activations *own; // of max_rows
    // of the host:
    struct sl_attend *calls; // [inputs], at most m
    struct sl_kv *kv;        // [inputs][Hk]
};

// See forward.h. m rows, at most max_rows.
struct sl_activations {
    struct sl_engine *engine;
    int max_rows;
    void *tensors;           // one block of the device: x, cosines, sines
    void *shared;            // one block of shared memory: what is given
    size_t n_bytes;          // of both
    float *x;                // [m][E] the residual stream
    float *cosines;          // [m][rotary_dim / 2] of every row's position
    float *sines;            // the same
    struct sl_given {        // the inputs of a pass, twice: the device may still read the last pass's
        int64_t *positions;  // [m]
        int32_t *tokens;     // [m]
        struct sl_mark used; // after the last pass that reads it
    } given[2];
    int turn; // of given[]: the pass at hand
};

static inline int64_t sl_qkv_dim(const struct sl_model_config *c) {
    return ((int64_t)c->n_heads + 2 * (int64_t)c->n_kv_heads) * c->head_dim;
}

// Computes y = x W^T, or y += x W^T, packed rows on either side. reading, then: as in struct sl_matmul.
void sl_engine_multiply(struct sl_engine *engine, const struct sl_matrix *w, const float *x, int64_t m, float *y,
                        bool accumulate, bool reading, const struct sl_matrix *then);

// forward_logits.c: norm and head for the rows whose logits are wanted, each brought to whoever wants it.
enum sl_status sl_pass_logits(struct sl_pass *pass, struct sl_error *err);
