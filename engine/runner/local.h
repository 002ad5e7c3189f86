// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the main job in one process, without a cluster: read, compress, write. What the cluster is compared with,
 *          and what `sluice run --local` does.
 *
 * Design: the same reader and output as the workers', around one session that is never shipped. The last prompt token
 *         is read with the first step of writing, as it is by a decode worker, so both give the same bits.
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
    int ranks;            // 0: one; see engine/runtime/runtime.h
    int threads;          // 0: one per processor
    size_t arena_bytes;   // 0: sl_runtime_usual_arena_bytes(); of processors pages are touched as they are used
    int max_chunk_tokens; // 0: 3072, the most that a preset asks for
    // For the same prompt under many recipes: so much memory for what those have in common that evict at its end, or
    // nothing. Jobs give the same bits as without, sooner. 0: none.
    size_t trunk_bytes;
    sl_loading_fn loading_fn; // of engine/runtime/loading.h: reports how far the model is loaded; may be NULL
    void *loading_arg;
};

enum sl_status sl_local_open(const struct sl_local_config *config, struct sl_local **local_out, struct sl_error *err);
void sl_local_close(struct sl_local **local);

const struct sl_tokenizer *sl_local_tokenizer(const struct sl_local *local);
const struct sl_model_config *sl_local_model(const struct sl_local *local);

struct sl_local_request {
    const char *recipe;    // of sl_local_generate(); a conversation has its own
    const int32_t *prompt; // [n_prompt], at least 1; of a later turn: what is new
    int64_t n_prompt;
    struct sl_sampling sampling;
    int64_t max_new_tokens; // 0: what fits (engine/job/job_budget.h); sl_local_generate() needs a number
    bool is_chat;           // of 0: on to the answer's end
    bool ignore_eos;
    bool estimate_errors; // see struct sl_local_result
    const char *const *stops;
    size_t n_stops;
    // Of a later turn: its prompt stands in place of the last token that was written (one that ends a text, which the
    // prompt brings itself).
    bool replaces_last;
    // SL_ERR_CANCELLED of token_fn ends the answer and not the conversation: result.cut, and all it has written stays.
    bool may_cut;
    // Both may be NULL; anything but SL_OK ends the job with that status.
    enum sl_status (*progress_fn)(void *arg, int64_t tokens_done, int64_t tokens_total);
    enum sl_status (*token_fn)(void *arg, const struct sl_output_token *written);
    // The session as it would be shipped: the prompt has been read, nothing has been written. May be NULL, as above.
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
    int64_t n_tokens;     // of the session when the answer began: everything that has ever been read
    int64_t n_read;       // of those, by this turn, the last one included; what came from a trunk is not
    size_t capsule_bytes; // what would be shipped (body)
    size_t full_bytes;    // what n_tokens take in f16, uncompressed
    size_t prefill_peak_bytes, decode_resident_bytes;
    int64_t slots_evicted, slots_merged; // by this turn
    bool offloads;                       // the recipe; retrieval is of this turn
    struct sl_retriever_stats retrieval;
    double slots_per_head;             // when the turn's prompt had been read
    struct sl_slot_statistics slots;   // when the answer was complete
    struct sl_error_statistics errors; // of this turn; nothing known unless asked for
};

// One job: read, compress, write, forget.
enum sl_status sl_local_generate(struct sl_local *local, const struct sl_local_request *request,
                                 struct sl_local_result *result_out, struct sl_error *err);

/*
 * A conversation keeps the compressed session between answers. A turn reads only what is new: the last token of the
 * answer before it (written, but never read) and its own prompt; nothing that came before is read again. How:
 *
 *   recipes that step          through the steps of decode, by the same compressor
 *   when=chunk, when=end       as chunks of a prompt; "end" is the end of every turn's prompt. The budget holds again
 *                              when the prompt has been read; ratios are of all tokens read so far. Answers between
 *                              turns are on top of it
 *   quantized pages            stay as they are; what is new is appended in f16 behind them, and its full pages are
 *                              quantized when the turn's prompt has been read. Nothing can be evicted from a quantized
 *                              layer: under a recipe that evicts and quantizes, later turns are kept whole
 *
 * max_tokens: of all turns, prompts and answers together; 0: what the model was made for. A model with frequencies of its
 * own for long contexts (sl_model_rope_set()) takes those that fit max_tokens, or where it is 0 the first turn: a later
 * turn that needs the others is refused. Used by one thread at a time,
 * between which local jobs may run. Must be closed before its `local`.
 */
struct sl_conversation;
enum sl_status sl_conversation_open(struct sl_local *local, const char *recipe, int64_t max_tokens,
                                    struct sl_conversation **conversation_out, struct sl_error *err);
/*
 * SL_ERR_INVALID (empty, too long): nothing has happened. Any other failure ends the conversation: further turns give
 * SL_ERR_PRECONDITION.
 */
enum sl_status sl_conversation_turn(struct sl_conversation *conversation, const struct sl_local_request *request,
                                    struct sl_local_result *result_out, struct sl_error *err);
// For tests and inspection; NULL before the first turn.
const struct sl_session *sl_conversation_session(const struct sl_conversation *conversation);
void sl_conversation_close(struct sl_conversation **conversation);
