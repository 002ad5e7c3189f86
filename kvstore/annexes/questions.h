// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the threads that answer what is asked about annexes (offload/annex/near.h over fabric/request.h).
 *
 * Design: the fabric's progress thread puts a question into a bounded queue; a scanning thread takes the oldest one that
 *         may be answered now, searches, and answers from memory that is used again and again (kvstore/annexes/answers.h). A
 *         thread answers a question alone: memory bandwidth is what a store runs out of, and there are as many questions
 *         as sessions and layers ahead. When all threads are busy it takes along others that read the same bytes, those
 *         about the same lanes of annexes that begin alike, and searches for all of them in one pass over memory. Of one
 *         annex no two questions about the same lanes are answered at the same time, since the second builds on what the
 *         first has sent.
 *         A question whose asker has gone is dropped. With a full queue, or when stopping, questions are refused at once.
 *         The share of the threads' time that they are busy is measured over the last seconds: what admission goes by.
 * Threads: any number.
 */
#pragma once

#include "base/pulse.h"
#include "fabric/request.h"
#include "kvstore/annexes/annexes.h"

struct sl_questions;

struct sl_questions_config {
    struct sl_fabric *fabric;
    struct sl_arena *arena; // offsets of SL_NEAR_MAP count from its base
    struct sl_annexes *annexes;
    int n_threads; // 0: one for each processor that this process may use
    bool pin;      // each thread onto a processor of its own
};

// Starts the threads and answers the fabric's questions from now on. SL_ERR_RANGE: pinned, and fewer processors than
// threads.
enum sl_status sl_questions_create(const struct sl_questions_config *config, struct sl_questions **questions_out,
                                   struct sl_error *err);
// Ends the threads; what waits, and what arrives from now on, is refused. Annexes are not used any more. Idempotent.
void sl_questions_stop(struct sl_questions *questions);
// Behind sl_questions_stop() and sl_fabric_destroy(): until then answers may be on their way. Accepts NULL, nulls.
void sl_questions_destroy(struct sl_questions **questions);

// Of the i-th thread; NULL behind the last. Lives as long as the questions.
struct sl_pulse *sl_questions_pulse(struct sl_questions *questions, int i);

// A measuring point of scan_load; for a thread that comes by several times a second.
void sl_questions_sample(struct sl_questions *questions);

struct sl_questions_stats {
    int64_t n_answered, n_passes; // since the start
    int64_t scanned_bytes;
    double scan_load; // 0 .. 1: busy share of the threads' time over the last seconds
    int n_threads;
};
void sl_questions_get_stats(struct sl_questions *questions, struct sl_questions_stats *stats_out);
