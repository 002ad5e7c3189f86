// SPDX-License-Identifier: Apache-2.0
// Purpose: shared by the tests of a folder of capsules: a folder, capsules made of their seeds, and lookups.
#pragma once

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "kvstore/disk/folder.h"

#define MAX_BYTES SL_DISK_MIN_BYTES
#define STRIDE    64

struct fixture {
    char path[64];
    struct sl_disk_folder *folder;
    struct sl_disk_unread unread;
};

// For cmocka: an open folder of MAX_BYTES.
int setup(void **state);
int teardown(void **state);
void reopen(struct fixture *fixture);
// Close and remove the folder, and make a new one.
void begin_anew(struct fixture *fixture);

// The hash of a prefix of n + 1 blocks; of the whole.
struct sl_hash128 hash_of(int seed, size_t block);
#define WHOLE (1u << 20)

// A capsule of bytes that depend on its seed, with n_hashes prefixes.
struct sl_stored *make_stored(int seed, size_t n_hashes, size_t body_bytes);
void free_stored(struct sl_stored *stored);
enum sl_status write_capsule(struct fixture *fixture, int seed, size_t n_hashes, size_t body_bytes);

bool finds(struct fixture *fixture, struct sl_hash128 hash, int64_t n_tokens, struct sl_disk_entry *found_out);
bool finds_whole(struct fixture *fixture, int seed, size_t n_hashes);
// Read what has been found and compare it with what was written.
enum sl_status read_back(struct fixture *fixture, const struct sl_disk_entry *found, int seed);
// Returns the number of capsules in the folder.
int64_t count(struct fixture *fixture, int64_t *bytes_out);

void path_of(const struct fixture *fixture, uint64_t id, char path_out[128]);
