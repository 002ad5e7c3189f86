// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: fibers: sequential code that takes no thread of the system while it waits.
 *
 * Design: a few threads, the carriers, run the fibers that are ready, in the order in which they became so. A fiber runs until it waits for
 *         a bell (base/fiber/bell.h), and may go on on another carrier. What waits in another way, or computes for long, keeps a carrier from
 *         the other fibers: locks that are held for a moment may, and as many as processors may compute (tokenizing). A fiber holds no
 *         mutex but the bell's when it waits. Stacks are mapped, have a guard page, and are used again, the last one first.
 *         Values of a thread's work are the fiber's (base/locals.h). The address of any other thread-local
 *         variable, of errno too, is that of another thread after a wait.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

// Mapped for each fiber; memory is taken for what is touched. Frames have at most 4 kB (cmake/sluice.cmake), and sanitizers make them larger.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SL_FIBER_STACK_BYTES ((size_t)2 << 20)
#else
#define SL_FIBER_STACK_BYTES ((size_t)256 << 10)
#endif

struct sl_fiber;

// Starts a fiber that runs fn(arg). name: of its kind, for debuggers; not copied. SL_ERR_EXHAUSTED: there is no memory, or no carrier.
enum sl_status sl_fiber_start(const char *name, void (*fn)(void *arg), void *arg, struct sl_error *err);

// Calls a function that needs much stack, and does not wait, on the stack of the carrier: what a fiber's stack has once needed, it keeps.
void sl_fiber_call(void (*fn)(void *arg), void *arg);

// Lets the fibers run first that are ready now. Does nothing on a thread.
void sl_fiber_yield(void);

// Tells, now and then, that the fiber computes for long: a fiber that it has made ready does not wait for this carrier.
void sl_fiber_compute(void);

// These two make the caller's thread a carrier for a moment. Between them, it calls no other carrier for the first fiber that it makes ready;
// the second one runs the ready fibers for which no carrier comes. For threads that often make fibers ready, as those that poll sockets.
// computes_fn (may be NULL): called, at most once, when such a fiber computes for long. Another begin before the end: it starts something new.
void sl_carrier_begin(void (*computes_fn)(void));
void sl_carrier_end(void);

// For a function with a large frame whose caller waits later: inlined, the frame would be the caller's.
#define SL_APART __attribute__((noinline))

// ---- for base/fiber/bell.c ----------------------------------------------------------------------------------------------------

// Returns the fiber that runs this code; NULL: a thread does.
struct sl_fiber *sl_fiber_current(void);
// The first announces that the fiber will wait, and comes before it can be woken; the second waits. False: the deadline has passed.
void sl_fiber_prepare(struct sl_fiber *fiber);
bool sl_fiber_park(struct sl_fiber *fiber, int64_t deadline_ns);
// Makes a fiber ready that waits or prepares to. Returns a carrier that has to be called for it, or NULL.
struct sl_carrier *sl_fiber_wake(struct sl_fiber *fiber);
void sl_carriers_add(struct sl_carrier **carriers, struct sl_carrier *carrier); // accepts NULL
void sl_carriers_call(struct sl_carrier *carriers);                             // likewise
