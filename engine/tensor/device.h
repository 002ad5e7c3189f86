// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: where tensors live, and the order in which work on them is done. engine/tensor/ops.h says what the work is.
 *
 * Vocabulary: device  the hardware that computes, with its memory: the processors of a team, or a GPU
 *             stream  work in order. An operation is queued in a stream and may run later. Its arguments are read when
 *                     it is queued; the memory that its pointers lead to is read when it runs
 *             mark    a point in a stream: after everything that was queued before it
 *
 * Design: the CPU is one backend (engine/tensor/cpu/device.c). It has one memory, and every operation has finished when
 *         the call that queues it returns: marks are always reached, and waits return at once. A GPU is another
 *         backend. Callers are written for both: the host reads the result of an operation only after a wait.
 *         docs/DESIGN.md lists the places that wait.
 *
 * Memory: only work in streams touches device memory. Shared memory belongs to the host, and both touch it: the host
 *         does so after a wait. The two are the same where the device has one memory. Replicated memory is device
 *         memory: a device that consists of several ranks with memory of their own has a copy of it on each rank
 *         (engine/tensor/ranks). Device memory is freed in the order of the compute stream: work that is already queued
 *         there may still touch it, and only later work can get it. Shared memory is freed after a wait.
 * Failures: an operation returns no status. The next wait returns a failure of the device, and every later wait does so
 *         too: nothing that is queued afterwards runs. An operation for which the host has no room (for scratch or
 *         lists) is skipped. Waits then fail until the thread that holds the stream releases it and gets the status.
 *         A device hangs when it has work and makes no progress for the time of sl_device_limit_waits(). It then counts
 *         as failed and no wait waits for it again. Its memory stays allocated until the process ends, because freeing
 *         it would wait too.
 * Threads: many threads may use a device. One thread at a time queues operations in a stream: where several threads do,
 *         each holds the stream meanwhile. Any thread may queue copies and marks. A copy into memory that was just
 *         freed must come after a mark of the stream that may still touch that memory.
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
    SL_STREAM_IN,      // copies from shared to device memory, concurrent with computation
    SL_STREAM_OUT,     // copies back
    SL_N_STREAMS,
};

struct sl_device;

// A backend's own stream struct begins with this one.
struct sl_stream {
    struct sl_device *device;
    // the host threads that work for the stream; on the CPU they compute. NULL: the calling thread alone
    struct sl_team *team;
};

struct sl_mark {
    struct sl_stream *stream; // NULL: nothing was marked yet; such a mark is always reached
    uint64_t number;
};

