// SPDX-License-Identifier: Apache-2.0
/*
 * Design: one lock guards the ready fibers, the deadlines, the idle carriers and the free stacks. It is innermost, and held for a moment.
 *         A fiber that waits saves its registers on its stack and goes back to its carrier, which notes the wait under the lock. A wake
 *         that comes in between is noted, and the carrier makes the fiber ready again: so no wake is lost, and no fiber runs before its
 *         registers are saved. A thread of its own waits for the deadlines: carriers may be busy.
 *         An idle carrier is called if fewer are on their way than fibers are ready. A fiber that wakes another one usually waits soon,
 *         and then its own carrier is free: that one counts as on its way, so most wakes need no call. So does a thread
 *         that is a carrier between sl_carrier_begin() and sl_carrier_end().
 */
#include "base/fiber/fiber.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/futex.h"
#include "base/array.h"
#include "base/locals.h"
#include "base/processors.h"
#include "base/thread.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if defined(__x86_64__) && !defined(SL_FIBER_PORTABLE) // a test has the other one here too
#define HAS_SWITCH
#else
#include <ucontext.h> // a system call for each switch
#endif

#define SLACK_NS SL_NS_PER_MS // most waits end before their deadline, and the clock looks no more often

#define GUEST_NS SL_NS_PER_MS        // after which a thread that is a carrier for a moment leaves fibers to the others
#define SOON_NS  (SL_NS_PER_MS / 10) // a fiber that has run for longer is not expected to wait soon

enum { SPARE_CARRIERS = 2, SPARE_STACKS = 32 }; // carriers beside those of tokenizing; free stacks that are kept

enum state { RUNNING, CALLING, PREPARING, WOKEN, WAITING, ENDED }; // a ready fiber counts as running

struct context { // of a fiber, or of the carrier that runs it
    void *stack; // where the registers are
#if defined(__SANITIZE_ADDRESS__)
    const void *bottom;
    size_t bytes;
    void *fake;
#elif defined(__SANITIZE_THREAD__)
    void *tsan;
#endif
};

struct sl_carrier {
    struct context context;
    struct sl_fiber *fiber;
    struct sl_carrier *next; // idle, or to be called
    _Atomic uint32_t called;
    // Only its thread uses these:
    bool comes;       // it will look for ready fibers, soon if it began to do something else just now
    bool is_counted;  // in n_called, for a fiber that it has made ready
    bool has_yielded; // its last fiber, for which no other carrier needs to come
    int64_t since_ns;
    void (*computes_fn)(void); // of a thread that is a carrier for a moment, until it was called
};

struct sl_fiber { // at the top of its stack
    struct context context;
    struct sl_carrier *carrier; // that runs it
    struct sl_fiber *next;      // ready, or free
    _Atomic enum state state;   // changed under the lock unless RUNNING or CALLING
    bool late;
    int64_t deadline_ns;
    size_t at; // in the heap, if it has a deadline
    const char *name;
    void (*fn)(void *arg); // of the fiber, and then what it calls on its carrier's stack
    void *arg;
    struct sl_locals locals;
};
#define FIBER_BYTES ((sizeof(struct sl_fiber) + 63) / 64 * 64)

static struct {
    pthread_mutex_t lock;
    struct sl_fiber *ready, **last;
    struct sl_carrier *idle;
    int n_ready, n_called; // n_called: carriers that are on their way
    int n_carriers;
    bool has_clock;
    struct sl_fiber *free;
    size_t n_free, n_fibers; // n_fibers: not free
    struct sl_fiber **heap;  // those that wait with a deadline, the first one on top
    size_t n_heap, cap_heap;
    int64_t clock_ns; // when the clock looks again
    _Atomic uint32_t clock_rings;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .last = &all.ready, .clock_ns = SL_NO_DEADLINE};

static _Thread_local struct sl_carrier *own_carrier;

// A function that a compiler does not put into another one reads the thread's register anew after each switch.
__attribute__((noinline)) static struct sl_carrier *carrier_of_thread(void) {
    __asm__ volatile("");
    return own_carrier;
}

struct sl_fiber *sl_fiber_current(void) {
    struct sl_carrier *own = carrier_of_thread();
    return own ? own->fiber : NULL;
}

