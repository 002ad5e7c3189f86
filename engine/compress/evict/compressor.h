// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: carry out a recipe on a session, layer by layer, as prefill goes.
 *
 * Design: after the attention of each layer (engine/model/model.h's hook) the compressor folds the chunk's attention into the
 *         score state, protects the scope, selects the budget's best slots per KV head and compacts the pages. At the
 *         end of the prompt it also quantizes full pages into the layer's packed layout. Each method is a row of a
 *         table of scores; everything that touches pages is an op (engine/tensor/ops.h).
 * Threads: a compressor is used by one thread at a time.
 */
#pragma once

#include "engine/compress/plan/plan.h"
#include "engine/tensor/ops.h"

struct sl_compressor;

// plan is copied; ops and stream must outlive it. SL_ERR_INVALID: a plan that did not come from sl_plan_make() and asks
// for what no order of work could do. SL_ERR_EXHAUSTED: scratch.
enum sl_status sl_compressor_create(const struct sl_plan *plan, const struct sl_ops *ops, struct sl_stream *stream,
                                    struct sl_compressor **compressor_out, struct sl_error *err);
void sl_compressor_destroy(struct sl_compressor **compressor);

/*
 * Estimate from now on what eviction and quantization cost; counts begin at zero. Not wanted (the beginning): nothing is
 * computed. It changes what the compressor wants of the forward pass, and no slot, page or budget. Costs a second pass
 * over the keys at every eviction. SL_ERR_EXHAUSTED: not wanted from now on. SL_ERR_INVALID: a recipe that thins.
 */
enum sl_status sl_compressor_estimate(struct sl_compressor *compressor, bool wanted, struct sl_error *err);

// What the forward pass must provide (struct sl_layer_hook) while prefill reads, or while decode steps.
struct sl_compressor_wants {
    bool lse, importance;
};
struct sl_compressor_wants sl_compressor_wants(const struct sl_compressor *compressor, bool stepping);

/*
 * Layer `layer` of `session` has just attended over a chunk, which begins at session->n_tokens. `last` says that it was
 * the prompt's last chunk. Afterwards *final_out tells whether the layer is final and may be shipped; when the last
 * layer of the last chunk leaves layers that are not, sl_compressor_end() makes them so.
 *
 * SL_ERR_PRECONDITION: the chunk runs into the tail, the layer is quantized already, or holds more slots than planned;
 * nothing has been evicted. SL_ERR_EXHAUSTED: no room in the arena for quantized pages (sl_compressor_finish_layer() can
 * go on later), or, at the first eviction, none for scratch by query heads.
 */
enum sl_status sl_compressor_layer(struct sl_compressor *compressor, struct sl_session *session, int layer,
                                   const struct sl_attend *attend, bool last, bool *final_out, struct sl_error *err);

// Some recipes decide when they have seen every layer (layers=d2o): budgets, eviction and packing of all layers.
// Nothing to do for the others. Once, after the last chunk's forward pass. Statuses as of sl_compressor_layer().
enum sl_status sl_compressor_end(struct sl_compressor *compressor, struct sl_session *session, struct sl_error *err);

/*
 * Make `layer` final outside a forward pass: what is still to be quantized is quantized. For a session that was resumed
 * and needs no chunk more. Idempotent.
 */
enum sl_status sl_compressor_finish_layer(struct sl_compressor *compressor, struct sl_session *session, int layer,
                                          struct sl_error *err);

/*
 * Decode. Before the first step on a session that prefill has made (here or elsewhere; it may have arrived in a capsule):
 * n_prompt is what prefill read. Then after the attention of every layer of every step (m >= 1 rows). Where
 * sl_compressor_steps() is false a recipe needs none of this. Between steps a head holds at most sl_plan_layer_slots(). SL_ERR_PRECONDITION: a step before begin_steps(), or a
 * session whose layers are quantized.
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

// Of one layer; all 0 where nothing was evicted and nothing quantized.
struct sl_error_estimate {
    // Share (0 to 1) of the attention of the rows behind which slots were evicted (a chunk's, a step's; layers=d2o: all
    // read) that went to the evicted slots: mean over query heads and over the rows of all evictions. A slot that was
    // merged into another counts as evicted.
    double evicted_attention;
    int64_t n_rows; // behind which slots were evicted
    // || quantized - before || / || before || (Frobenius) over the pages that were quantized
    double key_error, value_error;
};
// estimates_out: [n_layers]. Waits for the device. Returns n_layers, or 0 and writes nothing where estimates are not wanted or
// the device has failed.
int sl_compressor_get_estimates(const struct sl_compressor *compressor, struct sl_error_estimate *estimates_out);
