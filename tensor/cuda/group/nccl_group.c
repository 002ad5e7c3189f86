// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: see nccl_group.h.
 *
 * Design: ranks are threads of one process, whose devices read each other's memory. A small sum is one kernel a rank: x is copied into a slot of the rank's own, an event
 *         recorded behind that; the threads meet; every queue comes behind the others' events, and adds up all slots in the order of
 *         ranks. No kernel waits for another one: what does not come is a thread, and that has a deadline (tensor/group/meeting.h). A large sum is NCCL's (watch.h), behind
 *         a meeting too.
 *         There are two slots a rank, by turns. Who queues sum k + 2 into a slot has queued, at sum k + 1, a wait for events that lie behind everybody's
 *         kernel of sum k, and has met all who have queued their wait for this slot's event: so both may be used again.
 *         What others reach lies in the hall, and goes with the last who leaves.
 */
#include "tensor/cuda/group/nccl_group.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/cuda/dense/launch.h"
#include "tensor/cuda/group/watch.h"
#include "tensor/cuda/launching.h"
#include "tensor/cuda/table/device.h"

#define SLOT_BYTES     ((size_t)512 << 10)
#define SMALL_BYTES(n) (SLOT_BYTES / ((n) > 4 ? 2 : 1)) // sums below it are ours: everybody reads what all have

// Of one rank, for all.
struct part {
    char *slots[2]; // [SLOT_BYTES]
    struct gpu_event *written[2];
    _Atomic uint64_t n_begun; // see watch.h
};

struct commons { // in the hall, behind the seats
    _Atomic int n_inside;
    struct nccl_id id; // rank 0's
    struct part parts[SL_MAX_RANKS];
};

struct end {
    struct sl_group group;
    struct sl_meeting meeting;
    struct commons *commons;
    const struct gpu_driver *driver;
    struct sl_stream *stream;
    struct gpu_watch watch;
    _Atomic uint64_t *n_begun[SL_MAX_RANKS];
    unsigned turn; // whose slots are next
};

static struct end *end_of(struct sl_group *group) {
    return (struct end *)group;
}

// --- collectives -------------------------------------------------------------------------------------------------------

// x goes into the own slot, all meet, and from here on the queue may read everybody's. `all`: bytes of the whole collective.
static enum sl_status exchange(struct end *e, struct gpu_queue *queue, enum sl_purpose what, const void *x,
                               size_t bytes, size_t all, struct sl_error *err) {
    struct part *parts = e->commons->parts, *mine = &parts[e->group.rank];
    unsigned s = e->turn & 1;
    const struct sl_errand errand = {.what = what, .amount = all};
    if (sl_meeting_lost(&e->meeting) >= 0) {
        return sl_meeting_say_lost(&e->meeting, err);
    }
    e->driver->copy(queue, mine->slots[s], x, bytes);
    e->driver->event_record(mine->written[s], queue);
    enum sl_status status = sl_meeting_come(&e->meeting, &errand, err);
    for (int r = 0; r < e->group.size && status == SL_OK; r++) {
        if (r != e->group.rank) {
            e->driver->event_before(parts[r].written[s], queue);
        }
    }
    return status;
}

static enum sl_status sum_small(struct end *e, struct gpu_queue *queue, float *x, int64_t n, struct sl_error *err) {
    size_t bytes = (size_t)n * sizeof *x;
    struct gpu_parts parts = {.n = e->group.size};
    enum sl_status status = exchange(e, queue, SL_PURPOSE_SUM, x, bytes, bytes, err);
    if (status != SL_OK) {
        return status;
    }
    for (int r = 0; r < e->group.size; r++) {
        parts.x[r] = (const float *)e->commons->parts[r].slots[e->turn & 1];
    }
    sl_gpu_add_parts(queue, &parts, n, x);
    e->turn++;
    return SL_OK;
}

static enum sl_status sum(struct sl_group *group, struct sl_stream *stream, float *x, int64_t n, struct sl_error *err) {
    struct end *e = end_of(group);
    struct gpu_queue *queue = sl_gpu_stream(stream)->queue;
    size_t bytes = (size_t)n * sizeof *x;
    e->stream = stream;
    if (n == 0) {
        return SL_OK;
    }
    if (bytes <= SMALL_BYTES(group->size)) {
        return sum_small(e, queue, x, n, err);
    }
    const struct sl_errand errand = {.what = SL_PURPOSE_SUM, .amount = bytes};
    enum sl_status status = sl_meeting_come(&e->meeting, &errand, err);
    return status == SL_OK ? sl_gpu_watch_sum(&e->watch, queue, x, n, err) : status;
}

static enum sl_status gather(struct sl_group *group, struct sl_stream *stream, const void *x, size_t bytes, void *out,
                             struct sl_error *err) {
    struct end *e = end_of(group);
    struct gpu_queue *queue = sl_gpu_stream(stream)->queue;
    enum sl_status status = SL_OK;
    e->stream = stream;
    for (size_t at = 0; at < bytes && status == SL_OK; at += SLOT_BYTES) {
        size_t n = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        status = exchange(e, queue, SL_PURPOSE_GATHER, (const char *)x + at, n, bytes, err);
        for (int r = 0; r < group->size && status == SL_OK; r++) {
            e->driver->copy(queue, (char *)out + (size_t)r * bytes + at, e->commons->parts[r].slots[e->turn & 1], n);
        }
        e->turn++;
    }
    return status;
}

