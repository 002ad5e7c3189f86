// SPDX-License-Identifier: Apache-2.0
// Purpose: the ended spans that wait to be sent: a ring under a mutex, which is held for one copy only.
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/thread.h"
#include "net/trace/internal.h"

#define QUEUE      2048 // spans: about five megabytes
#define WAKE_EVERY 256  // at this many spans the reader is woken early

static struct {
    atomic_bool is_open;
    double share;
    pthread_mutex_t mutex; // guards what follows
    pthread_cond_t wake;
    struct sl_span *ring; // [QUEUE]
    size_t first, n;
    bool woken;
    int64_t n_dropped;
} queue = {.mutex = PTHREAD_MUTEX_INITIALIZER};

enum sl_status sl_spans_open(double share, struct sl_error *err) {
    queue.ring = malloc(QUEUE * sizeof *queue.ring);
    SL_FAIL_IF(!queue.ring, err, SL_ERR_EXHAUSTED, "no memory for spans");
    queue.share = share;
    queue.first = queue.n = 0;
    queue.woken = false;
    sl_cond_init(&queue.wake);
    atomic_store(&queue.is_open, true);
    return SL_OK;
}

bool sl_spans_are_on(void) {
    return atomic_load(&queue.is_open);
}

double sl_spans_share(void) {
    return queue.share; // written before other threads started
}

void sl_spans_put(const struct sl_span *span) {
    SL_LOCKED(&queue.mutex);
    if (!queue.ring || queue.n == QUEUE) {
        queue.n_dropped++;
    } else {
        queue.ring[(queue.first + queue.n++) % QUEUE] = *span;
        if (queue.n == WAKE_EVERY) {
            pthread_cond_signal(&queue.wake);
        }
    }
}

int sl_spans_take(struct sl_span *spans_out, int n, int64_t wait_ms) {
    int64_t until_ns = sl_deadline_in_ms(wait_ms);
    SL_LOCKED(&queue.mutex);
    while (queue.n < (size_t)n && !queue.woken && sl_cond_wait_until(&queue.wake, &queue.mutex, until_ns) == SL_OK) {
    }
    int taken = queue.n < (size_t)n ? (int)queue.n : n;
    for (int i = 0; i < taken; i++) {
        spans_out[i] = queue.ring[(queue.first + (size_t)i) % QUEUE];
    }
    queue.first = (queue.first + (size_t)taken) % QUEUE;
    queue.n -= (size_t)taken;
    return taken;
}

void sl_spans_wake(void) {
    SL_LOCKED(&queue.mutex);
    queue.woken = true;
    pthread_cond_signal(&queue.wake);
}

void sl_spans_close(void) {
    atomic_store(&queue.is_open, false);
    pthread_mutex_lock(&queue.mutex);
    queue.n_dropped += (int64_t)queue.n;
    queue.n = 0;
    free(queue.ring);
    queue.ring = NULL;
    pthread_mutex_unlock(&queue.mutex);
    pthread_cond_destroy(&queue.wake);
}

int64_t sl_spans_dropped(void) {
    SL_LOCKED(&queue.mutex);
    return queue.n_dropped;
}

void sl_spans_add_dropped(int64_t n) {
    SL_LOCKED(&queue.mutex);
    queue.n_dropped += n;
}
