// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: read a prompt: chunk by chunk through the engine, compressing each layer behind its attention. The same code
 *          in a prefill worker and in `sluice run --local`.
 * Threads: one at a time per reader; the runtime is used during sl_reader_step() only, so several readers can take
 *          turns.
 */
#pragma once

#include "job/error_statistics.h"
#include "runner/sequence.h"

struct sl_reader;

struct sl_reader_config {
    struct sl_sequence_config sequence; // sequence.runtime computes, and must outlive the reader
    const int32_t *tokens;              // [sequence.plan->n_prompt], must stay valid
};

// Statuses of sl_sequence_open(); on failure `resumed` stays the caller's.
enum sl_status sl_reader_create(const struct sl_reader_config *config, struct sl_reader **reader_out,
                                struct sl_error *err);
void sl_reader_destroy(struct sl_reader **reader); // the session with it, unless it was taken

// Read one chunk (or, when nothing is left to read, just make the layers final). *done_out: all has been read. Behind a
// step of a plan that offloads the caller calls sl_offload_step().
enum sl_status sl_reader_step(struct sl_reader *reader, bool *done_out, struct sl_error *err);

/*
 * For readers that take turns: the next steps read at most n_tokens (0, the beginning: a chunk) where it makes no
 * difference to the result. A recipe that evicts decides at the ends of its chunks: those stay whole.
 */
void sl_reader_limit_step(struct sl_reader *reader, int64_t n_tokens);
int64_t sl_reader_next_tokens(const struct sl_reader *reader); // that the next step will read

struct sl_session *sl_reader_session(struct sl_reader *reader);
struct sl_session *sl_reader_take_session(struct sl_reader *reader); // the caller's to destroy
/*
 * How far the state between two chunks is the same whatever follows: only up to here can another prompt with the same
 * beginning go on from it. Behind it, what is evicted depends on where the prompt ends.
 */
int64_t sl_reader_shared_tokens(const struct sl_plan *plan);

// The most that the session's pages (and what is read back of offloaded layers) have held: between the attention of a
// layer and its compression.
size_t sl_reader_peak_bytes(const struct sl_reader *reader);
void sl_reader_get_stats(const struct sl_reader *reader, struct sl_compress_stats *stats_out);
void sl_reader_get_errors(const struct sl_reader *reader, struct sl_error_statistics *errors_out);