static enum sl_status meet(struct sl_group *group, enum sl_status mine, int *whose_out, struct sl_error *err_inout) {
    return sl_meeting_meet(&end_of(group)->meeting, mine, whose_out, err_inout);
}

static void abandon(struct sl_group *group) {
    sl_meeting_abandon(&end_of(group)->meeting);
}

static int lost(const struct sl_group *group) {
    return sl_meeting_lost(&((const struct end *)group)->meeting);
}

// --- joining and leaving -----------------------------------------------------------------------------------------------

static enum sl_status open_part(struct end *e, struct sl_error *err) {
    struct part *mine = &e->commons->parts[e->group.rank];
    for (int s = 0; s < 2; s++) {
        mine->slots[s] = e->driver->alloc(SLOT_BYTES);
        mine->written[s] = mine->slots[s] != NULL ? e->driver->event_open() : NULL;
        if (mine->written[s] == NULL) {
            return sl_fail(err, SL_ERR_EXHAUSTED, "rank %d has no room for %zu bytes to add up in", e->group.rank,
                           2 * SLOT_BYTES);
        }
    }
    return SL_OK;
}

// Everybody has waited for its own queue: nobody reads any more.
static void close_parts(struct end *e) {
    for (int r = 0; r < SL_MAX_RANKS; r++) {
        struct part *part = &e->commons->parts[r];
        for (int s = 0; s < 2; s++) {
            if (part->slots[s] != NULL) {
                if (!sl_gpu_hangs(sl_gpu_stream(e->stream))) {
                    e->driver->free(part->slots[s]);
                }
                part->slots[s] = NULL;
            }
            if (part->written[s] != NULL) {
                e->driver->event_close(&part->written[s]);
            }
        }
    }
}

// Behind the first meeting. Whatever comes of it, all ranks are told of it at the second.
static enum sl_status set_up(struct end *e, const struct nccl_functions *nccl, struct sl_error *err) {
    struct commons *commons = e->commons;
    enum sl_status status = open_part(e, err);
    if (status == SL_OK) {
        status = sl_gpu_watch_init(&e->watch, nccl, e->driver, &e->meeting, e->n_begun, err);
    }
    if (status == SL_OK && e->group.rank == 0) {
        int result = nccl->GetUniqueId(&commons->id);
        if (result != NCCL_SUCCESS) {
            status = sl_fail(err, SL_ERR_INTERNAL, "ncclGetUniqueId: NCCL says %d, %s", result,
                             nccl->GetErrorString(result));
        }
    }
    status = sl_meeting_meet(&e->meeting, status, NULL, err);
    return status == SL_OK ? sl_gpu_watch_connect(&e->watch, &commons->id, err) : status;
}

static enum sl_status check(const struct sl_group_config *config, struct sl_error *err) {
    if (!config->one_process) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "ranks that add up by NCCL are threads of one process");
    }
    if (config->device->ops->one_memory) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "rank %d computes on processors, which NCCL knows nothing of",
                       config->rank);
    }
    return SL_OK;
}

// What becomes of the hall's parts is for the last one inside, be it that others never came.
static void step_out(struct end *e) {
    if (atomic_fetch_sub(&e->commons->n_inside, 1) == 1) {
        close_parts(e);
    }
}

static void leave(struct sl_group *group) {
    struct end *e = end_of(group);
    (void)sl_stream_wait(e->stream, NULL); // whether it has failed or not, nothing of it runs any more
    sl_gpu_watch_cleanup(&e->watch);
    step_out(e);
    sl_meeting_leave(&e->meeting);
    free(e);
}

static enum sl_status join(const struct sl_group_config *config, struct sl_group **group_out, struct sl_error *err) {
    const struct sl_meeting_config place = {config->hall, config->rank, config->size, config->deadline_ms, NULL};
    enum sl_status status = sl_meeting_check(&place, err);
    status = status == SL_OK ? check(config, err) : status;
    if (status != SL_OK) {
        return status;
    }
    const struct nccl_functions *nccl = sl_nccl_open(NULL, err);
    if (nccl == NULL) {
        return SL_ERR_UNSUPPORTED;
    }
    struct end *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    e->group = (struct sl_group){&sl_group_nccl, config->rank, config->size};
    e->commons = (struct commons *)((char *)config->hall + sl_meeting_hall_bytes());
    e->stream = sl_device_stream(config->device, SL_STREAM_COMPUTE);
    e->driver = sl_gpu_stream(e->stream)->driver;
    for (int r = 0; r < config->size; r++) {
        e->n_begun[r] = &e->commons->parts[r].n_begun;
    }
    atomic_fetch_add(&e->commons->n_inside, 1);
    status = sl_meeting_join(&e->meeting, &place, err);
    if (status != SL_OK) {
        step_out(e);
        free(e);
        return status;
    }
    status = set_up(e, nccl, err);
    if (status != SL_OK) {
        leave(&e->group);
        return status;
    }
    *group_out = &e->group;
    return SL_OK;
}

const struct sl_group_ops sl_group_nccl = {
    .name = "nccl",
    .join = join,
    .leave = leave,
    .sum = sum,
    .gather = gather,
    .meet = meet,
    .abandon = abandon,
    .lost = lost,
};
