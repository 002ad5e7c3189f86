// SPDX-License-Identifier: Apache-2.0
#include "lab/bench/rig/kernel_world.h"

#include <math.h>
#include <stdlib.h>

#include "lab/random.h"

static const char *const formats[SL_WORLD_FORMATS] = {"f16",  "int8", "int4", "int2", "int1",
                                                      "k8v4", "k4v2", "k4v3", "int3"};

// Allocates device memory; NULL: exhausted.
static void *take(struct sl_world *w, size_t bytes) {
    void *block = sl_device_alloc(w->runtime->device, SL_MEMORY_DEVICE, bytes);
    if (block != NULL) {
        w->blocks[w->n_blocks++] = block;
    }
    return block;
}

// Fills with n random numbers.
static enum sl_status fill(struct sl_world *w, float **to, size_t n, struct sl_error *err) {
    SL_TRY(sl_signals_check(w->signals, err));
    struct sl_device *device = w->runtime->device;
    *to = take(w, n * sizeof **to);
    float *here = sl_device_alloc(device, SL_MEMORY_SHARED, n * sizeof *here);
    enum sl_status status =
        *to == NULL || here == NULL ? sl_fail(err, SL_ERR_EXHAUSTED, "no room for %zu numbers", n) : SL_OK;
    uint64_t random = 1 + (uint64_t)w->n_blocks;
    for (size_t i = 0; i < n && status == SL_OK; i++) {
        here[i] = sl_random_unit(&random);
    }
    if (status == SL_OK) {
        sl_stream_copy(w->runtime->stream, *to, here, n * sizeof *here);
        status = sl_stream_wait(w->runtime->stream, err);
    }
    sl_device_free(device, SL_MEMORY_SHARED, here);
    return status;
}

// --- pages -----------------------------------------------------------------------------------------------------------

static enum sl_status make_pages(struct sl_world *w, int f, struct sl_error *err) {
    const struct sl_world_shape *s = &w->shape;
    uint32_t n = sl_pages_for(s->slots);
    size_t n_all = (size_t)s->n_kv_heads * n;
    bool packed = f > 0;
    enum sl_kv_format format;
    enum sl_status status = sl_kv_format_parse(formats[f], &format);
    if (status == SL_OK) {
        status = sl_page_layout_init(&w->layouts[f], format, s->head_dim, packed ? 0 : SL_MAX_STATES, true);
    }
    SL_FAIL_IF(status != SL_OK, err, status, "no page layout for --head-dim %d", s->head_dim);
    w->pages[f] = take(w, n_all * w->layouts[f].bytes);
    w->lists[f] = calloc(n_all, sizeof *w->lists[f]);
    w->kv[f] = calloc((size_t)s->n_kv_heads, sizeof *w->kv[f]);
    w->kv_to[f] = calloc((size_t)s->n_kv_heads, sizeof *w->kv_to[f]);
    SL_FAIL_IF(w->pages[f] == NULL || w->lists[f] == NULL || w->kv[f] == NULL || w->kv_to[f] == NULL, err,
               SL_ERR_EXHAUSTED, "no room for %zu pages of %u bytes", n_all, w->layouts[f].bytes);
    for (size_t p = 0; p < n_all; p++) {
        w->lists[f][p] = (char *)w->pages[f] + p * w->layouts[f].bytes;
    }
    for (int h = 0; h < s->n_kv_heads; h++) {
        w->kv[f][h] = (struct sl_kv){w->lists[f] + (size_t)h * n, packed ? n : 0, (uint32_t)s->slots, &w->layouts[0],
                                     &w->layouts[f]};
        w->kv_to[f][h] =
            (struct sl_kv){w->lists[0] + (size_t)h * n, 0, (uint32_t)s->slots, &w->layouts[0], &w->layouts[f]};
    }
    return SL_OK;
}

enum sl_status sl_world_publish(struct sl_world *w, int f, struct sl_error *err) {
    SL_TRY(sl_signals_check(w->signals, err));
    const struct sl_ops *ops = w->runtime->ops;
    w->heads[f] = (struct sl_kv_heads){.kv = w->kv[f], .n = w->shape.n_kv_heads};
    w->heads_to[f] = (struct sl_kv_heads){.kv = w->kv_to[f], .n = w->shape.n_kv_heads};
    SL_TRY(ops->publish(w->runtime->stream, &w->heads[f], err));
    return ops->publish(w->runtime->stream, &w->heads_to[f], err);
}

struct sl_attend sl_world_attend(const struct sl_world *w, int f, int m) {
    const struct sl_world_shape *s = &w->shape;
    return (struct sl_attend){.q = w->q,
                              .k = w->k,
                              .v = w->v,
                              .m = m,
                              .n_heads = s->n_heads,
                              .head_dim = s->head_dim,
                              .scale = 1.0f / sqrtf((float)s->head_dim),
                              .heads = w->heads[f],
                              .positions = w->positions,
                              .out = w->out,
                              .lse = w->lse};
}

// Repeats the rows until all slots are filled; then makes every other format from them.
static enum sl_status fill_pages(struct sl_world *w, struct sl_error *err) {
    const struct sl_world_shape *s = &w->shape;
    struct sl_runtime *r = w->runtime;
    enum sl_status status = SL_OK;
    for (int64_t n = 0; n < s->slots && status == SL_OK;) {
        int m = (int)(s->slots - n < s->rows ? s->slots - n : s->rows);
        n += m;
        for (int h = 0; h < s->n_kv_heads; h++) {
            w->kv[0][h].n_slots = (uint32_t)n;
        }
        status = sl_world_publish(w, 0, err);
        if (status == SL_OK) {
            struct sl_attend call = sl_world_attend(w, 0, m);
            r->ops->append(r->stream, &call, 1);
        }
    }
    for (int f = 1; f < SL_WORLD_FORMATS && status == SL_OK; f++) {
        status = sl_world_publish(w, f, err);
        if (status == SL_OK) {
            r->ops->quantize(r->stream, &w->heads_to[f], sl_pages_for(s->slots), w->lists[f]);
        }
    }
    return status == SL_OK ? sl_stream_wait(r->stream, err) : status;
}

