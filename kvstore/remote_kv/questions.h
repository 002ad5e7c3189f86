// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the threads that answer questions about remote KVs (engine/offload/remote_kv/near.h over
 * net/fabric/request.h).
 *
 * Design: the fabric's progress thread puts a question into a bounded queue. A scanning thread takes the oldest one
 *         that may be answered now, searches, and answers from reused memory (kvstore/remote_kv/answers.h). A thread
 *         answers a question alone: memory bandwidth is the bottleneck of a store, and as many questions are waiting as
 *         there are sessions and layers read ahead. When all threads are busy, it also takes other questions that read
 *         the same bytes (about the same offloaded heads of remote KVs that begin alike), and searches for all of them
 *         in one pass over memory. Two questions about the same offloaded heads of one remote KV are never answered at
 *         the same time, because the second builds on what the first has sent.
 *         A question whose asker has gone is dropped. With a full queue, or when stopping, questions are refused at
 *         once. Admission uses the share of time that the threads were busy over the last seconds.
 * Threads: any number.
 */
#pragma once

#include "base/progress_counter.h"
#include "net/fabric/request.h"
#include "kvstore/remote_kv/remote_kv_table.h"

struct sl_questions;

struct sl_questions_config {
    struct sl_fabric *fabric;
    struct sl_arena *arena; // SL_NEAR_MAP's offsets count from its base
    struct sl_remote_kv_table *remote_kvs;
    int n_threads; // 0: one per processor that this process may use
    bool pin;      // each thread to its own processor
};

// Starts the threads and from now on answers the fabric's questions. SL_ERR_RANGE: pinned, and fewer processors than
// threads.
enum sl_status sl_questions_create(const struct sl_questions_config *config, struct sl_questions **questions_out,
                                   struct sl_error *err);
// Ends the threads; refuses waiting questions and those that arrive from now on. Remote KVs are not used any more.
// Idempotent.
void sl_questions_stop(struct sl_questions *questions);
// Call after sl_questions_stop() and sl_fabric_destroy(): until then answers may be in transit. Accepts NULL, nulls.
void sl_questions_destroy(struct sl_questions **questions);

// Returns the progress counter of thread i; NULL beyond the last. Lives as long as the questions.
struct sl_progress_counter *sl_questions_progress_counter(struct sl_questions *questions, int i);

// Takes a sample for scan_load; for a thread that calls it several times a second.
void sl_questions_sample(struct sl_questions *questions);

struct sl_questions_stats {
    int64_t n_answered, n_passes; // since the start
    int64_t scanned_bytes;
    double scan_load; // 0 .. 1: busy share of the threads' time over the last seconds
    int n_threads;
};
void sl_questions_get_stats(struct sl_questions *questions, struct sl_questions_stats *stats_out);
