// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how much a key, or a tenant by its tokens, may ask in a minute: requests, and tokens of prompts. Whoever asks more is told when
 *          to ask again.
 *
 * Design: a bucket for each limit of each key: it holds a minute's worth, fills evenly, and a request takes its share out. A prompt of more
 *         than a minute's tokens takes what there is when it is full, and owes the rest: nobody waits for ever, and over time nobody gets
 *         more. How many tokens a prompt has is guessed when it comes and set right when the cluster has counted. Buckets that are full
 *         again are forgotten: they are what a new one would be. Beyond 65,536 that are not, further keys are refused.
 * Threads: any. Times are the caller's, monotonic.
 */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "net/trust/api_keys.h"

struct sl_limits;

enum sl_limit { SL_LIMIT_REQUESTS, SL_LIMIT_TOKENS, SL_LIMIT_ANSWERS }; // the last is held elsewhere, and counted here
enum { SL_N_LIMITS = 3, SL_MAX_LIMITED = 65536 };

struct sl_limit_told {
    int64_t limit;     // a minute; 0: there is none, and nothing else is told
    int64_t remaining; // now
    int64_t reset_ms;  // until all of it remains
};

struct sl_limits_told {
    struct sl_limit_told requests, tokens;
};

enum sl_status sl_limits_create(struct sl_limits **limits_out, struct sl_error *err);
void sl_limits_destroy(struct sl_limits **limits); // accepts NULL, nulls *limits

/*
 * Take n requests or tokens. SL_ERR_EXHAUSTED: not now; in *retry_ms_out again. *told_out is written in any case.
 */
enum sl_status sl_limits_take(struct sl_limits *limits, const struct sl_api_key *who, enum sl_limit what, int64_t n,
                              int64_t now_ns, struct sl_limits_told *told_out, int64_t *retry_ms_out);

// n that were taken were not needed; a negative n: more were.
void sl_limits_give_back(struct sl_limits *limits, const struct sl_api_key *who, enum sl_limit what, int64_t n,
                         int64_t now_ns);

// Requests that were refused for a limit.
void sl_limits_count_refused(struct sl_limits *limits, enum sl_limit what);
int64_t sl_limits_n_refused(struct sl_limits *limits, enum sl_limit what);

int64_t sl_limits_n_buckets(struct sl_limits *limits); // that are remembered
