// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/cuda/table/library.h"

#include <math.h>
#include <string.h>

#include "base/log.h"
#include "engine/tensor/half.h"

#define BLOCK     1024 // rows that are tried at once
#define N_OWN     3    // rows that are compared with our kernel
#define TOLERANCE 1e-3 // of the largest sum of a row: for k sums in another order; an error in an element is larger

static size_t align(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

// --- trying a shape --------------------------------------------------------------------------------------------------

// The trial of a matrix of [n][k]: device memory, and two rows of host memory. A library that finishes is tried with
// the matrix as it is, another with a bare one.
struct trial {
    struct gpu_stream *stream;
    const struct gpu_library *library;
    struct gpu_matrix w;
    int64_t n; // columns of y
    int way;
    uint16_t *x;             // [BLOCK][pitch]
    float *own_x, *own_sums; // [N_OWN][pitch], [N_OWN][n]
    float *all, *few;        // [BLOCK][n]
    void *shared;            // what is sent to the device
    float *row, *other;      // [n], shared
    const struct gpu_driver *driver;
};

static int64_t own_row(int i) {
    return (int64_t)i * (BLOCK - 1) / (N_OWN - 1);
}

// Returns numbers that bf16 represents exactly, in (-1, 1).
static float number(int64_t i) {
    return (float)((int)((uint64_t)i * 0x9e3779b97f4a7c15u >> 56) - 128) / 128.0f;
}

static enum sl_status copy_row(struct trial *t, float *to, const float *from, struct sl_error *err) {
    t->driver->copy(t->stream->queue, to, from, (size_t)t->n * sizeof *to);
    return sl_stream_wait(&t->stream->stream, err);
}

static enum sl_status fill(struct trial *t, struct sl_error *err) {
    int64_t pitch = t->w.pitch;
    uint16_t *halves = t->shared;
    float *floats = (float *)((char *)t->shared + align((size_t)(BLOCK * pitch) * sizeof *halves));
    for (int64_t i = 0; i < BLOCK * pitch; i++) {
        halves[i] = i % pitch < t->w.k ? sl_f32_to_bf16(number(i)) : 0;
    }
    for (int64_t i = 0; i < N_OWN * pitch; i++) {
        floats[i] = number(own_row((int)(i / pitch)) * pitch + i % pitch);
    }
    t->driver->copy(t->stream->queue, t->x, halves, (size_t)(BLOCK * pitch) * sizeof *halves);
    t->driver->copy(t->stream->queue, t->own_x, floats, (size_t)(N_OWN * pitch) * sizeof *floats);
    return sl_stream_wait(&t->stream->stream, err);
}

static enum sl_status multiply(struct trial *t, int64_t first, int64_t m, float *sums, struct sl_error *err) {
    const struct sl_matmul product = {.m = m, .y = sums, .y_stride = t->n};
    return t->library->multiply(t->stream->queue, t->way, &t->w, t->x + first * t->w.pitch, &product, err);
}

// Checks that rows have the same bits in calls of many sizes as in the call of all rows.
static enum sl_status try_sizes(struct trial *t, struct sl_error *err) {
    static const int64_t sizes[] = {1, 2, 16, 17, 100, 512, BLOCK - 1};
    enum sl_status status = SL_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && status == SL_OK; i++) {
        int64_t m = sizes[i], first = (BLOCK - m) / 2;
        status = multiply(t, first, m, t->few, err);
        for (int64_t r = 0; r < m && status == SL_OK;
             r += m > 2 ? (m - 1) / 2 : 1) { // the first, the last, and one between
            status = copy_row(t, t->row, t->few + r * t->n, err);
            SL_THEN(status, copy_row(t, t->other, t->all + (first + r) * t->n, err));
            if (status == SL_OK && memcmp(t->row, t->other, (size_t)t->n * sizeof *t->row) != 0) {
                status = sl_fail(err, SL_ERR_UNSUPPORTED, "a row among %lld has other bits than among %d", (long long)m,
                                 BLOCK);
            }
        }
    }
    return status;
}

static enum sl_status try_numbers(struct trial *t, struct sl_error *err) {
    const struct sl_matmul own = {
        .x = t->own_x, .x_stride = t->w.pitch, .m = N_OWN, .y = t->own_sums, .y_stride = t->n};
    enum sl_status status = SL_OK;
    sl_gpu_matmul(t->stream->queue, &t->w, &own);
    for (int i = 0; i < N_OWN && status == SL_OK; i++) {
        float most = 0;
        status = copy_row(t, t->row, t->all + own_row(i) * t->n, err);
        SL_THEN(status, copy_row(t, t->other, t->own_sums + i * t->n, err));
        for (int64_t j = 0; j < t->n && status == SL_OK; j++) {
            most = fmaxf(most, fabsf(t->other[j]));
        }
        for (int64_t j = 0; j < t->n && status == SL_OK; j++) {
            if (!(fabsf(t->row[j] - t->other[j]) <= TOLERANCE * most)) {
                status = sl_fail(err, SL_ERR_UNSUPPORTED, "column %lld is %g, our kernel's is %g", (long long)j,
                                 (double)t->row[j], (double)t->other[j]);
            }
        }
    }
    return status;
}

