// SPDX-License-Identifier: Apache-2.0
// Purpose: arrays from malloc that grow.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

// Makes room for n items of item_bytes in *array, whose capacity at least doubles when it grows. False: no memory, and
// nothing has changed.
static inline bool sl_array_reserve(void **array, size_t *capacity, size_t n, size_t item_bytes) {
    if (n <= *capacity) {
        return true;
    }
    const size_t least = *capacity > 8 ? 2 * *capacity : 16, wanted = n > least ? n : least;
    void *grown = reallocarray(*array, wanted, item_bytes);
    if (grown == NULL) {
        return false;
    }
    *array = grown;
    *capacity = wanted;
    return true;
}
