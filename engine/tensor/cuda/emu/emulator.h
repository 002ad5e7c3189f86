// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the host's side of an emulated GPU: memory, work in order, events, and what makes a test strict.
 *
 * Design: work runs when somebody waits for it, on the thread that waits, or at once if the emulator is eager: what a host
 *         reads too early is not there yet. Device memory has no access rights but while work runs, and holds NaN where nothing
 *         was written. Of several devices each has memory and queues of its own; while work runs all memory is open, as it is to
 *         GPUs that reach each other's.
 * Threads: any; one lock is held while work runs.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpu_queue; // what CUDA calls a stream
struct gpu_event;

// What the calling thread allocates and opens from now on is this device's, below SL_EMU_DEVICES. 0 unless it says.
#define SL_EMU_DEVICES 16
void sl_emu_use(int device);

struct gpu_queue *sl_emu_queue_open(void);
void sl_emu_queue_close(struct gpu_queue **queue); // waits. Accepts NULL, leaves NULL
void sl_emu_copy(struct gpu_queue *queue, void *to, const void *from, size_t bytes);
void sl_emu_wait(struct gpu_queue *queue);

struct gpu_event *sl_emu_event_open(void);
void sl_emu_event_close(struct gpu_event **event); // accepts NULL, leaves NULL
void sl_emu_event_record(struct gpu_event *event, struct gpu_queue *queue);
void sl_emu_event_before(struct gpu_event *event, struct gpu_queue *queue); // what follows in `queue` comes behind it
bool sl_emu_event_reached(struct gpu_event *event); // never does the work. True if never recorded
bool sl_emu_event_wait(struct gpu_event *event);    // false: a kernel before it never ends

// Device memory, at a multiple of 256 bytes, filled with NaN. NULL: exhausted. Writing behind a block is found when it is freed.
void *sl_emu_alloc(size_t bytes);
void sl_emu_free(void *block); // NULL is fine
size_t sl_emu_used(void);      // bytes of all blocks of the device that the thread uses
size_t sl_emu_most_used(void); // the most that these ever were

// From here on nothing is computed or copied, memory is counted and never touched: of a process that only asks how much
// there would have to be. Before the first allocation.
void sl_emu_set_dry(void);
bool sl_emu_is_dry(void);

// Of the device that the thread uses, before its first block: memory is mapped a second time, where a network card may touch it at any
// time, and the host may not by a block's own address, as ever. Pages are small then.
void sl_emu_open_to_network(void);
void *sl_emu_network_view(void *block); // the same place there; NULL: it is not open

// Of the threads of a block and the blocks of a grid: 0 ascending, 1 descending, else the seed of a random order.
void sl_emu_set_order(unsigned order);
// Work runs when it is queued, the earliest that a GPU can.
void sl_emu_set_eager(bool eager);

// The n-th kernel of a device, or of any (-1), that runs from now on goes wrong, as one does that follows a wrong address: it is not done, and nothing after it
// ever is. 0: none. Events behind it are not reached.
void sl_emu_fail_at(int device, uint64_t n);
const char *sl_emu_failed(void); // the kernel that went wrong, or NULL
int sl_emu_failed_device(void);  // whose
// The n-th kernel of a device that would run from now on never ends: nothing behind it is reached. n 0: none.
void sl_emu_stall_at(int device, uint64_t n);
uint64_t sl_emu_n_done(void); // blocks that have run; does not wait for those that do

// Allocations of the device that the thread uses are refused above so many bytes in all.
void sl_emu_set_room(size_t bytes);

#ifdef __cplusplus
}
#endif
