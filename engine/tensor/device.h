// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: where tensors live, and in which order work on them is done. Beside engine/tensor/ops.h, which says what the work is.
 *
 * Vocabulary: device  what computes: the processors of a team, or a GPU; its memory
 *             stream  work in order. An operation is queued in a stream and may be done later; its arguments are taken when
 *                     it is queued, but what pointers lead to is read when it runs
 *             mark    a place in a stream: behind everything that was queued before it
 *
 * Design: the processors are one filling (engine/tensor/cpu/device.c): one memory, and everything is done when the call that
 *         queues it returns, so marks are reached and waits pass. A GPU is another. Callers are written for both: the host
 *         reads what an operation wrote only behind a wait. docs/DESIGN.md lists the places where it does.
 *
 * Memory: device memory is touched by work in streams alone. Shared memory is the host's and both touch it: the host behind
 *         a wait. Where the device has one memory the two are the same. Replicated memory is device memory; a device that is several
 *         ranks with memory of their own has a copy of it on each (engine/tensor/ranks). Device memory is given back to the compute
 *         stream: what is queued there may still touch it, and only later work gets it. Shared memory is given back behind
 *         a wait.
 * Failures: an operation has no status. What goes wrong in a device comes back from the next wait, and for good: nothing that is
 *         queued afterwards is done. An operation for which the host finds no room (of scratch, of lists) is left out: waits say
 *         so until whoever holds the stream lets go and is told.
 *         A device that has work and gets nothing done for the time of sl_device_limit_waits() hangs: it counts as failed, no wait waits for
 *         it any more, and its memory stays until the process ends, because to free it would wait, too.
 * Threads: a device may be used by many. Operations are queued in a stream by one at a time: where several threads do, each holds
 *         the stream meanwhile. Copies and marks by any thread; whoever copies into memory that was just given back comes after
 *         a mark of the stream that may still touch it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/team.h"

enum sl_memory {
    SL_MEMORY_DEVICE,
    SL_MEMORY_REPLICATED,
    SL_MEMORY_SHARED,
};

enum sl_stream_kind {
    SL_STREAM_COMPUTE, // operations
    SL_STREAM_IN,      // copies from shared to device memory, beside computation
    SL_STREAM_OUT,     // copies back
    SL_N_STREAMS,
};

struct sl_device;

// A filling's own stream begins with it.
struct sl_stream {
    struct sl_device *device;
    struct sl_team *team; // the host's threads beside it; of the CPU those that compute. NULL: the caller alone
};

struct sl_mark {
    struct sl_stream *stream; // NULL: nothing was marked yet, which is always reached
    uint64_t number;
};

struct sl_device_ops {
    const char *name; // "cpu", "cuda"
    bool one_memory;  // the host may touch device memory: nothing needs to be copied
    int full_rows;    // rows of prompts in one pass that keep the device busy; more at once gain little
    void (*close)(struct sl_device *device);
    struct sl_stream *(*stream)(struct sl_device *device, enum sl_stream_kind kind);
    size_t (*room)(struct sl_device *device);
    bool (*network_reaches)(struct sl_device *device);
    void *(*network_view)(struct sl_device *device, void *block);
    enum sl_status (*network_flush)(struct sl_device *device, void *block, const void *seen, size_t bytes,
                                    struct sl_error *err);
    void *(*alloc)(struct sl_device *device, enum sl_memory memory, size_t bytes);
    void (*free)(struct sl_device *device, enum sl_memory memory, void *block);
    enum sl_status (*share)(struct sl_device *device, void *base, size_t bytes, struct sl_error *err);
    void (*unshare)(struct sl_device *device, void *base);
    void (*hold)(struct sl_stream *stream);
    enum sl_status (*let_go)(struct sl_stream *stream, struct sl_error *err);
    bool (*has_failed)(const struct sl_device *device);
    uint64_t (*progress)(const struct sl_device *device);
    void (*copy)(struct sl_stream *stream, void *to, const void *from, size_t bytes);
    void (*mark)(struct sl_stream *stream, struct sl_mark *mark_out);
    void (*after)(struct sl_stream *stream, const struct sl_mark *mark);
    bool (*reached)(const struct sl_mark *mark);
    enum sl_status (*wait)(const struct sl_mark *mark, struct sl_error *err);
    bool (*wait_until)(const struct sl_mark *mark, int64_t until_ns);
    void (*limit_waits)(struct sl_device *device, int64_t still_ms);
};

// A filling's own device begins with it.
struct sl_device {
    const struct sl_device_ops *ops;
};

// Ends everything: no stream, mark or block of the device may be used afterwards. Accepts NULL, leaves NULL.
static inline void sl_device_close(struct sl_device **device) {
    if (*device != NULL) {
        (*device)->ops->close(*device);
        *device = NULL;
    }
}

// The device's stream of a kind; it lives as long as the device.
static inline struct sl_stream *sl_device_stream(struct sl_device *device, enum sl_stream_kind kind) {
    return device->ops->stream(device, kind);
}

// Bytes of device memory that are free now; of processors those of the address space.
static inline size_t sl_device_room(struct sl_device *device) {
    return device->ops->room(device);
}

// An RDMA device may read and write device memory without the host (GPUDirect).
static inline bool sl_device_network_reaches(struct sl_device *device) {
    return device->ops->network_reaches(device);
}

// Where it does: where the network finds a block of device memory. Afterwards the device is the calling thread's current one, for libraries that ask.
// At the block's own address, as CUDA's memory, or where this
// process has mapped it as ordinary memory, which the emulator does.
static inline void *sl_device_network_view(struct sl_device *device, void *block) {
    return device->ops->network_view(device, block);
}

