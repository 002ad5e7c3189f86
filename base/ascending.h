// SPDX-License-Identifier: Apache-2.0
// Purpose: ascending lists without repetitions.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Returns how many numbers two lists have in common.
static inline size_t sl_ascending_common(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b) {
    size_t both = 0;
    for (size_t i = 0, j = 0; i < n_a && j < n_b;) {
        uint32_t x = a[i], y = b[j];
        both += x == y;
        i += x <= y;
        j += y <= x;
    }
    return both;
}
