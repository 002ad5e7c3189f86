// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: carry out a recipe on a session, layer by layer, as prefill goes.
 *
 * Design: after the attention of each layer (engine/model.h's hook) the compressor folds the chunk's attention into the
 * score state, protects the scope, selects the budget's best slots per KV head and compacts the pages. At the end of
 *         the prompt it also quantizes full pages into the layer's packed layout. Each method is a row of a table of
 *         scores; everything that touches pages is an op (engine/ops.h).
 * Threads: a compressor is used by one thread at a time.
 */
#ifndef SL_COMPRESS_COMPRESS_H
#define SL_COMPRESS_COMPRESS_H

#include "compress/recipe.h"
#include "engine/ops.h"

struct sl_compressor;

// plan is copied; ops and team must outlive it.
enum sl_status sl_compressor_create(const struct sl_plan *plan, const struct sl_ops *ops, struct sl_team *team,
                                    struct sl_compressor **compressor_out, struct sl_error *err);
void sl_compressor_destroy(struct sl_compressor **compressor);

// True when the forward pass must provide lse (sl_layer_hook.want_lse).
bool sl_compressor_wants_lse(const struct sl_compressor *compressor);

/*
 * Layer `layer` of `session` has just attended over a chunk. `last` says that it was the prompt's last chunk:
 * afterwards the layer is final and may be shipped.
 */
enum sl_status sl_compressor_layer(struct sl_compressor *compressor, struct sl_session *session, int layer,
                                   const struct sl_attend *attend, bool last, struct sl_error *err);

/*
 * Make `layer` final outside a forward pass: what is still to be quantized is quantized. For a session that was resumed
 * and needs no chunk more. Idempotent.
 */
enum sl_status sl_compressor_finish_layer(struct sl_compressor *compressor, struct sl_session *session, int layer,
                                          struct sl_error *err);

// An empty session for this plan; room for extra_slots more per head than prefill needs (tokens decoded in the same
// place).
enum sl_status sl_plan_create_session(const struct sl_plan *plan, int64_t extra_slots, struct sl_arena *arena,
                                      struct sl_session **session_out, struct sl_error *err);

struct sl_compress_stats {
    int64_t slots_evicted; // over all layers and heads
    int64_t pages_quantized;
    int64_t ns; // spent in the compressor
};
void sl_compressor_get_stats(const struct sl_compressor *compressor, struct sl_compress_stats *stats_out);

#endif
