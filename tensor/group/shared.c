// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: see shared.h.
 *
 * Design: behind the seats the hall has two slots a rank. A slice of x goes into one's slot, all meet, and then there are three ways:
 *
 *     whole     everybody adds up all slots: one meeting a slice
 *     parts     everybody adds up a part of all slots, all meet once more, and everybody takes the sum: two
 *     in place  ranks of one process whose memory is the host's add up a part of all x where these lie, and write it there; no slots, no slices: two in all
 *
 *         Slots are used by turns: who has come to the meeting of slice i + 1 has read those of slice i, so slice i + 2 may overwrite them.
 *         A device with memory of its own copies a slice into staging memory while the one before is summed, and back from there.
 */
#include "tensor/group/shared.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/group/meeting.h"

#define SLICE       ((int64_t)65536) // floats
#define SLICE_BYTES ((size_t)SLICE * sizeof(float))
#define BLOCK       ((int64_t)1024) // floats that stay in the first cache while others are added to them
#define GRAIN       16              // blocks that are worth another thread
// Where a way is faster than the one above it (bench group, 2 cores): floats, and ranks.
#define PARTS_FROM       ((int64_t)16384)
#define PARTS_FROM_RANKS 3
#define IN_PLACE_FROM    ((int64_t)16384)

struct shared {
    struct sl_group group;
    struct sl_meeting meeting;
    bool in_place; // all ranks may, and do
    bool one_memory;
    struct sl_device *device;
    struct sl_stream *stream; // of the last sum or gather; NULL: none yet
    char *slots;              // [2][size][SLICE_BYTES]
    char *staging;            // [2][SLICE_BYTES]; NULL where there is one memory
    unsigned turn;            // whose slots are next
};

size_t sl_group_hall_bytes(int size) {
    return sl_meeting_hall_bytes() + 2 * (size_t)size * SLICE_BYTES;
}

static struct shared *shared_of(struct sl_group *group) {
    return (struct shared *)group;
}

static char *slot_of(const struct shared *g, int rank) {
    return g->slots + ((g->turn & 1) * (size_t)g->group.size + (size_t)rank) * SLICE_BYTES;
}

static char *staging_of(const struct shared *g, int64_t i) {
    return g->staging + (size_t)(i & 1) * SLICE_BYTES;
}

