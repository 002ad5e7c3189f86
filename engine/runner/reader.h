// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one prompt that is being read: its session, its plan, and where its next chunk ends.
 *          engine/runner/reading.h runs passes over the chunks of one or more prompts. A prefill worker and `sluice
 *          run --local` use the same code.
 * Threads: one at a time per reader. Several readers may take turns on one engine.
 */
#pragma once

#include "engine/compress/evict/compressor.h"
#include "engine/compress/plan/plan.h"
#include "engine/job/error_statistics.h"
#include "engine/runtime/runtime.h"

struct sl_reader;

#define SL_MAX_JOINS 7

// Tokens that another session holds, at other positions (engine/runner/join.h).
struct sl_join {
    struct sl_session *from; // has evicted nothing; the caller's, must outlive the reader
    int64_t first;           // of its tokens
    int64_t n_tokens;
    int64_t at; // where the same tokens are in the prompt
};

struct sl_reader_config {
    const struct sl_plan *plan;       // copied
    const struct sl_runtime *runtime; // computes; must outlive the reader
    struct sl_arena *arena;           // holds the session's pages
    const int32_t *tokens;            // [plan->n_prompt], must stay valid
    int64_t extra_slots;              // room for decoding in the same session, beyond what reading needs
    bool estimate_errors;             // sl_compressor_estimate()
    struct sl_session *resumed;  // holds the first resumed->n_tokens tokens, or NULL for an empty session; taken over
    bool attends_elsewhere;      // the caller attends to offloaded layers: sl_reading_attend()
    const struct sl_join *joins; // [n_joins], at most SL_MAX_JOINS: parts that are not read; copied
    int n_joins;
};

// Creates a reader. On failure `resumed` stays the caller's. SL_ERR_INVALID: the plan has offloaded layers and the
// caller does not attend to them. SL_ERR_EXHAUSTED: no memory. Statuses of sl_join_check() and sl_repeat_open().
enum sl_status sl_reader_create(const struct sl_reader_config *config, struct sl_reader **reader_out,
                                struct sl_error *err);
void sl_reader_destroy(struct sl_reader **reader); // the session with it, unless it was taken

// Returns the position where attention costs as much as the weights do: multiply-adds of the weights per token and
// layer, divided by those of attending to one slot.
double sl_reader_half_position(const struct sl_model_config *model);

// Returns the tokens of the chunk after `done` tokens: `chunk`, or less where a layer would take more than twice as long as
// at the prompt's beginning. So another prompt never waits long for a layer, and attention, which is then most of the
// work, loses nothing. half: sl_reader_half_position().
int64_t sl_reader_chunk_at(int64_t chunk, int64_t done, double half, int64_t full_rows);

// Returns how many tokens the next pass reads: a chunk (far into a prompt a part of one, where that changes no bit), or
// the rest of the prompt; then a part of the second reading; 0: all has been read.
int64_t sl_reader_next_tokens(const struct sl_reader *reader);

// Tokens that have been read and those that will be; a recipe may read the prompt a second time (engine/runner/repeat.h).
struct sl_reader_progress {
    int64_t done, total;
    int64_t repeated_ns; // time of the second reading so far
};
struct sl_reader_progress sl_reader_get_progress(const struct sl_reader *reader);

// For measurements: makes the next pass read n_tokens regardless of chunks, not end the prompt, and write the logits
// of every row to all_logits [n_tokens][n_vocab] (or NULL).
void sl_reader_feed(struct sl_reader *reader, int n_tokens, float *all_logits);

// Makes every layer final without a pass, for a session that was resumed complete: packs all remaining full pages.
// Idempotent. A failure becomes the reader's status, too.
enum sl_status sl_reader_finish(struct sl_reader *reader, struct sl_error *err);
bool sl_reader_is_done(const struct sl_reader *reader); // everything has been read and every layer is final

// Returns the next layer, in order, whose pages are final and that was not returned before; -1: none yet.
int sl_reader_take_final(struct sl_reader *reader);

// Fails one reader but not the pass: its later layers are not compressed, and it must read no more.
void sl_reader_fail(struct sl_reader *reader, enum sl_status status, const struct sl_error *err);
enum sl_status sl_reader_status(const struct sl_reader *reader, struct sl_error *err); // err may be NULL

struct sl_session *sl_reader_session(struct sl_reader *reader);
struct sl_session *sl_reader_take_session(struct sl_reader *reader); // the caller's to destroy

/*
 * Returns how many tokens of a prompt leave the same state between two chunks regardless of the tokens after them.
 * Another prompt with the same prefix can resume only up to there. After it, eviction depends on where the prompt
 * ends.
 */
int64_t sl_reader_shared_tokens(const struct sl_plan *plan);

// Returns the most bytes that the session's pages have held: between the attention of a layer and its compression.
size_t sl_reader_peak_bytes(const struct sl_reader *reader);
void sl_reader_get_stats(const struct sl_reader *reader, struct sl_compress_stats *stats_out);
void sl_reader_get_errors(const struct sl_reader *reader, struct sl_error_statistics *errors_out);
