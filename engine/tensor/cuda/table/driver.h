// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the interface of CUDA's runtime for the table and the device: memory, queues, events. It has two
 *          implementations: the emulator (tests/emulator), and cudart in the plugin
 *          (engine/tensor/cuda/plugin). Kernels are launched on the same queues.
 *
 * Design: a process may have several devices open. What a thread allocates or opens (memory, queues, events) belongs to
 *         the device that it uses. It launches only on queues of this device. An address means the same on all devices:
 *         each reaches the others' memory.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct gpu_queue;
struct gpu_event;

struct gpu_matrix;
struct sl_matmul;

// Products of bf16 weights, instead of our own kernel: a library's, or those of another kernel (wgmma.h).
struct gpu_library {
    const char *name;
    int64_t most_rows; // of a call
    bool
        // multiply() applies bias, activation and gate, and adds to y, itself; else it gets bare matrices, and makes
        // sums
        finishes;
    // Chooses how rows are multiplied by a W[n][k], k a multiple of 32, from now on: one way for each shape, for any
    // number of rows. Returns SL_ERR_UNSUPPORTED where there is none.
    enum sl_status (*choose)(int64_t n, int64_t k, int *way_out, struct sl_error *err);
    // Queues args->y = x W^T, x[args->m][k] of bf16 without gaps at a multiple of 16 bytes. Where `finishes` is false,
    // y has no gaps either, and is at a multiple of 16.
    enum sl_status (*multiply)(struct gpu_queue *queue, int way, const struct gpu_matrix *w, const void *x,
                               const struct sl_matmul *args, struct sl_error *err);
};

struct gpu_driver {
    const char *name;
    size_t ring_bytes; // for descriptions of calls, twice: half of it holds the page lists of one layer of one step
    // Opens a device; this is the first call for it, on any thread, which uses it afterwards. Returns
    // SL_ERR_UNSUPPORTED when there is no such device, when it is too old, or when it and an open one do not reach each
    // other's memory; the text says which and why.
    enum sl_status (*open)(int index, struct sl_error *err);
    // makes it the calling thread's device, until the thread uses another. Cheap where it already is
    void (*use)(int index);
    size_t (*room)(void);          // free bytes of device memory
    bool (*network_reaches)(void); // an RDMA device may read and write its memory
    // Returns the network's address of a block; NULL: the block's own address. Another address than the block's own is
    // ordinary memory.
    void *(*network_view)(void *block);
    // Does what sl_device_network_flush() does.
    enum sl_status (*network_flush)(void *block, const void *seen, size_t bytes, struct sl_error *err);
    void *(*alloc)(size_t bytes);        // device memory; NULL: exhausted
    void (*free)(void *block);           // accepts NULL
    void *(*alloc_shared)(size_t bytes); // host memory that kernels reach
    void (*free_shared)(void *block);    // accepts NULL
    enum sl_status (*share)(void *base, size_t bytes, struct sl_error *err);
    void (*unshare)(void *base);
    struct gpu_queue *(*queue_open)(void); // NULL: exhausted
    void (*queue_close)(struct gpu_queue **queue);
    // Checks without waiting. Returns SL_ERR_INTERNAL when the device has failed so far; the text is CUDA's.
    enum sl_status (*queue_look)(struct gpu_queue *queue, struct sl_error *err);
    void (*copy)(struct gpu_queue *queue, void *to, const void *from, size_t bytes);
    struct gpu_event *(*event_open)(void);
    void (*event_close)(struct gpu_event **event);
    void (*event_record)(struct gpu_event *event, struct gpu_queue *queue);
    void (*event_before)(struct gpu_event *event, struct gpu_queue *queue);
    bool (*event_reached)(struct gpu_event *event);
    // Waits without a limit, for an event that is reached, or that another thread ends. Returns SL_ERR_INTERNAL when
    // the device has failed before the event, which is permanent; the text is CUDA's.
    enum sl_status (*event_wait)(struct gpu_event *event, struct sl_error *err);
    uint64_t (*progress)(void); // for all devices: as sl_device_progress(); NULL: only events show progress
    // Waits until sl_now_ns() is `until_ns` at most, and gives no status. Returns false when the event is not reached.
    bool (*event_wait_until)(struct gpu_event *event, int64_t until_ns);
    const struct gpu_library *(*library)(void); // called once the device is open; NULL, or returns NULL: none
};
