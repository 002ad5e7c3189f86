// SPDX-License-Identifier: Apache-2.0
// Purpose: bounds what the C library's allocator keeps of memory that was freed.
#pragma once

#include <stddef.h>

/*
 * Lets glibc have an arena for each processor, at most SL_HEAP_ARENAS, unless MALLOC_ARENA_MAX says otherwise. By default it makes eight for each. A
 * thread takes any of them, and each keeps as much memory as it ever needed: a process grows until every arena has met the largest job.
 * Only the main() of a server calls this, before it starts threads.
 */
void sl_heap_limit(void);

// Gives free memory of all arenas back to the system if it is more than SL_HEAP_SPARE_BYTES, as after a flood of calls, or at each
// SL_HEAP_CALLS-th call: small jobs leave ever more free pages between blocks in use. A process's self-check calls this every two
// seconds. Takes a millisecond for each 100 MB or so that it gives back.
void sl_heap_give_back(void);

#define SL_HEAP_SPARE_BYTES ((size_t)32 << 20)
#define SL_HEAP_CALLS       30

// KV memory does not come from malloc, and threads cache small blocks: few arenas are enough for many processors.
#define SL_HEAP_ARENAS 4
