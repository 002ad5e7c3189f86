// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the operations that a check tests, chosen by the library that it links: every tier of the CPU (tested_processors.c), or those of
 *          a device with memory of its own, called with host memory (cuda/tested_device.c).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/tensor/ops.h"

// Their names, NULL-terminated.
const char *const *tested(void);

static inline int n_tested(void) {
    int n = 0;
    while (tested()[n] != NULL) {
        n++;
    }
    return n;
}

// Returns one of them, or a tier of the CPU. Ends the program where no tier has that name.
const struct sl_ops *tier(const char *name);

// Not the processors': ops->host is the reference's then, and has been checked as such.
bool is_device(const char *name);

// A device that is emulated, a hundred times as slow: checks leave out what is large, and repeat less.
bool is_emulated(const char *name);

// Bytes that a call of a device may name in all, where that is more than 48 MB. Before the first tier().
void tested_room(size_t bytes);

// Returns a device's tolerance where no operation says more (engine/tensor/cuda/attention/launch.h): its sums have another order.
static inline double within(const char *name, double tolerance) {
    return is_device(name) && tolerance < 1e-5 ? 1e-5 : tolerance;
}
