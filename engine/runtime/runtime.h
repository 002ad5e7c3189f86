// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the objects that compute: operations, threads, a device, and (if there is one) a model with its tokenizer
 *          and engine. Workers, local runs, measurements and benches all open them here.
 * Threads: immutable after opening, except the engine (engine/model/forward.h).
 */
#pragma once

#include "base/progress_counter.h"
#include "engine/model/forward.h"
#include "engine/runtime/device_choice.h"
#include "engine/runtime/loading.h"
#include "engine/text/tokenizer/tokenizer.h"

struct sl_runtime_config {
    const char *model_dir;    // NULL: opens operations and threads alone
    const struct sl_ops *ops; // NULL: those of `tier`
    const char *tier;         // NULL: auto
    const char *device;       // as --device says (device_choice.h); NULL: cpu
    // Names the caller if it reads tensors through the host ("a worker"), else NULL. auto is then cpu, and a device
    // with its own memory is rejected.
    const char *host_reader;
    // Returns a table that replaces the device's and is derived from it, or NULL to keep the device's: for a bench
    // that times or replaces entries. May be NULL.
    const struct sl_ops *(*instead)(const struct sl_ops *ops);
    enum sl_weight_format weights;
    bool share_weights;   // with this user's other processes (engine/tensor/shared_weights.h); not with ranks
    struct sl_team *team; // borrowed, or NULL: created by the following members
    int ranks;        // devices that compute the model together (engine/tensor/ranks/ranks.h); share threads. 0: one
    int threads;      // 0: one for each processor that this process may use
    bool pin;         // give each thread a processor of its own
    int max_rows;     // of the engine; 0: no engine
    bool tokenizer;   // load it too
    int64_t stall_ms; // a device without progress for this long has failed; 0: SL_DEVICE_STILL_MS
    sl_loading_fn loading_fn; // reports loading progress; NULL: the log alone
    void *loading_arg;
};

struct sl_transfer;

struct sl_runtime {
    const struct sl_ops *ops;
    struct sl_team *team; // with ranks, the first one's
    bool owns_team;
    struct sl_team *others[SL_MAX_RANKS]; // teams of the other ranks, from [1] on
    struct sl_device *device;
    struct sl_stream *stream;         // queues the device's operations
    struct sl_transfer *transfer;     // for a device with its own memory (engine/runtime/transfer.h)
    struct sl_arena *arena;           // sl_runtime_open_arena()
    void *arena_memory[SL_MAX_RANKS]; // of the device, or of each rank's
    struct sl_model *model;           // NULL: no model was requested; then the following are NULL, too
    const struct sl_model_config *config;
    struct sl_tokenizer *tokenizer;
    struct sl_engine *engine;
    // progress counter of the engine's thread: steps count their layers. NULL: not watched
    struct sl_progress_counter *progress_counter;
};

// Opens a runtime. On failure everything is closed again. SL_ERR_INVALID: no device of that name. SL_ERR_UNSUPPORTED:
// it is not available, or not for this reader. Other statuses come from what it opens. If auto becomes cpu because no
// GPU is available, the log gives the reason.
enum sl_status sl_runtime_open(const struct sl_runtime_config *config, struct sl_runtime *runtime_out,
                               struct sl_error *err);
void sl_runtime_close(struct sl_runtime *runtime); // accepts zeros, leaves zeros

// Returns how many ranks compute.
int sl_runtime_ranks(const struct sl_runtime *runtime);

// Returns the default size of an arena: 1 GiB; for a device with its own memory 85% of its free memory, the rest is
// for scratch.
size_t sl_runtime_usual_arena_bytes(const struct sl_runtime *runtime);

// Opens an arena for sessions in the device's memory. On the CPU its memory is touched as it is used. With ranks that
// have their own memory it has a range in each, `bytes` in all. Close it before the runtime. SL_ERR_EXHAUSTED.
enum sl_status sl_runtime_open_arena(struct sl_runtime *runtime, size_t bytes, struct sl_error *err);
