// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the threads of a block as fibers, their barrier, and the blocks of a grid one after another.
 *
 *      READY --barrier()--> AT_BARRIER --open_barrier(), by the last to arrive--> READY
 *      READY --together()--> AT_WARP --together(), by the last lane of the mask--> READY
 *      READY --entry() returns--> DONE
 */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

#include "tests/emulator/emulator.h"
#include "tests/emulator/machine.h"

#if defined(__SANITIZE_ADDRESS__)
extern "C" {
void __sanitizer_start_switch_fiber(void **save, const void *bottom, size_t size);
void __sanitizer_finish_switch_fiber(void *save, const void **bottom, size_t *size);
void __asan_unpoison_memory_region(const volatile void *at, size_t bytes);
}
#define ASAN_CLEAN(at, bytes)           __asan_unpoison_memory_region(at, bytes)
#define ASAN_LEAVE(save, bottom, size)  __sanitizer_start_switch_fiber(save, bottom, size)
#define ASAN_ENTER(saved, bottom, size) __sanitizer_finish_switch_fiber(saved, bottom, size)
#else
#define ASAN_LEAVE(save, bottom, size)  (void)0
#define ASAN_ENTER(saved, bottom, size) (void)0
#define ASAN_CLEAN(at, bytes)           (void)0
#endif

// The linker defines it, if there is any shared memory.
extern "C" char __start_gpu_shared[] __attribute__((weak));
extern "C" char __stop_gpu_shared[] __attribute__((weak));

