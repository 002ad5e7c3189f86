// SPDX-License-Identifier: Apache-2.0
// Threads by turns. See fuzz_turns.h.
#include "tests/fuzz/fuzz_turns.h"

#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "base/clock.h"

#define MAX_TURNS 32
#define TURN_NS   20000 // that a turn takes

enum state { FREE, READY, WAITING, OVER };

struct turn {
    ucontext_t context;
    const void *stack;
    size_t stack_bytes;
    void *fake; // the sanitizer's
    enum state state;
    void *(*fn)(void *);
    void *arg;
    const void *waits_for;
    int64_t until_ns;
    bool woken;
};

static struct turn turns[MAX_TURNS]; // the first is the fuzzer's own
static int current, before;
static int64_t clock_ns;

void fuzz_require(bool holds) {
    if (!holds) {
        abort();
    }
}

// ---- the next turn ---------------------------------------------------------------------------------------------------

static bool may_run(const struct turn *turn) {
    return turn->state == READY || (turn->state == WAITING && (turn->woken || turn->until_ns <= clock_ns));
}

static int next_turn(void) {
    int first = -1; // of those that wait
    for (int i = 1; i <= MAX_TURNS; i++) {
        int at = (current + i) % MAX_TURNS;
        if (may_run(&turns[at])) {
            return at;
        }
        if (turns[at].state == WAITING && (first < 0 || turns[at].until_ns < turns[first].until_ns)) {
            first = at;
        }
    }
    if (first < 0 || turns[first].until_ns == SL_NO_DEADLINE) {
        fprintf(stderr, "everybody waits, and nobody has a deadline\n");
        abort();
    }
    clock_ns = turns[first].until_ns;
    return first;
}

static void arrive(void) {
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(turns[current].fake, &stack, &bytes);
    if (before == 0) {
        turns[0].stack = stack;
        turns[0].stack_bytes = bytes;
    }
}

static void give(void) {
    clock_ns += TURN_NS;
    int next = next_turn();
    struct turn *from = &turns[current], *to = &turns[next];
    to->state = READY;
    if (to == from) {
        return;
    }
    before = current;
    current = next;
    __sanitizer_start_switch_fiber(from->state == OVER ? NULL : &from->fake, to->stack, to->stack_bytes);
    fuzz_require(swapcontext(&from->context, &to->context) == 0);
    arrive();
}

static bool wait_for(const void *what, int64_t until_ns) {
    struct turn *self = &turns[current];
    self->state = WAITING;
    self->waits_for = what;
    self->until_ns = until_ns;
    self->woken = false;
    give();
    return self->woken;
}

void fuzz_pass(void) {
    give();
}

void fuzz_wait_ms(int64_t ms) {
    (void)wait_for(NULL, fuzz_deadline_in_ms(ms));
}

void *fuzz_turn_of(void *(*fn)(void *)) {
    return current > 0 && turns[current].fn == fn ? turns[current].arg : NULL;
}

// ---- threads ---------------------------------------------------------------------------------------------------------

static void wake(const void *what) {
    for (int i = 0; i < MAX_TURNS; i++) {
        turns[i].woken |= turns[i].state == WAITING && turns[i].waits_for == what;
    }
}

static void turn_main(void) {
    arrive();
    struct turn *self = &turns[current];
    (void)self->fn(self->arg);
    self->state = OVER;
    wake(self);
    give(); // for good
}

void fuzz_turns_begin(int64_t now_ns) {
    clock_ns = now_ns;
    turns[0].state = READY;
}

int fuzz_turns_count(void) {
    int n = 0;
    for (int i = 1; i < MAX_TURNS; i++) {
        n += turns[i].state != FREE;
    }
    return n;
}

enum sl_status fuzz_thread_start(const char *name, void *(*fn)(void *), void *arg, pthread_t *thread_out,
                                 struct sl_error *err) {
    int at = 1;
    while (at < MAX_TURNS && turns[at].state != FREE) {
        at++;
    }
    if (at == MAX_TURNS) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no thread for %s", name);
    }
    struct turn *turn = &turns[at];
    void *stack = (void *)turn->stack;
    if (!stack) {
        stack = mmap(NULL, SL_THREAD_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                     -1, 0);
        fuzz_require(stack != MAP_FAILED);
    }
    ASAN_UNPOISON_MEMORY_REGION(stack, SL_THREAD_STACK_BYTES); // whatever was called last has not returned
    *turn = (struct turn){.stack = stack, .stack_bytes = SL_THREAD_STACK_BYTES, .state = READY, .fn = fn, .arg = arg};
    fuzz_require(getcontext(&turn->context) == 0);
    turn->context.uc_stack = (stack_t){.ss_sp = stack, .ss_size = SL_THREAD_STACK_BYTES};
    makecontext(&turn->context, turn_main, 0);
    *thread_out = (pthread_t)at;
    return SL_OK;
}

int fuzz_join(pthread_t thread, void **answer) {
    (void)answer;
    struct turn *turn = &turns[thread];
    while (turn->state != OVER) {
        (void)wait_for(turn, SL_NO_DEADLINE);
    }
    turn->state = FREE;
    return 0;
}

// ---- locks and time --------------------------------------------------------------------------------------------------

int fuzz_lock(pthread_mutex_t *mutex) {
    while (pthread_mutex_trylock(mutex) != 0) {
        give();
    }
    return 0;
}

int fuzz_signal(pthread_cond_t *cond) {
    wake(cond);
    return 0;
}

enum sl_status fuzz_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns) {
    pthread_mutex_unlock(mutex);
    bool woken = wait_for(cond, deadline_ns);
    fuzz_lock(mutex);
    return woken ? SL_OK : SL_ERR_DEADLINE;
}

int64_t fuzz_now_ns(void) {
    return clock_ns;
}

int64_t fuzz_deadline_in_ms(int64_t ms) {
    return ms < 0 ? SL_NO_DEADLINE : clock_ns + ms * SL_NS_PER_MS;
}

void fuzz_sleep_ms(int64_t ms) {
    fuzz_wait_ms(ms);
}

int fuzz_nanosleep(const struct timespec *time, struct timespec *rest) {
    (void)rest;
    (void)wait_for(NULL, clock_ns + time->tv_sec * SL_NS_PER_S + time->tv_nsec);
    return 0;
}