// --- what lies beside them -------------------------------------------------------------------------------------------

static enum sl_status fill_rows(struct sl_world *w, struct sl_error *err) {
    const struct sl_world_shape *s = &w->shape;
    size_t rows = (size_t)s->rows, d = (size_t)s->head_dim, wide = (size_t)(s->ffn > s->hidden ? s->ffn : s->hidden);
    size_t of_slots = (size_t)s->n_heads * (size_t)s->slots;
    size_t of_q = (size_t)s->n_heads * d, of_kv = (size_t)s->n_kv_heads * d, qkv = of_q + 2 * of_kv;
    struct {
        float **to;
        size_t n;
    } all[] = {{&w->q, rows * of_q},
               {&w->k, rows * of_kv},
               {&w->v, rows * of_kv},
               {&w->x, rows * wide},
               {&w->y, rows * (wide > qkv ? wide : qkv) + of_slots},
               {&w->out, rows * of_q},
               {&w->lse, rows * (size_t)s->n_heads},
               {&w->of_queries, of_slots},
               {&w->of_heads, (size_t)s->n_kv_heads * (size_t)s->slots},
               {&w->cosines, rows * d},
               {&w->sines, rows * d},
               {&w->logits, SL_WORLD_SEQUENCES * (size_t)s->vocab}};
    enum sl_status status = SL_OK;
    for (size_t i = 0; i < sizeof all / sizeof all[0] && status == SL_OK; i++) {
        status = fill(w, all[i].to, all[i].n, err);
    }
    return status;
}

static enum sl_status make_lists(struct sl_world *w, struct sl_error *err) {
    const struct sl_world_shape *s = &w->shape;
    struct sl_device *device = w->runtime->device;
    size_t bytes = (size_t)s->n_kv_heads * (size_t)s->slots * sizeof(uint32_t);
    w->keep = take(w, bytes), w->evicted = take(w, bytes), w->into = take(w, bytes);
    w->positions = take(w, (size_t)s->rows * sizeof *w->positions);
    w->kept = calloc((size_t)s->n_kv_heads, sizeof *w->kept);
    w->threshold = sl_device_alloc(device, SL_MEMORY_SHARED, sizeof *w->threshold);
    w->n_merged = sl_device_alloc(device, SL_MEMORY_SHARED, sizeof *w->n_merged);
    w->picked = sl_device_alloc(device, SL_MEMORY_SHARED, SL_WORLD_SEQUENCES * sizeof *w->picked);
    int64_t *here = sl_device_alloc(device, SL_MEMORY_SHARED, (size_t)s->rows * sizeof *here);
    enum sl_status status = SL_OK;
    if (w->keep == NULL || w->evicted == NULL || w->into == NULL || w->positions == NULL || w->kept == NULL ||
        w->threshold == NULL || w->n_merged == NULL || w->picked == NULL || here == NULL) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no room for lists of %zu bytes", bytes);
    } else {
        *w->threshold = 0.0f;
        *w->n_merged = 0;
        for (int64_t r = 0; r < s->rows; r++) {
            here[r] = s->slots - s->rows + r;
        }
        for (int h = 0; h < s->n_kv_heads; h++) {
            w->kept[h] = (uint32_t)((double)s->slots * s->kept);
        }
        sl_stream_copy(w->runtime->stream, w->positions, here, (size_t)s->rows * sizeof *here);
        status = sl_stream_wait(w->runtime->stream, err);
    }
    sl_device_free(device, SL_MEMORY_SHARED, here);
    return status;
}

enum sl_status sl_world_open(struct sl_runtime *runtime, const struct sl_world_shape *shape, struct sl_signals *signals,
                             struct sl_world *w, struct sl_error *err) {
    *w = (struct sl_world){.shape = *shape, .runtime = runtime, .signals = signals};
    for (int i = 0; i < shape->head_dim / 2; i++) {
        w->inv_freq[i] = pow(500000.0, -2.0 * i / shape->head_dim);
    }
    enum sl_status status = fill_rows(w, err);
    SL_THEN(status, make_lists(w, err));
    for (int f = 0; f < SL_WORLD_FORMATS && status == SL_OK; f++) {
        status = make_pages(w, f, err);
    }
    return status == SL_OK ? fill_pages(w, err) : status;
}

void sl_world_close(struct sl_world *w) {
    for (int i = 0; i < w->n_blocks; i++) {
        sl_device_free(w->runtime->device, SL_MEMORY_DEVICE, w->blocks[i]);
    }
    for (int f = 0; f < SL_WORLD_FORMATS; f++) {
        free(w->lists[f]);
        free(w->kv[f]);
        free(w->kv_to[f]);
    }
    if (w->runtime != NULL) {
        sl_device_free(w->runtime->device, SL_MEMORY_SHARED, w->threshold);
        sl_device_free(w->runtime->device, SL_MEMORY_SHARED, w->n_merged);
        sl_device_free(w->runtime->device, SL_MEMORY_SHARED, w->picked);
    }
    free(w->kept);
    *w = (struct sl_world){0};
}
