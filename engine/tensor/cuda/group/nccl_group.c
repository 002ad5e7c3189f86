// SPDX-License-Identifier: Apache-2.0
/*
 * Design: every rank has a communicator of the group's own, made without blocking, so that no call of NCCL waits for a
 *         thread that never calls. A call in progress is polled until it is done, or for still_ms. A queued gather runs
 *         on the rank's compute stream, where its kernel waits for the other ranks' kernels without a deadline.
 *         engine/tensor/ranks notices when nothing makes progress, and aborts the group: ncclCommAbort ends the
 *         kernels.
 * Threads: a rank's lock is held around calls for its communicator, none of which blocks.
 */
#include "engine/tensor/cuda/group/nccl_group.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/tensor/cuda/group/nccl.h"
#include "engine/tensor/cuda/launching.h"
#include "engine/tensor/cuda/table/device.h"

#define CONNECT_MS 60000 // finding out how devices reach each other takes seconds
#define EAGER      1000  // polls of NCCL before the thread sleeps in between
#define NAP_US     50

struct end { // one rank's end of the group
    pthread_mutex_t lock;
    struct nccl_comm *comm; // NULL: none yet, or ended
    _Atomic uint64_t n_calls;
};

struct nccl_group {
    struct sl_group group;
    const struct nccl_functions *nccl;
    struct nccl_id id;
    int n;
    int64_t still_ms;
    atomic_bool aborted;
    atomic_int lost; // -1: none
    struct end ends[];
};

static struct nccl_group *of(struct sl_group *group) {
    return (struct nccl_group *)group;
}

// --- ending ----------------------------------------------------------------------------------------------------------

static void end_all(struct nccl_group *g, const char *what, int (*how)(struct nccl_comm *)) {
    for (int r = 0; r < g->n; r++) {
        pthread_mutex_lock(&g->ends[r].lock);
        struct nccl_comm *comm = g->ends[r].comm;
        g->ends[r].comm = NULL;
        if (comm != NULL) {
            sl_cuda_launching(what);
            (void)how(comm); // nothing else can be done on a failure
        }
        pthread_mutex_unlock(&g->ends[r].lock);
    }
}

static void abort_group(struct sl_group *group) {
    struct nccl_group *g = of(group);
    atomic_store(&g->aborted, true);
    end_all(g, "ncclCommAbort", g->nccl->CommAbort);
}

static int lost(const struct sl_group *group) {
    return atomic_load(&((const struct nccl_group *)group)->lost);
}

static void close_group(struct sl_group *group) {
    struct nccl_group *g = of(group);
    end_all(g, "ncclCommDestroy", g->nccl->CommDestroy);
    for (int r = 0; r < g->n; r++) {
        pthread_mutex_destroy(&g->ends[r].lock);
    }
    free(g);
}

// --- waiting for NCCL ------------------------------------------------------------------------------------------------

static enum sl_status say_ended(const struct nccl_group *g, const char *what, struct sl_error *err) {
    int rank = atomic_load(&g->lost);
    return rank >= 0 ? sl_fail(err, SL_ERR_PEER_LOST, "rank %d of %d has not come to %s", rank, g->n, what)
                     : sl_fail(err, SL_ERR_PEER_LOST, "%s: the group has ended", what);
}

// Notes the rank that is late: the first one that has called less often than this one, or else this one, whose call
// does not end although all ranks have called.
static enum sl_status lose(struct nccl_group *g, int rank, const char *what, int64_t wait_ms, struct sl_error *err) {
    int late = rank, none = -1;
    for (int r = g->n - 1; r >= 0; r--) {
        late = atomic_load(&g->ends[r].n_calls) < atomic_load(&g->ends[rank].n_calls) ? r : late;
    }
    (void)atomic_compare_exchange_strong(&g->lost, &none, late);
    return late == rank ? sl_fail(err, SL_ERR_PEER_LOST, "rank %d of %d: %s has not ended for %.1f s", rank, g->n, what,
                                  (double)wait_ms / 1000)
                        : sl_fail(err, SL_ERR_PEER_LOST, "rank %d of %d has not come to %s for %.1f s", late, g->n,
                                  what, (double)wait_ms / 1000);
}

