// SPDX-License-Identifier: Apache-2.0
// Purpose: the device that consists of ranks. It allocates rank 0's memory, which all ranks reach; operations go to all
// ranks. See ranks.h.
#include "engine/tensor/ranks/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/tensor/ranks/internal.h"

static uint64_t progress_of(void *arg, int rank) {
    const struct sl_ranks *ranks = arg;
    return sl_team_tasks_done(ranks->teams[rank]) + sl_device_progress(ranks->devices[rank]);
}

// --- the device ------------------------------------------------------------------------------------------------------

static struct sl_ranks *of(const struct sl_device *device) {
    return (struct sl_ranks *)device;
}

static void close_device(struct sl_device *device) {
    struct sl_ranks *ranks = of(device);
    bool lost = atomic_load(&ranks->lost) >= 0;
    sl_team_destroy(&ranks->crew);
    if (lost) { // its thread may return and use them
        return;
    }
    for (int r = 0; r < ranks->n; r++) {
        sl_device_free(ranks->devices[r], SL_MEMORY_DEVICE, ranks->exchange[r]); // waits for the rank's streams first
    }
    if (ranks->group != NULL) {
        ranks->group->ops->close(ranks->group);
    }
    for (int r = 0; r < ranks->n; r++) {
        sl_device_close(&ranks->devices[r]);
    }
    pthread_mutex_destroy(&ranks->turn);
    pthread_mutex_destroy(&ranks->word);
    free(ranks->published);
    free(ranks);
}

static struct sl_stream *stream_of(struct sl_device *device, enum sl_stream_kind kind) {
    return &of(device)->streams[kind];
}

// Returns the free bytes for data that is divided evenly.
static size_t room(struct sl_device *device) {
    const struct sl_ranks *ranks = of(device);
    size_t least = SIZE_MAX;
    for (int r = 0; r < ranks->n; r++) {
        size_t bytes = sl_device_room(ranks->devices[r]);
        least = bytes < least ? bytes : least;
    }
    return ranks->apart ? least * (size_t)ranks->n : least;
}

static bool network_reaches(struct sl_device *device) {
    return sl_device_network_reaches(of(device)->devices[0]);
}

static void *network_view(struct sl_device *device, void *block) {
    return sl_device_network_view(of(device)->devices[0], block);
}

static enum sl_status network_flush(struct sl_device *device, void *block, const void *seen, size_t bytes,
                                    struct sl_error *err) {
    return sl_device_network_flush(of(device)->devices[0], block, seen, bytes, err);
}

static void *alloc_block(struct sl_device *device, enum sl_memory memory, size_t bytes) {
    struct sl_ranks *ranks = of(device);
    return memory == SL_MEMORY_REPLICATED && ranks->apart ? sl_ranks_replicate(ranks, bytes)
                                                          : sl_device_alloc(ranks->devices[0], memory, bytes);
}

// Rank 0's device waits for its streams without a deadline, and these wait for other ranks. So the wait that has a
// deadline comes first.
static void free_block(struct sl_device *device, enum sl_memory memory, void *block) {
    struct sl_ranks *ranks = of(device);
    if (ranks->apart && memory != SL_MEMORY_SHARED) {
        struct sl_mark mark = sl_stream_mark(sl_ranks_compute(ranks, 0));
        (void)sl_ranks_wait(ranks, &mark, NULL);
    }
    if (sl_ranks_is_lost(ranks) || (memory == SL_MEMORY_REPLICATED && sl_ranks_free_replica(ranks, block))) {
        return;
    }
    sl_device_free(ranks->devices[0], memory, block);
}

static enum sl_status share_block(struct sl_device *device, void *base, size_t bytes, struct sl_error *err) {
    return sl_device_share(of(device)->devices[0], base, bytes, err);
}

static void unshare_block(struct sl_device *device, void *base) {
    sl_device_unshare(of(device)->devices[0], base);
}

static bool has_failed(const struct sl_device *device) {
    const struct sl_ranks *ranks = of(device);
    bool any = sl_ranks_is_lost(ranks);
    for (int r = 0; r < ranks->n && !any; r++) {
        any = sl_device_has_failed(ranks->devices[r]);
    }
    return any;
}

// Holds rank 0's stream first: the thread that has it has all streams. Where a rank is lost, holds only rank 0's: a
// thread that hangs in a driver may have the mutexes of the others.
static void hold(struct sl_stream *stream) {
    const struct sl_ranks *ranks = sl_ranks_of(stream);
    for (int r = 0; r < ranks->n && (r == 0 || !sl_ranks_is_lost(ranks)); r++) {
        sl_stream_hold(sl_ranks_compute(ranks, r));
    }
}

static uint64_t progress(const struct sl_device *device) {
    const struct sl_ranks *ranks = of(device);
    uint64_t n = 0;
    for (int r = 0; r < ranks->n; r++) {
        n += progress_of((void *)ranks, r);
    }
    return n;
}

