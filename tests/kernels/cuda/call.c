// SPDX-License-Identifier: Apache-2.0
// Purpose: see call.h.
#include "tests/kernels/cuda/call.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/tensor/cpu/pages/kv_page.h"
#include "tests/kernels/cuda/device_under_test.h"
#include "tests/kernels/tested.h"

enum { MOST_PAGES = 65536, MOST_OPERATIONS = 64 };
static const unsigned orders[] = {0, 1, 7};
enum { N_ORDERS = sizeof orders / sizeof orders[0] };

struct here here;

static struct {
    struct {
        const char *name;
        unsigned n;
    } called[MOST_OPERATIONS];
    // Arguments of the current call.
    struct sl_kv kv[MOST_HEADS];
    void *pages[MOST_PAGES];
    struct sl_softmax before[MOST_HEADS];
    int n_kv, n_pages, n_before;
} call;

// --- calls -----------------------------------------------------------------------------------------------------------

// The next order of threads and blocks for an operation.
static void choose_order(const char *name) {
    int i = 0;
    while (i < MOST_OPERATIONS && call.called[i].name != NULL && strcmp(call.called[i].name, name) != 0) {
        i++;
    }
    assert_true(i < MOST_OPERATIONS);
    call.called[i].name = name;
    device_under_test_order(orders[call.called[i].n++ % N_ORDERS]);
}

void call_begin(const char *operation) {
    choose_order(operation);
    image_up(here.stream);
}

void call_end(const char *operation) {
    image_down(here.stream, operation);
    call.n_kv = call.n_pages = call.n_before = 0;
}

bool call_has_seen_all_orders(void) {
    bool all = true;
    for (int i = 0; i < MOST_OPERATIONS && call.called[i].name != NULL; i++) {
        if (call.called[i].n < N_ORDERS && is_emulated(device_under_test)) {
            fprintf(stderr, "%s was called %u times, there are %d orders of threads\n", call.called[i].name,
                    call.called[i].n, N_ORDERS);
            all = false;
        }
    }
    return all;
}

// --- what calls name -------------------------------------------------------------------------------------------------

void *led(const void *host, size_t bytes, enum use use) {
    return use == READ ? image_of(host, bytes) : image_of_written((void *)host, bytes);
}

float *floats(const float *x, int64_t n, enum use use) {
    return led(x, (size_t)n * sizeof *x, use);
}

float *rows_of(const float *x, int64_t m, int64_t stride, int64_t width, enum use use) {
    return m > 0 ? floats(x, (m - 1) * stride + width, use) : NULL;
}

struct sl_kv_heads heads_of(const struct sl_kv_heads *heads, enum use use) {
    static const struct sl_page_layout none = {.head_dim = 8};
    struct sl_kv_heads to = {.kv = call.kv + call.n_kv, .n = heads->n};
    assert_true(call.n_kv + heads->n <= MOST_HEADS);
    for (int h = 0; h < heads->n; h++) {
        const struct sl_kv *kv = &heads->kv[h];
        void **pages = call.pages + call.n_pages;
        call.n_pages += (int)sl_pages_for(kv->n_slots);
        assert_true(call.n_pages <= MOST_PAGES);
        for (uint32_t p = 0; p < sl_pages_for(kv->n_slots); p++) {
            pages[p] = kv->pages != NULL ? led(kv->pages[p], sl_kv_page_layout(kv, p)->bytes, use) : NULL;
        }
        call.kv[call.n_kv++] = (struct sl_kv){pages, kv->n_packed, kv->n_slots, kv->work != NULL ? kv->work : &none,
                                              kv->packed != NULL ? kv->packed : &none};
    }
    assert_int_equal(here.ops->publish(here.stream, &to, NULL), SL_OK);
    return to;
}

uint32_t count_of(struct sl_counts n, int h) {
    return n.host != NULL ? n.host[h] : n.device[h];
}

struct sl_counts counts_of(struct sl_counts n, int n_heads, enum use use) {
    return n.host != NULL ? n : (struct sl_counts){NULL, led(n.device, (size_t)n_heads * sizeof *n.device, use)};
}

struct sl_vectors vectors_of(struct sl_vectors x, const struct sl_kv_heads *heads, int group, enum use use) {
    size_t end = 0;
    for (int i = 0; i < heads->n * group; i++) {
        size_t n = heads->kv[i / group].n_slots;
        end = n > 0 && (size_t)i * x.stride + n > end ? (size_t)i * x.stride + n : end;
    }
    return (struct sl_vectors){floats(x.at, (int64_t)end, use), x.stride};
}

// Returns how many slots a list has: those kept (at most all), or evicted, where any slot is kept.
static uint32_t listed_of(const struct sl_kv_heads *heads, struct sl_counts kept, int h, bool evicted) {
    uint32_t n = heads->kv[h].n_slots, k = count_of(kept, h) < n ? count_of(kept, h) : n;
    return !evicted ? k : k > 0 ? n - k : 0;
}

static size_t end_of_lists(size_t stride, const struct sl_kv_heads *heads, struct sl_counts kept, bool evicted) {
    size_t end = 0;
    for (int h = 0; h < heads->n; h++) {
        size_t n = listed_of(heads, kept, h, evicted);
        end = n > 0 && (size_t)h * stride + n > end ? (size_t)h * stride + n : end;
    }
    return end;
}

struct sl_lists slots_of(struct sl_lists lists, const struct sl_kv_heads *heads, struct sl_counts kept, bool evicted,
                         enum use use) {
    size_t end = end_of_lists(lists.stride, heads, kept, evicted);
    return (struct sl_lists){led(lists.at, end * sizeof *lists.at, use), lists.stride};
}

struct sl_vectors numbers_of(struct sl_vectors x, const struct sl_kv_heads *heads, struct sl_counts kept, bool evicted,
                             enum use use) {
    return (struct sl_vectors){floats(x.at, (int64_t)end_of_lists(x.stride, heads, kept, evicted), use), x.stride};
}

struct sl_softmax *softmax_of(const struct sl_attend *a, const struct sl_softmax *x, enum use use) {
    int64_t n = (int64_t)a->m * a->n_heads;
    assert_true(call.n_before < MOST_HEADS);
    call.before[call.n_before] =
        (struct sl_softmax){floats(x->out, n * a->head_dim, use), floats(x->max, n, use), floats(x->sum, n, use)};
    return &call.before[call.n_before++];
}

struct sl_attend attend_of(const struct sl_attend *a, enum use heads, enum use lse, bool has_out) {
    struct sl_attend to = *a;
    int64_t width = (int64_t)a->n_heads * a->head_dim, kv_width = (int64_t)a->heads.n * a->head_dim;
    int64_t kv_stride = a->kv_stride > 0 ? a->kv_stride : kv_width;
    to.q = rows_of(a->q, a->m, sl_attend_q_stride(a), width, READ);
    to.k = rows_of(a->k, a->m, kv_stride, kv_width, READ);
    to.v = rows_of(a->v, a->m, kv_stride, kv_width, READ);
    to.positions = led(a->positions, (size_t)a->m * sizeof *a->positions, READ);
    to.heads = heads_of(&a->heads, heads);
    to.out = has_out ? rows_of(a->out, a->m, sl_attend_out_stride(a), width, WRITTEN) : NULL;
    to.lse = floats(a->lse, (int64_t)a->m * a->n_heads, lse);
    to.before = a->before != NULL ? softmax_of(a, a->before, READ) : NULL;
    return to;
}
