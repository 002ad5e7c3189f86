// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: huge pages for regions of shared memory.
 *
 * Design: UCX allocates shared memory in ordinary pages. Attention reads it all over, and peers copy to it and from it,
 *         so page walks cost a third of the rate of a ship. Linux 6.1 and newer join ordinary pages into huge ones on
 *         request, whatever the system's setting for shared memory is, while other threads and processes use them. That
 *         takes as long as to allocate them, so a thread does it after the region was created. If the kernel refuses,
 *         the region is only slower.
 * Threads: any thread may call all functions, one at a time for one region.
 */
#pragma once

#include <stddef.h>

// Reserves address space for `bytes`, aligned to huge pages, for a mapping that replaces it. NULL: there is none.
void *sl_huge_reserve(size_t bytes);

struct sl_huge_joining;

// Starts to join the pages of [base, base + bytes), a mapping of memory that is allocated already. NULL: the range has
// no whole huge page, or there is no thread.
struct sl_huge_joining *sl_huge_join(void *base, size_t bytes);
// Stops it, or waits for its last request to the kernel. The range may be unmapped afterwards. Accepts NULL, nulls.
void sl_huge_stop(struct sl_huge_joining **joining);