struct sl_device_ops {
    const char *name; // "cpu", "cuda"
    bool one_memory;  // the host may touch device memory, and nothing needs to be copied
    int full_rows;    // rows of prompts that keep the device busy in one pass; more rows gain little
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
    enum sl_status (*release)(struct sl_stream *stream, struct sl_error *err);
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

// The functions of a backend that names them like this. A backend that lacks one does not compile.
#define SL_DEVICE_FUNCTIONS                                                                                            \
    .close = close_device, .stream = stream_of, .room = room, .network_reaches = network_reaches,                      \
    .network_view = network_view, .network_flush = network_flush, .alloc = alloc_block, .free = free_block,            \
    .share = share_block, .unshare = unshare_block, .hold = hold, .release = release, .has_failed = has_failed,        \
    .progress = progress, .copy = copy_block, .mark = mark_here, .after = come_after, .reached = is_reached,           \
    .wait = wait_for, .wait_until = wait_until, .limit_waits = limit_waits

// A backend's own device struct begins with this one.
struct sl_device {
    const struct sl_device_ops *ops;
};

// Ends everything: no stream, mark or block of the device may be used afterwards. Accepts NULL; sets *device to NULL.
static inline void sl_device_close(struct sl_device **device) {
    if (*device != NULL) {
        (*device)->ops->close(*device);
        *device = NULL;
    }
}

// Returns the device's stream of this kind. It lives as long as the device.
static inline struct sl_stream *sl_device_stream(struct sl_device *device, enum sl_stream_kind kind) {
    return device->ops->stream(device, kind);
}

// Returns how many bytes of device memory are free now; for the CPU, the free bytes of the address space.
static inline size_t sl_device_room(struct sl_device *device) {
    return device->ops->room(device);
}

// Returns true where an RDMA device can read and write device memory without the host (GPUDirect).
static inline bool sl_device_network_reaches(struct sl_device *device) {
    return device->ops->network_reaches(device);
}

// Returns the address at which the network finds a block of device memory, where sl_device_network_reaches(). That is
// the block's own address for CUDA's memory. For the emulator it is the address at which this process has mapped the
// block as ordinary memory. Makes the device the calling thread's current one, for libraries that ask.
static inline void *sl_device_network_view(struct sl_device *device, void *block) {
    return device->ops->network_view(device, block);
}

/*
 * Makes what the network wrote to [seen, seen + bytes) visible in the block to all work that is queued from now on.
 * Without this call kernels may read the old contents. The network must have reported that the data has arrived. `seen`
 * is the block's address for the network, or the address at which another process reached ordinary memory that stands
 * for the block. Blocks for microseconds. Returns SL_ERR_UNSUPPORTED where the device cannot order the network's
 * writes.
 */
static inline enum sl_status sl_device_network_flush(struct sl_device *device, void *block, const void *seen,
                                                     size_t bytes, struct sl_error *err) {
    return device->ops->network_flush(device, block, seen, bytes, err);
}

// Allocates at a multiple of 64 bytes, not cleared. Returns NULL when memory is exhausted, or for 0 bytes.
static inline void *sl_device_alloc(struct sl_device *device, enum sl_memory memory, size_t bytes) {
    return device->ops->alloc(device, memory, bytes);
}

// Frees a block of sl_device_alloc(); accepts NULL.
static inline void sl_device_free(struct sl_device *device, enum sl_memory memory, void *block) {
    if (block != NULL) {
        device->ops->free(device, memory, block);
    }
}

// Makes the caller's memory (a region of the fabric) shared memory. Returns SL_ERR_EXHAUSTED when it cannot be pinned.
static inline enum sl_status sl_device_share(struct sl_device *device, void *base, size_t bytes, struct sl_error *err) {
    return device->ops->share(device, base, bytes, err);
}

// Reverses sl_device_share(). Call it after the last wait and before the memory is freed.
static inline void sl_device_unshare(struct sl_device *device, void *base) {
    device->ops->unshare(device, base);
}

/*
 * hold(): only this thread queues operations until it has called sl_stream_release() as often as hold(). Threads take
 * turns in the order in which they came. The processors' operations have finished when they return, so nothing waits.
 * release(): the last of several calls returns SL_ERR_EXHAUSTED when an operation was skipped since hold(). Results
 * that depend on it are then invalid; later operations may succeed.
 */
static inline void sl_stream_hold(struct sl_stream *stream) {
    stream->device->ops->hold(stream);
}
static inline enum sl_status sl_stream_release(struct sl_stream *stream, struct sl_error *err) {
    return stream->device->ops->release(stream, err);
}

// Releases the stream after work that ended with `status`. Returns `status` where that is a failure.
static inline enum sl_status sl_stream_release_after(struct sl_stream *stream, enum sl_status status,
                                                     struct sl_error *err) {
    enum sl_status left_out = sl_stream_release(stream, status == SL_OK ? err : NULL);
    return status == SL_OK ? left_out : status;
}

// Returns true once a wait has returned the device's failure: its users should stop.
static inline bool sl_device_has_failed(const struct sl_device *device) {
    return device->ops->has_failed(device);
}

#define SL_DEVICE_STILL_MS 60000

// Makes waits give up when the device has made no progress for still_ms; the default is SL_DEVICE_STILL_MS. Has no
// effect on processors, which compute in the calling thread. Any thread may call it.
static inline void sl_device_limit_waits(struct sl_device *device, int64_t still_ms) {
    device->ops->limit_waits(device, still_ms);
}

// Returns a number that changes whenever the device makes progress; processors always return the same one. Never waits.
static inline uint64_t sl_device_progress(const struct sl_device *device) {
    return device->ops->progress(device);
}

// Queues a copy. Either side is device or shared memory of the stream's device.
static inline void sl_stream_copy(struct sl_stream *stream, void *to, const void *from, size_t bytes) {
    stream->device->ops->copy(stream, to, from, bytes);
}

static inline struct sl_mark sl_stream_mark(struct sl_stream *stream) {
    struct sl_mark mark;
    stream->device->ops->mark(stream, &mark);
    return mark;
}

// Makes everything that is queued in `stream` from now on run after the mark, which is another stream's of the device.
static inline void sl_stream_after(struct sl_stream *stream, const struct sl_mark *mark) {
    stream->device->ops->after(stream, mark);
}

static inline bool sl_mark_reached(const struct sl_mark *mark) {
    return mark->stream == NULL || mark->stream->device->ops->reached(mark);
}

// Waits until the mark is reached. Returns SL_ERR_INTERNAL when work before it has failed, or when the device hangs;
// every later wait then fails too.
static inline enum sl_status sl_mark_wait(const struct sl_mark *mark, struct sl_error *err) {
    return mark->stream == NULL ? SL_OK : mark->stream->device->ops->wait(mark, err);
}

// Waits as sl_mark_wait() does, until sl_now_ns() is until_ns. Returns false when the mark is not reached; gives no
// status.
static inline bool sl_mark_wait_until(const struct sl_mark *mark, int64_t until_ns) {
    return mark->stream == NULL || mark->stream->device->ops->wait_until(mark, until_ns);
}

// Waits for everything that is queued.
static inline enum sl_status sl_stream_wait(struct sl_stream *stream, struct sl_error *err) {
    struct sl_mark mark = sl_stream_mark(stream);
    return sl_mark_wait(&mark, err);
}

// Runs a loop on the stream's host threads, as sl_team_run() does. The loop is not queued: it has ended on return.
// stream NULL: the calling thread runs it alone.
static inline void sl_stream_run(struct sl_stream *stream, int64_t n_tasks, int64_t grain, sl_team_fn fn, void *arg) {
    sl_team_run(stream != NULL ? stream->team : NULL, n_tasks, grain, fn, arg);
}

// Returns how many threads sl_stream_run() uses.
static inline int sl_stream_threads(const struct sl_stream *stream) {
    return sl_team_size(stream != NULL ? stream->team : NULL);
}
