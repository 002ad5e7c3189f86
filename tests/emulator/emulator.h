// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the host's side of an emulated GPU: memory, queues, events, and settings that make a test strict.
 *
 * Design: work runs when a thread waits for it, on that thread, or at once if the emulator is eager. So a host that
 *         reads too early does not find the result. Device memory has no access rights except while work runs, and
 *         holds NaN where nothing was written. Each device has memory and queues of its own; while work runs all memory
 *         is accessible, as it is to GPUs that reach each other's.
 * Threads: any; one lock is held while work runs.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpu_queue; // a stream in CUDA's terms
struct gpu_event;

// The calling thread's later allocations and queues belong to this device, below SL_EMU_DEVICES. The default is 0.
#define SL_EMU_DEVICES 16
void sl_emu_use(int device);

struct gpu_queue *sl_emu_queue_open(void);
void sl_emu_queue_close(struct gpu_queue **queue); // waits. Accepts NULL; sets *queue to NULL
void sl_emu_copy(struct gpu_queue *queue, void *to, const void *from, size_t bytes);
void sl_emu_wait(struct gpu_queue *queue);

struct gpu_event *sl_emu_event_open(void);
void sl_emu_event_close(struct gpu_event **event); // accepts NULL; sets *event to NULL
void sl_emu_event_record(struct gpu_event *event, struct gpu_queue *queue);
// later work in `queue` runs after the event
void sl_emu_event_before(struct gpu_event *event, struct gpu_queue *queue);
bool sl_emu_event_reached(struct gpu_event *event); // never runs work. True for an event that was never recorded
bool sl_emu_event_wait(struct gpu_event *event);    // false: a kernel before the event never ends

// Allocates device memory at a multiple of 256 bytes, filled with NaN. Returns NULL when exhausted. Freeing a block
// detects writes past its end.
void *sl_emu_alloc(size_t bytes);
void sl_emu_free(void *block); // accepts NULL
size_t sl_emu_used(void);      // bytes of all blocks of the thread's device
size_t sl_emu_most_used(void); // the maximum of sl_emu_used() so far

// From here on computes and copies nothing, and counts memory without touching it, for a process that only asks how
// much it would need. Call it before the first allocation.
void sl_emu_set_dry(void);
bool sl_emu_is_dry(void);

// Opens the memory of the thread's device to the network; call it before its first block. Memory is mapped a second
// time, where a network card may touch it at any time. The host still may not use a block's own address. Pages are
// small then.
void sl_emu_open_to_network(void);
void *sl_emu_network_view(void *block); // returns the block's address in the second mapping; NULL: it is not open

// Sets the order of a block's threads and a grid's blocks: 0 ascending, 1 descending, else the seed of a random order.
void sl_emu_set_order(unsigned order);
// Makes work run when it is queued, the earliest that a GPU can.
void sl_emu_set_eager(bool eager);

// Makes the n-th kernel of a device, or of any (-1), that runs from now on fail, as one does that follows a wrong
// address: neither it nor any later work is executed. 0: none. Later events are not reached.
void sl_emu_fail_at(int device, uint64_t n);
const char *sl_emu_failed(void); // the kernel that failed, or NULL
int sl_emu_failed_device(void);  // the device of that kernel
// Makes the n-th kernel of a device that would run from now on never end: no later work is reached. n 0: none.
void sl_emu_stall_at(int device, uint64_t n);
uint64_t sl_emu_n_done(void); // blocks that have run; does not wait for those that are running

// Refuses allocations of the thread's device above this many bytes in all.
void sl_emu_set_room(size_t bytes);

#ifdef __cplusplus
}
#endif
