// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds ops->digest to base/hash.h, which is libxxhash's: of every length up to some rounds, of many above, at any address,
 *          with whatever seed the parts before make; and that a flipped bit is never missed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/hash.h"
#include "tests/kernels/tested.h"

enum { BYTES = 600000, MOST = 700, MOST_PARTS = 256 };

static uint8_t *make_bytes(void) {
    uint8_t *bytes = malloc(BYTES);
    assert_non_null(bytes);
    for (size_t i = 0; i < BYTES; i++) {
        bytes[i] = (uint8_t)(sl_mix(i * SL_GOLDEN) >> 40);
    }
    return bytes;
}

static uint64_t expected(const struct sl_digest_piece *piece) {
    const uint8_t *at = piece->data;
    uint64_t digest = 0;
    for (uint32_t i = 0; i < piece->n_parts; i++) {
        digest = sl_hash(at, piece->part_bytes[i], digest);
        at += piece->part_bytes[i];
    }
    return digest;
}

static void check(const struct sl_digest_piece *pieces, uint32_t n) {
    uint64_t digests[MOST];
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (int order = 0; order < 3; order++) { // of a device's threads
            tier(*name)->digest(NULL, pieces, n, digests);
            for (uint32_t i = 0; i < n; i++) {
                if (digests[i] != expected(&pieces[i])) {
                    fail_msg("%s: piece %u of %u parts, the first of %u bytes at %p", *name, i, pieces[i].n_parts,
                             pieces[i].part_bytes[0], pieces[i].data);
                }
            }
        }
    }
}

// The first piece has all bytes in it, so that the others lie at their own places of it.
static void test_digest_equals_xxh3_for_every_length(void **state) {
    (void)state;
    uint8_t *bytes = make_bytes();
    static uint32_t parts[MOST][2];
    struct sl_digest_piece pieces[MOST];
    const uint32_t all = 8192;
    for (uint32_t from = 1; from < 2600; from += MOST - 1) {
        pieces[0] = (struct sl_digest_piece){bytes, &all, 1};
        for (uint32_t i = 1; i < MOST; i++) {
            uint32_t length = from + i - 1;
            parts[i][0] = length;
            parts[i][1] = 1 + length * 7 % 1500; // with the seed that the first makes
            pieces[i] = (struct sl_digest_piece){bytes + length % 16, parts[i], 1 + i % 2};
        }
        check(pieces, MOST);
    }
    free(bytes);
}

static void test_digest_equals_xxh3_where_rounds_end(void **state) {
    (void)state;
    static const uint32_t lengths[] = {1024,  1025,  4096,  16384,  32767,  32768,  32769,      33792,
                                       34000, 65536, 65537, 100000, 131072, 262144, 524288 - 8, 524288};
    enum { N = sizeof lengths / sizeof lengths[0] };
    uint8_t *bytes = make_bytes();
    struct sl_digest_piece pieces[2 * N];
    for (uint32_t i = 0; i < N; i++) {
        pieces[i] = (struct sl_digest_piece){bytes, &lengths[i], 1};
        pieces[N + i] = (struct sl_digest_piece){bytes + 16 * i, &lengths[N - 1 - i], 1};
    }
    check(pieces, 2 * N);
    free(bytes);
}

// As a sender on processors makes them: pages in parts of 32 KiB and less; and of none.
static void test_digest_chains_parts(void **state) {
    (void)state;
    uint8_t *bytes = make_bytes();
    uint32_t parts[3][MOST_PARTS];
    static const uint32_t empty[] = {0, 5, 0, 300, 0};
    for (uint32_t i = 0; i < MOST_PARTS; i++) {
        parts[0][i] = 2048;
        parts[1][i] = 1 + i * 13 % 2000;
        parts[2][i] = i % 2 == 0 ? 240 : 241;
    }
    const struct sl_digest_piece pieces[] = {{bytes, parts[0], MOST_PARTS},
                                             {bytes + 8, parts[1], MOST_PARTS},
                                             {bytes + 64, parts[2], MOST_PARTS},
                                             {bytes, parts[0], 16},
                                             {bytes, empty, 1},
                                             {bytes, empty, 5}};
    check(pieces, 6);
    free(bytes);
}

static void test_digest_finds_a_flipped_bit(void **state) {
    (void)state;
    static const uint32_t lengths[] = {1, 8, 16, 100, 200, 1000, 5000, 40000};
    uint8_t *bytes = make_bytes();
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            const struct sl_digest_piece piece = {bytes, &lengths[i], 1};
            uint64_t before, after;
            tier(*name)->digest(NULL, &piece, 1, &before);
            for (uint32_t at = 0; at < 4; at++) {
                uint8_t *flipped = &bytes[at * (lengths[i] - 1) / 3];
                *flipped ^= (uint8_t)(1u << at);
                tier(*name)->digest(NULL, &piece, 1, &after);
                *flipped ^= (uint8_t)(1u << at);
                assert_true(before != after);
            }
        }
    }
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digest_equals_xxh3_for_every_length),
        cmocka_unit_test(test_digest_equals_xxh3_where_rounds_end),
        cmocka_unit_test(test_digest_chains_parts),
        cmocka_unit_test(test_digest_finds_a_flipped_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
