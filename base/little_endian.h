// SPDX-License-Identifier: Apache-2.0
// Purpose: numbers of n_bytes (at most 8) in files and messages, the lowest byte first, at any address.
#pragma once

#include <stdint.h>

static inline void sl_put_bytes(uint8_t *at, uint64_t value, int n_bytes) {
    for (int i = 0; i < n_bytes; i++) {
        at[i] = (uint8_t)(value >> (8 * i));
    }
}

static inline uint64_t sl_get_bytes(const uint8_t *at, int n_bytes) {
    uint64_t value = 0;
    for (int i = 0; i < n_bytes; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}