static char *bottom_of(struct sl_fiber *fiber) {
    return (char *)fiber + FIBER_BYTES - SL_FIBER_STACK_BYTES;
}

// ---- from one stack to another ----------------------------------------------------------------------------------------

// Saves the registers that a function has to keep on the stack and the stack's address in *from, and goes on with `to`.
void sl_fiber_switch(void **from, void *to);
static void begin(void);

#ifdef HAS_SWITCH
__asm__(".text\n"
        ".globl sl_fiber_switch\n"
        ".hidden sl_fiber_switch\n"
        ".type sl_fiber_switch,@function\n"
        "sl_fiber_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size sl_fiber_switch, .-sl_fiber_switch\n");

// Returns what a switch takes from a stack that grows down from the fiber: it calls begin(), whose return address, 0, ends the frames.
static void *make_stack(struct sl_fiber *fiber) {
    void **words = (void **)((uintptr_t)fiber & ~(uintptr_t)15) - 8;
    memset(words, 0, 8 * sizeof *words);
    words[6] = (void *)(uintptr_t)begin;
    return words;
}
#else
void sl_fiber_switch(void **from, void *to) {
    ucontext_t here;
    *from = &here;
    swapcontext(&here, to);
}

static void *make_stack(struct sl_fiber *fiber) {
    ucontext_t *first = (ucontext_t *)(((uintptr_t)fiber & ~(uintptr_t)63) - (sizeof *first + 63) / 64 * 64);
    getcontext(first);
    first->uc_stack.ss_sp = bottom_of(fiber);
    first->uc_stack.ss_size = (size_t)((char *)first - bottom_of(fiber));
    makecontext(first, begin, 0);
    return first;
}
#endif

// Goes from a fiber to its carrier or back. ends: the fiber does not go on.
static void go(struct context *from, struct context *to, bool ends) {
    (void)ends;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(ends ? NULL : &from->fake, to->bottom, to->bytes);
#elif defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    sl_fiber_switch(&from->stack, to->stack);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
#endif
}

static void begin(void) {
    struct sl_fiber *fiber = sl_fiber_current();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
    fiber->fn(fiber->arg);
    fiber->state = ENDED;
    go(&fiber->context, &fiber->carrier->context, true);
    abort(); // it does not go on
}

// ---- stacks ---------------------------------------------------------------------------------------------------------------

static struct sl_fiber *map_fiber(void) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *bottom = mmap(NULL, SL_FIBER_STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (bottom == MAP_FAILED) {
        return NULL;
    }
    if (mprotect(bottom, page, PROT_NONE) != 0) {
        munmap(bottom, SL_FIBER_STACK_BYTES);
        return NULL;
    }
    struct sl_fiber *fiber = (struct sl_fiber *)(bottom + SL_FIBER_STACK_BYTES - FIBER_BYTES);
#if defined(__SANITIZE_ADDRESS__)
    fiber->context.bottom = bottom + page;
    fiber->context.bytes = SL_FIBER_STACK_BYTES - page;
#endif
    return fiber;
}

static void unmap_fibers(struct sl_fiber *first) {
    for (struct sl_fiber *fiber; (fiber = first) != NULL;) {
        first = fiber->next;
#if defined(__SANITIZE_THREAD__)
        __tsan_destroy_fiber(fiber->context.tsan);
#endif
        munmap(bottom_of(fiber), SL_FIBER_STACK_BYTES);
    }
}

// ---- under the lock ---------------------------------------------------------------------------------------------------------

static void put(size_t at, struct sl_fiber *fiber) {
    all.heap[at] = fiber;
    fiber->at = at;
}

// Moves a fiber up or down from a place in the heap where it may not stay.
static void settle(size_t at, struct sl_fiber *fiber) {
    for (; at > 0 && all.heap[(at - 1) / 2]->deadline_ns > fiber->deadline_ns; at = (at - 1) / 2) {
        put(at, all.heap[(at - 1) / 2]);
    }
    for (size_t child; (child = 2 * at + 1) < all.n_heap; at = child) {
        child += child + 1 < all.n_heap && all.heap[child + 1]->deadline_ns < all.heap[child]->deadline_ns;
        if (all.heap[child]->deadline_ns >= fiber->deadline_ns) {
            break;
        }
        put(at, all.heap[child]);
    }
    put(at, fiber);
}

