// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what computes: operations, threads, a device, and (where there is one) a model with its tokenizer and engine. The one way
 *          to open them, for workers, local runs, measurements and benches.
 * Threads: immutable after opening, but for the engine (engine/model/forward.h).
 */
#pragma once

#include "base/pulse.h"
#include "engine/model/forward.h"
#include "engine/runtime/device_choice.h"
#include "engine/runtime/loading.h"
#include "engine/text/tokenizer/tokenizer.h"

struct sl_runtime_config {
    const char *model_dir;    // NULL: operations and threads alone
    const struct sl_ops *ops; // or NULL: those of `tier`
    const char *tier;         // NULL: auto
    const char *device;       // as --device says (device_choice.h); NULL: cpu
    // Who reads tensors as the host does ("a worker"): auto is cpu then, and a device with memory of its own is refused. Or NULL.
    const char *host_reader;
    // Returns a table that takes the place of the device's, made of it, or NULL to keep it: a bench that times or replaces entries. Or NULL.
    const struct sl_ops *(*instead)(const struct sl_ops *ops);
    enum sl_weight_format weights;
    struct sl_team *team; // somebody else's, or NULL: made here, as the following say
    int ranks;        // devices that compute the model together (engine/tensor/ranks/ranks.h): they share the threads. 0: one
    int threads;      // 0: one for each processor that this process may use
    bool pin;         // give each thread a processor of its own
    int max_rows;     // of the engine; 0: none
    bool tokenizer;   // load it too
    int64_t stall_ms; // a device that gets nothing done for so long has failed; 0: SL_DEVICE_STILL_MS
    sl_loading_fn loading_fn; // reports how far the model is loaded; NULL: the log alone
    void *loading_arg;
};

struct sl_transfer;

struct sl_runtime {
    const struct sl_ops *ops;
    struct sl_team *team; // of ranks the first one's
    bool owns_team;
    struct sl_team *others[SL_MAX_RANKS]; // of the other ranks, from [1] on
    struct sl_device *device;
    struct sl_stream *stream;         // of the device: its operations
    struct sl_transfer *transfer;     // of a device with memory of its own (engine/runtime/transfer.h)
    struct sl_arena *arena;           // sl_runtime_open_arena()
    void *arena_memory[SL_MAX_RANKS]; // of the device, or of each rank's
    struct sl_model *model;           // NULL: none was asked for; neither are the following
    const struct sl_model_config *config;
    struct sl_tokenizer *tokenizer;
    struct sl_engine *engine;
    struct sl_pulse *pulse; // of the thread that has the engine: steps count their layers. NULL: nobody watches it
};

// On failure nothing is left behind. SL_ERR_INVALID: no device of that name. SL_ERR_UNSUPPORTED: it is not there, or not for this
// reader. Statuses as of what it opens. Where auto is cpu for want of a GPU, the log says why.
enum sl_status sl_runtime_open(const struct sl_runtime_config *config, struct sl_runtime *runtime_out,
                               struct sl_error *err);
void sl_runtime_close(struct sl_runtime *runtime); // accepts zeros, leaves zeros

// How many ranks compute.
int sl_runtime_ranks(const struct sl_runtime *runtime);

// What an arena takes where nobody says: 1 GiB; of a device with memory of its own 85% of what is free, the rest is scratch's.
size_t sl_runtime_usual_arena_bytes(const struct sl_runtime *runtime);

// An arena for sessions: in the device's memory, taken as it is used where the device is the processors; of ranks with memory of their
// own a range in each, of `bytes` in all. It ends before the runtime is closed. SL_ERR_EXHAUSTED.
enum sl_status sl_runtime_open_arena(struct sl_runtime *runtime, size_t bytes, struct sl_error *err);
