// SPDX-License-Identifier: Apache-2.0
#include "base/heap.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/processors.h"

void sl_heap_give_back(void) {
    static atomic_uint n_calls;
    if (atomic_fetch_add(&n_calls, 1) % SL_HEAP_CALLS == SL_HEAP_CALLS - 1 ||
        mallinfo2().fordblks > SL_HEAP_SPARE_BYTES) {
        malloc_trim(0);
    }
}

void sl_heap_limit(void) {
    if (getenv("MALLOC_ARENA_MAX") == NULL) {
        int n = sl_processors_count();
        mallopt(M_ARENA_MAX, n < SL_HEAP_ARENAS ? n : SL_HEAP_ARENAS);
    }
}