// Takes an idle carrier, if there is one, and fewer are on their way than fibers are ready. The caller calls it. If the caller's thread
// comes soon itself, it counts as on its way.
static struct sl_carrier *take_idle(void) {
    struct sl_carrier *own = carrier_of_thread();
    if (own && own->comes && !own->is_counted && all.n_called < all.n_ready && sl_now_ns() - own->since_ns < SOON_NS) {
        own->is_counted = true;
        all.n_called++;
    }
    struct sl_carrier *carrier = all.n_called < all.n_ready ? all.idle : NULL;
    if (carrier) {
        all.idle = carrier->next;
        carrier->next = NULL;
        all.n_called++;
    }
    return carrier;
}

static void make_ready(struct sl_fiber *fiber) {
    fiber->state = RUNNING;
    fiber->next = NULL;
    *all.last = fiber;
    all.last = &fiber->next;
    all.n_ready++;
}

// Ends the wait of a fiber. Returns a carrier to call, or NULL.
static struct sl_carrier *end_wait(struct sl_fiber *fiber, bool late) {
    fiber->late = late;
    if (fiber->deadline_ns != SL_NO_DEADLINE) {
        struct sl_fiber *moved = all.heap[--all.n_heap];
        if (moved != fiber) {
            settle(fiber->at, moved);
        }
    }
    make_ready(fiber);
    return take_idle();
}

// Notes what a fiber has done that gave its carrier back. Returns fibers whose stacks are to be unmapped.
static struct sl_fiber *note(struct sl_fiber *fiber, bool *is_sooner_out) {
    *is_sooner_out = false;
    if (fiber->state == WOKEN) {
        make_ready(fiber); // this carrier looks next
    } else if (fiber->state == PREPARING) {
        fiber->state = WAITING;
        if (fiber->deadline_ns != SL_NO_DEADLINE) {
            settle(all.n_heap++, fiber);
            *is_sooner_out = fiber->deadline_ns < all.clock_ns - SLACK_NS;
        }
    } else { // it has ended
        all.n_fibers--;
        fiber->next = all.free;
        all.free = fiber;
        all.n_free++;
    }
    struct sl_fiber *unused = NULL;
    for (struct sl_fiber *spare; all.n_free > SPARE_STACKS + all.n_fibers / 4; all.n_free--) {
        spare = all.free;
        all.free = spare->next;
        spare->next = unused;
        unused = spare;
    }
    return unused;
}

// ---- threads ----------------------------------------------------------------------------------------------------------------

void sl_carriers_add(struct sl_carrier **carriers, struct sl_carrier *carrier) {
    if (carrier) {
        carrier->next = *carriers;
        *carriers = carrier;
    }
}

void sl_carriers_call(struct sl_carrier *carriers) {
    for (struct sl_carrier *carrier; (carrier = carriers) != NULL;) {
        carriers = carrier->next; // which it changes when it is idle again
        atomic_store(&carrier->called, 1);
        sl_futex_wake_private(&carrier->called, 1);
    }
}

// Waits for a ready fiber. Lock held.
static void wait_for_ready(struct sl_carrier *own) {
    while (!all.ready) {
        own->next = all.idle;
        all.idle = own;
        atomic_store(&own->called, 0);
        pthread_mutex_unlock(&all.lock);
        while (!atomic_load(&own->called)) {
            (void)sl_futex_wait_private(&own->called, 0, SL_NO_DEADLINE);
        }
        pthread_mutex_lock(&all.lock);
        all.n_called--;
    }
}

static struct sl_fiber *take_ready(void) {
    struct sl_fiber *fiber = all.ready;
    all.ready = fiber->next;
    all.last = all.ready ? all.last : &all.ready;
    all.n_ready--;
    return fiber;
}

// Notes that this thread looks for ready fibers now, or does not come soon. Lock held.
static void uncount(struct sl_carrier *own) {
    own->comes = false;
    all.n_called -= own->is_counted;
    own->is_counted = false;
}

