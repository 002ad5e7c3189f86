// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: somebody who answers, for the tests of asks: threads that take questions off a queue. A request says how long its
 *          answer shall be and what is in it; the request's own bytes are checked.
 */
#ifndef SL_TESTS_UNIT_FABRIC_DESK_H
#define SL_TESTS_UNIT_FABRIC_DESK_H

#include "fabric/ask.h"
#include "harness.h"

#define DESK_MAX_THREADS 4

struct desk_request {
    uint64_t seed; // of the pattern behind this struct, and, plus 1, of the answer
    uint64_t answer_bytes;
    uint64_t work_ms; // before it is answered
};

struct desk {
    struct sl_fabric *fabric;
    pthread_t threads[DESK_MAX_THREADS];
    int n_threads;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sl_question *queue[2 * SL_ASK_MAX_QUESTIONS];
    size_t first, last; // of queue, counted up
    bool held, stopping;
    size_t n_taken, n_void, n_wrong, n_released;
};

void open_desk(struct desk *desk, struct sl_fabric *fabric, int n_threads);
void hold_desk(struct desk *desk, bool held); // questions pile up
void close_desk(struct desk *desk);           // answers what is queued; every answer has been released
size_t desk_queued(struct desk *desk);
size_t desk_read(struct desk *desk, const size_t *n); // one of its numbers

// The request for `answer_bytes`, `request_bytes` long (at least sizeof(struct desk_request)).
void make_request(uint8_t *request, size_t request_bytes, uint64_t seed, size_t answer_bytes, uint64_t work_ms);
bool answer_is_right(const uint8_t *answer, size_t bytes, uint64_t seed);

#endif
