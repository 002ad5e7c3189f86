// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what the table and the device ask of CUDA's runtime: memory, queues, events. Two fillings: the emulator
 *          (engine/tensor/cuda/emulated), and cudart in the plugin (engine/tensor/cuda/plugin). Kernels are launched on the same queues.
 *
 * Design: a process may have several devices open. What a thread asks for (memory, queues, events) is of the device that it uses, and so is
 *         what it launches, on queues of this device. An address means the same on all of them: each reaches the others' memory.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct gpu_queue;
struct gpu_event;

struct gpu_matrix;
struct gpu_product;

// Products of bf16 weights in the place of our own kernel for everything: a library's, or of another kernel (wgmma.h).
struct gpu_library {
    const char *name;
    int64_t most_rows; // of a call
    bool
        finishes; // bias, activation, gate and what is added to are its own; else it is given bare matrices, and makes sums
    // How rows are multiplied by a W[n][k], k a multiple of 32, from now on: one way a shape, whatever the number of rows.
    // SL_ERR_UNSUPPORTED: there is none.
    enum sl_status (*choose)(int64_t n, int64_t k, int *way_out, struct sl_error *err);
    // args->y = x W^T, x[args->m][k] of bf16 without gaps at a multiple of 16 bytes; where it does not finish y has no gaps, too, and is
    // at a multiple of 16. Queued.
    enum sl_status (*multiply)(struct gpu_queue *queue, int way, const struct gpu_matrix *w, const void *x,
                               const struct gpu_product *args, struct sl_error *err);
};

struct gpu_driver {
    const char *name;
    size_t ring_bytes; // of what describes calls, twice: half of it holds the page lists of one layer of one step
    // The first call for a device, on any thread, which uses it afterwards. SL_ERR_UNSUPPORTED: no such device, it is too old, or it
    // and one that is open already do not reach each other's memory; says which and why.
    enum sl_status (*open)(int index, struct sl_error *err);
    void (*use)(int index);        // of the calling thread, until it uses another. Cheap where it does already
    size_t (*room)(void);          // bytes of device memory that are free
    bool (*network_reaches)(void); // an RDMA device may read and write its memory
    // Where it finds a block: NULL, or what this returns. Another address than the block's own is ordinary memory.
    void *(*network_view)(void *block);
    // As sl_device_network_flush().
    enum sl_status (*network_flush)(void *block, const void *seen, size_t bytes, struct sl_error *err);
    void *(*alloc)(size_t bytes);        // device memory; NULL: exhausted
    void (*free)(void *block);           // accepts NULL
    void *(*alloc_shared)(size_t bytes); // host memory that kernels reach
    void (*free_shared)(void *block);    // accepts NULL
    enum sl_status (*share)(void *base, size_t bytes, struct sl_error *err);
    void (*unshare)(void *base);
    struct gpu_queue *(*queue_open)(void); // NULL: exhausted
    void (*queue_close)(struct gpu_queue **queue);
    // Does not wait. SL_ERR_INTERNAL: its device has failed, as far as it has come; says what CUDA says.
    enum sl_status (*queue_look)(struct gpu_queue *queue, struct sl_error *err);
    void (*copy)(struct gpu_queue *queue, void *to, const void *from, size_t bytes);
    struct gpu_event *(*event_open)(void);
    void (*event_close)(struct gpu_event **event);
    void (*event_record)(struct gpu_event *event, struct gpu_queue *queue);
    void (*event_before)(struct gpu_event *event, struct gpu_queue *queue);
    bool (*event_reached)(struct gpu_event *event);
    // Waits without a limit: of an event that is reached, or that another thread ends. SL_ERR_INTERNAL: the device has failed before the
    // event, and for good; says what CUDA says.
    enum sl_status (*event_wait)(struct gpu_event *event, struct sl_error *err);
    uint64_t (*progress)(void); // of all devices: as sl_device_progress(); NULL: reached events are all there is to see
    // The same, but for the status, no longer than until sl_now_ns() is `until_ns`. False: it is not reached.
    bool (*event_wait_until)(struct gpu_event *event, int64_t until_ns);
    const struct gpu_library *(*library)(void); // asked once the device is open; NULL, or returns NULL: none
};