static enum sl_status release(struct sl_stream *stream, struct sl_error *err) {
    const struct sl_ranks *ranks = sl_ranks_of(stream);
    enum sl_status status = sl_ranks_check(ranks, err);
    for (int r = ranks->n - 1; r >= 0; r--) {
        struct sl_error why;
        if (r > 0 && sl_ranks_is_lost(ranks)) {
            continue;
        }
        enum sl_status left_out = sl_stream_release(sl_ranks_compute(ranks, r), &why);
        SL_THEN(status, sl_ranks_say_whose(r, ranks->n, left_out, &why, err));
    }
    return status;
}

// --- streams: rank 0's, which runs after the others (call.c) ---------------------------------------------------------

static struct sl_stream *first_of(const struct sl_stream *stream) {
    const struct sl_ranks *ranks = sl_ranks_of(stream);
    return sl_device_stream(ranks->devices[0], (enum sl_stream_kind)(stream - ranks->streams));
}

static struct sl_mark mark_of(const struct sl_mark *mark) {
    return (struct sl_mark){first_of(mark->stream), mark->number};
}

static void copy_block(struct sl_stream *stream, void *to, const void *from, size_t bytes) {
    const struct sl_ranks *ranks = sl_ranks_of(stream);
    int n = sl_ranks_is_lost(ranks) ? 0 : sl_ranks_is_replicated(ranks, to) ? ranks->n : 1;
    for (int r = 0; r < n; r++) { // to all replicas
        sl_stream_copy(first_of(stream), sl_ranks_here(ranks, r, to), from, bytes);
    }
}

static void mark_here(struct sl_stream *stream, struct sl_mark *mark_out) {
    *mark_out = sl_ranks_is_lost(sl_ranks_of(stream)) ? (struct sl_mark){0} : sl_stream_mark(first_of(stream));
    mark_out->stream = stream;
}

static void come_after(struct sl_stream *stream, const struct sl_mark *mark) {
    struct sl_mark of_first = mark_of(mark);
    if (!sl_ranks_is_lost(sl_ranks_of(stream))) {
        sl_stream_after(first_of(stream), &of_first);
    }
}

static bool is_reached(const struct sl_mark *mark) {
    struct sl_mark of_first = mark_of(mark);
    return sl_ranks_is_lost(sl_ranks_of(mark->stream)) || sl_mark_reached(&of_first);
}

static enum sl_status wait_for(const struct sl_mark *mark, struct sl_error *err) {
    struct sl_ranks *ranks = sl_ranks_of(mark->stream);
    struct sl_mark of_first = mark_of(mark);
    SL_TRY(sl_ranks_wait(ranks, &of_first, err));
    SL_TRY(sl_mark_wait(&of_first, err));
    // After a device has failed, rank 0's stream may continue without that device's results. So every rank is asked.
    for (int r = 1; r < ranks->n; r++) {
        const struct sl_mark none = {sl_ranks_compute(ranks, r), 0};
        struct sl_error why;
        SL_TRY(sl_ranks_say_whose(r, ranks->n, sl_mark_wait(&none, &why), &why, err));
    }
    return SL_OK;
}

static bool wait_until(const struct sl_mark *mark, int64_t until_ns) {
    struct sl_mark of_first = mark_of(mark);
    return sl_ranks_is_lost(sl_ranks_of(mark->stream)) || sl_mark_wait_until(&of_first, until_ns);
}

static void limit_waits(struct sl_device *device, int64_t still_ms) {
    for (int r = 0; r < of(device)->n; r++) {
        sl_device_limit_waits(of(device)->devices[r], still_ms);
    }
}

// Has all operations except those that are the devices' own.
static const struct sl_device_ops device_ops = {SL_DEVICE_FUNCTIONS};

// --- life ------------------------------------------------------------------------------------------------------------

static void take_place(const struct sl_ranks_call *call, int rank, struct sl_stream *) {
    if (rank > 0) { // the calling thread is rank 0's, and keeps its name and its processors
        char name[16];
        snprintf(name, sizeof name, "rank-%d", rank);
        pthread_setname_np(pthread_self(), name);
        sl_team_pin_caller(call->ranks->teams[rank]);
    }
}

struct join_call {
    struct sl_ranks_call call;
    struct joined {
        enum sl_status status;
        struct sl_error err;
    } * joined; // [ranks]
};

static void join_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    struct joined *joined = &((const struct join_call *)call)->joined[rank];
    joined->status = call->ranks->group->ops->join(call->ranks->group, rank, stream, &joined->err);
}

