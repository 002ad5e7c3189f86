// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a GPU as a device (engine/tensor/device.h), and what operations need from their stream besides a queue: a
 *          ring for the descriptions of calls, and scratch.
 *
 * Design: the description of a call (page lists, counts, protections) goes through a ring of shared memory to a ring of
 *         device memory of the same size, in the order of the queue. So the host continues at once, and waits only
 *         where it is half a ring ahead of the device. Scratch is one block for each stream, which grows: operations of
 *         a queue run in order.
 * Threads: one thread at a time queues operations. Any thread may queue copies and marks, and poll marks.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "engine/tensor/cuda/heads.h"
#include "engine/tensor/cuda/table/driver.h"
#include "engine/tensor/device.h"
#include "engine/tensor/ops.h"

// of a stream: recent marks, each with an event of its own; an older mark counts as reached when a newer one with its
// event is
#define GPU_EVENTS 128

// The result of ops->publish() for heads.
struct gpu_published {
    const struct gpu_head *heads; // device memory
    uint64_t at;                  // position in the ring, counted from its beginning
    // True if any head has packed pages, and then for parts of the heads, too: their attention uses another kernel,
    // with other bits.
    bool has_packed;
    enum sl_kv_format packed_format; // the format of packed pages, or the working format
};
// Published heads that are remembered: for one layer each sequence of a step publishes several times, and each tile
// that is read back once.
#define GPU_PUBLISHED 4096

// A block that grows.
struct gpu_block {
    void *at;
    size_t bytes;
};

// Angles for keys that are rotated by their slots: cosines and sines [n][rotary_dim / 2] in device memory.
struct gpu_slot_angles {
    int rotary_dim; // of the rope; 0: the angles were not computed yet
    double scale, inv_freq[SL_MAX_HEAD_DIM / 2];
    uint32_t n;
    struct gpu_block cosines, sines;
};

// The result of trying a library with matrices of a shape.
struct gpu_way {
    int64_t n, k;
    bool gated;
    int way; // the library's way; -1: it is not used
};
#define GPU_WAYS 64

struct gpu_stream {
    struct sl_stream stream;
    struct gpu_queue *queue;
    const struct gpu_driver *driver;
    int index; // of the device
    struct gpu_event *events[GPU_EVENTS];
    pthread_mutex_t mutex; // protects the following fields: marks are in the queue in the order of their numbers
    pthread_cond_t changed;
    _Atomic uint64_t n_marks;
    uint64_t n_tickets, n_served; // of threads that hold the stream, or wait for it
    pthread_t holder;             // where n_held > 0
    int n_held;
    _Atomic uint64_t n_reached; // marks that a wait has found reached
    _Atomic uint64_t n_looked;  // marks that progress() has found reached
    char *here, *there;         // the rings, in shared and in device memory; NULL in streams that only copy
    uint64_t described;         // bytes that were sent through it
    struct sl_mark half;        // after the last use of the other half
    struct gpu_published published[GPU_PUBLISHED];
    uint64_t n_published;
    struct gpu_block scratch;
    struct gpu_slot_angles slot_angles;
    struct gpu_way ways[GPU_WAYS];
    int n_ways;
    _Atomic enum sl_status status; // the host had no memory for an operation: the next wait says so
    struct sl_error err;
};

// Returns the GPU's stream, and makes its device the calling thread's.
static inline struct gpu_stream *sl_gpu_stream(struct sl_stream *stream) {
    struct gpu_stream *s = (struct gpu_stream *)stream;
    s->driver->use(s->index);
    return s;
}

// Opens a device. `team` has the host's threads beside it. Statuses of driver->open(); SL_ERR_EXHAUSTED.
enum sl_status sl_gpu_device_open(const struct gpu_driver *driver, int index, struct sl_team *team,
                                  struct sl_device **device_out, struct sl_error *err);

// Returns true where the device hangs (engine/tensor/device.h): its memory must not be freed then.
bool sl_gpu_hangs(const struct gpu_stream *stream);

// Reserves `bytes` (at most half a ring) for the description of a call. *here_out is the host's address, the return
// value the device's. sl_gpu_describe_end() sends the bytes. Returns NULL when they are too many, or the device has
// failed; the next wait says so.
void *sl_gpu_describe_begin(struct gpu_stream *stream, size_t bytes, void **here_out);
void sl_gpu_describe_end(struct gpu_stream *stream, void *there, size_t bytes);

// Does both, for bytes that are stored elsewhere.
void *sl_gpu_describe(struct gpu_stream *stream, const void *bytes, size_t n_bytes);

// Returns room for `bytes` in a block of the device; its contents are lost. Returns NULL when exhausted; the next wait
// says so.
void *sl_gpu_grow(struct gpu_stream *stream, struct gpu_block *block, size_t bytes);

// Returns scratch for the operation that is queued next, at a multiple of 64 bytes. Returns NULL when exhausted; the
// next wait says so.
void *sl_gpu_scratch(struct gpu_stream *stream, size_t bytes);
