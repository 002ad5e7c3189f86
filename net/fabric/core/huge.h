// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: huge pages for regions of shared memory.
 *
 * Design: UCX allocates shared memory in ordinary pages. Attention reads it all over, and peers copy to it and from it,
 *         so page walks cost a third of the rate of a ship. Linux 6.1 and newer join ordinary pages into huge ones on
 *         request, whatever the system's setting for shared memory is, while other threads and processes use them. A
 *         thread of low priority does so, once for each huge page's worth of memory that was used for a ship: to join
 *         everything at the start would take a second per GB. If the kernel refuses, the region is only slower.
 * Threads: any thread may call sl_huge_want(), also while another starts it; not once it is being stopped.
 */
#pragma once

#include <stddef.h>

// Reserves address space for `bytes`, aligned to huge pages, for a mapping that replaces it. NULL: there is none.
void *sl_huge_reserve(size_t bytes);

struct sl_huge_joining;

// Prepares to join pages of [base, base + bytes), a mapping of memory that is allocated already. NULL: the range has no
// whole huge page, or there is no thread.
struct sl_huge_joining *sl_huge_start(void *base, size_t bytes);
// Has the huge pages joined that contain [data, data + bytes), unless they were already. Does not block. Accepts NULL.
void sl_huge_want(struct sl_huge_joining *joining, const void *data, size_t bytes);
// Waits for the request that the kernel is carrying out, and for no other. The range may be unmapped afterwards.
// Accepts NULL, nulls.
void sl_huge_stop(struct sl_huge_joining **joining);
