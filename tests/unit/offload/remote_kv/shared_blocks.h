// SPDX-License-Identifier: Apache-2.0
// Purpose: a device of which nothing is there but shared memory, which it counts: where answers of a source come.
#pragma once

#include <stdlib.h>

#include "engine/tensor/device.h"

struct shared_blocks {
    struct sl_device device; // first: entries are told of it
    int n;                   // that were not freed
    void *newest;
};

static inline void *shared_blocks_alloc(struct sl_device *device, enum sl_memory memory, size_t bytes) {
    struct shared_blocks *blocks = (struct shared_blocks *)device;
    assert_int_equal(memory, SL_MEMORY_SHARED);
    blocks->n++;
    return blocks->newest = aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static inline void shared_blocks_free(struct sl_device *device, enum sl_memory memory, void *block) {
    assert_int_equal(memory, SL_MEMORY_SHARED);
    ((struct shared_blocks *)device)->n--;
    free(block);
}

static const struct sl_device_ops shared_blocks_ops = {.alloc = shared_blocks_alloc, .free = shared_blocks_free};