namespace emu {

constexpr size_t STACK = 256 << 10;
// shared memory of a block on every GPU since 8.0, and on 9.0
constexpr size_t MOST_DYNAMIC = 99 << 10, MOST_OF_90 = 227 << 10;
machine m;
const place *running;

void die(const char *what, const char *file, int line) {
    const fiber *f = m.now;
    if (f != nullptr) {
        fprintf(stderr, "emulator: kernel %s, block (%u,%u,%u), thread %u: ", m.kernel, f->at.block.x, f->at.block.y,
                f->at.block.z, f->id);
    }
    fprintf(stderr, "%s at %s:%d\n", what, file, line);
    abort();
}

void *dynamic_shared() {
    return dynamic_window() + 128; // aligned to 128 and no more
}

char *dynamic_window() {
    return (char *)(((uintptr_t)m.dynamic.data() + 1023) & ~(uintptr_t)1023);
}

void poison(void *at, size_t bytes) {
    memset(at, POISON, bytes);
}

// --- fibers ----------------------------------------------------------------------------------------------------------

// Pushes the callee-saved registers, saves the stack pointer, and loads another stack's.
extern "C" void sl_emu_switch(void **save_sp, void *load_sp);
#if defined(__x86_64__)
asm(".text\n.globl sl_emu_switch\n.type sl_emu_switch,@function\nsl_emu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\nmovq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n.size sl_emu_switch,.-sl_emu_switch\n");
#elif defined(__aarch64__)
asm(".text\n.globl sl_emu_switch\n.type sl_emu_switch,%function\nsl_emu_switch:\nsub sp,sp,#160\n"
    "stp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\n"
    "stp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\n"
    "ldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#160\nret\n");
#endif

static void set_running(fiber *f) {
    m.now = f;
    running = &f->at;
}

// Returns the next fiber after the running one that is ready in this round, or NULL at its end.
static fiber *next_ready() {
    while (++m.position < m.n_threads) {
        fiber *f = &m.fibers[(*m.turn)[m.position]];
        if (f->what == READY) {
            return f;
        }
    }
    return nullptr;
}

void to_scheduler() {
    fiber *f = m.now;
#if defined(EMU_TSAN)
    __tsan_switch_to_fiber(m.tsan, 1); // 1: orders nothing
#elif !defined(__SANITIZE_ADDRESS__)
    // Half of the switches: straight to the fiber that the scheduler would choose. Sanitizers know only of its own.
    fiber *next = next_ready();
    if (next != nullptr) {
        set_running(next);
        sl_emu_switch(&f->sp, next->sp);
        return;
    }
#endif
    ASAN_LEAVE(f->what == DONE ? nullptr : &f->asan, m.bottom, m.size);
    sl_emu_switch(&f->sp, m.scheduler_sp);
    ASAN_ENTER(f->asan, nullptr, nullptr);
}

static void to_fiber(fiber *f) {
    set_running(f);
#if defined(EMU_TSAN)
    __tsan_switch_to_fiber(f->tsan, 0); // what the host did before is ordered before the fiber
#endif
    ASAN_LEAVE(&m.asan, f->stack, STACK);
    sl_emu_switch(&m.scheduler_sp, f->sp);
    ASAN_ENTER(m.asan, nullptr, nullptr);
    m.now = nullptr;
    running = nullptr;
}

static void entry() {
    ASAN_ENTER(nullptr, &m.bottom, &m.size);
    (*m.thread)();
    fiber *f = m.now;
    if (!f->copies.empty()) {
        die("the thread ends before its asynchronous copies: last one", f->line.file, f->line.line);
    }
    if (f->n_wgmma_waited != f->n_wgmma) {
        die("the thread ends before its products: last one", f->line.file, f->line.line);
    }
    f->what = DONE;
    m.n_left--;
    RELEASE(&m.done_sync);
    to_scheduler();
    abort();
}

static void prepare(fiber *f, dim3 block, dim3 n_blocks, dim3 n) {
    if (f->stack == nullptr) {
        f->stack =
            (char *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (f->stack == MAP_FAILED || mprotect(f->stack, 4096, PROT_NONE) != 0) {
            die("out of memory for stacks", m.kernel, 0);
        }
    }
    ASAN_CLEAN(f->stack + 4096, STACK - 4096); // entry() never returned from its frames on this stack
    unsigned i = f->id;
    f->at = {dim3(i % n.x, i / n.x % n.y, i / n.x / n.y), block, n, n_blocks};
    // gives stacks different cache sets
    uintptr_t top = ((uintptr_t)f->stack + STACK - f->id % 64 * 1088) & ~(uintptr_t)63;
#if defined(__x86_64__)
    void **sp = (void **)(top - 8); // at entry() rsp % 16 is 8
    *--sp = (void *)entry;
    for (int j = 0; j < 6; j++) {
        *--sp = nullptr;
    }
#else
    uint64_t *sp = (uint64_t *)(top - 160);
    for (int j = 0; j < 20; j++) {
        sp[j] = 0;
    }
    sp[11] = (uint64_t)entry;
#endif
    f->sp = sp;
    f->what = READY;
    f->copies.clear();
    f->ends.clear();
    f->unfenced.clear();
    f->n_wgmma = f->n_wgmma_waited = 0;
    f->wgmma_ends.clear();
    f->wgmma_fenced = false;
#if defined(EMU_TSAN)
    if (f->tsan == nullptr) {
        f->tsan = __tsan_create_fiber(0);
    }
#endif
}

// --- the barrier -----------------------------------------------------------------------------------------------------

static void open_barrier() {
    m.result = m.n_yes;
    m.n_yes = 0;
    m.n_waiting = 0;
    m.n_barriers++;
    for (unsigned i = 0; i < m.n_threads; i++) {
        if (m.fibers[i].what == AT_BARRIER) {
            m.fibers[i].what = READY;
        }
    }
}

int barrier(int predicate, const char *file, int line) {
    fiber *f = m.now;
    f->line = {file, line};
    if (m.n_waiting == 0) {
        m.barrier_at = f->line;
    }
    if (m.barrier_at.line != line) {
        die("threads of a block wait at different barriers", file, line);
    }
    m.n_yes += predicate;
    char *sync =
        &m.barrier_sync[m.n_barriers % 2]; // a fast thread can reach the next barrier before a slow one leaves this one
    RELEASE(sync);
    if (++m.n_waiting == m.n_left) {
        open_barrier();
    } else {
        f->what = AT_BARRIER;
        to_scheduler();
    }
    ACQUIRE(sync);
    return m.result;
}

static std::atomic<uint64_t> n_done; // blocks

// --- a grid ----------------------------------------------------------------------------------------------------------

static void run_block(const std::vector<unsigned> &turn, dim3 index, dim3 grid, dim3 block) {
    for (unsigned i = 0; i < m.n_threads; i++) {
        prepare(&m.fibers[i], index, grid, block);
    }
    for (auto &w : m.warps) {
        w.arrived = 0;
    }
    m.n_left = m.n_threads;
    m.n_waiting = 0;
    m.n_yes = 0;
    for (auto &group : m.warpgroups) {
        group.products.clear();
        group.n_gone = 0;
    }
    m.copied.assign(m.dynamic.size() * sizeof m.dynamic[0] / UNIT, 0);
    poison(m.dynamic.data(), m.dynamic.size() * sizeof m.dynamic[0]);
    if (__start_gpu_shared != nullptr) {
        poison(__start_gpu_shared, (size_t)(__stop_gpu_shared - __start_gpu_shared));
    }
    m.turn = &turn;
    while (m.n_left > 0) {
        bool moved = false;
        m.position = ~0u; // next_ready() begins with 0
        for (fiber *f = next_ready(); f != nullptr; f = next_ready()) {
            moved = true;
            to_fiber(f);
        }
        if (!moved && m.n_waiting == m.n_left) {
            open_barrier(); // the other threads have ended
            moved = true;
        }
        for (unsigned i = 0; i < m.n_threads && !moved; i++) {
            if (m.fibers[i].what != READY && m.fibers[i].what != DONE) {
                m.now = &m.fibers[i];
                die("waits for ever", m.now->line.file, m.now->line.line);
            }
        }
    }
    ACQUIRE(&m.done_sync);
}

// Returns 0 .. n - 1 in the order that sl_emu_set_order() asked for.
static std::vector<unsigned> turns(unsigned n) {
    std::vector<unsigned> turn(n);
    for (unsigned i = 0; i < n; i++) {
        turn[i] = m.order == 1 ? n - 1 - i : i;
    }
    uint64_t s = m.order;
    for (unsigned i = n; m.order > 1 && i > 1; i--) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        std::swap(turn[i - 1], turn[(s >> 33) % i]);
    }
    return turn;
}

void run(const char *kernel, dim3 grid, dim3 block, size_t dynamic_bytes, const std::function<void()> &thread) {
    m.kernel = kernel;
    m.thread = &thread;
    m.n_threads = block.x * block.y * block.z;
    if (m.n_threads < 1 || m.n_threads > 1024 || grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.y > 65535 ||
        grid.z > 65535) {
        die("a grid or a block of impossible size", kernel, 0);
    }
    if (dynamic_bytes > MOST_OF_90) {
        die("more dynamic shared memory than any GPU has", kernel, 0);
    }
    if (m.fibers.size() < m.n_threads) {
        m.fibers.resize(m.n_threads);
    }
    for (unsigned i = 0; i < m.fibers.size(); i++) {
        m.fibers[i].what = DONE;
        m.fibers[i].id = i;
    }
    m.warps.assign((m.n_threads + 31) / 32, warp{});
    m.dynamic.resize((dynamic_bytes + 1024 + 128 + 256) / 8);
    m.warpgroups.resize(m.n_threads / WARPGROUP);
    m.n_products = 0;
#if defined(EMU_TSAN)
    m.tsan = __tsan_get_current_fiber();
#endif
    const std::vector<unsigned> turn = turns(m.n_threads);
    for (unsigned i : turns(grid.x * grid.y * grid.z)) {
        run_block(turn, dim3(i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y), grid, block);
        n_done++;
    }
    if (dynamic_bytes > MOST_DYNAMIC && m.n_products == 0) {
        die("more dynamic shared memory than every GPU has, and no wgmma", kernel, 0);
    }
}

} // namespace emu

void sl_emu_set_order(unsigned order) {
    std::lock_guard<std::recursive_mutex> lock(emu::m.lock);
    emu::m.order = order;
}

uint64_t sl_emu_n_done(void) {
    return emu::n_done;
}
