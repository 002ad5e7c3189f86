// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the stores for a prompt that belong together with others: in the order of rendezvous hashing, or those that
 *          are known to have its beginning.
 * Threads: any.
 */
#pragma once

#include "coordinator/workers/registry.h"

struct sl_ranked_store {
    char name[64], address[SL_ADDRESS_BYTES];
    int64_t arena_bytes, disk_bytes; // disk_bytes 0: it has no disk
};

// Writes the stores that take jobs, in the order in which prompts that begin with `key` choose them; stores_out has room
// for SL_MAX_WORKERS. Returns how many; 0 also without memory.
int sl_stores_rank(struct sl_registry *registry, uint64_t key, struct sl_ranked_store *stores_out);

/*
 * Chooses the store of a prompt: the first of names[n_names] in the order of `key` that takes jobs, or, if there is none,
 * as sl_registry_store_address(). Returns its capacity in bytes.
 */
int64_t sl_stores_choose(struct sl_registry *registry, uint64_t key, const char (*names)[64], int n_names,
                         char address_out[SL_ADDRESS_BYTES]);
