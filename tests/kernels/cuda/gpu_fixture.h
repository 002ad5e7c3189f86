// SPDX-License-Identifier: Apache-2.0
// Purpose: a GPU for the checks of its kernels: heads and arrays copied there and back. Which one is linked: the emulator, or what
// CUDA finds (under_test.h).
#pragma once

#include "engine/tensor/cuda/attention/launch.h"
#include "tests/kernels/cuda/under_test.h"
#include "tests/kernels/kv_fixture.h"

static struct gpu_queue *queue;

// Every check runs with each of these orders of threads and blocks.
static const unsigned gpu_orders[] = {0, 1, 7};
#define FOR_ORDERS(order) for (size_t order = 0; order < 3 && (sl_under_test_order(gpu_orders[order]), true); order++)

static inline int gpu_open(void **state) {
    struct sl_error err = {0};
    (void)state;
    if (sl_under_test->open(0, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    queue = sl_under_test->queue_open();
    assert_non_null(queue);
    return 0;
}

static inline int gpu_close(void **state) {
    (void)state;
    sl_under_test->queue_close(&queue);
    assert_int_equal(sl_under_test_used(), 0);
    return 0;
}
#define GPU_TEST(test) cmocka_unit_test_setup_teardown(test, gpu_open, gpu_close)

// --- arrays ----------------------------------------------------------------------------------------------------------

// Everything that is queued has been done.
static inline void gpu_wait(struct gpu_queue *of) {
    struct sl_error err = {0};
    struct gpu_event *event = sl_under_test->event_open();
    assert_non_null(event);
    sl_under_test->event_record(event, of);
    if (sl_under_test->event_wait(event, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    sl_under_test->event_close(&event);
}

static inline void gpu_copy(struct gpu_queue *in, void *to, const void *from, size_t bytes) {
    sl_under_test->copy(in, to, from, bytes);
}

static inline void gpu_free(void *block) {
    sl_under_test_free(block);
}

static inline void *gpu_room(size_t bytes) { // NaN
    void *block = sl_under_test_alloc(bytes > 0 ? bytes : 1);
    assert_non_null(block);
    return block;
}

static inline void *gpu_up(const void *from, size_t bytes) {
    void *block = gpu_room(bytes);
    gpu_copy(queue, block, from, bytes);
    gpu_wait(queue);
    return block;
}

static inline void gpu_down(void *to, const void *from, size_t bytes) {
    gpu_copy(queue, to, from, bytes);
    gpu_wait(queue);
}

// --- heads -----------------------------------------------------------------------------------------------------------

struct gpu_copied_heads {
    struct gpu_head *at; // device
    int n;
    const struct sl_kv *kv;
    void *pages[64], *tables[64];
};

static inline size_t gpu_page_bytes(const struct sl_kv *kv, uint32_t page) {
    return sl_kv_page_layout(kv, page)->bytes;
}

// Copies a head's pages, one after the other, to the device or back.
static inline void gpu_copy_pages(const struct sl_kv *kv, char *device, bool up) {
    for (uint32_t p = 0; p < sl_pages_for(kv->n_slots); p++) {
        gpu_copy(queue, up ? device : kv->pages[p], up ? kv->pages[p] : device, gpu_page_bytes(kv, p));
        device += gpu_page_bytes(kv, p);
    }
    gpu_wait(queue);
}

// Heads without pages are a number of slots.
static inline struct gpu_copied_heads gpu_heads_up(const struct sl_kv *kv, int n) {
    struct gpu_copied_heads heads = {.n = n, .kv = kv};
    struct gpu_head at[64];
    memset(at, 0, sizeof at);
    for (int h = 0; h < n; h++) {
        at[h].n_slots = kv[h].n_slots;
        at[h].n_packed = kv[h].n_packed;
        if (kv[h].pages == NULL) {
            continue;
        }
        uint32_t n_pages = sl_pages_for(kv[h].n_slots);
        void *table[MAX_PAGES];
        size_t bytes = 0;
        for (uint32_t p = 0; p < n_pages; p++) {
            bytes += gpu_page_bytes(&kv[h], p);
        }
        char *page = heads.pages[h] = gpu_room(bytes);
        gpu_copy_pages(&kv[h], page, true);
        for (uint32_t p = 0; p < n_pages; p++) {
            table[p] = page;
            page += gpu_page_bytes(&kv[h], p);
        }
        heads.tables[h] = gpu_up(table, n_pages * sizeof table[0]);
        at[h].pages = heads.tables[h];
        at[h].work = *kv[h].work;
        at[h].packed = *kv[h].packed;
    }
    heads.at = gpu_up(at, (size_t)n * sizeof at[0]);
    return heads;
}

static inline void gpu_heads_free(struct gpu_copied_heads *heads) {
    for (int h = 0; h < heads->n; h++) {
        gpu_free(heads->pages[h]);
        gpu_free(heads->tables[h]);
    }
    gpu_free(heads->at);
}

static inline uint32_t gpu_most_slots(const struct sl_kv *kv, int n) {
    uint32_t most = 0;
    for (int h = 0; h < n; h++) {
        most = kv[h].n_slots > most ? kv[h].n_slots : most;
    }
    return most;
}
