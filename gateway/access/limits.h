// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: limits how much a key, or a tenant with tokens, may request per minute: requests, and tokens of prompts. A
 *          request over a limit is refused with the time of the next try.
 *
 * Design: a bucket for each limit of each key: it holds a minute's quantity, fills evenly, and a request takes its
 *         share out. A prompt of more than a minute's tokens takes all that is in a full bucket, and puts it in debt
 *         for the rest. So no prompt waits for ever, and over time no key gets more than its limit. The number of a
 *         prompt's tokens is estimated when it arrives and corrected when the cluster has counted them. Full buckets
 *         are forgotten, because a new one would be full too. When 65,536 are not full, further keys are refused.
 * Threads: any. The caller passes the time, monotonic.
 */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "net/trust/api_keys.h"

struct sl_limits;

// The last one is enforced elsewhere, and only counted here
enum sl_limit { SL_LIMIT_REQUESTS, SL_LIMIT_TOKENS, SL_LIMIT_ANSWERS };
enum { SL_N_LIMITS = 3, SL_MAX_LIMITED = 65536 };

struct sl_rate_limit {
    int64_t limit;     // per minute; 0: there is no limit, and the other fields are unset
    int64_t remaining; // available now
    int64_t reset_ms;  // time until all of it is available
};

struct sl_rate_limits {
    struct sl_rate_limit requests, tokens;
};

enum sl_status sl_limits_create(struct sl_limits **limits_out, struct sl_error *err);
void sl_limits_destroy(struct sl_limits **limits); // accepts NULL, nulls *limits

/*
 * Takes n requests or tokens. SL_ERR_EXHAUSTED: not now; try again after *retry_ms_out. *limits_out is written in any
 * case.
 */
enum sl_status sl_limits_take(struct sl_limits *limits, const struct sl_api_key *who, enum sl_limit what, int64_t n,
                              int64_t now_ns, struct sl_rate_limits *limits_out, int64_t *retry_ms_out);

// Returns n that were taken but not needed; a negative n charges more.
void sl_limits_give_back(struct sl_limits *limits, const struct sl_api_key *who, enum sl_limit what, int64_t n,
                         int64_t now_ns);

// Counts a request that was refused because of a limit.
void sl_limits_count_refused(struct sl_limits *limits, enum sl_limit what);
int64_t sl_limits_n_refused(struct sl_limits *limits, enum sl_limit what);

int64_t sl_limits_n_buckets(struct sl_limits *limits); // number of keys that are remembered
