// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/cuda/table/device.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"

#define LOOK_MS 50 // between two polls of a device that a thread waits for

struct gpu_device {
    struct sl_device device;
    const struct gpu_driver *driver;
    int index;
    struct gpu_stream streams[SL_N_STREAMS];
    atomic_bool failed, hangs; // one that hangs has also failed
    _Atomic int64_t still_ms;  // see sl_device_limit_waits()
};

// Returns the driver, after making this device the calling thread's.
static const struct gpu_driver *driver_of(const struct sl_device *device) {
    const struct gpu_device *gpu = (const struct gpu_device *)device;
    gpu->driver->use(gpu->index);
    return gpu->driver;
}

// --- life cycle ------------------------------------------------------------------------------------------------------

static void close_stream(struct gpu_stream *s) {
    if (s->queue != NULL) {
        s->driver->queue_close(&s->queue);
    }
    for (int i = 0; i < GPU_EVENTS && s->events[i] != NULL; i++) {
        s->driver->event_close(&s->events[i]);
    }
    s->driver->free_shared(s->here);
    s->driver->free(s->there);
    s->driver->free(s->scratch.at);
    s->driver->free(s->slot_angles.cosines.at);
    s->driver->free(s->slot_angles.sines.at);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
}

// Closes nothing where the device hangs: queued work may still run, and the driver would wait for it.
static void close_device(struct sl_device *device) {
    struct gpu_device *gpu = (struct gpu_device *)device;
    if (atomic_load(&gpu->hangs)) {
        return;
    }
    for (int i = 0; i < SL_N_STREAMS; i++) {
        close_stream(&gpu->streams[i]);
    }
    free(gpu);
}

static bool open_stream(struct gpu_device *gpu, enum sl_stream_kind kind, struct sl_team *team) {
    struct gpu_stream *s = &gpu->streams[kind];
    const struct gpu_driver *driver = gpu->driver;
    s->stream = (struct sl_stream){&gpu->device, team};
    s->driver = driver;
    s->index = gpu->index;
    s->queue = driver->queue_open();
    bool there = s->queue != NULL;
    for (int i = 0; i < GPU_EVENTS && there; i++) {
        s->events[i] = driver->event_open();
        there = s->events[i] != NULL;
    }
    if (there && kind == SL_STREAM_COMPUTE) {
        s->here = driver->alloc_shared(driver->ring_bytes);
        s->there = driver->alloc(driver->ring_bytes);
        there = s->here != NULL && s->there != NULL;
    }
    return there;
}

// --- memory and progress ---------------------------------------------------------------------------------------------

static struct sl_stream *stream_of(struct sl_device *device, enum sl_stream_kind kind) {
    return &((struct gpu_device *)device)->streams[kind].stream;
}

static size_t room(struct sl_device *device) {
    return driver_of(device)->room();
}

static bool network_reaches(struct sl_device *device) {
    return driver_of(device)->network_reaches();
}

static void *network_view(struct sl_device *device, void *block) {
    const struct gpu_driver *driver = driver_of(device);
    return driver->network_view != NULL ? driver->network_view(block) : block;
}

static enum sl_status network_flush(struct sl_device *device, void *block, const void *seen, size_t bytes,
                                    struct sl_error *err) {
    return driver_of(device)->network_flush(block, seen, bytes, err);
}

static void *alloc_block(struct sl_device *device, enum sl_memory memory, size_t bytes) {
    const struct gpu_driver *driver = driver_of(device);
    if (bytes == 0) {
        return NULL;
    }
    return memory == SL_MEMORY_SHARED ? driver->alloc_shared(bytes) : driver->alloc(bytes);
}

// Frees a block of the device after everything that is queued, so that the caller need not wait.
static void free_block(struct sl_device *device, enum sl_memory memory, void *block) {
    struct gpu_device *gpu = (struct gpu_device *)device;
    for (int i = 0; i < SL_N_STREAMS && memory != SL_MEMORY_SHARED; i++) {
        (void)sl_stream_wait(&gpu->streams[i].stream, NULL);
    }
    if (atomic_load(&gpu->hangs)) {
        return; // work may still touch it, and the driver would wait for that work
    }
    if (memory == SL_MEMORY_SHARED) {
        gpu->driver->free_shared(block);
    } else {
        gpu->driver->free(block);
    }
}

static enum sl_status share_block(struct sl_device *device, void *base, size_t bytes, struct sl_error *err) {
    return ((struct gpu_device *)device)->driver->share(base, bytes, err);
}

static void unshare_block(struct sl_device *device, void *base) {
    const struct gpu_device *gpu = (struct gpu_device *)device;
    if (!atomic_load(&gpu->hangs)) {
        gpu->driver->unshare(base);
    }
}

static void limit_waits(struct sl_device *device, int64_t still_ms) {
    atomic_store(&((struct gpu_device *)device)->still_ms, still_ms);
}

