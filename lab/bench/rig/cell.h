// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one measured cell of the engine: reading a prompt of some length, or a step of some sessions at some depth.
 *          What `sluice bench cells` and `sluice bench engine` have in common.
 *
 *   prefill:N      reading a prompt of N tokens in chunks, logits of the last
 *   decode:DxB     B sessions of D tokens write one token each a step, all in one forward pass, logits of each
 *
 * Design: sessions at a depth are not read but made: random rows go into their pages by ops->append(), because what
 *         attention costs does not depend on the values. After every run they are cut back to that depth. Loading and
 *         making sessions are not measured.
 */
#pragma once

#include "client/cli/tool.h"
#include "engine/runtime/runtime.h"

#define SL_CELL_MAX_BATCH 64

struct sl_cell {
    char name[32]; // as it is written
    bool prefill;
    int64_t n; // prompt or depth, tokens
    int batch; // sessions; 1 for prefill
};

// "prefill:2048", "decode:4096x16". SL_ERR_INVALID.
enum sl_status sl_cell_parse(const char *text, struct sl_cell *cell_out, struct sl_error *err);

struct sl_rig_config {
    const char *model_dir;
    const struct sl_model_config *geometry; // a random model of this shape in the place of model_dir; NULL: none
    const char *device;                     // what --device says
    const char *host_reader;                // of struct sl_runtime_config
    enum sl_weight_format weights;
    const struct sl_ops *ops;
    struct sl_team *team;
    int ranks, threads; // as struct sl_runtime_config has them, where there is no team
    bool pin;
    int chunk;                  // tokens of a prompt that are read at once; at least SL_CELL_MAX_BATCH
    int64_t n_steps;            // of a decode run
    struct sl_signals *signals; // a run ends with SL_ERR_CANCELLED when one has come; NULL: nobody asks
};

// Random keys and values that fill layers: rows[2048][heads][head_dim] again and again, at positions[n_slots]. Shared memory.
struct sl_rig_filling {
    int64_t n_slots;
    float *rows;
    int64_t *positions;
};

// A loaded model and, between opening and closing one, the sessions of a cell. Only what is documented is for reading.
struct sl_rig {
    struct sl_rig_config config;
    struct sl_runtime runtime;
    float *logits; // [SL_CELL_MAX_BATCH][n_vocab]; after prefill: of the last token
    struct sl_cell cell;
    struct sl_arena *arena; // of the cell's KV cache
    void *device_memory;    // that it is in, where the device has its own
    size_t room,
        least_room; // of a device with memory of its own: free bytes without a model, and since sl_rig_open_arena() the fewest
    struct sl_session *sessions[SL_CELL_MAX_BATCH];
    struct sl_rig_filling filling;
    int32_t *tokens; // [max(cell.n, SL_CELL_MAX_BATCH)]
};

// Load the model. A random one is computed by the device where it can (drawn.h), else written to a file that is removed. What config points to must outlive the rig. After a failure, too, the rig is to be closed.
enum sl_status sl_rig_open(const struct sl_rig_config *config, struct sl_rig *rig_out, struct sl_error *err);
void sl_rig_close(struct sl_rig *rig);

// Makes rig->tokens for rig->cell, as sl_rig_open_cell() does.
enum sl_status sl_rig_make_tokens(struct sl_rig *rig, struct sl_error *err);

// Opens rig->arena with `bytes` in the device's memory; sl_rig_close_cell() closes it. SL_ERR_EXHAUSTED: names rig->cell.
enum sl_status sl_rig_open_arena(struct sl_rig *rig, size_t bytes, struct sl_error *err);

// Looks at the device's free memory; sl_rig_most_bytes() returns how much was in use at most when this was called, 0 for processors.
void sl_rig_look_at_memory(struct sl_rig *rig);
size_t sl_rig_most_bytes(const struct sl_rig *rig);

// Make the cell's sessions. SL_ERR_RANGE: the model was made for fewer positions. After a failure, too, it is to be closed.
enum sl_status sl_rig_open_cell(struct sl_rig *rig, const struct sl_cell *cell, struct sl_error *err);
void sl_rig_close_cell(struct sl_rig *rig);

// Writes random rows into slots [0, n_slots) of every head of a layer that is empty. SL_ERR_EXHAUSTED: no room in its arena.
enum sl_status sl_rig_fill_layer(struct sl_rig *rig, struct sl_session *session, int layer, int64_t n_slots,
                                 struct sl_error *err);

// A little of the cell, so that its first run is like the others.
enum sl_status sl_rig_warm_up(struct sl_rig *rig, struct sl_error *err);

// The prompt once, or n_steps steps; then back to where the cell began. seconds_out: what the forward passes took.
enum sl_status sl_rig_run(struct sl_rig *rig, double *seconds_out, struct sl_error *err);

// Tokens that a run reads or writes, of all sessions.
int64_t sl_rig_tokens(const struct sl_rig *rig);
