// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the replying side for the tests of requests: threads that take incoming requests off a queue. A body says how long its reply
 *          shall be and what is in it; its own bytes are checked.
 */
#pragma once

#include "net/fabric/request.h"
#include "harness.h"

#define DESK_MAX_THREADS 4

struct desk_body {
    uint64_t seed; // of the pattern after this struct, and, plus 1, of the reply
    uint64_t reply_bytes;
    uint64_t work_ms; // before the reply
};

struct desk {
    struct sl_fabric *fabric;
    pthread_t threads[DESK_MAX_THREADS];
    int n_threads;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sl_fabric_incoming *queue[2 * SL_MAX_INCOMING];
    size_t first, last; // of queue, counted up
    bool held, stopping;
    size_t n_taken, n_cancelled, n_wrong, n_released;
};

void open_desk(struct desk *desk, struct sl_fabric *fabric, int n_threads);
void hold_desk(struct desk *desk, bool held); // requests pile up
void close_desk(struct desk *desk);           // replies to what is queued; every reply has been released
size_t desk_queued(struct desk *desk);
size_t desk_queued_cancelled(struct desk *desk);      // of these
size_t desk_read(struct desk *desk, const size_t *n); // one of its numbers

// The body that asks for `reply_bytes`, `body_bytes` long (at least sizeof(struct desk_body)).
void make_body(uint8_t *body, size_t body_bytes, uint64_t seed, size_t reply_bytes, uint64_t work_ms);
bool reply_is_right(const uint8_t *reply, size_t bytes, uint64_t seed);
