// SPDX-License-Identifier: Apache-2.0
// Purpose: see watch.h.
#include "tensor/cuda/group/watch.h"

#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "tensor/cuda/launching.h"

#define CONNECT_MS                                                                                                     \
    60000 // finding out how devices reach each other takes seconds; a rank that fails meanwhile ends it at once
#define BEGIN_MS 60000 // until the device has come to a sum that was queued
#define LOOK_MS  50
#define EAGER    1000 // looks at what NCCL does for us before we sleep between them
#define NAP_US   50

// --- the thread --------------------------------------------------------------------------------------------------------

// The first rank whose device has begun fewer sums than this one's.
static int find_late(const struct gpu_watch *w) {
    uint64_t mine = atomic_load(w->n_begun[w->meeting->rank]);
    for (int r = 0; r < w->meeting->size; r++) {
        if (atomic_load(w->n_begun[r]) < mine) {
            return r;
        }
    }
    return w->meeting->rank;
}

// Destroying waits for what is queued, which in a group that has ended may not end.
static void disconnect(struct gpu_watch *w) {
    if (w->comm != NULL) {
        bool lost = sl_meeting_lost(w->meeting) >= 0;
        sl_cuda_launching(lost ? "ncclCommAbort" : "ncclCommDestroy");
        (void)(lost ? w->nccl->CommAbort : w->nccl->CommDestroy)(w->comm); // there is nothing else to be done
        w->comm = NULL;
    }
}

static struct gpu_watched *oldest(struct gpu_watch *w) {
    return &w->sums[w->n_done % GPU_WATCHED];
}

static void look(struct gpu_watch *w) {
    for (; w->n_done < w->n_queued && w->driver->event_reached(oldest(w)->end); w->n_done++) {
        w->since_ns = 0;
    }
    bool begun = w->n_done < w->n_queued && w->driver->event_reached(oldest(w)->begin);
    atomic_store(w->n_begun[w->meeting->rank], w->n_done + begun);
    if (begun && w->since_ns == 0) {
        w->since_ns = sl_now_ns();
    } else if (begun && sl_now_ns() - w->since_ns > w->meeting->deadline_ms * SL_NS_PER_MS) {
        sl_meeting_give_up(w->meeting, find_late(w));
    }
    if (sl_meeting_lost(w->meeting) >= 0) {
        disconnect(w);
    }
}

