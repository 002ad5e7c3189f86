// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: applies a recipe to a session, layer by layer, during prefill.
 *
 * Design: after the attention of each layer (the hook of engine/model/model.h) the compressor adds the chunk's
 *         attention to the score state, protects the scope, selects the budget's best slots per KV head and compacts
 *         the pages. At the end of the prompt it also quantizes full pages into the layer's packed layout. Each
 *         method is a row of a table of scores; only ops (engine/tensor/ops.h) touch pages.
 * Threads: a compressor is used by one thread at a time.
 */
#pragma once

#include "engine/compress/plan/plan.h"
#include "engine/tensor/ops.h"

struct sl_compressor;

// Copies the plan; ops and stream must outlive the compressor. SL_ERR_INVALID: the plan did not come from
// sl_plan_make() and cannot be executed. SL_ERR_EXHAUSTED: no memory for scratch.
enum sl_status sl_compressor_create(const struct sl_plan *plan, const struct sl_ops *ops, struct sl_stream *stream,
                                    struct sl_compressor **compressor_out, struct sl_error *err);
void sl_compressor_destroy(struct sl_compressor **compressor);

/*
 * Starts (or, with `wanted` false, stops) estimating the error of eviction and quantization; counts begin at zero. A
 * new compressor does not estimate. Estimates change what the compressor wants from the forward pass, but no slot,
 * page or budget. They cost a second pass over the keys at every eviction. SL_ERR_EXHAUSTED: estimating is off from
 * now on. SL_ERR_INVALID: the recipe thins, or evicts when all has been read by a score that is no sum of attention.
 */
enum sl_status sl_compressor_estimate(struct sl_compressor *compressor, bool wanted, struct sl_error *err);

// The data that the forward pass must provide (struct sl_layer_hook) during prefill and during decode steps.
struct sl_compressor_wants {
    bool lse, importance;
};
struct sl_compressor_wants sl_compressor_wants(const struct sl_compressor *compressor, bool stepping);
// Returns whether sl_compressor_layer() uses the attention of the chunk of tokens [begin, end), `last` as there.
bool sl_compressor_reads_attention(const struct sl_compressor *compressor, int layer, int64_t begin, int64_t end,
                                   bool last);

// From now on rows repeat the prompt, which has been read in full: their attention becomes the slots' scores. For
// recipes with sl_recipe_repeats(); sl_compressor_wants() changes. The session's n_tokens stays that of the prompt.
void sl_compressor_repeat(struct sl_compressor *compressor);

// Attends over a chunk and adds its attention to the scores of `layer` at once, where the recipe and the device allow
// it; sl_compressor_layer() follows and does not add it again. Returns false, and does nothing, where the caller must
// attend.
bool sl_compressor_attend(struct sl_compressor *compressor, int layer, const struct sl_attend *attend);

/*
 * Compresses layer `layer` of `session` after it has attended over a chunk, which begins at session->n_tokens.
 * `last`: the chunk is the prompt's last. *final_out: the layer is final and may be shipped. If layers are not final
 * after the last layer of the last chunk, sl_compressor_end() makes them final. Rows after sl_compressor_repeat() evict
 * nothing.
 *
 * SL_ERR_PRECONDITION: the chunk runs into the tail, the layer is quantized already, or holds more slots than
 * planned; nothing has been evicted. SL_ERR_EXHAUSTED: the arena has no room for quantized pages
 * (sl_compressor_finish_layer() can continue later), or, at the first eviction, there is no memory for scratch by
 * query heads.
 */
enum sl_status sl_compressor_layer(struct sl_compressor *compressor, struct sl_session *session, int layer,
                                   const struct sl_attend *attend, bool last, bool *final_out, struct sl_error *err);

// Ends the prompt for recipes that need the attention of every layer (layers=d2o, heads=global) or repeat the prompt:
// sets budgets, evicts and packs all layers. Does nothing for other recipes. Called once, after the last chunk's
// forward pass. Returns the statuses of sl_compressor_layer().
enum sl_status sl_compressor_end(struct sl_compressor *compressor, struct sl_session *session, struct sl_error *err);

/*
 * Makes `layer` final outside a forward pass: quantizes its remaining full pages. For a session that was resumed and
 * needs no further chunk. Idempotent.
 */
enum sl_status sl_compressor_finish_layer(struct sl_compressor *compressor, struct sl_session *session, int layer,
                                          struct sl_error *err);

/*
 * Decode. sl_compressor_begin_steps() comes before the first step on a session that prefill has made (here, or
 * elsewhere if it arrived in a capsule): n_prompt is the number of tokens that prefill read. sl_compressor_step()
 * then comes after the attention of every layer of every step (m >= 1 rows). Where sl_compressor_steps() returns
 * false, a recipe needs neither. Between steps a head holds at most sl_plan_layer_slots(). SL_ERR_PRECONDITION: a
 * step before begin_steps(), or a session whose layers are quantized.
 */
bool sl_compressor_steps(const struct sl_compressor *compressor);
enum sl_status sl_compressor_begin_steps(struct sl_compressor *compressor, struct sl_session *session, int64_t n_prompt,
                                         struct sl_error *err);
enum sl_status sl_compressor_step(struct sl_compressor *compressor, struct sl_session *session, int layer,
                                  const struct sl_attend *attend, struct sl_error *err);

struct sl_compress_stats {
    int64_t slots_evicted; // over all layers and heads
    int64_t slots_merged;  // of those, how many went into another slot (evicted=merge)
    int64_t pages_quantized;
    int64_t ns; // spent in the compressor
};
void sl_compressor_get_stats(const struct sl_compressor *compressor, struct sl_compress_stats *stats_out);

// Error estimates of one layer; all 0 if nothing was evicted or quantized.
struct sl_error_estimate {
    // Share (0 to 1) of attention that went to the evicted slots: the mean over query heads and over the rows of all
    // evictions. The rows are those of the chunk or step after which slots were evicted (layers=d2o: all tokens
    // read). A slot that was merged into another counts as evicted.
    double evicted_attention;
    int64_t n_rows; // rows of the chunks and steps after which slots were evicted
    // || quantized - before || / || before || (Frobenius) over the pages that were quantized
    double key_error, value_error;
};
// Writes estimates_out[n_layers] after waiting for the device. Returns n_layers, or 0 and writes nothing if estimates
// are off or the device has failed.
int sl_compressor_get_estimates(const struct sl_compressor *compressor, struct sl_error_estimate *estimates_out);