/*
 * What the network wrote to [seen, seen + bytes), where it finds a block, is in the block for all work that is queued from now on; without
 * this kernels may read what was there before. The network has said that it is there. `seen` is the block, or where another process reached ordinary
 * memory that stands for it. Blocks for microseconds. SL_ERR_UNSUPPORTED: this device cannot say when it sees what the network wrote.
 */
static inline enum sl_status sl_device_network_flush(struct sl_device *device, void *block, const void *seen,
                                                     size_t bytes, struct sl_error *err) {
    return device->ops->network_flush(device, block, seen, bytes, err);
}

// At a multiple of 64 bytes, not cleared. NULL: exhausted, or 0 bytes.
static inline void *sl_device_alloc(struct sl_device *device, enum sl_memory memory, size_t bytes) {
    return device->ops->alloc(device, memory, bytes);
}

// A block of sl_device_alloc(), or NULL.
static inline void sl_device_free(struct sl_device *device, enum sl_memory memory, void *block) {
    if (block != NULL) {
        device->ops->free(device, memory, block);
    }
}

// Memory of somebody else (a region of the fabric) becomes shared memory. SL_ERR_EXHAUSTED: it cannot be pinned.
static inline enum sl_status sl_device_share(struct sl_device *device, void *base, size_t bytes, struct sl_error *err) {
    return device->ops->share(device, base, bytes, err);
}

// Its inverse, behind the last wait and before the memory goes.
static inline void sl_device_unshare(struct sl_device *device, void *base) {
    device->ops->unshare(device, base);
}

/*
 * Nobody else queues operations until as many calls of sl_stream_let_go(): threads take turns in the order in which they came. The
 * processors' operations are done when they return, and nobody waits.
 * let_go: SL_ERR_EXHAUSTED: since hold() an operation was left out, and what depends on it is worth nothing; later ones may do
 * better. The last of several calls says so.
 */
static inline void sl_stream_hold(struct sl_stream *stream) {
    stream->device->ops->hold(stream);
}
static inline enum sl_status sl_stream_let_go(struct sl_stream *stream, struct sl_error *err) {
    return stream->device->ops->let_go(stream, err);
}

// The same behind work that has come to `status`, which is what is returned where it is a failure.
static inline enum sl_status sl_stream_let_go_after(struct sl_stream *stream, enum sl_status status,
                                                    struct sl_error *err) {
    enum sl_status left_out = sl_stream_let_go(stream, status == SL_OK ? err : NULL);
    return status == SL_OK ? left_out : status;
}

// Some wait has come back with the device's failure: whoever works with it should end.
static inline bool sl_device_has_failed(const struct sl_device *device) {
    return device->ops->has_failed(device);
}

#define SL_DEVICE_STILL_MS 60000

// Waits give up when the device has got nothing done for still_ms; without the call for SL_DEVICE_STILL_MS. Processors do their work in
// the caller, and have no limit. Any thread.
static inline void sl_device_limit_waits(struct sl_device *device, int64_t still_ms) {
    device->ops->limit_waits(device, still_ms);
}

// Another number than before where the device has got something done since; of processors always the same. Never waits.
static inline uint64_t sl_device_progress(const struct sl_device *device) {
    return device->ops->progress(device);
}

// Either side device or shared memory of the stream's device.
static inline void sl_stream_copy(struct sl_stream *stream, void *to, const void *from, size_t bytes) {
    stream->device->ops->copy(stream, to, from, bytes);
}

static inline struct sl_mark sl_stream_mark(struct sl_stream *stream) {
    struct sl_mark mark;
    stream->device->ops->mark(stream, &mark);
    return mark;
}

// What is queued in `stream` from now on comes behind the mark, which is another stream's of the same device.
static inline void sl_stream_after(struct sl_stream *stream, const struct sl_mark *mark) {
    stream->device->ops->after(stream, mark);
}

static inline bool sl_mark_reached(const struct sl_mark *mark) {
    return mark->stream == NULL || mark->stream->device->ops->reached(mark);
}

// Waits until the mark is reached. SL_ERR_INTERNAL: work before it has failed, or the device hangs, and every wait will fail from now on.
static inline enum sl_status sl_mark_wait(const struct sl_mark *mark, struct sl_error *err) {
    return mark->stream == NULL ? SL_OK : mark->stream->device->ops->wait(mark, err);
}

// The same with an end, sl_now_ns(), and without the status. False: it is not reached.
static inline bool sl_mark_wait_until(const struct sl_mark *mark, int64_t until_ns) {
    return mark->stream == NULL || mark->stream->device->ops->wait_until(mark, until_ns);
}

// Waits for everything that is queued.
static inline enum sl_status sl_stream_wait(struct sl_stream *stream, struct sl_error *err) {
    struct sl_mark mark = sl_stream_mark(stream);
    return sl_mark_wait(&mark, err);
}

// A loop of the host's threads beside the stream, as sl_team_run(). It is not queued: it is done on return. stream NULL: the
// caller alone.
static inline void sl_stream_run(struct sl_stream *stream, int64_t n_tasks, int64_t grain, sl_team_fn fn, void *arg) {
    sl_team_run(stream != NULL ? stream->team : NULL, n_tasks, grain, fn, arg);
}

// How many threads that are.
static inline int sl_stream_threads(const struct sl_stream *stream) {
    return sl_team_size(stream != NULL ? stream->team : NULL);
}
