// SPDX-License-Identifier: Apache-2.0
// Purpose: order, back-pressure, closing and deadlines of the queue, alone and between threads.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "kvstore/disk/queue.h"
#include "base/thread.h"

#define N_ITEMS   20000
#define N_THREADS 3

static void *number(uintptr_t n) {
    return (void *)n;
}

static struct sl_queue *create(size_t capacity) {
    struct sl_queue *queue = NULL;
    struct sl_error err;
    assert_int_equal(sl_queue_create(capacity, &queue, &err), SL_OK);
    return queue;
}

static void test_queue_keeps_order_around_the_ring(void **state) {
    (void)state;
    struct sl_queue *queue = create(3);
    uintptr_t pushed = 0, popped = 0;
    for (int round = 0; round < 10; round++) {
        while (sl_queue_try_push(queue, number(pushed + 1)) == SL_OK) {
            pushed++;
        }
        assert_int_equal(pushed - popped, 3);
        for (int i = 0; i < 2; i++) {
            void *item = NULL;
            assert_int_equal(sl_queue_pop(queue, 0, &item), SL_OK);
            assert_int_equal((uintptr_t)item, ++popped);
        }
    }
    sl_queue_destroy(&queue);
    assert_null(queue);
    sl_queue_destroy(&queue);
}

static void test_queue_full_is_back_pressure(void **state) {
    (void)state;
    struct sl_queue *queue = create(1);
    assert_int_equal(sl_queue_try_push(queue, number(1)), SL_OK);
    assert_int_equal(sl_queue_try_push(queue, number(2)), SL_AGAIN);
    void *item = NULL;
    assert_int_equal(sl_queue_pop(queue, 0, &item), SL_OK);
    assert_int_equal((uintptr_t)item, 1);
    assert_int_equal(sl_queue_pop(queue, 0, &item), SL_ERR_DEADLINE);
    sl_queue_destroy(&queue);
}

static void test_queue_empty_pop_meets_its_deadline(void **state) {
    (void)state;
    struct sl_queue *queue = create(1);
    void *item = number(7);
    int64_t begin = sl_now_ns();
    assert_int_equal(sl_queue_pop(queue, sl_deadline_in_ms(20), &item), SL_ERR_DEADLINE);
    assert_true(sl_now_ns() - begin >= 20 * SL_NS_PER_MS);
    assert_int_equal((uintptr_t)item, 7); // outputs only on success
    sl_queue_destroy(&queue);
}

static void test_queue_close_drains_then_cancels(void **state) {
    (void)state;
    struct sl_queue *queue = create(4);
    sl_queue_try_push(queue, number(1));
    sl_queue_close(queue);
    sl_queue_close(queue);
    assert_int_equal(sl_queue_try_push(queue, number(2)), SL_ERR_CANCELLED);
    void *item = NULL;
    assert_int_equal(sl_queue_pop(queue, SL_NO_DEADLINE, &item), SL_OK);
    assert_int_equal((uintptr_t)item, 1);
    assert_int_equal(sl_queue_pop(queue, SL_NO_DEADLINE, &item), SL_ERR_CANCELLED);
    sl_queue_destroy(&queue);
}

static void test_queue_refuses_no_capacity(void **state) {
    (void)state;
    struct sl_queue *queue = NULL;
    assert_int_equal(sl_queue_create(0, &queue, NULL), SL_ERR_INVALID);
    assert_null(queue);
}

struct traffic {
    struct sl_queue *queue;
    int n_seen[N_ITEMS]; // each written by the one popper that got the item
};

struct pusher {
    struct traffic *traffic;
    uintptr_t first;
};

static void *push_share(void *arg) {
    struct pusher *pusher = arg;
    for (uintptr_t i = pusher->first; i < N_ITEMS; i += N_THREADS) {
        while (sl_queue_try_push(pusher->traffic->queue, number(i + 1)) == SL_AGAIN) {
            sched_yield();
        }
    }
    return NULL;
}

static void *pop_all(void *arg) {
    struct traffic *traffic = arg;
    void *item;
    while (sl_queue_pop(traffic->queue, sl_deadline_in_ms(30000), &item) == SL_OK) {
        traffic->n_seen[(uintptr_t)item - 1]++;
    }
    return NULL;
}

static void test_queue_delivers_each_item_once_between_threads(void **state) {
    (void)state;
    struct traffic *traffic = calloc(1, sizeof *traffic);
    traffic->queue = create(8);
    struct pusher pushers[N_THREADS];
    pthread_t push[N_THREADS], pop[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        pushers[i] = (struct pusher){traffic, (uintptr_t)i};
        assert_int_equal(sl_thread_start("push", push_share, &pushers[i], &push[i], NULL), SL_OK);
        assert_int_equal(sl_thread_start("pop", pop_all, traffic, &pop[i], NULL), SL_OK);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(push[i], NULL);
    }
    sl_queue_close(traffic->queue);
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(pop[i], NULL);
    }
    for (int i = 0; i < N_ITEMS; i++) {
        assert_int_equal(traffic->n_seen[i], 1);
    }
    sl_queue_destroy(&traffic->queue);
    free(traffic);
}

static void *pop_one(void *arg) {
    void *item;
    return (void *)(intptr_t)sl_queue_pop(arg, sl_deadline_in_ms(30000), &item);
}

static void test_queue_close_wakes_sleepers(void **state) {
    (void)state;
    struct sl_queue *queue = create(1);
    pthread_t thread;
    assert_int_equal(sl_thread_start("sleeper", pop_one, queue, &thread, NULL), SL_OK);
    sl_sleep_ms(10);
    sl_queue_close(queue);
    void *result;
    pthread_join(thread, &result);
    assert_int_equal((intptr_t)result, SL_ERR_CANCELLED);
    sl_queue_destroy(&queue);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queue_keeps_order_around_the_ring),
        cmocka_unit_test(test_queue_full_is_back_pressure),
        cmocka_unit_test(test_queue_empty_pop_meets_its_deadline),
        cmocka_unit_test(test_queue_close_drains_then_cancels),
        cmocka_unit_test(test_queue_refuses_no_capacity),
        cmocka_unit_test(test_queue_delivers_each_item_once_between_threads),
        cmocka_unit_test(test_queue_close_wakes_sleepers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