// Waits until NCCL has finished what began with `result`. Counts naps instead of reading the clock: a process that was
// itself suspended must not conclude that a rank is lost.
static enum sl_status settle(struct nccl_group *g, int rank, const char *what, int result, int64_t wait_ms,
                             struct sl_error *err) {
    struct end *end = &g->ends[rank];
    for (int64_t i = 0; result == NCCL_IN_PROGRESS; i++) {
        if (atomic_load(&g->aborted)) {
            return say_ended(g, what, err);
        }
        if ((i - EAGER) * NAP_US > wait_ms * 1000) {
            return lose(g, rank, what, wait_ms, err);
        }
        if (i >= EAGER) {
            usleep(NAP_US);
        }
        pthread_mutex_lock(&end->lock);
        int asked = end->comm != NULL ? g->nccl->CommGetAsyncError(end->comm, &result) : NCCL_SUCCESS;
        pthread_mutex_unlock(&end->lock);
        result = asked == NCCL_SUCCESS ? result : asked;
    }
    return result == NCCL_SUCCESS
               ? SL_OK
               : sl_fail(err, SL_ERR_INTERNAL, "rank %d of %d: %s: NCCL says %d, %s; NCCL_DEBUG=INFO tells more", rank,
                         g->n, what, result, g->nccl->GetErrorString(result));
}

static enum sl_status gather(struct sl_group *group, int rank, struct sl_stream *stream, void *parts, size_t bytes,
                             struct sl_error *err) {
    static const char what[] = "ncclAllGather";
    struct nccl_group *g = of(group);
    struct end *end = &g->ends[rank];
    struct gpu_queue *queue = sl_gpu_stream(stream)->queue;
    int result = NCCL_SUCCESS;
    atomic_fetch_add(&end->n_calls, 1);
    pthread_mutex_lock(&end->lock);
    bool is_open = end->comm != NULL;
    if (is_open) {
        sl_cuda_launching(what);
        result = g->nccl->AllGather((char *)parts + (size_t)rank * bytes, parts, bytes, NCCL_INT8, end->comm, queue);
    }
    pthread_mutex_unlock(&end->lock);
    return is_open ? settle(g, rank, what, result, g->still_ms, err) : say_ended(g, what, err);
}

// --- opening and joining ---------------------------------------------------------------------------------------------

static enum sl_status join(struct sl_group *group, int rank, struct sl_stream *stream, struct sl_error *err) {
    static const char what[] = "ncclCommInitRank";
    struct nccl_group *g = of(group);
    struct end *end = &g->ends[rank];
    struct nccl_config config = {.size = sizeof config, .magic = NCCL_CONFIG_MAGIC, .version = NCCL_LEAST_VERSION};
    (void)sl_gpu_stream(stream); // makes this the thread's device
    atomic_fetch_add(&end->n_calls, 1);
    pthread_mutex_lock(&end->lock);
    sl_cuda_launching(what);
    int result = g->nccl->CommInitRankConfig(&end->comm, g->n, g->id, rank, &config);
    pthread_mutex_unlock(&end->lock);
    return settle(g, rank, what, result, CONNECT_MS, err);
}

static enum sl_status open_group(int n, int64_t still_ms, struct sl_group **group_out, struct sl_error *err) {
    const struct nccl_functions *nccl = sl_nccl_open(NULL, err);
    if (nccl == NULL) {
        return SL_ERR_UNSUPPORTED;
    }
    struct nccl_group *g = calloc(1, sizeof *g + (size_t)n * sizeof *g->ends);
    SL_FAIL_IF(g == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    g->group.ops = &sl_group_nccl;
    g->nccl = nccl;
    g->n = n;
    g->still_ms = still_ms;
    atomic_store(&g->lost, -1);
    int result = nccl->GetUniqueId(&g->id);
    if (result != NCCL_SUCCESS) {
        free(g);
        return sl_fail(err, SL_ERR_INTERNAL, "ncclGetUniqueId: NCCL says %d, %s", result, nccl->GetErrorString(result));
    }
    for (int r = 0; r < n; r++) {
        pthread_mutex_init(&g->ends[r].lock, NULL);
    }
    *group_out = &g->group;
    return SL_OK;
}

const struct sl_group_ops sl_group_nccl = {
    .name = "nccl",
    .open = open_group,
    .join = join,
    .gather = gather,
    .abort = abort_group,
    .lost = lost,
    .close = close_group,
};
