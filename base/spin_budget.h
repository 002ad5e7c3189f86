// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: decides how long a thread spins for an event that is about to happen before it sleeps.
 *
 * Design: events between threads of one computation follow within microseconds. Waking a sleeper takes 20 us and more
 *         in a virtual machine, so a thread spins for 50 us. On a busy machine spinning is worse than sleeping: the
 *         awaited thread may be scheduled on this very processor, and cannot run before this one sleeps. No interface
 *         reports this, but long spins then fail. After one failure the next wait spins for 1 us, after two in a row
 *         the next two, then four and so on, at most 64 of them. (Yielding between polls does not help: any other
 *         computing process, even with a high nice value, gets milliseconds each time.)
 */
#pragma once

#include <stdbool.h>

struct sl_spin_budget { // zero-initialized; one for each event that a thread waits for
    int n_failed;       // long spins that failed, in a row
    int n_short;        // number of coming waits that spin only briefly
};

typedef bool (*sl_happened_fn)(void *arg);

// Polls for the event without sleeping. False: the spin budget is used up.
bool sl_spin_budget_poll(struct sl_spin_budget *budget, sl_happened_fn happened, void *arg);