// A device that has failed fails the group: the others would wait for this rank.
static enum sl_status wait_for_device(struct shared *g, const struct sl_mark *mark, struct sl_error *err) {
    enum sl_status status = sl_mark_wait(mark, err);
    if (status != SL_OK) {
        sl_meeting_abandon(&g->meeting);
    }
    return status;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// --- adding ------------------------------------------------------------------------------------------------------------

// to[i][j] = (x[0][j] + x[1][j]) + .., of j in [first, end), for all i.
struct adding {
    const float *const *x;
    float *const *to;
    int n_x, n_to;
    int64_t first, end;
};

static void add_block(const float *const x[], int n_x, int64_t at, int64_t n, float *restrict sum) {
    memcpy(sum, x[0] + at, (size_t)n * sizeof *sum);
    for (int r = 1; r < n_x; r++) {
        const float *restrict other = x[r] + at;
        for (int64_t j = 0; j < n; j++) {
            sum[j] += other[j];
        }
    }
}

// A task is a block.
static void add_blocks(void *arg, int64_t begin, int64_t end, int member) {
    const struct adding *a = arg;
    float sum[BLOCK];
    (void)member;
    for (int64_t at = a->first + begin * BLOCK; at < smaller(a->end, a->first + end * BLOCK); at += BLOCK) {
        int64_t n = smaller(a->end - at, BLOCK);
        add_block(a->x, a->n_x, at, n, sum);
        for (int i = 0; i < a->n_to; i++) {
            memcpy(a->to[i] + at, sum, (size_t)n * sizeof *sum);
        }
    }
}

// By the threads beside the stream.
static void add_up(struct sl_stream *stream, struct adding adding) {
    sl_stream_run(stream, (adding.end - adding.first + BLOCK - 1) / BLOCK, GRAIN, add_blocks, &adding);
}

// The part of [0, n) that a rank adds up, in whole lines of a cache.
static int64_t part_of(int64_t n, int rank, int size) {
    return rank == size ? n : n / size * rank / 16 * 16;
}

static enum sl_status come(struct shared *g, enum sl_purpose what, size_t bytes, void *at, struct sl_error *err) {
    const struct sl_errand errand = {.what = what, .amount = bytes, .at = at};
    return sl_meeting_come(&g->meeting, &errand, err);
}

// --- sums --------------------------------------------------------------------------------------------------------------

// Rank r's part of the sum is put into rank 0's slot, where nobody else reads that part.
static enum sl_status take_parts(struct shared *g, const float *const slots[], float *x, int64_t n, size_t bytes,
                                 struct sl_error *err) {
    int64_t first = part_of(n, g->group.rank, g->group.size), end = part_of(n, g->group.rank + 1, g->group.size);
    float *sum = (float *)slot_of(g, 0);
    add_up(g->stream, (struct adding){slots, &x, g->group.size, 1, first, end});
    memcpy(sum + first, x + first, (size_t)(end - first) * sizeof *x);
    enum sl_status status = come(g, SL_PURPOSE_SUM, bytes, NULL, err);
    if (status == SL_OK) {
        memcpy(x, sum, (size_t)n * sizeof *x);
    }
    return status;
}

// A slice of a sum of `bytes`, in the host's memory.
static enum sl_status sum_slice(struct shared *g, float *x, int64_t n, size_t bytes, struct sl_error *err) {
    const float *slots[SL_MAX_RANKS];
    memcpy(slot_of(g, g->group.rank), x, (size_t)n * sizeof *x);
    enum sl_status status = come(g, SL_PURPOSE_SUM, bytes, NULL, err);
    if (status != SL_OK) {
        return status;
    }
    for (int r = 0; r < g->group.size; r++) {
        slots[r] = (const float *)slot_of(g, r);
    }
    if (g->group.size >= PARTS_FROM_RANKS && n >= PARTS_FROM) {
        status = take_parts(g, slots, x, n, bytes, err);
    } else {
        add_up(g->stream, (struct adding){slots, &x, g->group.size, 1, 0, n});
    }
    g->turn++;
    return status;
}

// This rank's part of x[n] of all ranks, where they lie.
static void add_in_place(struct shared *g, int64_t n) {
    int64_t first = part_of(n, g->group.rank, g->group.size), end = part_of(n, g->group.rank + 1, g->group.size);
    const float *others[SL_MAX_RANKS];
    float *to[SL_MAX_RANKS];
    for (int r = 0; r < g->group.size; r++) {
        others[r] = to[r] = sl_meeting_at(&g->meeting, r);
    }
    add_up(g->stream, (struct adding){others, to, g->group.size, g->group.size, first, end});
}

static enum sl_status sum_in_place(struct shared *g, float *x, int64_t n, struct sl_error *err) {
    size_t bytes = (size_t)n * sizeof *x;
    enum sl_status status = come(g, SL_PURPOSE_SUM, bytes, x, err);
    if (status == SL_OK && sl_meeting_touch(&g->meeting)) {
        add_in_place(g, n);
        sl_meeting_release(&g->meeting);
    }
    status = status == SL_OK ? come(g, SL_PURPOSE_SUM, bytes, x, err) : status;
    if (status != SL_OK) {
        sl_meeting_settle(&g->meeting); // the caller may free x
    }
    return status;
}

// x is the device's: slice i + 1 comes down, behind slice i - 1 on its way up from the same staging memory, while slice i is summed.
static enum sl_status sum_staged(struct shared *g, struct sl_stream *stream, float *x, int64_t n,
                                 struct sl_error *err) {
    struct sl_mark down[2];
    int64_t n_slices = (n + SLICE - 1) / SLICE;
    for (int64_t i = -1; i < n_slices; i++) {
        if (i + 1 < n_slices) {
            int64_t m = smaller(n - (i + 1) * SLICE, SLICE);
            sl_stream_copy(stream, staging_of(g, i + 1), x + (i + 1) * SLICE, (size_t)m * sizeof *x);
            down[(i + 1) & 1] = sl_stream_mark(stream);
        }
        if (i >= 0) {
            int64_t m = smaller(n - i * SLICE, SLICE);
            enum sl_status status = wait_for_device(g, &down[i & 1], err);
            status = status == SL_OK ? sum_slice(g, (float *)staging_of(g, i), m, (size_t)n * sizeof *x, err) : status;
            if (status != SL_OK) {
                return status;
            }
            sl_stream_copy(stream, x + i * SLICE, staging_of(g, i), (size_t)m * sizeof *x);
        }
    }
    return SL_OK;
}

static enum sl_status sum(struct sl_group *group, struct sl_stream *stream, float *x, int64_t n, struct sl_error *err) {
    struct shared *g = shared_of(group);
    enum sl_status status = SL_OK;
    g->stream = stream;
    if (!g->one_memory) {
        return sum_staged(g, stream, x, n, err);
    }
    if (g->in_place && n >= IN_PLACE_FROM) {
        return sum_in_place(g, x, n, err);
    }
    for (int64_t at = 0; at < n && status == SL_OK; at += SLICE) {
        status = sum_slice(g, x + at, smaller(n - at, SLICE), (size_t)n * sizeof *x, err);
    }
    return status;
}

// --- gathering ---------------------------------------------------------------------------------------------------------

// A piece of every rank is in its slot, `stride` bytes apart they go to `out`.
static void spread(const struct shared *g, char *out, size_t stride, size_t bytes) {
    for (int r = 0; r < g->group.size; r++) {
        memcpy(out + (size_t)r * stride, slot_of(g, r), bytes);
    }
}

// One piece of a gather of `all` bytes a rank. Where memory is staged, `piece` bytes of every rank fit there.
static enum sl_status gather_piece(struct shared *g, struct sl_stream *stream, const char *x, size_t bytes, char *out,
                                   size_t all, struct sl_error *err) {
    char *staging = staging_of(g, g->turn);
    enum sl_status status = SL_OK;
    if (!g->one_memory) { // behind what is on its way up from there
        sl_stream_copy(stream, staging, x, bytes);
        struct sl_mark down = sl_stream_mark(stream);
        status = wait_for_device(g, &down, err);
        x = staging;
    }
    if (status == SL_OK) {
        memcpy(slot_of(g, g->group.rank), x, bytes);
        status = come(g, SL_PURPOSE_GATHER, all, NULL, err);
    }
    if (status != SL_OK) {
        return status;
    }
    spread(g, g->one_memory ? out : staging, g->one_memory ? all : bytes, bytes);
    for (int r = 0; r < g->group.size && !g->one_memory; r++) {
        sl_stream_copy(stream, out + (size_t)r * all, staging + (size_t)r * bytes, bytes);
    }
    g->turn++;
    return SL_OK;
}

static enum sl_status gather(struct sl_group *group, struct sl_stream *stream, const void *x, size_t bytes, void *out,
                             struct sl_error *err) {
    struct shared *g = shared_of(group);
    size_t piece = SLICE_BYTES / (size_t)group->size / 64 * 64;
    enum sl_status status = SL_OK;
    g->stream = stream;
    for (size_t at = 0; at < bytes && status == SL_OK; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        status = gather_piece(g, stream, (const char *)x + at, n, (char *)out + at, bytes, err);
    }
    return status;
}

// --- the rest ----------------------------------------------------------------------------------------------------------

static enum sl_status meet(struct sl_group *group, enum sl_status mine, int *whose_out, struct sl_error *err_inout) {
    return sl_meeting_meet(&shared_of(group)->meeting, mine, whose_out, err_inout);
}

static void abandon(struct sl_group *group) {
    sl_meeting_abandon(&shared_of(group)->meeting);
}

static int lost(const struct sl_group *group) {
    return sl_meeting_lost(&((const struct shared *)group)->meeting);
}

static void destroy(struct shared *g) {
    if (g->staging != NULL) {
        if (g->stream != NULL) {
            (void)sl_stream_wait(g->stream, NULL); // copies may be in it
        }
        sl_device_free(g->device, SL_MEMORY_SHARED, g->staging);
    }
    free(g);
}

static void leave(struct sl_group *group) {
    struct shared *g = shared_of(group);
    sl_meeting_leave(&g->meeting);
    destroy(g);
}

static enum sl_status join(const struct sl_group_config *config, struct sl_group **group_out, struct sl_error *err) {
    struct shared *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    g->group = (struct sl_group){&sl_group_shared, config->rank, config->size};
    g->device = config->device;
    g->one_memory = config->device->ops->one_memory;
    if (!g->one_memory) {
        g->staging = sl_device_alloc(g->device, SL_MEMORY_SHARED, 2 * SLICE_BYTES);
        if (g->staging == NULL) {
            free(g);
            return sl_fail(err, SL_ERR_EXHAUSTED, "rank %d has no room for %zu bytes of staging memory", config->rank,
                           2 * SLICE_BYTES);
        }
    }
    const struct sl_meeting_config place = {config->hall, config->rank, config->size, config->deadline_ms,
                                            g->one_memory && config->one_process ? g : NULL};
    enum sl_status status = sl_meeting_join(&g->meeting, &place, err);
    if (status != SL_OK) {
        destroy(g);
        return status;
    }
    g->slots = (char *)config->hall + sl_meeting_hall_bytes();
    g->in_place = true;
    for (int r = 0; r < config->size; r++) {
        g->in_place = g->in_place && sl_meeting_at(&g->meeting, r) != NULL;
    }
    *group_out = &g->group;
    return SL_OK;
}

const struct sl_group_ops sl_group_shared = {
    .name = "shared",
    .join = join,
    .leave = leave,
    .sum = sum,
    .gather = gather,
    .meet = meet,
    .abandon = abandon,
    .lost = lost,
};
