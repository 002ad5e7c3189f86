// SPDX-License-Identifier: Apache-2.0
// Purpose: the state of the emulator, and what it tells sanitizers about it, for its own files.
#pragma once

#include <deque>
#include <mutex>
#include <vector>

#include "tests/emulator/emu.h"

#if defined(EMU_TSAN)
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
void __tsan_read_range(void *addr, unsigned long bytes);
void __tsan_write_range(void *addr, unsigned long bytes);
}
#define READS(p, n)  __tsan_read_range((void *)(p), n)
#define WRITES(p, n) __tsan_write_range((void *)(p), n)
#define RELEASE(x)   __tsan_release(x)
#define ACQUIRE(x)   __tsan_acquire(x)
#else
#define RELEASE(x)   (void)(x)
#define ACQUIRE(x)   (void)(x)
#define READS(p, n)  (void)(p)
#define WRITES(p, n) (void)(p)
#endif

namespace emu {

enum state { READY, AT_BARRIER, AT_WARP, AT_WGMMA, DONE };

struct async_copy {
    char *to;
    const char *from;
    unsigned bytes;
};

struct fiber { // a thread of a block
    void *sp;
    char *stack;
    place at;
    unsigned id;
    state what;
    where line; // of its last barrier or operation
    const void *in;
    void *out;
    int amount;
    std::vector<async_copy> copies;
    std::vector<size_t> ends;       // of committed groups, in `copies`
    std::vector<uint32_t> unfenced; // units of dynamic shared memory whose copies have finished
    uint64_t n_wgmma, n_wgmma_waited;
    std::vector<uint64_t> wgmma_ends; // of committed groups, in its products
    bool wgmma_fenced;
    void *tsan, *asan;
};

struct warp { // the operation that some of its lanes have reached
    unsigned arrived, mask;
    warp_op op;
    where at;
    fiber *lanes[32];
    unsigned n_done;
    char sync[2];
};

constexpr unsigned WARPGROUP = 128;

struct async_product { // of a warpgroup
    uint64_t a, b;
    float *d[WARPGROUP];
    unsigned arrived, waited;
    bool done;
    where at;
};

constexpr unsigned UNIT = 16; // bytes of shared memory in a unit; the emulator knows which thread copied to each unit

struct warpgroup {
    std::deque<async_product> products; // that some thread has not waited for
    uint64_t n_gone;                    // products removed before those
};

struct machine {
    std::recursive_mutex lock; // held while work runs
    std::vector<fiber> fibers;
    std::vector<warp> warps;
    std::vector<uint64_t> dynamic;
    std::vector<warpgroup> warpgroups;
    std::vector<uint16_t>
        // by unit of 16 bytes of dynamic shared memory: the thread, from 1 on, that copied to it and has not fenced it
        copied;
    uint64_t n_products; // wgmma products of a launch
    unsigned order;
    const std::vector<unsigned> *turn; // the order of a block's threads
    unsigned position;                 // in it, of the running one
    unsigned n_threads, n_left, n_waiting;
    where barrier_at;
    int n_yes, result;
    unsigned n_barriers;
    char barrier_sync[2], done_sync;
    fiber *now;
    void *scheduler_sp;
    const std::function<void()> *thread;
    const char *kernel;
    void *tsan, *asan;
    const void *bottom; // of the host's stack
    size_t size;
};
extern machine m;

[[noreturn]] void die(const char *what, const char *file, int line);
void to_scheduler();                                        // switches from the running fiber
void copies_to(const void *to, const char *file, int line); // a copy of 16 bytes may write there from now on
void copied_to(const void *to);                             // the copy has finished
char *dynamic_window();              // the address from which addresses of dynamic shared memory count
void open_devices(bool open);        // opens device memory to work of queues; calls nest
int used_device();                   // the calling thread's device
void poison(void *at, size_t bytes); // fills with a NaN of every format
constexpr unsigned char POISON = 0xff;

} // namespace emu
