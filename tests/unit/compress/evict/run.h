// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: prefill and decode without a model, for tests: invented Q, K and V of prompt and steps go through the real
 *          ops, session, compressor and retriever, as engine/model/model.h's hooks would have it.
 *
 * The inputs are those of tools/golden_methods.py: drive_value() over (seed, stream, index); queries (next_q, too) of
 * head h in layer l are scaled by (1 + (h + 2 l) mod 4) / 2. All are exact in f16. For drive.h's inputs see drive.h.
 */
#pragma once

#include "engine/compress/evict/compressor.h"
#include "engine/compress/plan/plan.h"
#include "engine/offload/retriever/local_retriever.h"

enum run_stream { RUN_Q = 1, RUN_K = 2, RUN_V = 3, RUN_NEXT_Q = 4, RUN_CIS_HIGH = 5, RUN_CIS_LOW = 6 };
// RUN_REPEAT: rows that repeat the prompt; the prompt ends with those of them that make n_steps.
enum run_pass { RUN_CHUNK, RUN_LAST, RUN_STEP, RUN_REPEAT };

#define RUN_MAX_LAYERS 4

struct run;
typedef float (*run_element_fn)(const struct run *run, enum run_stream stream, int layer, int64_t token, int head,
                                int c);

struct run {
    struct sl_kv_geometry geometry;
    int group; // query heads per KV head
    int64_t n_prompt, n_steps;
    float scale;
    uint64_t seed;
    run_element_fn element; // run_element, or a test's own
    const char *tier;       // of the ops; NULL: the fastest
    struct sl_plan plan;
    void *memory;
    struct sl_arena *arena;
    const struct sl_ops *ops;
    struct sl_session *session;
    struct sl_compressor *compressor;
    struct sl_retrieval offloaded; // of recipes that offload, while stepping
    struct sl_rope rope;
    double inv_freq[64];
    int64_t n_read;
    int n_rows;                                     // of the last pass
    float *q[RUN_MAX_LAYERS], *out[RUN_MAX_LAYERS]; // of the last pass, [n_rows][H][d]
};

// *run has geometry, group, n_prompt, n_steps, scale, seed, and may have element and tier. Fails the test on any error.
void run_start(struct run *run, const char *recipe);
// m tokens through all layers.
void run_pass(struct run *run, int m, enum run_pass kind);
// The whole prompt, in chunks of `chunk` tokens (a tail begins a chunk of its own).
void run_prompt(struct run *run, int chunk);
// Checks that the arena is empty again.
void run_stop(struct run *run);

float run_element(const struct run *run, enum run_stream stream, int layer, int64_t token, int head, int c);
struct sl_kv run_kv(const struct run *run, int layer, int head);
// Returns the arguments of an op for the last pass's row `row` in `layer`: q, and an output of the caller.
struct sl_attend run_attend(const struct run *run, int layer, int row, const struct sl_kv *kv, float *out);
// Positions of the slots of one head; the caller frees them.
int64_t *run_positions(const struct run *run, int layer, int head, uint32_t *n_out);
