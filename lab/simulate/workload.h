// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the workload that a cluster is planned for: requests with their times and lengths, from a trace or drawn
 *          from a rate.
 *
 * A trace is a file of JSON lines in Mooncake's format: timestamp (ms), input_length and output_length (tokens), and
 * hash_ids, one for each 512 tokens of the prompt (the last may be partial): equal numbers mean equal tokens.
 * hash_ids may be absent.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define SL_TRACE_BLOCK 512 // tokens per hash id

struct sl_workload_arrival {
    double at_s; // seconds after the first arrival
    int64_t n_prompt, n_output;
    int64_t first_block, n_blocks; // its hash ids, in struct sl_workload.blocks
};

struct sl_workload {
    struct sl_workload_arrival *arrivals; // [n], in order of time
    int64_t n;
    int64_t *blocks;
    int64_t n_blocks;
    double seconds; // from the first arrival to the last, plus one mean gap
};

// Loads a trace. SL_ERR_INVALID names the line and its error; SL_ERR_NOT_FOUND: no such file.
enum sl_status sl_workload_load(const char *path, struct sl_workload *workload_out, struct sl_error *err);

// A distribution of lengths in tokens, as `sluice bench cluster` writes it: N, A-B (uniform), exp:MEAN or
// lognormal:MEDIAN:SIGMA.
struct sl_lengths {
    enum { SL_LENGTHS_UNIFORM, SL_LENGTHS_EXPONENTIAL, SL_LENGTHS_LOGNORMAL } kind;
    double a, b;
};
enum sl_status sl_lengths_parse(const char *option, const char *text, struct sl_lengths *lengths_out,
                                struct sl_error *err);

struct sl_workload_config {
    double rate;       // per second
    double burstiness; // shape of the gamma distribution of the gaps; 1: a Poisson process
    int64_t n;         // number of requests
    struct sl_lengths input, output;
    uint64_t seed;
};
// Draws a workload. Prompts share no prefix.
enum sl_status sl_workload_draw(const struct sl_workload_config *config, struct sl_workload *workload_out,
                                struct sl_error *err);

/*
 * Draws requests with hash_ids, of conversations: a Poisson process of two a second. A conversation begins with one of a few
 * shared blocks of tokens and its own ones. Each later turn, of one of the 64 conversations that began last, adds some.
 */
enum sl_status sl_workload_draw_conversations(int64_t n, uint64_t seed, struct sl_workload *workload_out,
                                              struct sl_error *err);

void sl_workload_cleanup(struct sl_workload *workload);

// Computes how much of each prompt a store can answer that never evicts: reused_out [n], tokens.
enum sl_status sl_workload_reuse(const struct sl_workload *workload, int64_t *reused_out, struct sl_error *err);