// Opens the group by which ranks gather. Where its library is not installed, ranks copy, and the log says so.
static enum sl_status open_group(struct sl_ranks *ranks, const struct sl_group_ops *ops, struct sl_error *err) {
    struct sl_error why;
    struct joined joined[SL_MAX_RANKS];
    if (ops == NULL || !ranks->apart || ranks->n == 1) {
        return SL_OK;
    }
    enum sl_status status = ops->open(ranks->n, ranks->vigil.still_ms, &ranks->group, &why);
    if (status == SL_ERR_UNSUPPORTED) {
        sl_log_warn("ranks", "gathers=copies not=%s reason=\"%s\"", ops->name, why.text);
        return SL_OK;
    }
    SL_FAIL_IF(status != SL_OK, err, status, "%s", why.text);
    struct join_call c = {{ranks, ranks->n, join_part}, joined};
    SL_RANKS_RUN(c);
    status = sl_ranks_check(ranks, err);
    for (int r = 0; r < ranks->n && status == SL_OK; r++) {
        status = sl_ranks_say_whose(r, ranks->n, joined[r].status, &joined[r].err, err);
    }
    return status;
}

static void free_ranks(struct sl_ranks *ranks) {
    sl_team_destroy(&ranks->crew);
    if (ranks->group != NULL) {
        ranks->group->ops->abort(ranks->group);
        ranks->group->ops->close(ranks->group);
    }
    free(ranks->published);
    free(ranks);
}

enum sl_status sl_ranks_open(const struct sl_ranks_config *config, struct sl_device **device_out,
                             const struct sl_ops **ops_out, struct sl_error *err) {
    SL_FAIL_IF(config->n < 1 || config->n > SL_MAX_RANKS, err, SL_ERR_INVALID, "%d ranks: expected 1 to %d", config->n,
               SL_MAX_RANKS);
    struct sl_ranks *ranks = aligned_alloc(64, (sizeof *ranks + 63) / 64 * 64);
    SL_FAIL_IF(ranks == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    memset(ranks, 0, sizeof *ranks);
    ranks->apart = !config->devices[0]->ops->one_memory;
    ranks->published = ranks->apart ? calloc(SL_RANKS_PUBLISHED, sizeof *ranks->published) : NULL;
    SL_TRY_OR(!ranks->apart || ranks->published != NULL ? sl_team_create(config->n, &ranks->crew, err)
                                                        : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory"),
              free_ranks(ranks));
    ranks->device_ops = device_ops;
    ranks->device_ops.name = config->devices[0]->ops->name;
    ranks->device_ops.one_memory = !ranks->apart;
    ranks->device_ops.full_rows = config->devices[0]->ops->full_rows;
    ranks->device.ops = &ranks->device_ops;
    ranks->each = config->ops;
    ranks->n = config->n;
    ranks->vigil =
        (struct sl_team_vigil){config->still_ms > 0 ? config->still_ms : SL_RANK_STILL_MS, progress_of, ranks};
    pthread_mutex_init(&ranks->turn, NULL);
    pthread_mutex_init(&ranks->word, NULL);
    atomic_store(&ranks->lost, -1);
    for (int r = 0; r < config->n; r++) {
        ranks->devices[r] = config->devices[r];
        ranks->teams[r] = config->teams[r];
    }
    for (int i = 0; i < SL_N_STREAMS; i++) {
        ranks->streams[i] = (struct sl_stream){&ranks->device, config->teams[0]};
    }
    ranks->ops = *config->ops;
    sl_ranks_fill_dense(&ranks->ops);
    sl_ranks_fill_attention(&ranks->ops);
    sl_ranks_fill_heads(&ranks->ops);
    sl_ranks_fill_first(&ranks->ops);
    struct sl_ranks_call places = {ranks, ranks->n, take_place};
    SL_RANKS_RUN(places);
    enum sl_status status = open_group(ranks, config->group, err);
    if (status != SL_OK) {
        if (!sl_ranks_is_lost(ranks)) { // else a lost rank's thread may still use them
            free_ranks(ranks);
        }
        return status;
    }
    *device_out = &ranks->device;
    *ops_out = &ranks->ops;
    return SL_OK;
}

int sl_ranks_count(const struct sl_device *device) {
    return device->ops->close == close_device ? of(device)->n : 1;
}

struct sl_device *sl_ranks_device(struct sl_device *device, int rank) {
    return device->ops->close == close_device ? of(device)->devices[rank] : device;
}

static void do_nothing(const struct sl_ranks_call *, int, struct sl_stream *) {}

void sl_ranks_barrier(struct sl_stream *stream) {
    struct sl_ranks *ranks = sl_ranks_of(stream);
    struct sl_ranks_call call = {ranks, ranks->n, do_nothing};
    SL_RANKS_RUN(call);
}

size_t sl_ranks_weight_bytes(const struct sl_device *device, int rank) {
    return atomic_load(&of(device)->weight_bytes[rank]);
}
