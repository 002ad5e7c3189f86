// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one forward pass over the next chunks of one or more prompts, as a loop that its caller writes:
 *
 *     sl_reading_begin(&reading, runtime, activations, readers, n, err)
 *     while (sl_reading_layer(&reading)) {
 *         ...              ship the layers that have become final (sl_reader_take_final()), or run another pass
 *     }
 *     sl_reading_end(&reading, err)
 *
 * sl_reading_layer() computes a layer: keys and values join the sessions, every row attends, recipes evict and pack, then
 * the output projection and the MLP. A caller that keeps offloaded layers elsewhere attends to them itself:
 *
 *     while (sl_reading_attend(&reading)) {
 *         ...              fill reading.pass.attends[i].out of each reader whose layer is offloaded
 *         sl_reading_layer(&reading)
 *     }
 *
 * Design: between two layers the pass needs its activations alone, so it may stand still there while another pass with
 *         other activations runs. A row's bits never depend on the other rows of its pass.
 * Invariants: no layer is evicted from before all rows have attended to it; no layer is packed before its last eviction,
 *             or final before it is packed.
 * Failure: a reader's own failure is in its status and leaves the other readers alone. What sl_reading_end() returns is the
 *          end of all of them.
 */
#pragma once

#include "engine/runner/reader.h"

#define SL_READING_MAX_PROMPTS 32

struct sl_reading {
    const struct sl_runtime *runtime;
    struct sl_reader *readers[SL_READING_MAX_PROMPTS]; // [n]
    struct sl_input inputs[SL_READING_MAX_PROMPTS];
    int n;
    struct sl_pass pass; // pass.layer: at hand; pass.attends[i]: of readers[i]
    int next_layer;
    bool attended; // the layer at hand has attended, and was not compressed yet
    enum sl_status status;
    struct sl_error err;
};

// The reading must not move until it ends. Every reader has tokens to read; together at most sl_activations_rows() of them.
// Statuses of sl_pass_begin(); nothing has happened then.
enum sl_status sl_reading_begin(struct sl_reading *reading, const struct sl_runtime *runtime,
                                struct sl_activations *activations, struct sl_reader *const *readers, int n,
                                struct sl_error *err);

// Both return false when no layer is left, and when the pass or all of its readers have failed.
bool sl_reading_attend(struct sl_reading *reading);
bool sl_reading_layer(struct sl_reading *reading);

// After the last layer the sessions advance, and recipes that decide when they have seen every layer do so. Statuses of
// sl_pass_append() and sl_pass_end(): of every reader.
enum sl_status sl_reading_end(struct sl_reading *reading, struct sl_error *err);

// The whole loop for one prompt and a caller that does nothing between layers: reads the next chunk, or, with nothing left
// to read, makes the layers final. *done_out: sl_reader_is_done(). The status is the pass's or the reader's.
enum sl_status sl_reading_step(struct sl_reader *reader, bool *done_out, struct sl_error *err);
