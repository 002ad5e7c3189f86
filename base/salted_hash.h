// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a hash of 128 bits that says nothing to whoever does not know its salt: names for things that only some may recognize.
 *
 * Design: SipHash-2-4 with 128 bits of output (Aumasson & Bernstein, 2012), a pseudorandom function: without the salt its values
 *         cannot be told from random ones, so nobody can make two inputs meet, or try inputs against a value. XXH3 (base/hash.h) has
 *         seeds, but gives them away. libcrypto has SipHash, too, behind calls that allocate, may fail, and take more than
 *         twice as long for 272 bytes; a test compares the two.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Bytes, so that it is the same in messages and files, and without padding in whatever has it. A salt is one, too.
struct sl_hash128 {
    uint8_t bytes[16];
};

struct sl_hash128 sl_salted_hash(const struct sl_hash128 *salt, const void *data, size_t bytes);

static inline bool sl_hash128_equals(const struct sl_hash128 *a, const struct sl_hash128 *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

static inline bool sl_hash128_is_zero(const struct sl_hash128 *hash) {
    return sl_hash128_equals(hash, &(struct sl_hash128){{0}});
}

// 64 of its bits, where a wrong guess costs little.
static inline uint64_t sl_hash128_short(const struct sl_hash128 *hash) {
    uint64_t bits;
    memcpy(&bits, hash, sizeof bits);
    return bits;
}

// From a field of a message. False: it has another length.
static inline bool sl_hash128_read(const void *data, size_t bytes, struct sl_hash128 *hash_out) {
    if (bytes != sizeof *hash_out) {
        return false;
    }
    memcpy(hash_out, data, sizeof *hash_out);
    return true;
}
