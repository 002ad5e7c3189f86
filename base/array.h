// SPDX-License-Identifier: Apache-2.0
// Purpose: arrays from malloc that grow.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

// Makes room for one more item in the array `items`, which has n of `capacity`. False: no memory, and nothing has changed.
#define SL_GROW(items, n, capacity) sl_array_reserve(&(items), &(capacity), (n) + 1, sizeof *(items))

// Makes room for n items of item_bytes in the array that *array_inout, a pointer of any type, refers to. Its capacity at
// least doubles when it grows. False: no memory, and nothing has changed.
static inline bool sl_array_reserve(void *array_inout, size_t *capacity, size_t n, size_t item_bytes) {
    if (n <= *capacity) {
        return true;
    }
    const size_t least = *capacity > 8 ? 2 * *capacity : 16, wanted = n > least ? n : least;
    void *array;
    memcpy(&array, array_inout, sizeof array);
    array = reallocarray(array, wanted, item_bytes);
    if (array == NULL) {
        return false;
    }
    memcpy(array_inout, &array, sizeof array);
    *capacity = wanted;
    return true;
}
