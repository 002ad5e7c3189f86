// SPDX-License-Identifier: Apache-2.0
// Purpose: KV heads as kernels see them, for C and for kernels.
#pragma once

#include "engine/kvcache/page.h"

// One KV head of a layer, as struct sl_kv. An array [n] of them is in device memory, and so is pages[] and what it
// points to.
struct gpu_head {
    void *const *pages;
    uint32_t n_packed, n_slots;
    struct sl_page_layout work, packed;
};

// The KV heads of a launch; host memory, read at the call.
struct gpu_heads {
    const struct gpu_head *at; // [n]
    int n;
    uint32_t most_slots;                 // at least the n_slots of every head
    const struct sl_page_layout *layout; // of the working pages of all heads; host memory
};

// Slots of each head: struct sl_lists and their lengths [n].
struct gpu_lists {
    const uint32_t *slots;
    size_t stride;
    const uint32_t *n;
};
