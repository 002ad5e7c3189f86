// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a retriever at work without a model: a prompt of invented keys in sessions and shares, queries, and what of
 *          the tokens attention was given; with plain arithmetic to compare with.
 *
 * Keys, values and queries are multiples of 1/32: sums of their products are exact, so plain code finds the same order.
 */
#pragma once

#include "engine/offload/retriever/retriever.h"
#include "tests/unit/offload/remote_kv/shares.h"

#define N_LAYERS  4 // 1 and 2 are offloaded
#define N_KV      2
#define D         16
#define MAX_GROUP 3
#define MAX_SLOTS 320
#define SINKS     3
#define RECENT    5
#define TOPK      12

struct scene {
    // Set before scene_open(); zeros have a meaning.
    int group, n_prompt; // 0: 3, 200
    int n_shares;        // 0: 1
    int n_threads;       // 0: none
    bool resident_only;
    struct sl_recipe recipe; // retrieve, ahead, keep, scan; channels 0: 4
    int64_t search_bytes;
    double least_recall;
    int64_t lost_ms;

    struct sl_plan plan;
    void *memory;
    struct sl_arena *arena;
    struct sl_stream *stream;
    struct sl_session *whole;   // holds every token
    struct sl_session *session; // the retriever's: the same, or one without the prompt's offloaded tokens
    struct shares *shares;
    struct sl_retriever *retriever;
    int n_tokens; // of every session
    struct sl_kv kv[N_KV];
    int n_fallbacks, fallback_layer;
    char why[128];
    _Alignas(64) float q[MAX_GROUP * N_KV * D];
    _Alignas(64) float next_q[MAX_GROUP * N_KV * D];
    _Alignas(64) float out[MAX_GROUP * N_KV * D];
    _Alignas(64) float lse[MAX_GROUP * N_KV];
};

void scene_open(struct scene *s);
enum sl_status scene_create(struct scene *s, struct sl_error *err); // the retriever; scene_open() has done so
void scene_close(struct scene *s);                                  // asserts that nothing is left in the arena

void scene_append(struct scene *s, int n, float loudness); // tokens to every layer, keys `loudness` times as large
void scene_invent(struct scene *s, uint64_t seed);         // q and next_q
enum sl_status scene_try(struct scene *s, int layer, bool with_next_q, struct sl_error *err);
void scene_attend(struct scene *s, int layer, bool with_next_q); // must succeed

// Tokens that KV head h of a layer attends to, by plain arithmetic: channels by query `by`, scores by query `with`.
uint32_t plain_tokens(struct scene *s, int layer, int h, const float *by, const float *with, uint32_t *tokens);
// Counts the tokens that were chosen, without those that are always there: how many of a's n are in b's n.
uint32_t plain_common(const uint32_t *a, uint32_t n, const uint32_t *b);
// The last retrieval attended to just these tokens of KV head h, in this order, with their keys and values.
void assert_attended(struct scene *s, int layer, int h, const uint32_t *tokens, uint32_t n);
void assert_retrieved(struct scene *s, int layer, const float *by, const float *with); // every head

extern int n_spied; // calls of attend_slots so far
