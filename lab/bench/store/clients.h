// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the clients of `sluice bench store`: each puts capsules into a kvstore and gets them, or values of the same size of Redis.
 * Threads: a client is used by one thread at a time; clients of one struct sl_store_ends share a fabric and a channel, as the jobs
 *          of a worker do.
 */
#pragma once

#include <semaphore.h>

#include "engine/kvcache/capsule.h"
#include "lab/bench/rig/store_rig.h"

// Holds what clients use, and the capsules that they move.
struct sl_store_ends {
    struct sl_store_rig *store;
    struct sl_arena *arena; // of the sessions that headers describe: address space alone
    int64_t size, n_tokens; // of a capsule
    uint8_t *header, *source, *blocks;
    size_t header_bytes, block_bytes; // a block for each client
};

enum sl_store_op { SL_STORE_PUT, SL_STORE_GET, SL_REDIS_PUT, SL_REDIS_GET };
struct sl_store_bench_client {
    struct sl_store_ends *ends;
    enum sl_store_op op;
    int index, fd;                       // fd: to Redis; -1: none
    int64_t n, n_stored;                 // of this run; capsules stored ever
    int64_t n_got, look_up_ns, fetch_ns; // of all GETs since the caller set them to 0
    sem_t released;                      // the fabric has given the block back
    enum sl_status status;
    struct sl_error err;
};

// Does the client's operation n times. A thread's function.
void *sl_store_client_run(void *client);

// Measures look-ups of a prompt of 128k tokens, of which the store has the beginning, by the call of a worker. rate_out: a second.
enum sl_status sl_store_client_look_up(struct sl_store_bench_client *client, double *rate_out, struct sl_error *err);

// Lets clients move capsules of this size from now on.
enum sl_status sl_store_ends_take_size(struct sl_store_ends *ends, int64_t size, struct sl_error *err);

// Writes the header of a capsule of one head whose body has about `bytes`. Returns its tokens in *n_tokens_out.
enum sl_status sl_store_bench_header(struct sl_arena *arena, int64_t bytes, const struct sl_capsule_id *id,
                                     struct sl_capsule_bytes *capsule, int64_t *n_tokens_out, struct sl_error *err);
struct sl_capsule_id sl_store_bench_id(uint64_t size, uint64_t owner, uint64_t number);