static void hold(struct sl_stream *stream) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    SL_LOCKED(&s->mutex);
    if (s->n_held == 0 || !pthread_equal(s->holder, pthread_self())) {
        uint64_t ticket = s->n_tickets++;
        while (ticket != s->n_served) {
            pthread_cond_wait(&s->changed, &s->mutex);
        }
        s->holder = pthread_self();
    }
    s->n_held++;
}

static enum sl_status release(struct sl_stream *stream, struct sl_error *err) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    enum sl_status status = SL_OK;
    SL_LOCKED(&s->mutex);
    assert(s->n_held > 0);
    if (--s->n_held == 0) {
        status = atomic_exchange(&s->status, SL_OK);
        if (status != SL_OK && err != NULL) {
            *err = s->err;
        }
        s->n_served++;
        pthread_cond_broadcast(&s->changed);
    }
    return status;
}

static bool has_failed(const struct sl_device *device) {
    return atomic_load(&((const struct gpu_device *)device)->failed);
}

static void note_at_least(_Atomic uint64_t *noted, uint64_t number) {
    uint64_t was = atomic_load(noted);
    while (was < number && !atomic_compare_exchange_weak(noted, &was, number)) {
    }
}

// Returns the number of marks that were reached, polled from the last known one on. Marks whose event was reused for a
// newer mark cannot be polled. They count as reached; otherwise a late poll would see no progress until the newer mark
// is reached.
static uint64_t progress(const struct sl_device *device) {
    struct gpu_device *gpu = (struct gpu_device *)device;
    struct gpu_stream *s = &gpu->streams[SL_STREAM_COMPUTE];
    if (gpu->driver->progress != NULL) {
        return gpu->driver->progress();
    }
    uint64_t n = atomic_load(&s->n_looked), marks = atomic_load(&s->n_marks);
    n = marks > GPU_EVENTS && n < marks - GPU_EVENTS ? marks - GPU_EVENTS : n;
    driver_of(device);
    while (n < marks && gpu->driver->event_reached(s->events[(n + 1) % GPU_EVENTS])) {
        n++;
    }
    note_at_least(&s->n_looked, n);
    return n;
}

static void copy_block(struct sl_stream *stream, void *to, const void *from, size_t bytes) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    if (bytes > 0) {
        s->driver->copy(s->queue, to, from, bytes);
    }
}

static void mark_here(struct sl_stream *stream, struct sl_mark *mark_out) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    SL_LOCKED(&s->mutex);
    *mark_out = (struct sl_mark){stream, ++s->n_marks};
    s->driver->event_record(s->events[s->n_marks % GPU_EVENTS], s->queue);
}

static void come_after(struct sl_stream *stream, const struct sl_mark *mark) {
    // maybe of another device; the calls below use the stream's
    struct gpu_stream *of = (struct gpu_stream *)mark->stream;
    struct gpu_stream *s = sl_gpu_stream(stream);
    s->driver->event_before(of->events[mark->number % GPU_EVENTS], s->queue);
}

// Does not note the mark; only waits do. A device that has failed reaches every mark, and the next wait must report
// that.
static bool is_reached(const struct sl_mark *mark) {
    struct gpu_stream *s = sl_gpu_stream(mark->stream);
    return mark->number <= atomic_load(&s->n_reached) || s->driver->event_reached(s->events[mark->number % GPU_EVENTS]);
}

static enum sl_status say_hangs(const struct gpu_device *gpu, struct sl_error *err) {
    return sl_fail(
        err, SL_ERR_INTERNAL,
        "device %d (%s) hangs: it has work and got nothing done for %.1f s. This process has to end; `dmesg` names "
        "errors of the driver (Xid), and `nvidia-smi --gpu-reset -i %d` may bring the device back",
        gpu->index, gpu->driver->name, (double)atomic_load(&gpu->still_ms) / 1e3, gpu->index);
}

// Waits as long as the device makes progress. Returns false where it hangs. Counts polls instead of reading the clock:
// a process that was itself suspended must not conclude that the device hangs.
static bool wait_while_it_moves(struct gpu_device *gpu, struct gpu_event *event) {
    uint64_t seen = 0;
    int64_t still_ms = -LOOK_MS; // the first poll has nothing to compare with
    while (!atomic_load(&gpu->hangs) && !gpu->driver->event_wait_until(event, sl_now_ns() + LOOK_MS * SL_NS_PER_MS)) {
        uint64_t now = progress(&gpu->device);
        still_ms = now == seen || still_ms < 0 ? still_ms + LOOK_MS : 0;
        seen = now;
        if (still_ms >= atomic_load(&gpu->still_ms)) {
            atomic_store(&gpu->hangs, true);
        }
    }
    return !atomic_load(&gpu->hangs);
}

