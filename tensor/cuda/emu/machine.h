// SPDX-License-Identifier: Apache-2.0
// Purpose: the state of the emulator, and what sanitizers are told about it: between its own files.
#pragma once

#include <mutex>
#include <vector>

#include "tensor/cuda/emu/emu.h"

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

enum state { READY, AT_BARRIER, AT_WARP, DONE };

struct where {
    const char *file;
    int line;
};

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
    std::vector<size_t> ends; // of committed groups, in `copies`
    void *tsan, *asan;
};

struct warp { // the operation that some of its lanes have come to
    unsigned arrived, mask;
    warp_op op;
    where at;
    fiber *lanes[32];
    unsigned n_done;
    char sync[2];
};

struct machine {
    std::recursive_mutex lock; // held while work runs
    std::vector<fiber> fibers;
    std::vector<warp> warps;
    std::vector<uint64_t> dynamic;
    unsigned order;
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
void to_scheduler();                 // from the fiber that runs
void open_devices(bool open);        // device memory to work of queues; calls nest
int used_device();                   // by this thread
void poison(void *at, size_t bytes); // NaN in every format
constexpr unsigned char POISON = 0xff;

} // namespace emu
