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
 * sl_reading_layer() computes a layer: keys and values join the sessions, every row attends, recipes evict and pack,
 * then come the output projection and the MLP. A caller whose offloaded layers are elsewhere attends to them itself:
 *
 *     while (sl_reading_attend(&reading)) {
 *         ...              fill reading.pass.attends[i].out of each reader whose layer is offloaded
 *         sl_reading_layer(&reading)
 *     }
 *
 * Design: between two layers the pass needs only its activations, so it may pause there while another pass with other
 *         activations runs. A row's bits never depend on the other rows of its pass.
 * Invariants: a layer evicts only after all rows have attended to it; it is packed only after its last eviction, and
 *             final only after it is packed.
 * Failure: a reader's own failure is in its status and does not affect the other readers. An error of
 *          sl_reading_end() fails all of them.
 */
#pragma once

#include "engine/runner/reader.h"

#define SL_READING_MAX_PROMPTS 32

struct sl_reading {
    const struct sl_runtime *runtime;
    struct sl_reader *readers[SL_READING_MAX_PROMPTS]; // [n]
    struct sl_input inputs[SL_READING_MAX_PROMPTS];
    int n;
    struct sl_pass pass; // pass.layer: the current layer; pass.attends[i]: of readers[i]
    int next_layer;
    bool attended; // the current layer has attended, and is not compressed yet
    enum sl_status status;
    struct sl_error err;
};

// Begins a pass. The reading must not move until it ends. Every reader has tokens to read; together at most
// sl_activations_rows() of them. Returns the statuses of sl_pass_begin(); on failure nothing has changed.
enum sl_status sl_reading_begin(struct sl_reading *reading, const struct sl_runtime *runtime,
                                struct sl_activations *activations, struct sl_reader *const *readers, int n,
                                struct sl_error *err);

// Both return false when no layer is left, or when the pass or all of its readers have failed.
bool sl_reading_attend(struct sl_reading *reading);
bool sl_reading_layer(struct sl_reading *reading);

// Ends the pass. After the last layer the sessions advance, and recipes that need the attention of every layer
// decide. Returns the statuses of sl_pass_append() and sl_pass_end(), which apply to every reader.
enum sl_status sl_reading_end(struct sl_reading *reading, struct sl_error *err);

// Runs the whole loop for one prompt and a caller that does nothing between layers: reads the next chunk, joins tokens of
// another session (engine/runner/join.h), or makes the layers final if nothing is left to read. *done_out: sl_reader_is_done(). The status is the pass's or the
// reader's.
enum sl_status sl_reading_step(struct sl_reader *reader, bool *done_out, struct sl_error *err);
