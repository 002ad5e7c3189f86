// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures a kvstore against Redis: PUT and GET of capsules, by one client and by several; and how fast the store's
 *          index finds the longest stored prefix of a long prompt, and the memory that an entry takes.
 *
 * Design: kvstores and redis-server are children of this process, whose threads are the clients. The clients of the kvstore
 *         share a fabric and a channel, as the jobs of a worker do; each client of Redis has a connection. A PUT reserves
 *         and ships a capsule under a new key; a GET looks it up, grants memory and has it shipped: the calls of a
 *         prefill worker, with the digests that Redis has not. Redis answers over its Unix socket where the kvstore
 *         uses shared memory. Runs of both alternate.
 */
#pragma once

#include "base/options/config.h"
#include "client/cli/tool.h"

#define SL_STORE_BENCH_MAX_CLIENTS 64

struct sl_store_bench {
    // Options:
    int64_t largest, clients, entries, runs;
    bool json;
    struct sl_signals signals;
};
#define SL_STORE_BENCH_N_OPTIONS 5
extern const struct sl_option sl_store_bench_options[SL_STORE_BENCH_N_OPTIONS];

enum sl_status sl_store_bench_run(void *bench, struct sl_error *err);
