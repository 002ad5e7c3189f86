// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a prefill without a model, for tests: invented Q, K and V go through the real ops, session and compressor.
 *
 * Values are multiples of 1/32 in [-4, 4), a function of (stream, index) alone: exact in every float format, and
 * tools/golden_compress.py makes the same ones.
 */
#pragma once

#include "engine/compress/evict/compressor.h"
#include "engine/compress/plan/plan.h"

enum drive_stream { DRIVE_Q = 1, DRIVE_K = 2, DRIVE_V = 3, DRIVE_IMPORTANCE = 4 };

struct drive {
    struct sl_plan plan;
    int group; // query heads per KV head
    uint64_t seed;
    float scale;
    void *memory;
    struct sl_arena *arena;
    struct sl_stream *stream;
    const struct sl_ops *ops;
    struct sl_session *session;
    struct sl_compressor *compressor;
    struct sl_rope rope;
    double inv_freq[64];
    int64_t n_read;
    bool flat;     // all values of V are those of token 0
    bool alike;    // all keys are those of token 0
    bool stepping; // begin_steps() has been called: tokens go through sl_compressor_step()
    int n_final;   // layers that became final after the last chunk
};

float drive_value(uint64_t seed, enum drive_stream stream, uint64_t index);
// Returns an element of K or V at (layer, token, KV head, channel), or of Q with n_kv_heads * group heads; importance has one channel.
float drive_element(const struct drive *drive, enum drive_stream stream, int layer, int64_t token, int head, int c);

// Arena, ops, stream (of n_threads), session and compressor for a recipe. Fails the test on any error.
void drive_start(struct drive *drive, const char *recipe, const struct sl_kv_geometry *geometry, int group,
                 int64_t n_prompt, uint64_t seed, float scale, int n_threads);
// One chunk of m tokens through one layer: reserve, append, attend, compress.
enum sl_status drive_layer(struct drive *drive, int layer, int m, bool last, struct sl_error *err);
// Runs one chunk of m tokens through all layers; after the last chunk it calls sl_compressor_end().
void drive_chunk(struct drive *drive, int m, bool last);
// The next chunk as a prefill worker cuts them: at multiples of chunk_tokens and where the tail begins. False: none left.
bool drive_next_chunk(struct drive *drive);
// Runs one step of m tokens after the prompt; the first call begins the steps.
void drive_step(struct drive *drive, int m);
struct sl_kv drive_kv(const struct drive *drive, int layer, int head);
// Checks that the arena is empty again.
void drive_stop(struct drive *drive);
