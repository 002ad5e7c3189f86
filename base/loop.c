// SPDX-License-Identifier: Apache-2.0
#include "base/loop.h"

void sl_loop_init(struct sl_loop *loop) {
    *loop = (struct sl_loop){.stopping = false};
    pthread_mutex_init(&loop->mutex, NULL);
    sl_cond_init(&loop->changed);
}

enum sl_status sl_loop_start(struct sl_loop *loop, const char *name, void *(*fn)(void *), void *arg,
                             struct sl_error *err) {
    enum sl_status status = sl_thread_start(name, fn, arg, &loop->thread, err);
    loop->runs = status == SL_OK;
    return status;
}

enum sl_status sl_loop_wait(struct sl_loop *loop, int64_t deadline_ns) {
    return sl_cond_wait_until(&loop->changed, &loop->mutex, deadline_ns);
}

void sl_loop_sleep(struct sl_loop *loop, int64_t deadline_ns) {
    while (!loop->stopping && sl_loop_wait(loop, deadline_ns) == SL_OK) {
    }
}

void sl_loop_stop(struct sl_loop *loop) {
    pthread_mutex_lock(&loop->mutex);
    loop->stopping = true;
    pthread_cond_broadcast(&loop->changed);
    pthread_mutex_unlock(&loop->mutex);
    if (loop->runs) {
        pthread_join(loop->thread, NULL);
    }
    loop->runs = false;
}

void sl_loop_cleanup(struct sl_loop *loop) {
    sl_loop_stop(loop);
    pthread_cond_destroy(&loop->changed);
    pthread_mutex_destroy(&loop->mutex);
}
