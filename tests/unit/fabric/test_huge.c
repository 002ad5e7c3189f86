// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: regions of shared memory get huge pages while they are used, and keep their bytes.
 */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/fabric/core/huge.h"

#define HUGE_BYTES ((size_t)2 << 20)
#define BYTES      (8 * HUGE_BYTES)
#define WAIT_MS    20000

// Returns how many bytes of the mapping that begins at `base` are in huge pages.
static size_t huge_bytes_of(const void *base) {
    char line[512], begin[32];
    size_t bytes = 0;
    bool here = false;
    snprintf(begin, sizeof begin, "%lx-", (unsigned long)(uintptr_t)base);
    FILE *file = fopen("/proc/self/smaps", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        unsigned long kib;
        if (strncmp(line, begin, strlen(begin)) == 0) {
            here = true;
        } else if (here && sscanf(line, "ShmemPmdMapped: %lu kB", &kib) == 1) {
            bytes = kib << 10;
            break;
        }
    }
    fclose(file);
    return bytes;
}

// Maps memory of a file in memory, allocated in ordinary pages, at a place for huge ones.
static uint8_t *map_ordinary(void) {
    int fd = memfd_create("huge", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)BYTES), 0);
    void *reserved = sl_huge_reserve(BYTES);
    assert_non_null(reserved);
    assert_int_equal((uintptr_t)reserved % HUGE_BYTES, 0);
    void *base = mmap(reserved, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    assert_ptr_equal(base, reserved);
    close(fd);
    fill_pattern(base, BYTES, 7);
    return base;
}

// Returns whether this kernel joins pages of shared memory; it may have no huge page left, too.
static bool kernel_joins(void) {
    uint8_t *base = map_ordinary();
    bool joins = madvise(base, BYTES, 25) == 0; // MADV_COLLAPSE
    munmap(base, BYTES);
    return joins;
}

// Writes to the memory until so much of it is in huge pages, or for too long. Returns whether it is.
static bool use_until_huge(uint8_t *base, size_t bytes) {
    int64_t until_ns = sl_deadline_in_ms(WAIT_MS);
    for (uint8_t round = 1; sl_now_ns() < until_ns; round++) {
        for (size_t at = 0; at < BYTES; at += 4096) {
            base[at] = (uint8_t)(base[at] ^ round);
            base[at] = (uint8_t)(base[at] ^ round);
        }
        if (huge_bytes_of(base) >= bytes) {
            return true;
        }
    }
    return false;
}

static void assert_pattern(const uint8_t *base) {
    uint8_t *expected = malloc(BYTES);
    fill_pattern(expected, BYTES, 7);
    assert_memory_equal(base, expected, BYTES);
    free(expected);
}

static void test_pages_are_joined_while_they_are_used(void **state) {
    (void)state;
    if (!kernel_joins()) {
        skip();
    }
    uint8_t *base = map_ordinary();
    struct sl_huge_joining *joining = sl_huge_start(base, BYTES);
    assert_non_null(joining);
    sl_huge_want(NULL, base, BYTES);
    sl_huge_want(joining, base, 0);
    sl_huge_want(joining, base + BYTES, 4096); // beyond it
    sl_huge_want(joining, base + HUGE_BYTES - 1, 2);
    assert_true(use_until_huge(base, 2 * HUGE_BYTES));
    sl_sleep_ms(20);
    assert_int_equal(huge_bytes_of(base), 2 * HUGE_BYTES); // and no others
    for (int i = 0; i < 2; i++) {                          // the second time there is nothing to do
        sl_huge_want(joining, base - 4096, BYTES + 8192);
    }
    assert_true(use_until_huge(base, BYTES));
    sl_huge_stop(&joining);
    assert_null(joining);
    sl_huge_stop(&joining);
    assert_pattern(base);
    munmap(base, BYTES);
}

static void test_a_range_without_a_huge_page_is_left_alone(void **state) {
    (void)state;
    uint8_t *base = map_ordinary();
    assert_null(sl_huge_start(base, HUGE_BYTES - 1));
    assert_null(sl_huge_start(base + 4096, HUGE_BYTES));
    munmap(base, BYTES);
}

static void test_memory_that_cannot_be_joined_ends_the_thread(void **state) {
    (void)state;
    void *base = sl_huge_reserve(BYTES); // without access: nothing can be populated
    struct sl_huge_joining *joining = sl_huge_start(base, BYTES);
    assert_non_null(joining);
    for (size_t at = 0; at < BYTES; at += HUGE_BYTES) {
        sl_huge_want(joining, (char *)base + at, 1);
        sl_sleep_ms(2);
    }
    sl_huge_stop(&joining);
    munmap(base, BYTES);
}

static void test_a_shared_region_gets_huge_pages(void **state) {
    (void)state;
    if (!kernel_joins()) {
        skip();
    }
    struct sl_fabric *fabric = start_fabric("shm", "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    uint8_t *region = make_region(fabric, BYTES);
    assert_int_equal((uintptr_t)region % HUGE_BYTES, 0);
    fill_pattern(region, BYTES, 7);
    assert_int_equal(huge_bytes_of(region), 0); // before it is used for a ship
    struct receive_buffer receive_buffer;
    open_receive_buffer(&receive_buffer, fabric, region, BYTES, 60000);
    assert_true(use_until_huge(region, BYTES));
    assert_pattern(region);
    sl_grant_close(&receive_buffer.grant);
    assert_true(wait_released(&receive_buffer, 5000));
    free(receive_buffer.ticket);
    uint8_t *small = make_region(fabric, 8192); // too short for one
    small[0] = small[8191] = 1;
    stop_fabric(&fabric);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_are_joined_while_they_are_used),
        cmocka_unit_test(test_a_range_without_a_huge_page_is_left_alone),
        cmocka_unit_test(test_memory_that_cannot_be_joined_ends_the_thread),
        cmocka_unit_test(test_a_shared_region_gets_huge_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
