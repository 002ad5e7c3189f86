// SPDX-License-Identifier: Apache-2.0
// Many threads allocate at once, and the C library makes no more arenas than it was allowed to.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/heap.h"
#include "base/processors.h"

enum { N_THREADS = 64 };

static pthread_barrier_t all_have_memory;

static void *allocate(void *arg) {
    char *volatile block = malloc(5000); // larger than what threads cache
    block[0] = 1;
    pthread_barrier_wait(&all_have_memory);
    free(block);
    return arg;
}

static int n_arenas(void) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    assert_int_equal(malloc_info(0, file), 0);
    fclose(file);
    int n = 0;
    for (const char *at = text; (at = strstr(at, "<heap nr=")) != NULL; at++) {
        n++;
    }
    free(text);
    return n;
}

static void test_heap_has_few_arenas_for_many_threads(void **state) {
    (void)state;
    pthread_t threads[N_THREADS];
    unsetenv("MALLOC_ARENA_MAX");
    sl_heap_limit();
    assert_int_equal(pthread_barrier_init(&all_have_memory, NULL, N_THREADS), 0);
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, allocate, NULL), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_barrier_destroy(&all_have_memory);
    int n = sl_processors_count();
    assert_in_range(n_arenas(), 1, n < SL_HEAP_ARENAS ? n : SL_HEAP_ARENAS);
}

static size_t resident_bytes(void) {
    unsigned long all, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_int_equal(fscanf(file, "%lu %lu", &all, &resident), 2);
    fclose(file);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

// Blocks in use lie between those that are freed: the library would keep all of it.
static void check_that_memory_is_given_back(int n, int n_calls) {
    enum { MOST = 16384, BYTES = 8000 };
    static char *blocks[MOST], *pins[MOST];
    assert_in_range(n, 1, MOST);
    for (int i = 0; i < n; i++) {
        blocks[i] = memset(malloc(BYTES), 1, BYTES);
        pins[i] = malloc(100);
    }
    for (int i = 0; i < n; i++) {
        free(blocks[i]);
    }
    size_t before = resident_bytes();
    for (int i = 0; i < n_calls; i++) {
        sl_heap_give_back();
    }
    assert_true(resident_bytes() + (size_t)n * BYTES / 4 < before);
    for (int i = 0; i < n; i++) {
        free(pins[i]);
    }
}

static void test_heap_gives_free_memory_back(void **state) {
    (void)state;
    check_that_memory_is_given_back(1000, SL_HEAP_CALLS); // less than is spared at each call
    check_that_memory_is_given_back(16384, 1);            // a flood
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heap_has_few_arenas_for_many_threads),
        cmocka_unit_test(test_heap_gives_free_memory_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
