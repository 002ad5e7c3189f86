// SPDX-License-Identifier: Apache-2.0
// Purpose: KV heads as kernels see them. Of C and of kernels.
#pragma once

#include "engine/kvcache/page.h"

// One KV head of a layer, as struct sl_kv: an array [n] of them lies in device memory, and so do pages[] and what it leads to.
struct gpu_head {
    void *const *pages;
    uint32_t n_packed, n_slots;
    struct sl_page_layout work, packed;
};
