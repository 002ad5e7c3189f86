// SPDX-License-Identifier: Apache-2.0
// Purpose: the one hash of the project (XXH3, 64 bits): segment digests, prefix keys, fingerprints.
#ifndef SL_BASE_HASH_H
#define SL_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t sl_hash(const void *data, size_t bytes, uint64_t seed);

#endif
