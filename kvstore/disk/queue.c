// SPDX-License-Identifier: Apache-2.0
/*
 * Invariants: items are ring[head .. head + n) modulo capacity; n <= capacity; closed never becomes false again.
 */
#include "kvstore/disk/queue.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/locked.h"
#include "base/thread.h"

struct sl_queue {
    pthread_mutex_t lock;
    pthread_cond_t not_empty;
    size_t capacity;
    size_t head;
    size_t n;
    bool closed;
    void *ring[];
};

enum sl_status sl_queue_create(size_t capacity, struct sl_queue **queue_out, struct sl_error *err) {
    SL_FAIL_IF(capacity == 0 || capacity > SIZE_MAX / 2 / sizeof(void *), err, SL_ERR_INVALID, "queue: capacity %zu",
               capacity);
    struct sl_queue *queue = calloc(1, sizeof *queue + capacity * sizeof queue->ring[0]);
    SL_FAIL_IF(!queue, err, SL_ERR_EXHAUSTED, "queue: out of memory for %zu items", capacity);
    queue->capacity = capacity;
    pthread_mutex_init(&queue->lock, NULL);
    sl_cond_init(&queue->not_empty);
    *queue_out = queue;
    return SL_OK;
}

void sl_queue_destroy(struct sl_queue **queue) {
    if (*queue) {
        pthread_cond_destroy(&(*queue)->not_empty);
        pthread_mutex_destroy(&(*queue)->lock);
        free(*queue);
        *queue = NULL;
    }
}

enum sl_status sl_queue_try_push(struct sl_queue *queue, void *item) {
    enum sl_status status = SL_OK;
    SL_LOCKED(&queue->lock);
    if (queue->closed) {
        status = SL_ERR_CANCELLED;
    } else if (queue->n == queue->capacity) {
        status = SL_AGAIN;
    } else {
        queue->ring[(queue->head + queue->n) % queue->capacity] = item;
        queue->n++;
        pthread_cond_signal(&queue->not_empty);
    }
    return status;
}

enum sl_status sl_queue_pop(struct sl_queue *queue, int64_t deadline_ns, void **item_out) {
    enum sl_status status = SL_OK;
    SL_LOCKED(&queue->lock);
    while (!queue->closed && queue->n == 0 && status == SL_OK) {
        status = sl_cond_wait_until(&queue->not_empty, &queue->lock, deadline_ns);
    }
    if (queue->n > 0) {
        *item_out = queue->ring[queue->head];
        queue->head = (queue->head + 1) % queue->capacity;
        queue->n--;
        status = SL_OK;
    } else if (queue->closed) {
        status = SL_ERR_CANCELLED;
    }
    return status;
}

void sl_queue_close(struct sl_queue *queue) {
    SL_LOCKED(&queue->lock);
    queue->closed = true;
    pthread_cond_broadcast(&queue->not_empty);
}
