// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a GPU as a device (engine/tensor/device.h), and what operations need of their stream beside a queue: a way for what describes
 *          a call, and scratch.
 *
 * Design: what describes a call (page lists, counts, protections) goes up through a ring of shared memory with a ring of device
 *         memory of the same size behind it, in the order of the queue. So the host goes on at once, and waits only where it is
 *         half a ring ahead of the device. Scratch is one block a stream that grows: operations of a queue run one after the other.
 * Threads: operations are queued by one at a time; copies and marks by any, and marks may be looked at by any.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "engine/tensor/cuda/heads.h"
#include "engine/tensor/cuda/table/driver.h"
#include "engine/tensor/device.h"
#include "engine/tensor/ops.h"

#define GPU_EVENTS 128 // of a stream: marks that are told apart; an older one is as far as the next that is

// What ops->publish() made of heads.
struct gpu_published {
    const struct gpu_head *heads; // device memory
    uint64_t at;                  // place in the ring, counted from its beginning
    // Of any of them, and so of a part, too: attention to those has another kernel, and other bits.
    bool has_packed;
    enum sl_kv_format packed_format; // that of packed pages, else the working one
};
// That are remembered: while a layer is at hand each of a step's sequences publishes several times, and each tile of what is
// read back once.
#define GPU_PUBLISHED 4096

// A block that grows.
struct gpu_block {
    void *at;
    size_t bytes;
};

// Of keys that are rotated by their slots: cosines and sines [n][rotary_dim / 2] in device memory.
struct gpu_slot_angles {
    int rotary_dim; // whose they are; 0: nobody's
    double scale, inv_freq[SL_MAX_HEAD_DIM / 2];
    uint32_t n;
    struct gpu_block cosines, sines;
};

// How a library multiplies by matrices of a shape, since it was tried.
struct gpu_way {
    int64_t n, k;
    bool gated;
    int way; // -1: not at all
};
#define GPU_WAYS 64

struct gpu_stream {
    struct sl_stream stream;
    struct gpu_queue *queue;
    const struct gpu_driver *driver;
    int index; // of the device
    struct gpu_event *events[GPU_EVENTS];
    pthread_mutex_t mutex; // over what follows: marks lie in the queue in the order of their numbers
    pthread_cond_t changed;
    _Atomic uint64_t n_marks;
    uint64_t n_tickets, n_served; // of those who hold the stream, or wait for it
    pthread_t holder;             // where n_held > 0
    int n_held;
    _Atomic uint64_t n_reached; // marks that somebody has seen reached
    _Atomic uint64_t n_looked;  // of those at which progress was looked for
    char *here, *there;         // the rings, of shared and of device memory; NULL in streams that only copy
    uint64_t described;         // bytes that have gone through
    struct sl_mark half;        // behind the last use of the half that is not at hand
    struct gpu_published published[GPU_PUBLISHED];
    uint64_t n_published;
    struct gpu_block scratch;
    struct gpu_slot_angles slot_angles;
    struct gpu_way ways[GPU_WAYS];
    int n_ways;
    _Atomic enum sl_status status; // the host ran short of memory for an operation: the next wait says so
    struct sl_error err;
};

// Whoever asks for it works with its device.
static inline struct gpu_stream *sl_gpu_stream(struct sl_stream *stream) {
    struct gpu_stream *s = (struct gpu_stream *)stream;
    s->driver->use(s->index);
    return s;
}

// `team` is the host's, beside the device. Statuses of driver->open(); SL_ERR_EXHAUSTED.
enum sl_status sl_gpu_device_open(const struct gpu_driver *driver, int index, struct sl_team *team,
                                  struct sl_device **device_out, struct sl_error *err);

// Returns whether the device hangs (engine/tensor/device.h): its memory must not be freed then.
bool sl_gpu_hangs(const struct gpu_stream *stream);

// Room for `bytes` (at most half a ring) of what describes a call: *here_out is the host's, the same place there is what is
// returned. sl_gpu_describe_end() sends it. NULL: too much, or the device has failed; the next wait says so.
void *sl_gpu_describe_begin(struct gpu_stream *stream, size_t bytes, void **here_out);
void sl_gpu_describe_end(struct gpu_stream *stream, void *there, size_t bytes);

// Both, of bytes that lie somewhere else.
void *sl_gpu_describe(struct gpu_stream *stream, const void *bytes, size_t n_bytes);

// Room for `bytes` in a block of the device, what was in it is lost. NULL: exhausted; the next wait says so.
void *sl_gpu_grow(struct gpu_stream *stream, struct gpu_block *block, size_t bytes);

// Scratch of the operation that is queued next, at a multiple of 64 bytes. NULL: exhausted; the next wait says so.
void *sl_gpu_scratch(struct gpu_stream *stream, size_t bytes);
