// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a hash of 128 bits that reveals nothing to a reader without its salt. It names things that only holders of
 *          the salt may recognize.
 *
 * Design: SipHash-2-4 with 128 bits of output (Aumasson & Bernstein, 2012), a pseudorandom function. Without the salt
 *         its values look random, so an attacker cannot construct two inputs with the same value, or test inputs
 *         against a value. XXH3 (base/hash.h) has seeds, but reveals them. libcrypto has SipHash, too, but its
 *         functions allocate, may fail, and take more than twice as long for 272 bytes; a test compares the two.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Bytes, so that messages and files contain them as they are, and structs with a hash need no padding. A salt has this
// type too.
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

// Returns 64 of its bits, for uses where a collision costs little.
static inline uint64_t sl_hash128_short(const struct sl_hash128 *hash) {
    uint64_t bits;
    memcpy(&bits, hash, sizeof bits);
    return bits;
}

// Reads a hash from a field of a message. False: the field has another length.
static inline bool sl_hash128_read(const void *data, size_t bytes, struct sl_hash128 *hash_out) {
    if (bytes != sizeof *hash_out) {
        return false;
    }
    memcpy(hash_out, data, sizeof *hash_out);
    return true;
}
