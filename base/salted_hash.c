// SPDX-License-Identifier: Apache-2.0
/*
 * SipHash-2-4 with 128 bits of output. Its values cross the network and outlive processes, so the algorithm must never
 * change.
 *
 *     v = salt, salt, mixed with constants
 *     for each word of 8 bytes, the last one filled up with zeros and the length: v3 ^= word; 2 rounds; v0 ^= word
 *     v2 ^= 0xee; 4 rounds; low half = v0 ^ v1 ^ v2 ^ v3; v1 ^= 0xdd; 4 rounds; high half = v0 ^ v1 ^ v2 ^ v3
 */
#include "base/salted_hash.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read from memory as they lie there");

struct state {
    uint64_t v0, v1, v2, v3;
};

static inline uint64_t rotate(uint64_t x, int n) {
    return x << n | x >> (64 - n);
}

static inline void round_of(struct state *s) {
    s->v0 += s->v1;
    s->v2 += s->v3;
    s->v1 = rotate(s->v1, 13) ^ s->v0;
    s->v3 = rotate(s->v3, 16) ^ s->v2;
    s->v0 = rotate(s->v0, 32);
    s->v2 += s->v1;
    s->v0 += s->v3;
    s->v1 = rotate(s->v1, 17) ^ s->v2;
    s->v3 = rotate(s->v3, 21) ^ s->v0;
    s->v2 = rotate(s->v2, 32);
}

static inline void take_in(struct state *s, uint64_t word) {
    s->v3 ^= word;
    round_of(s);
    round_of(s);
    s->v0 ^= word;
}

static uint64_t finish(struct state *s) {
    for (int i = 0; i < 4; i++) {
        round_of(s);
    }
    return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

struct sl_hash128 sl_salted_hash(const struct sl_hash128 *salt, const void *data, size_t bytes) {
    const uint8_t *at = data;
    uint64_t k[2], word;
    memcpy(k, salt, sizeof k);
    struct state s = {k[0] ^ 0x736f6d6570736575u, k[1] ^ 0x646f72616e646f6du ^ 0xee, k[0] ^ 0x6c7967656e657261u,
                      k[1] ^ 0x7465646279746573u};
    size_t left = bytes;
    for (; left >= sizeof word; left -= sizeof word, at += sizeof word) {
        memcpy(&word, at, sizeof word);
        take_in(&s, word);
    }
    word = (uint64_t)bytes << 56;
    for (size_t i = 0; i < left; i++) {
        word |= (uint64_t)at[i] << 8 * i;
    }
    take_in(&s, word);
    uint64_t halves[2];
    s.v2 ^= 0xee;
    halves[0] = finish(&s);
    s.v1 ^= 0xdd;
    halves[1] = finish(&s);
    struct sl_hash128 hash;
    memcpy(&hash, halves, sizeof hash);
    return hash;
}
