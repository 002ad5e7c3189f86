// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: data for timing single operations: the KV heads of one layer in device pages, and rows, scores and lists,
 *          all of one size, with numbers similar to a model's.
 */
#pragma once

#include "client/cli/tool.h"
#include "engine/runtime/runtime.h"

#define SL_WORLD_FORMATS 9 // formats of pages: f16, int8, int4, int2, int1, k8v4, k4v2, k4v3, int3

struct sl_world_shape {
    int64_t rows, slots; // slots: of every head, including the rows' own; a multiple of SL_PAGE_SLOTS
    int64_t hidden, ffn, vocab;
    int n_heads, n_kv_heads, head_dim;
    double kept; // share of slots that an eviction leaves
};
#define SL_WORLD_SEQUENCES 64 // in a step of decode

struct sl_world {
    struct sl_world_shape shape;
    struct sl_runtime *runtime;
    struct sl_signals *signals;
    struct sl_page_layout layouts[SL_WORLD_FORMATS];
    void *pages[SL_WORLD_FORMATS]; // device: blocks of pages, head after head
    void **lists[SL_WORLD_FORMATS];
    struct sl_kv *kv[SL_WORLD_FORMATS], *kv_to[SL_WORLD_FORMATS]; // [n_kv_heads]
    struct sl_kv_heads heads[SL_WORLD_FORMATS];                   // published: pages of each format
    struct sl_kv_heads heads_to[SL_WORLD_FORMATS];                // f16 pages to be quantized to each format
    float *q, *k, *v, *x, *y, *out, *lse;                         // device: [rows] of heads, hidden, ffn; lse [H][rows]
    float *of_queries, *of_heads, *cosines, *sines;               // device: [H][slots], [Hk][slots]; angles
    uint32_t *keep, *evicted, *into;                              // device: [Hk][slots]
    int64_t *positions;                                           // device: [rows]
    float *logits;                                                // device: [SL_WORLD_SEQUENCES][vocab]
    struct sl_picked *picked;                                     // shared: [SL_WORLD_SEQUENCES]
    uint32_t *kept;                                               // host: [Hk]
    float *threshold;                                             // shared
    uint32_t *n_merged;                                           // shared
    double inv_freq[SL_MAX_HEAD_DIM / 2];
    void *blocks[32]; // device memory to free
    int n_blocks;
};

// Opens the world; close it after a failure, too. SL_ERR_EXHAUSTED: no memory. SL_ERR_CANCELLED: after one of
// `signals`.
enum sl_status sl_world_open(struct sl_runtime *runtime, const struct sl_world_shape *shape, struct sl_signals *signals,
                             struct sl_world *w, struct sl_error *err);
void sl_world_close(struct sl_world *w);

// Publishes the page lists of format `f` again: the device drops them after some operations.
enum sl_status sl_world_publish(struct sl_world *w, int f, struct sl_error *err);

// Returns a call of the last `m` rows over the pages of format `f`.
struct sl_attend sl_world_attend(const struct sl_world *w, int f, int m);
