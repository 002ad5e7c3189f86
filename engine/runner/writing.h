// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one forward pass over the next tokens of many answers, as a loop that its caller writes:
 *
 *     sl_writing_begin(&writing, runtime, activations, writers, n, err)
 *     while (sl_writing_layer(&writing)) {
 *         ...              run another pass
 *     }
 *     sl_writing_end(&writing, err)
 *
 * sl_writing_layer() computes a layer: keys and values join the sessions, retrievers request offloaded slots before
 * anything waits, every row attends, recipes evict, then come the output projection and the MLP. sl_writing_end()
 * computes logits and chooses tokens.
 *
 * Design and failure: as engine/runner/reading.h.
 */
#pragma once

#include "engine/runner/writer.h"

#define SL_WRITING_MAX_ANSWERS 256

struct sl_writing {
    const struct sl_runtime *runtime;
    struct sl_writer *const *writers; // [n]
    int n;
    struct sl_pass pass;
    int next_layer;
    enum sl_status status;
    struct sl_error err;
};

// Begins a pass. writers[] must stay valid until it ends. Every writer has been fed. Returns the statuses of
// sl_pass_begin(); on failure nothing has changed.
enum sl_status sl_writing_begin(struct sl_writing *writing, const struct sl_runtime *runtime,
                                struct sl_activations *activations, struct sl_writer *const *writers, int n,
                                struct sl_error *err);
// Returns false when no layer is left, or when the pass or all of its writers have failed.
bool sl_writing_layer(struct sl_writing *writing);
// Ends the pass. Returns the statuses of sl_pass_append() and sl_pass_end(), which apply to every writer.
enum sl_status sl_writing_end(struct sl_writing *writing, struct sl_error *err);

// Runs the whole loop for a caller that does nothing between layers, with the engine's own activations. Returns the
// statuses of sl_writing_begin() and sl_writing_end().
enum sl_status sl_writing_pass(const struct sl_runtime *runtime, struct sl_writer *const *writers, int n,
                               struct sl_error *err);
// Does the same for one writer. The status is the pass's or the writer's.
enum sl_status sl_writing_step(const struct sl_runtime *runtime, struct sl_writer *writer, struct sl_error *err);
