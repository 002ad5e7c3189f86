// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how long a thread looks for something that is about to happen before it sleeps.
 *
 * Design: what threads of one computation wait for follows within microseconds, and waking a sleeper takes 20 us and more in a virtual
 *         machine: so a thread looks for 50 us. On a busy machine looking is worse than sleeping: the thread that is waited for may
 *         have been put on this very processor, and cannot run before this one sleeps. It cannot be asked for, but it shows: long
 *         looks fail. After one failure the next wait looks for 1 us, after two in a row the next two, then four and so on, at most
 *         64 of them. (Yielding between looks is no remedy: any process that computes, however nice, is given milliseconds each time.)
 */
#pragma once

#include <stdbool.h>

struct sl_patience { // zeros at first; one for each thing that a thread waits for
    int n_failed;    // long looks, in a row
    int n_short;     // waits from now on that do not look for long
};

typedef bool (*sl_happened_fn)(void *arg);

// Looks for it without sleeping. False: it has not happened for long enough.
bool sl_patience_look(struct sl_patience *patience, sl_happened_fn happened, void *arg);