// Runs the first ready fiber until it waits or ends. Lock held, but not meanwhile.
static void run_ready(struct sl_carrier *own) {
    struct sl_fiber *fiber = own->fiber = take_ready();
    own->since_ns = sl_now_ns();
    own->comes = own->has_yielded;
    own->has_yielded = false;
    struct sl_carrier *other = take_idle();
    pthread_mutex_unlock(&all.lock);
    sl_carriers_call(other);
    own->comes = true;
    fiber->carrier = own;
    sl_locals_use(&fiber->locals);
    go(&own->context, &fiber->context, false);
    while (fiber->state == CALLING) {
        fiber->fn(fiber->arg);
        fiber->state = RUNNING;
        go(&own->context, &fiber->context, false);
    }
    own->fiber = NULL;
    sl_locals_use(NULL);
    bool is_sooner;
#if defined(__SANITIZE_ADDRESS__)
    if (fiber->state == ENDED) {
        __asan_unpoison_memory_region(fiber->context.bottom, (size_t)((char *)fiber - (char *)fiber->context.bottom));
    }
#endif
    pthread_mutex_lock(&all.lock);
    uncount(own);
    struct sl_fiber *unused = note(fiber, &is_sooner);
    if (unused || is_sooner) {
        pthread_mutex_unlock(&all.lock);
        unmap_fibers(unused);
        if (is_sooner) {
            atomic_fetch_add(&all.clock_rings, 1);
            sl_futex_wake_private(&all.clock_rings, 1);
        }
        pthread_mutex_lock(&all.lock);
    }
}

// Prepares a thread for going to fibers and back.
static void init_context(struct context *own) {
    (void)own;
#if defined(__SANITIZE_THREAD__)
    own->tsan = __tsan_get_current_fiber();
#elif defined(__SANITIZE_ADDRESS__)
    pthread_attr_t attr;
    void *bottom = NULL;
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstack(&attr, &bottom, &own->bytes);
        pthread_attr_destroy(&attr);
    }
    own->bottom = bottom;
#endif
}

static void *carry(void *arg) {
    struct sl_carrier *own = own_carrier = arg;
    init_context(&own->context);
    pthread_mutex_lock(&all.lock);
    for (;;) {
        wait_for_ready(own);
        run_ready(own);
    }
    return NULL;
}

void sl_carrier_begin(void (*computes_fn)(void)) {
    static _Thread_local struct sl_carrier guest;
    static _Thread_local bool is_known;
    if (!is_known) {
        init_context(&guest.context);
        is_known = true;
    }
    guest.comes = true;
    guest.computes_fn = computes_fn;
    guest.has_yielded = false;
    guest.since_ns = sl_now_ns();
    own_carrier = &guest;
}

void sl_carrier_end(void) {
    struct sl_carrier *own = own_carrier;
    if (own->is_counted) {
        const int64_t end_ns = sl_now_ns() + GUEST_NS;
        pthread_mutex_lock(&all.lock);
        uncount(own);
        while (all.n_ready > all.n_called && sl_now_ns() < end_ns) {
            run_ready(own);
        }
        struct sl_carrier *other = take_idle();
        pthread_mutex_unlock(&all.lock);
        sl_carriers_call(other);
    }
    own->comes = false;
    own_carrier = NULL;
}

void sl_fiber_compute(void) {
    struct sl_carrier *own = carrier_of_thread();
    if (own && own->computes_fn) {
        void (*computes_fn)(void) = own->computes_fn;
        own->computes_fn = NULL;
        computes_fn();
    }
    if (!own || !own->is_counted) {
        return;
    }
    pthread_mutex_lock(&all.lock);
    uncount(own);
    struct sl_carrier *other = take_idle();
    pthread_mutex_unlock(&all.lock);
    sl_carriers_call(other);
}

static void *keep_time(void *) {
    for (;;) {
        struct sl_carrier *called = NULL;
        const uint32_t seen = atomic_load(&all.clock_rings);
        pthread_mutex_lock(&all.lock);
        for (const int64_t now_ns = sl_now_ns(); all.n_heap > 0 && all.heap[0]->deadline_ns <= now_ns;) {
            sl_carriers_add(&called, end_wait(all.heap[0], true));
        }
        const int64_t next_ns = all.clock_ns = all.n_heap > 0 ? all.heap[0]->deadline_ns : SL_NO_DEADLINE;
        pthread_mutex_unlock(&all.lock);
        sl_carriers_call(called);
        (void)sl_futex_wait_private(&all.clock_rings, seen, next_ns);
    }
    return NULL;
}

