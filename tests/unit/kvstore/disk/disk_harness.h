// SPDX-License-Identifier: Apache-2.0
// Purpose: shared by the tests of a store's disk with a capsule cache: a disk, its cache and its protected capsules.
#pragma once

#include "tests/unit/kvstore/harness.h"

#include "kvstore/disk/disk.h"
#include "tests/unit/slowness.h"
#include "tests/unit/temp_folder.h"

#define DISK_TOKENS  256 // of each capsule
#define DISK_WAIT_MS (10000 * SLOWNESS)

struct disk_fixture {
    struct temp_folder folder;
    int64_t pause_ms;      // after a failure; 0: DISK_WAIT_MS
    bool puts_checkpoints; // disk_put() caches checkpoints
    struct parts parts;
    struct sl_disk *disk;
    struct sl_protected *protected;
    struct sl_progress_counter progress_counter;
};

int disk_setup(void **state);
int disk_teardown(void **state);
void disk_open(struct disk_fixture *fixture); // the disk, again after sl_disk_close()
struct sl_capsule_id disk_id(int seed);
void disk_put(struct disk_fixture *fixture, int seed); // caches a capsule and offers it to the disk
