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

static bool network_reaches(struct sl_device *device) {
    (void)device;
    return true; // the same as all memory of the host
}

static void *network_view(struct sl_device *device, void *block) {
    (void)device;
    return block;
}

static enum sl_status network_flush(struct sl_device *device, void *block, const void *seen, size_t bytes,
                                    struct sl_error *err) {
    (void)device, (void)bytes;
    return seen == block ? SL_OK : sl_fail(err, SL_ERR_UNSUPPORTED, "the host's memory is where it is");
}

static size_t room(struct sl_device *device) {
    (void)device;
    return SIZE_MAX;
}

static void *alloc_block(struct sl_device *device, enum sl_memory memory, size_t bytes) {
    (void)device;
    (void)memory;
    return bytes > 0 ? aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT) : NULL;
}

static void free_block(struct sl_device *device, enum sl_memory memory, void *block) {
    (void)device;
    (void)memory;
    free(block);
}

static enum sl_status share_block(struct sl_device *device, void *base, size_t bytes, struct sl_error *err) {
    (void)device;
    (void)base;
    (void)bytes;
    (void)err;
    return SL_OK;
}

static void unshare_block(struct sl_device *device, void *base) {
    (void)device;
    (void)base;
}

static void hold(struct sl_stream *stream) {
    (void)stream;
}

static enum sl_status release(struct sl_stream *stream, struct sl_error *err) {
    (void)stream;
    (void)err;
    return SL_OK;
}

static bool has_failed(const struct sl_device *device) {
    (void)device;
    return false;
}

static uint64_t progress(const struct sl_device *device) {
    (void)device;
    return 0;
}

static void copy_block(struct sl_stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream;
    memcpy(to, from, bytes);
}

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
    (void)mark;
    (void)err;
    return SL_OK;
}

static bool wait_until(const struct sl_mark *mark, int64_t until_ns) {
    (void)mark;
    (void)until_ns;
    return true;
}

static void limit_waits(struct sl_device *device, int64_t still_ms) {
    (void)device;
    (void)still_ms;
}

static const struct sl_device_ops cpu_ops = {
    .name = "cpu",
    .one_memory = true,
    .full_rows = 256,
    SL_DEVICE_FUNCTIONS,
};

enum sl_status sl_cpu_device_open(struct sl_team *team, struct sl_device **device_out, struct sl_error *err) {
    struct cpu_device *cpu = calloc(1, sizeof *cpu);
    SL_FAIL_IF(cpu == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
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
