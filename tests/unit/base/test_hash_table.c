// SPDX-License-Identifier: Apache-2.0
// Purpose: the hash table against an array that is searched: whatever is added and removed, both find the same.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h> // setjmp.h before cmocka.h

#include <cmocka.h>

#include "base/hash.h"
#include "base/hash_table.h"

enum { N_ENTRIES = 300, N_KEYS = 40 };

struct entry {
    char padding[24];
    struct sl_hash_link by_name, by_number;
    char name[8];
    uint64_t number;
    int64_t added; // when, by count; 0: it is in no table
};

static struct entry entries[N_ENTRIES];

static bool has_name(const struct sl_hash_link *link, const void *key) {
    return strcmp(SL_HASH_ENTRY(link, struct entry, by_name)->name, key) == 0;
}

static bool has_number(const struct sl_hash_link *link, const void *key) {
    return SL_HASH_ENTRY(link, struct entry, by_number)->number == *(const uint64_t *)key;
}

static uint64_t hash_of(const char *name) {
    return sl_hash(name, strlen(name), 0);
}

static struct entry *find_number(const struct sl_hash_table *table, uint64_t number, uint64_t hash) {
    return SL_HASH_ENTRY(*sl_hash_table_find(table, hash, has_number, &number), struct entry, by_number);
}

// The youngest entry with this number, by a look at all.
static struct entry *expected(uint64_t number) {
    struct entry *found = NULL;
    for (int i = 0; i < N_ENTRIES; i++) {
        if (entries[i].added && entries[i].number == number && (!found || entries[i].added > found->added)) {
            found = &entries[i];
        }
    }
    return found;
}

// With as many buckets as entries, with few, and with one: everything collides.
static void test_finds_what_a_search_of_all_finds(void **state) {
    (void)state;
    static const size_t n_buckets[] = {1, 3, 512};
    for (size_t b = 0; b < sizeof n_buckets / sizeof *n_buckets; b++) {
        struct sl_hash_table names, numbers;
        assert_true(sl_hash_table_init(&names, n_buckets[b]));
        assert_true(sl_hash_table_init(&numbers, n_buckets[b]));
        memset(entries, 0, sizeof entries);
        for (int64_t step = 1; step <= 20000; step++) {
            uint64_t random = sl_mix((uint64_t)step * SL_GOLDEN + b);
            struct entry *entry = &entries[random % N_ENTRIES];
            if (entry->added) {
                sl_hash_table_remove(&numbers, entry->number, &entry->by_number);
                struct sl_hash_link **at = sl_hash_table_find(&names, hash_of(entry->name), has_name, entry->name);
                assert_ptr_equal(*at, &entry->by_name);
                *at = (*at)->next;
                entry->added = 0;
            } else {
                entry->number = random / N_ENTRIES % N_KEYS; // several entries have it
                entry->added = step;
                snprintf(entry->name, sizeof entry->name, "%td", entry - entries);
                sl_hash_table_add(&numbers, entry->number, &entry->by_number);
                sl_hash_table_add(&names, hash_of(entry->name), &entry->by_name);
            }
            uint64_t number = random / N_ENTRIES / N_KEYS % (N_KEYS + 3); // also such that no entry has
            assert_ptr_equal(find_number(&numbers, number, number), expected(number));
        }
        sl_hash_table_cleanup(&names);
        sl_hash_table_cleanup(&numbers);
    }
}

static void test_bucket_has_every_entry_of_a_hash(void **state) {
    (void)state;
    struct sl_hash_table table;
    assert_true(sl_hash_table_init(&table, 4));
    memset(entries, 0, sizeof entries);
    for (int i = 0; i < 5; i++) {
        entries[i].number = 7;
        sl_hash_table_add(&table, 7, &entries[i].by_number);
    }
    int n = 0;
    for (const struct sl_hash_link *link = *sl_hash_table_bucket(&table, 7); link; link = link->next) {
        assert_ptr_equal(SL_HASH_ENTRY(link, struct entry, by_number), &entries[4 - n]);
        n++;
    }
    assert_int_equal(n, 5);
    struct sl_hash_link **at = sl_hash_table_find(&table, 6, has_number, &(uint64_t){6});
    assert_null(*at);
    *at = &entries[5].by_number; // added where it was looked for
    entries[5].number = 6;
    assert_ptr_equal(find_number(&table, 6, 6), &entries[5]);
    sl_hash_table_cleanup(&table);
    sl_hash_table_cleanup(&table);
}

static void test_sizes_are_powers_of_two(void **state) {
    (void)state;
    static const size_t wanted[][2] = {{0, 1}, {1, 1}, {2, 2}, {3, 4}, {4096, 4096}, {4097, 8192}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        struct sl_hash_table table;
        assert_true(sl_hash_table_init(&table, wanted[i][0]));
        assert_int_equal(table.mask + 1, wanted[i][1]);
        sl_hash_table_cleanup(&table);
    }
    struct sl_hash_table table;
    assert_false(sl_hash_table_init(&table, (size_t)1 << 60)); // 2^63 bytes
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_what_a_search_of_all_finds),
        cmocka_unit_test(test_bucket_has_every_entry_of_a_hash),
        cmocka_unit_test(test_sizes_are_powers_of_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