static void *run(void *arg) {
    struct gpu_watch *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stopping) {
        (void)sl_cond_wait_until(&w->changed, &w->lock,
                                 w->n_done < w->n_queued ? sl_deadline_in_ms(LOOK_MS) : SL_NO_DEADLINE);
        look(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

// --- what NCCL does ----------------------------------------------------------------------------------------------------

// Its calls do not block: waits until it has done what began with `result`.
static enum sl_status settle(struct gpu_watch *w, const char *what, int result, int64_t wait_ms, struct sl_error *err) {
    int64_t deadline_ns = sl_deadline_in_ms(wait_ms);
    const struct sl_meeting *m = w->meeting;
    for (int i = 0; result == NCCL_IN_PROGRESS; i++) {
        if (sl_meeting_lost(m) >= 0) {
            return sl_meeting_say_lost(m, err);
        }
        if (sl_deadline_left_ms(deadline_ns) == 0) {
            sl_meeting_abandon(w->meeting);
            return sl_fail(err, SL_ERR_PEER_LOST, "rank %d of %d: %s has not ended for %.1f s", m->rank, m->size, what,
                           (double)wait_ms / 1000);
        }
        if (i >= EAGER) {
            usleep(NAP_US);
        }
        pthread_mutex_lock(&w->lock);
        int asked = w->comm != NULL ? w->nccl->CommGetAsyncError(w->comm, &result) : NCCL_SUCCESS;
        pthread_mutex_unlock(&w->lock);
        result = asked == NCCL_SUCCESS ? result : asked;
    }
    if (result != NCCL_SUCCESS) {
        sl_meeting_abandon(w->meeting);
        return sl_fail(err, SL_ERR_INTERNAL, "rank %d of %d: %s: NCCL says %d, %s; NCCL_DEBUG=INFO tells more", m->rank,
                       m->size, what, result, w->nccl->GetErrorString(result));
    }
    return SL_OK;
}

enum sl_status sl_gpu_watch_connect(struct gpu_watch *w, const struct nccl_id *id, struct sl_error *err) {
    struct nccl_config config = {.size = sizeof config, .magic = NCCL_CONFIG_MAGIC, .version = NCCL_LEAST_VERSION};
    pthread_mutex_lock(&w->lock);
    sl_cuda_launching("ncclCommInitRankConfig");
    int result = w->nccl->CommInitRankConfig(&w->comm, w->meeting->size, *id, w->meeting->rank, &config);
    pthread_mutex_unlock(&w->lock);
    return settle(w, "ncclCommInitRank", result, CONNECT_MS, err);
}

// Room for one more. A wait for a sum that the thread watches.
static enum sl_status make_room(struct gpu_watch *w, struct sl_error *err) {
    while (w->n_queued - w->n_done == GPU_WATCHED) {
        struct gpu_event *end = oldest(w)->end;
        pthread_mutex_unlock(&w->lock);
        bool ended = w->driver->event_wait_until(end, sl_deadline_in_ms(BEGIN_MS));
        enum sl_status status =
            ended ? w->driver->event_wait(end, err)
                  : sl_fail(err, SL_ERR_INTERNAL, "rank %d of %d: its device has not begun a sum for %d s",
                            w->meeting->rank, w->meeting->size, BEGIN_MS / 1000);
        pthread_mutex_lock(&w->lock);
        if (status != SL_OK) {
            sl_meeting_abandon(w->meeting);
            return status;
        }
        look(w);
    }
    return SL_OK;
}

enum sl_status sl_gpu_watch_sum(struct gpu_watch *w, struct gpu_queue *queue, float *x, int64_t n,
                                struct sl_error *err) {
    pthread_mutex_lock(&w->lock);
    enum sl_status status = make_room(w, err);
    if (status == SL_OK && w->comm == NULL) { // ended
        status = sl_meeting_say_lost(w->meeting, err);
    }
    if (status != SL_OK) {
        pthread_mutex_unlock(&w->lock);
        return status;
    }
    struct gpu_watched *sum = &w->sums[w->n_queued % GPU_WATCHED];
    w->driver->event_record(sum->begin, queue);
    sl_cuda_launching("ncclAllReduce");
    int result = w->nccl->AllReduce(x, x, (size_t)n, NCCL_FLOAT32, NCCL_SUM, w->comm, queue);
    pthread_mutex_unlock(&w->lock);
    status = settle(w, "ncclAllReduce", result, w->meeting->deadline_ms, err);
    pthread_mutex_lock(&w->lock);
    if (status == SL_OK) {
        w->driver->event_record(sum->end, queue);
        w->n_queued++;
        pthread_cond_signal(&w->changed);
    } else {
        look(w); // the group has ended: a kernel that was queued must
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}

// --- life cycle --------------------------------------------------------------------------------------------------------

enum sl_status sl_gpu_watch_init(struct gpu_watch *w, const struct nccl_functions *nccl,
                                 const struct gpu_driver *driver, struct sl_meeting *meeting,
                                 _Atomic uint64_t *const *n_begun, struct sl_error *err) {
    w->nccl = nccl;
    w->driver = driver;
    w->meeting = meeting;
    w->n_begun = n_begun;
    for (int i = 0; i < GPU_WATCHED; i++) {
        w->sums[i].begin = driver->event_open();
        w->sums[i].end = w->sums[i].begin != NULL ? driver->event_open() : NULL;
        if (w->sums[i].end == NULL) {
            return sl_fail(err, SL_ERR_EXHAUSTED, "the device has no room for %d events", 2 * GPU_WATCHED);
        }
    }
    pthread_mutex_init(&w->lock, NULL);
    sl_cond_init(&w->changed);
    enum sl_status status = sl_thread_start("nccl-watch", run, w, &w->thread, err);
    w->started = status == SL_OK;
    return status;
}

void sl_gpu_watch_cleanup(struct gpu_watch *w) {
    if (w->started) {
        pthread_mutex_lock(&w->lock);
        w->stopping = true;
        pthread_cond_signal(&w->changed);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
    }
    disconnect(w);
    for (int i = 0; i < GPU_WATCHED; i++) {
        if (w->sums[i].begin != NULL) {
            w->driver->event_close(&w->sums[i].begin);
        }
        if (w->sums[i].end != NULL) {
            w->driver->event_close(&w->sums[i].end);
        }
    }
}
