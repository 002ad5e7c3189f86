// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: memory that runs out, for tests of what allocates: the linker leads our own calls here (sl_test_scarce() in
 *          CMake); those of libraries go where they always do.
 */
#pragma once

#include <stdbool.h>

#include "base/status.h"

// Makes the n-th allocation of this thread from now on fail, counted from 0. Replaces an earlier call.
void scarce_begin(int n);
// Stops the failures. Returns whether the n-th allocation was reached.
bool scarce_end(void);

// Calls make with its first allocation failing, then with its second, and so on, until it succeeds. Every failure must be
// SL_ERR_EXHAUSTED, and must free what was allocated before it: the sanitizers detect leaks. Returns how many calls failed.
typedef enum sl_status (*scarce_make_fn)(void *arg, struct sl_error *err);
int assert_refused_without_memory(scarce_make_fn make, void *arg);