// Waits. Mark 0 is always reached; for it, checks whether the device has failed meanwhile.
static enum sl_status wait_for(const struct sl_mark *mark, struct sl_error *err) {
    struct gpu_stream *s = sl_gpu_stream(mark->stream);
    struct gpu_device *gpu = (struct gpu_device *)mark->stream->device;
    if (mark->number == 0 || mark->number > atomic_load(&s->n_reached)) {
        struct gpu_event *event = s->events[mark->number % GPU_EVENTS];
        bool moves = mark->number == 0 ? !atomic_load(&gpu->hangs) : wait_while_it_moves(gpu, event);
        enum sl_status status = !moves              ? say_hangs(gpu, err)
                                : mark->number == 0 ? s->driver->queue_look(s->queue, err)
                                                    : s->driver->event_wait(event, err); // has been reached
        SL_TRY_OR(status, atomic_store(&gpu->failed, true));
        note_at_least(&s->n_reached, mark->number);
    }
    // after the wait: a caller that frees memory relies on no work running in it
    if (s->status != SL_OK && err != NULL) {
        *err = s->err;
    }
    return s->status;
}

static bool wait_until(const struct sl_mark *mark, int64_t until_ns) {
    struct gpu_stream *s = sl_gpu_stream(mark->stream);
    return mark->number <= atomic_load(&s->n_reached) ||
           s->driver->event_wait_until(s->events[mark->number % GPU_EVENTS], until_ns);
}

static const struct sl_device_ops gpu_ops = {
    .name = "cuda",
    .full_rows = 2048,
    SL_DEVICE_FUNCTIONS,
};

enum sl_status sl_gpu_device_open(const struct gpu_driver *driver, int index, struct sl_team *team,
                                  struct sl_device **device_out, struct sl_error *err) {
    SL_TRY(driver->open(index, err));
    SL_NEW_OR_FAIL(struct gpu_device, gpu, err, "out of memory");
    gpu->device.ops = &gpu_ops;
    gpu->driver = driver;
    gpu->index = index;
    atomic_store(&gpu->still_ms, SL_DEVICE_STILL_MS);
    for (int i = 0; i < SL_N_STREAMS; i++) {
        gpu->streams[i].driver = driver;
        pthread_mutex_init(&gpu->streams[i].mutex, NULL);
        pthread_cond_init(&gpu->streams[i].changed, NULL);
    }
    for (int i = 0; i < SL_N_STREAMS; i++) {
        if (!open_stream(gpu, (enum sl_stream_kind)i, team)) {
            close_device(&gpu->device);
            return sl_fail(err, SL_ERR_EXHAUSTED, "device %d has no memory for %zu bytes of page lists", index,
                           driver->ring_bytes);
        }
    }
    *device_out = &gpu->device;
    return SL_OK;
}

bool sl_gpu_hangs(const struct gpu_stream *stream) {
    return atomic_load(&((const struct gpu_device *)stream->stream.device)->hangs);
}

// --- descriptions of calls -------------------------------------------------------------------------------------------

static void *run_short(struct gpu_stream *s, const char *of, size_t bytes) {
    if (s->status == SL_OK) {
        s->status = sl_fail(&s->err, SL_ERR_EXHAUSTED,
                            "the device has no room for %zu bytes of %s: a smaller --arena leaves more", bytes, of);
    }
    return NULL;
}

void *sl_gpu_describe_begin(struct gpu_stream *s, size_t bytes, void **here_out) {
    size_t half = s->driver->ring_bytes / 2;
    size_t rounded = (bytes + 63) / 64 * 64, left = half - s->described % half;
    if (rounded > half) {
        return run_short(s, "page lists of one layer", bytes);
    }
    if (rounded > left || left == half) { // moves to the other half, once its contents have been read
        s->described += left == half ? 0 : left;
        struct sl_mark before = s->half;
        s->half = sl_stream_mark(&s->stream);
        if (sl_mark_wait(&before, &s->err) != SL_OK) {
            s->status = s->err.status;
            return NULL;
        }
    }
    *here_out = s->here + s->described % s->driver->ring_bytes;
    void *there = s->there + s->described % s->driver->ring_bytes;
    s->described += rounded;
    return there;
}

void sl_gpu_describe_end(struct gpu_stream *s, void *there, size_t bytes) {
    s->driver->copy(s->queue, there, s->here + ((char *)there - s->there), bytes);
}

void *sl_gpu_describe(struct gpu_stream *s, const void *bytes, size_t n_bytes) {
    void *here, *there = sl_gpu_describe_begin(s, n_bytes, &here);
    if (there != NULL) {
        memcpy(here, bytes, n_bytes);
        sl_gpu_describe_end(s, there, n_bytes);
    }
    return there;
}

void *sl_gpu_grow(struct gpu_stream *s, struct gpu_block *block, size_t bytes) {
    if (bytes > block->bytes) {
        (void)sl_stream_wait(&s->stream, NULL); // running work may use it
        if (sl_gpu_hangs(s)) {
            return NULL; // the next wait says so
        }
        s->driver->free(block->at);
        *block = (struct gpu_block){s->driver->alloc(bytes + bytes / 4), bytes + bytes / 4};
        if (block->at == NULL) {
            block->bytes = 0;
            return run_short(s, "scratch", bytes);
        }
    }
    return block->at;
}

void *sl_gpu_scratch(struct gpu_stream *s, size_t bytes) {
    return sl_gpu_grow(s, &s->scratch, bytes > 0 ? bytes : 1); // never NULL for 0 bytes
}
