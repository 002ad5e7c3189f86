// SPDX-License-Identifier: Apache-2.0
// Purpose: the device: memory is rank 0's, which is everybody's; operations are all ranks'. See ranks.h.
#include "tensor/ranks/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/ranks/internal.h"

static uint64_t progress(void *arg, int rank) {
    return sl_team_tasks_done(((struct sl_ranks *)arg)->teams[rank]);
}

// --- the device --------------------------------------------------------------------------------------------------------

static struct sl_ranks *of(const struct sl_device *device) {
    return (struct sl_ranks *)device;
}

static void close_ranks(struct sl_device *device) {
    struct sl_ranks *ranks = of(device);
    bool lost = atomic_load(&ranks->lost) >= 0;
    sl_team_destroy(&ranks->crew);
    if (lost) { // its thread may come back
        return;
    }
    for (int r = 0; r < ranks->n; r++) {
        sl_device_close(&ranks->devices[r]);
    }
    pthread_mutex_destroy(&ranks->turn);
    free(ranks);
}

static struct sl_stream *stream_of(struct sl_device *device, enum sl_stream_kind kind) {
    return &of(device)->streams[kind];
}

static size_t room(struct sl_device *device) {
    return sl_device_room(of(device)->devices[0]);
}

static bool network_reaches(struct sl_device *device) {
    return sl_device_network_reaches(of(device)->devices[0]);
}

static void *alloc_block(struct sl_device *device, enum sl_memory memory, size_t bytes) {
    return sl_device_alloc(of(device)->devices[0], memory, bytes);
}

static void free_block(struct sl_device *device, enum sl_memory memory, void *block) {
    struct sl_ranks *ranks = of(device);
    if (atomic_load(&ranks->lost) < 0) {
        sl_device_free(ranks->devices[0], memory, block);
    }
}

static enum sl_status share_block(struct sl_device *device, void *base, size_t bytes, struct sl_error *err) {
    return sl_device_share(of(device)->devices[0], base, bytes, err);
}

static void unshare_block(struct sl_device *device, void *base) {
    sl_device_unshare(of(device)->devices[0], base);
}

static bool has_failed(const struct sl_device *device) {
    return atomic_load(&of(device)->lost) >= 0;
}

static enum sl_status check(const struct sl_device *device, struct sl_error *err) {
    const struct sl_ranks *ranks = of(device);
    int lost = atomic_load(&ranks->lost);
    return lost < 0 ? SL_OK
                    : sl_fail(err, SL_ERR_INTERNAL, "rank %d of %d has got nothing done for %.1f s", lost, ranks->n,
                              (double)ranks->vigil.still_ms / 1e3);
}

static void hold(struct sl_stream *stream) {
    sl_stream_hold(sl_device_stream(of(stream->device)->devices[0], SL_STREAM_COMPUTE));
}

static enum sl_status let_go(struct sl_stream *stream, struct sl_error *err) {
    enum sl_status status = sl_stream_let_go(sl_device_stream(of(stream->device)->devices[0], SL_STREAM_COMPUTE), err);
    return status == SL_OK ? check(stream->device, err) : status;
}

static void copy_block(struct sl_stream *stream, void *to, const void *from, size_t bytes) {
    sl_stream_copy(sl_device_stream(of(stream->device)->devices[0], SL_STREAM_COMPUTE), to, from, bytes);
}

// Of one memory, as is checked: everything is done when it returns.
static void mark_here(struct sl_stream *stream, struct sl_mark *mark_out) {
    *mark_out = (struct sl_mark){stream, 0};
}

static void come_after(struct sl_stream *stream, const struct sl_mark *mark) {
    (void)stream;
    (void)mark;
}

static bool is_reached(const struct sl_mark *mark) {
    (void)mark;
    return true;
}

static enum sl_status wait_for(const struct sl_mark *mark, struct sl_error *err) {
    return check(mark->stream->device, err);
}

static const struct sl_device_ops device_ops = {
    .name = "cpu",
    .one_memory = true,
    .close = close_ranks,
    .stream = stream_of,
    .room = room,
    .network_reaches = network_reaches,
    .alloc = alloc_block,
    .free = free_block,
    .share = share_block,
    .unshare = unshare_block,
    .hold = hold,
    .let_go = let_go,
    .has_failed = has_failed,
    .copy = copy_block,
    .mark = mark_here,
    .after = come_after,
    .reached = is_reached,
    .wait = wait_for,
};

// --- life --------------------------------------------------------------------------------------------------------------

static void take_place(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    (void)stream;
    if (rank > 0) { // rank 0's thread is whoever drives, and has its name and its place
        char name[16];
        snprintf(name, sizeof name, "rank-%d", rank);
        pthread_setname_np(pthread_self(), name);
        sl_team_pin_caller(call->ranks->teams[rank]);
    }
}

enum sl_status sl_ranks_open(const struct sl_ranks_config *config, struct sl_device **device_out,
                             const struct sl_ops **ops_out, struct sl_error *err) {
    if (config->n < 1 || config->n > SL_MAX_RANKS) {
        return sl_fail(err, SL_ERR_INVALID, "%d ranks: expected 1 to %d", config->n, SL_MAX_RANKS);
    }
    for (int r = 0; r < config->n; r++) {
        if (!config->devices[r]->ops->one_memory) {
            return sl_fail(err, SL_ERR_UNSUPPORTED, "ranks of devices with memory of their own (%s)",
                           config->devices[r]->ops->name);
        }
    }
    struct sl_ranks *ranks = aligned_alloc(64, (sizeof *ranks + 63) / 64 * 64);
    if (ranks == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    memset(ranks, 0, sizeof *ranks);
    enum sl_status status = sl_team_create(config->n, &ranks->crew, err);
    if (status != SL_OK) {
        free(ranks);
        return status;
    }
    ranks->device.ops = &device_ops;
    ranks->each = config->ops;
    ranks->n = config->n;
    ranks->vigil = (struct sl_team_vigil){config->still_ms > 0 ? config->still_ms : SL_RANK_STILL_MS, progress, ranks};
    pthread_mutex_init(&ranks->turn, NULL);
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
    struct sl_ranks_call places = {ranks, ranks->n, take_place};
    SL_RANKS_RUN(places);
    *device_out = &ranks->device;
    *ops_out = &ranks->ops;
    return SL_OK;
}

int sl_ranks_count(const struct sl_device *device) {
    return device->ops == &device_ops ? of(device)->n : 1;
}

static void do_nothing(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    (void)call;
    (void)rank;
    (void)stream;
}

void sl_ranks_meet(struct sl_stream *stream) {
    struct sl_ranks *ranks = sl_ranks_of(stream);
    struct sl_ranks_call call = {ranks, ranks->n, do_nothing};
    SL_RANKS_RUN(call);
}

size_t sl_ranks_weight_bytes(const struct sl_device *device, int rank) {
    return atomic_load(&of(device)->weight_bytes[rank]);
}