static enum sl_status try_all(struct trial *t, struct sl_error *err) {
    SL_TRY(fill(t, err));
    SL_TRY(multiply(t, 0, BLOCK, t->all, err));
    SL_TRY(try_sizes(t, err));
    return try_numbers(t, err);
}

enum sl_status sl_gpu_library_try(struct gpu_stream *stream, const struct gpu_library *library,
                                  const struct gpu_matrix *w, int *way_out, struct sl_error *err) {
    struct trial t = {.stream = stream, .library = library, .w = *w, .driver = stream->driver};
    SL_TRY(library->choose(w->n, w->pitch, &t.way, err));
    if (!library->finishes) {
        t.w.bias = NULL;
        t.w.activation = SL_ACT_NONE;
        t.w.gated = false;
    }
    t.n = t.w.gated ? w->n / 2 : w->n;
    size_t n = (size_t)t.n, pitch = (size_t)w->pitch, x = align(BLOCK * pitch * sizeof *t.x);
    size_t own_x = align(N_OWN * pitch * sizeof *t.own_x), own = align(N_OWN * n * sizeof *t.own_sums);
    size_t sums = align(BLOCK * n * sizeof *t.all), row = align(n * sizeof *t.row);
    char *block = t.driver->alloc(x + own_x + own + 2 * sums), *shared = t.driver->alloc_shared(x + own_x + 2 * row);
    enum sl_status status = SL_OK;
    if (block != NULL && shared != NULL) {
        t.x = (uint16_t *)block;
        t.own_x = (float *)(block + x);
        t.own_sums = (float *)(block + x + own_x);
        t.all = (float *)(block + x + own_x + own);
        t.few = (float *)(block + x + own_x + own + sums);
        t.shared = shared;
        t.row = (float *)(shared + x + own_x);
        t.other = (float *)(shared + x + own_x + row);
        status = try_all(&t, err);
    } else {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no room for %zu bytes to try it in", x + own_x + own + 2 * sums);
    }
    (void)sl_stream_wait(&stream->stream, NULL); // running work may use them
    if (!sl_gpu_hangs(stream)) {
        t.driver->free(block);
        t.driver->free_shared(shared);
    }
    if (status == SL_OK) {
        *way_out = t.way;
    }
    return status;
}

// --- products --------------------------------------------------------------------------------------------------------

// Returns the way for matrices like w, or -1 for none.
static int find_way(struct gpu_stream *s, const struct gpu_library *library, const struct gpu_matrix *w) {
    for (int i = 0; i < s->n_ways; i++) {
        if (s->ways[i].n == w->n && s->ways[i].k == w->k && s->ways[i].gated == w->gated) {
            return s->ways[i].way;
        }
    }
    struct sl_error why;
    int way = -1;
    if (s->n_ways == GPU_WAYS) {
        return -1;
    }
    if (sl_gpu_library_try(s, library, w, &way, &why) == SL_OK) {
        sl_log_info("cuda", "products=%s n=%lld k=%lld", library->name, (long long)w->n, (long long)w->k);
    } else {
        sl_log_warn("cuda", "products=own n=%lld k=%lld not=%s reason=\"%s\"", (long long)w->n, (long long)w->k,
                    library->name, why.text);
    }
    s->ways[s->n_ways++] = (struct gpu_way){w->n, w->k, w->gated, way};
    return way;
}

static const struct gpu_library *library_of(const struct gpu_stream *s, const struct gpu_matrix *w) {
    return s->driver->library != NULL && w->kind == GPU_WEIGHT_BF16 ? s->driver->library() : NULL;
}

void sl_gpu_library_prepare(struct gpu_stream *s, const struct gpu_matrix *w) {
    const struct gpu_library *library = library_of(s, w);
    if (library != NULL) {
        (void)find_way(s, library, w);
    }
}

bool sl_gpu_library_matmul(struct gpu_stream *s, const struct gpu_matrix *w, const struct sl_matmul *args) {
    bool is_whole = args->n_columns <= 0 || args->n_columns == (w->gated ? w->n / 2 : w->n);
    const struct gpu_library *library = is_whole ? library_of(s, w) : NULL;
    int way = library != NULL ? find_way(s, library, w) : -1;
    if (way < 0) {
        return false;
    }
    int64_t most = args->m < library->most_rows ? args->m : library->most_rows;
    size_t x_bytes = align((size_t)(most * w->pitch) * sizeof(uint16_t));
    char *x = sl_gpu_scratch(s, x_bytes + (library->finishes ? 0 : (size_t)(most * w->n) * sizeof(float)));
    float *sums = (float *)(x + x_bytes);
    for (int64_t first = 0; first < args->m && x != NULL; first += most) {
        struct sl_matmul block = *args;
        struct sl_error err;
        block.m = args->m - first < most ? args->m - first : most;
        block.x += first * args->x_stride;
        block.y += first * args->y_stride;
        const struct sl_matmul bare = {.m = block.m, .y = sums, .y_stride = w->n};
        sl_gpu_round_rows(s->queue, block.x, block.x_stride, block.m, w->k, w->pitch, x);
        enum sl_status status = library->multiply(s->queue, way, w, x, library->finishes ? &block : &bare, &err);
        if (status != SL_OK && s->status == SL_OK) { // skipped: the next wait says so
            s->err = err;
            s->status = status;
        }
        if (!library->finishes) {
            sl_gpu_finish_rows(s->queue, w, sums, &block);
        }
    }
    return true;
}