// Starts the threads that are not there yet. Lock held: another thread that starts the first fiber waits.
static enum sl_status start_threads(struct sl_error *err) {
    pthread_t thread;
    if (!all.has_clock) {
        SL_TRY(sl_thread_start("fiber-clock", keep_time, NULL, &thread, err));
        pthread_detach(thread);
        all.has_clock = true;
    }
    static int n_wanted;
    n_wanted = n_wanted > 0 ? n_wanted : sl_processors_count() + SPARE_CARRIERS;
    while (all.n_carriers < n_wanted) {
        SL_NEW_OR_FAIL(struct sl_carrier, carrier, err, "no memory for threads of fibers");
        if (sl_thread_start("fibers", carry, carrier, &thread, err) != SL_OK) {
            free(carrier);
            return all.n_carriers > 0 ? SL_OK : SL_ERR_EXHAUSTED;
        }
        pthread_detach(thread);
        all.n_carriers++;
    }
    return SL_OK;
}

enum sl_status sl_fiber_start(const char *name, void (*fn)(void *arg), void *arg, struct sl_error *err) {
    pthread_mutex_lock(&all.lock);
    enum sl_status status = start_threads(err);
    SL_THEN_FAIL_IF(status, !SL_GROW(all.heap, all.n_fibers, all.cap_heap), err, SL_ERR_EXHAUSTED,
                    "no memory for the deadlines of %zu fibers", all.n_fibers + 1);
    struct sl_fiber *fiber = status == SL_OK ? all.free : NULL;
    if (fiber) {
        all.free = fiber->next;
        all.n_free--;
    }
    all.n_fibers += status == SL_OK;
    pthread_mutex_unlock(&all.lock);
    SL_TRY(status);
    fiber = fiber ? fiber : map_fiber();
    if (fiber) {
        fiber->name = name;
        fiber->fn = fn;
        fiber->arg = arg;
        fiber->locals = (struct sl_locals){0};
        fiber->context.stack = make_stack(fiber);
#if defined(__SANITIZE_THREAD__) // of which each keeps its calls, and the last one's did not return
        if (fiber->context.tsan) {
            __tsan_destroy_fiber(fiber->context.tsan);
        }
        fiber->context.tsan = __tsan_create_fiber(0);
#endif
    }
    pthread_mutex_lock(&all.lock);
    struct sl_carrier *carrier = NULL;
    if (fiber) {
        make_ready(fiber);
        carrier = take_idle();
    } else {
        all.n_fibers--;
    }
    pthread_mutex_unlock(&all.lock);
    sl_carriers_call(carrier);
    return fiber ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "fiber %s: no memory for its stack", name);
}

void sl_fiber_call(void (*fn)(void *arg), void *arg) {
    struct sl_fiber *fiber = sl_fiber_current();
    if (!fiber || fiber->state == CALLING) {
        fn(arg);
        return;
    }
    fiber->fn = fn;
    fiber->arg = arg;
    fiber->state = CALLING;
    go(&fiber->context, &fiber->carrier->context, false);
}

// ---- waits ----------------------------------------------------------------------------------------------------------------

void sl_fiber_prepare(struct sl_fiber *fiber) {
    assert(fiber->state == RUNNING); // it does not wait in sl_fiber_call()
    fiber->state = PREPARING;        // no other thread knows it yet
}

void sl_fiber_yield(void) {
    struct sl_fiber *fiber = sl_fiber_current();
    if (fiber) {
        sl_fiber_prepare(fiber);
        fiber->state = WOKEN;
        fiber->carrier->has_yielded = true;
        (void)sl_fiber_park(fiber, SL_NO_DEADLINE);
    }
}

bool sl_fiber_park(struct sl_fiber *fiber, int64_t deadline_ns) {
    fiber->deadline_ns = deadline_ns;
    fiber->late = false;
    go(&fiber->context, &fiber->carrier->context, false);
    return !fiber->late;
}

struct sl_carrier *sl_fiber_wake(struct sl_fiber *fiber) {
    struct sl_carrier *carrier = NULL;
    pthread_mutex_lock(&all.lock);
    if (fiber->state == WAITING) {
        carrier = end_wait(fiber, false);
    } else if (fiber->state == PREPARING) {
        fiber->state = WOKEN;
    }
    pthread_mutex_unlock(&all.lock);
    return carrier;
}
