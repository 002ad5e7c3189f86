// SPDX-License-Identifier: Apache-2.0
// Purpose: see device.h. The marks of streams whose work is done at once are always reached.
#include "engine/tensor/cpu/device.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT ((size_t)64)

struct cpu_device {
    struct sl_device device;
    struct sl_stream streams[SL_N_STREAMS];
};

static void close_device(struct sl_device *device) {
    free(device);
}

static struct sl_stream *stream_of(struct sl_device *device, enum sl_stream_kind kind) {
    return &((struct cpu_device *)device)->streams[kind];
}

static bool network_reaches(struct sl_device *) {
    return true; // the same as all memory of the host
}

static void *network_view(struct sl_device *, void *block) {
    return block;
}

static enum sl_status network_flush(struct sl_device *, void *block, const void *seen, size_t, struct sl_error *err) {
    return seen == block ? SL_OK : sl_fail(err, SL_ERR_UNSUPPORTED, "the host's memory is where it is");
}

static size_t room(struct sl_device *) {
    return SIZE_MAX;
}

static void *alloc_block(struct sl_device *, enum sl_memory, size_t bytes) {
    return bytes > 0 ? aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT) : NULL;
}

static void free_block(struct sl_device *, enum sl_memory, void *block) {
    free(block);
}

static enum sl_status share_block(struct sl_device *, void *, size_t, struct sl_error *) {
    return SL_OK;
}

static void unshare_block(struct sl_device *, void *) {}

static void hold(struct sl_stream *) {}

static enum sl_status release(struct sl_stream *, struct sl_error *) {
    return SL_OK;
}

static bool has_failed(const struct sl_device *) {
    return false;
}

static uint64_t progress(const struct sl_device *) {
    return 0;
}

static void copy_block(struct sl_stream *, void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
}

static void mark_here(struct sl_stream *stream, struct sl_mark *mark_out) {
    *mark_out = (struct sl_mark){stream, 0};
}

static void come_after(struct sl_stream *, const struct sl_mark *) {}

static bool is_reached(const struct sl_mark *) {
    return true;
}

static enum sl_status wait_for(const struct sl_mark *, struct sl_error *) {
    return SL_OK;
}

static bool wait_until(const struct sl_mark *, int64_t) {
    return true;
}

static void limit_waits(struct sl_device *, int64_t) {}

static const struct sl_device_ops cpu_ops = {
    .name = "cpu",
    .one_memory = true,
    .full_rows = 256,
    SL_DEVICE_FUNCTIONS,
};

enum sl_status sl_cpu_device_open(struct sl_team *team, struct sl_device **device_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct cpu_device, cpu, err, "out of memory");
    cpu->device.ops = &cpu_ops;
    for (int i = 0; i < SL_N_STREAMS; i++) {
        cpu->streams[i] = (struct sl_stream){&cpu->device, team};
    }
    *device_out = &cpu->device;
    return SL_OK;
}

struct sl_stream *sl_cpu_caller(void) {
    static struct sl_device device = {&cpu_ops};
    static struct sl_stream caller = {&device, NULL};
    return &caller;
}
