// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the main job in one process, without a cluster: read, compress, write. The baseline for the cluster, and
 *          the implementation of `sluice run --local`.
 *
 * Design: uses the workers' reader and output around one session that is never shipped. The last prompt token is read
 *         with the first step of writing, as in a decode worker, so both give the same bits.
 */
#pragma once

#include "engine/compress/recipe/recipe.h"
#include "engine/job/error_statistics.h"
#include "engine/job/retrieval_statistics.h"
#include "engine/job/slot_statistics.h"
#include "engine/runner/output.h"
#include "engine/runtime/loading.h"

struct sl_local; // a loaded model with its engine and arena

struct sl_local_config {
    const char *model_dir;
    const char *tier;   // NULL: auto
    const char *device; // NULL: cpu; see engine/runtime/runtime.h
    enum sl_weight_format weights;
    bool share_weights;   // with this user's other processes; see engine/runtime/runtime.h
    int ranks;            // 0: one; see engine/runtime/runtime.h
    int threads;          // 0: one per processor
    size_t arena_bytes;   // 0: sl_runtime_usual_arena_bytes(); on CPUs, pages are touched as they are used
    int max_chunk_tokens; // 0: 3072, the most that a preset asks for
    // Bytes for prefixes that recipes share when several run on the same prompt and evict at its end or not at all.
    // Jobs give the same bits as without it, in less time. 0: none.
    size_t shared_prefix_bytes;
    sl_loading_fn loading_fn; // engine/runtime/loading.h: reports loading progress; may be NULL
    void *loading_arg;
};

enum sl_status sl_local_open(const struct sl_local_config *config, struct sl_local **local_out, struct sl_error *err);
void sl_local_close(struct sl_local **local);

const struct sl_tokenizer *sl_local_tokenizer(const struct sl_local *local);
const struct sl_model_config *sl_local_model(const struct sl_local *local);

struct sl_local_request {
    const char *recipe;    // for sl_local_generate(); a conversation has its own
    const int32_t *prompt; // [n_prompt], at least 1; in a later turn: the new tokens
    int64_t n_prompt;
    struct sl_sampling sampling;
    int64_t max_new_tokens; // 0: what fits (engine/job/job_budget.h); sl_local_generate() needs a number
    bool is_chat;           // for max_new_tokens 0: the budget reaches to the context's end
    bool ignore_eos;
    bool estimate_errors; // see struct sl_local_result
    bool no_reuse;        // starts from no shared prefix
    const char *const *stops;
    size_t n_stops;
    // For a later turn: its prompt replaces the last token that was written (one that ends a text, which the prompt
    // contains itself).
    bool replaces_last;
    // SL_ERR_CANCELLED from token_fn ends the answer but not the conversation: result.cut is set, and all written
    // tokens stay.
    bool may_cut;
    // Callbacks; both may be NULL. A status other than SL_OK ends the job with that status.
    enum sl_status (*progress_fn)(void *arg, int64_t tokens_done, int64_t tokens_total);
    enum sl_status (*token_fn)(void *arg, const struct sl_output_token *written);
    // Receives the session as it would be shipped: after the prompt has been read, before anything is written. May be
    // NULL; statuses as above.
    enum sl_status (*prefilled_fn)(void *arg, const struct sl_session *session, const struct sl_recipe *recipe,
                                   const int32_t *tokens, struct sl_error *err);
    void *arg;
};

struct sl_local_result {
    enum sl_stop_reason stop;
    bool cut;   // by token_fn, see may_cut
    char *text; // malloc'd, the caller's to free
    int64_t n_output_tokens;
    double prefill_ms, ttft_ms, total_ms, tpot_ms;
    int64_t n_tokens;     // tokens of the session when the answer began: all tokens ever read
    int64_t n_read;       // of those, read by this turn, including the last one; without tokens from a shared prefix
    size_t capsule_bytes; // body bytes that would be shipped
    size_t full_bytes;    // bytes of n_tokens in f16, uncompressed
    size_t prefill_peak_bytes, decode_resident_bytes;
    int64_t slots_evicted, slots_merged; // counts of this turn
    bool offloads;                       // whether the recipe offloads; retrieval has the counts of this turn
    struct sl_retriever_stats retrieval;
    double slots_per_head;             // when the turn's prompt had been read
    struct sl_slot_statistics slots;   // when the answer was complete
    struct sl_error_statistics errors; // of this turn; empty unless requested
};

// Runs one job: reads, compresses, writes, and discards the session.
enum sl_status sl_local_generate(struct sl_local *local, const struct sl_local_request *request,
                                 struct sl_local_result *result_out, struct sl_error *err);

/*
 * A conversation keeps the compressed session between answers. A turn reads only new tokens: the last token of the
 * previous answer (written, but never read) and its own prompt. Older tokens are not read again. How it reads depends
 * on the recipe:
 *
 *   recipes that step          by decode steps, with the same compressor
 *   when=chunk, when=end       as chunks of a prompt; "end" is the end of every turn's prompt. The budget applies again
 *                              after the prompt has been read; ratios are of all tokens read so far. Answers between
 *                              turns are on top of it
 *   score=reconstruct          the first turn's prompt is repeated and evicted from; later turns are kept whole
 *   quantized pages            do not change; new tokens are appended in f16 after them, and their full pages are
 *                              quantized after the turn's prompt has been read. Nothing can be evicted from a quantized
 *                              layer: under a recipe that evicts and quantizes, later turns are kept whole
 *
 * max_tokens: the limit of all turns, prompts and answers together; 0: the model's context. A model with separate
 * frequencies for long contexts (sl_model_rope_set()) uses those that fit max_tokens, or the first turn if it is 0: a
 * later turn that needs the others is rejected. One thread at a time uses a conversation; local jobs may run between
 * its turns. Close it before its `local`.
 */
struct sl_conversation;
enum sl_status sl_conversation_open(struct sl_local *local, const char *recipe, int64_t max_tokens,
                                    struct sl_conversation **conversation_out, struct sl_error *err);
/*
 * Runs a turn. SL_ERR_INVALID (empty, too long): the conversation is unchanged. Any other failure ends the
 * conversation: further turns give SL_ERR_PRECONDITION.
 */
enum sl_status sl_conversation_turn(struct sl_conversation *conversation, const struct sl_local_request *request,
                                    struct sl_local_result *result_out, struct sl_error *err);
/*
 * Reads a text that questions are asked about, compresses it, and keeps a copy of its session. Every later turn is one
 * question alone after that copy, read as a decode worker reads what follows a capsule: nothing is evicted or quantized
 * again. Writes no answer; SL_ERR_UNSUPPORTED: the recipe offloads, or the device has its own memory. The conversation
 * is new.
 */
enum sl_status sl_conversation_read_document(struct sl_conversation *conversation,
                                             const struct sl_local_request *request, struct sl_local_result *result_out,
                                             struct sl_error *err);
// For tests and inspection; NULL before the first turn.
const struct sl_session *sl_conversation_session(const struct sl_conversation *conversation);
void sl_conversation_close(struct sl_conversation **conversation);
