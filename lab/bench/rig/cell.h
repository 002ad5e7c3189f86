// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one measured cell of the engine: reading a prompt of some length, or a step of some sessions at some
 *          depth. Shared by `sluice bench cells` and `sluice bench engine`.
 *
 *   prefill:N      reading a prompt of N tokens in chunks, logits of the last
 *   decode:DxB     B sessions of D tokens write one token each per step, all in one forward pass, logits of each
 *
 * Design: sessions at a depth are generated, not read: ops->append() fills their pages with random rows, because the
 *         cost of attention does not depend on the values. After every run they are truncated to that depth. Loading
 *         and making sessions are not measured.
 */
#pragma once

#include "client/cli/tool.h"
#include "engine/runtime/runtime.h"

#define SL_CELL_MAX_BATCH 64

struct sl_cell {
    char name[32]; // as written by the user
    bool prefill;
    int64_t n; // prompt or depth, tokens
    int batch; // sessions; 1 for prefill
};

// Parses "prefill:2048" or "decode:4096x16". SL_ERR_INVALID: neither.
enum sl_status sl_cell_parse(const char *text, struct sl_cell *cell_out, struct sl_error *err);

struct sl_rig_config {
    const char *model_dir;
    const struct sl_model_config *geometry; // a random model of this shape instead of model_dir; NULL: none
    const char *device;                     // value of --device
    const char *host_reader;                // as in struct sl_runtime_config
    enum sl_weight_format weights;
    const char *tier;         // as workers have it
    const struct sl_ops *ops; // these operations instead; NULL: those of the tier
    struct sl_team *team;
    int ranks, threads; // as in struct sl_runtime_config, if there is no team
    bool pin;
    bool tokenizer;             // of model_dir, too: a recipe may repeat the prompt
    int chunk;                  // tokens of a prompt that are read at once; at least SL_CELL_MAX_BATCH
    int64_t n_steps;            // of a decode run
    struct sl_signals *signals; // a signal ends a run with SL_ERR_CANCELLED; NULL: not checked
};

// Random keys and values that fill layers: rows[2048][heads][head_dim], repeated, at positions[n_slots]. Shared
// memory.
struct sl_rig_filling {
    int64_t n_slots;
    float *rows;
    int64_t *positions;
};

// A loaded model and, between opening and closing one, the sessions of a cell. Callers only read documented members.
struct sl_rig {
    struct sl_rig_config config;
    struct sl_runtime runtime;
    float *logits; // [SL_CELL_MAX_BATCH][n_vocab]; after prefill: of the last token
    struct sl_cell cell;
    struct sl_arena *arena; // of the cell's KV cache
    void *device_memory;    // memory of the arena, if the device has its own
    size_t room,
        least_room; // of a device with its own memory: free bytes without a model, and after sl_rig_open_arena() the
                    // fewest
    struct sl_session *sessions[SL_CELL_MAX_BATCH];
    struct sl_rig_filling filling;
    int32_t *tokens; // [max(cell.n, config.chunk)]
};

// Loads the model. The device computes a random one if it can (drawn.h); otherwise it is written to a file that is
// then removed. Objects that config points to must outlive the rig. The caller closes the rig after a failure, too.
enum sl_status sl_rig_open(const struct sl_rig_config *config, struct sl_rig *rig_out, struct sl_error *err);
void sl_rig_close(struct sl_rig *rig);

// Makes rig->tokens for rig->cell, as sl_rig_open_cell() does.
enum sl_status sl_rig_make_tokens(struct sl_rig *rig, struct sl_error *err);

// Opens rig->arena with `bytes` of device memory; sl_rig_close_cell() closes it. SL_ERR_EXHAUSTED names rig->cell.
enum sl_status sl_rig_open_arena(struct sl_rig *rig, size_t bytes, struct sl_error *err);

// sl_rig_look_at_memory() polls the device's free memory; sl_rig_most_bytes() returns the most bytes in use at these
// polls, 0 for CPUs.
void sl_rig_look_at_memory(struct sl_rig *rig);
size_t sl_rig_most_bytes(const struct sl_rig *rig);

// Makes the cell's sessions. SL_ERR_RANGE: the model supports fewer positions. The caller closes the cell after a
// failure, too.
enum sl_status sl_rig_open_cell(struct sl_rig *rig, const struct sl_cell *cell, struct sl_error *err);
void sl_rig_close_cell(struct sl_rig *rig);

// Writes random rows into slots [0, n_slots) of every head of an empty layer. SL_ERR_EXHAUSTED: no room in its arena.
enum sl_status sl_rig_fill_layer(struct sl_rig *rig, struct sl_session *session, int layer, int64_t n_slots,
                                 struct sl_error *err);

// Runs a small part of the cell, so that its first run is like the others.
enum sl_status sl_rig_warm_up(struct sl_rig *rig, struct sl_error *err);

// Runs the prompt once, or n_steps steps, then restores the initial state. seconds_out: time of the forward passes.
enum sl_status sl_rig_run(struct sl_rig *rig, double *seconds_out, struct sl_error *err);

// Reads n_tokens more in one pass after a depth, at most n_steps and chunk, then restores the initial state.
enum sl_status sl_rig_read_after(struct sl_rig *rig, int n_tokens, double *seconds_out, struct sl_error *err);

// Returns the tokens that a run reads or writes, over all sessions.
int64_t sl_rig_tokens(const struct sl_rig *rig);
