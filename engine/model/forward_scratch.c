// SPDX-License-Identifier: Apache-2.0
// Purpose: the scratch of forward passes: one block per kind of memory, laid out once.
#include <stdlib.h>

#include "engine/model/forward_internal.h"

// Returns the next 64-byte aligned piece of a block; with base NULL it only adds to *used, which measures the block.
static void *carve(char *base, size_t *used, size_t count, size_t element_bytes) {
    size_t offset = *used;
    *used += (count * element_bytes + 63) / 64 * 64;
    return base == NULL ? NULL : base + offset;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

// Returns the scratch bytes that matmul needs for any matrix of the model and up to m rows.
static size_t product_bytes(const struct sl_model *model, int64_t m) {
    size_t bytes = model->ops->matmul_scratch(&model->head, m < SL_LOGIT_ROWS ? m : SL_LOGIT_ROWS);
    for (int l = 0; l < model->config.n_layers; l++) {
        const struct sl_model_layer *layer = &model->layers[l];
        const struct sl_matrix *matrices[] = {&layer->qkv,          &layer->o,           &layer->up, &layer->down,
                                              &layer->retaining.w1, &layer->retaining.w2};
        for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
            bytes = matrices[i]->n > 0 ? larger(bytes, model->ops->matmul_scratch(matrices[i], m)) : bytes;
        }
    }
    return bytes;
}

// Lays out the tensors that products, norms and attention exchange: all ranks read them.
static size_t lay_out_replicated(struct sl_engine *e, char *base) {
    const struct sl_model_config *c = &e->model->config;
    size_t m = (size_t)e->max_rows, used = 0;
    size_t q_dim = (size_t)c->n_heads * (size_t)c->head_dim;
    e->h = carve(base, &used, m * (size_t)c->hidden, sizeof(float));
    e->qkv = carve(base, &used, m * (size_t)sl_qkv_dim(c), sizeof(float));
    e->a = carve(base, &used, m * q_dim, sizeof(float));
    size_t up = larger(larger((size_t)c->intermediate, (size_t)c->retaining_hidden), q_dim);
    e->up = e->hidden = e->next_q = carve(base, &used, m * up, sizeof(float));
    return used;
}

static size_t lay_out(struct sl_engine *e, char *base) {
    const struct sl_model_config *c = &e->model->config;
    size_t m = (size_t)e->max_rows, used = 0;
    e->scores = carve(base, &used, m * (size_t)c->n_kv_heads, sizeof(float));
    e->lse = carve(base, &used, m * (size_t)c->n_heads, sizeof(float));
    e->logits = carve(base, &used, (m < SL_LOGIT_ROWS ? m : SL_LOGIT_ROWS) * (size_t)c->n_vocab, sizeof(float));
    e->products = carve(base, &used, product_bytes(e->model, e->max_rows), 1);
    return used;
}

static size_t lay_out_shared(struct sl_engine *e, char *base) {
    size_t m = (size_t)e->max_rows, used = 0;
    if (e->stream->device->ops->one_memory) {
        e->logits_here = e->logits;
    } else {
        size_t n = (m < SL_LOGIT_ROWS ? m : SL_LOGIT_ROWS) * (size_t)e->model->config.n_vocab;
        e->logits_here = carve(base, &used, n, sizeof(float));
        e->picked = carve(base, &used, m < SL_LOGIT_ROWS ? m : SL_LOGIT_ROWS, sizeof *e->picked);
    }
    return used;
}

static size_t lay_out_described(struct sl_engine *e, char *base) {
    size_t m = (size_t)e->max_rows, used = 0;
    e->calls = carve(base, &used, m, sizeof(struct sl_attend));
    e->some = carve(base, &used, m, sizeof(struct sl_attend));
    e->kv = carve(base, &used, m * (size_t)e->model->config.n_kv_heads, sizeof(struct sl_kv));
    return used;
}

static size_t lay_out_tensors(struct sl_activations *a, char *base) {
    const struct sl_model_config *c = &a->engine->model->config;
    size_t m = (size_t)a->max_rows, angles = (size_t)c->rotary_dim / 2, used = 0;
    a->x = carve(base, &used, m * (size_t)c->hidden, sizeof(float));
    a->cosines = carve(base, &used, m * angles, sizeof(float));
    a->sines = carve(base, &used, m * angles, sizeof(float));
    return used;
}

static size_t lay_out_given(struct sl_activations *a, char *base) {
    size_t m = (size_t)a->max_rows, used = 0;
    for (int i = 0; i < 2; i++) {
        a->given[i].positions = carve(base, &used, m, sizeof(int64_t));
        a->given[i].tokens = carve(base, &used, m, sizeof(int32_t));
    }
    return used;
}

enum sl_status sl_activations_create(struct sl_engine *engine, int max_rows, struct sl_activations **activations_out,
                                     struct sl_error *err) {
    SL_FAIL_IF(max_rows < 1 || max_rows > engine->max_rows, err, SL_ERR_INVALID,
               "activations of %d rows: the engine has 1 to %d", max_rows, engine->max_rows);
    SL_NEW_OR_FAIL(struct sl_activations, a, err, "out of memory");
    struct sl_device *device = engine->stream->device;
    a->engine = engine;
    a->max_rows = max_rows;
    size_t bytes = lay_out_tensors(a, NULL), shared_bytes = lay_out_given(a, NULL);
    a->tensors = sl_device_alloc(device, SL_MEMORY_REPLICATED, bytes);
    a->shared = sl_device_alloc(device, SL_MEMORY_SHARED, shared_bytes);
    a->own = malloc((size_t)max_rows * sizeof *a->own);
    a->n_bytes = bytes + shared_bytes + (size_t)max_rows * sizeof *a->own;
    if (a->tensors == NULL || a->shared == NULL || a->own == NULL) {
        sl_activations_destroy(&a);
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for %zu bytes of activations; use smaller chunks", bytes);
    }
    lay_out_tensors(a, a->tensors);
    lay_out_given(a, a->shared);
    *activations_out = a;
    return SL_OK;
}

void sl_activations_destroy(struct sl_activations **activations) {
    struct sl_activations *a = *activations;
    if (a != NULL) {
        sl_device_free(a->engine->stream->device, SL_MEMORY_REPLICATED, a->tensors);
        sl_device_free(a->engine->stream->device, SL_MEMORY_SHARED, a->shared);
        free(a->own);
        free(a);
        *activations = NULL;
    }
}

struct sl_activations *sl_engine_activations(struct sl_engine *engine) {
    return engine->own;
}

int sl_activations_rows(const struct sl_activations *activations) {
    return activations->max_rows;
}

struct sl_input *sl_activations_inputs(struct sl_activations *activations) {
    return activations->own;
}

enum sl_status sl_engine_create(const struct sl_model *model, struct sl_stream *stream, int max_rows,
                                struct sl_engine **engine_out, struct sl_error *err) {
    SL_FAIL_IF(max_rows < 1 || max_rows > 1 << 20, err, SL_ERR_INVALID, "an engine of %d rows: expected 1 to %d",
               max_rows, 1 << 20);
    SL_NEW_OR_FAIL(struct sl_engine, e, err, "out of memory");
    e->model = model;
    e->stream = stream;
    e->max_rows = max_rows;
    size_t bytes = lay_out(e, NULL), replicated_bytes = lay_out_replicated(e, NULL);
    e->scratch = sl_device_alloc(stream->device, SL_MEMORY_DEVICE, bytes);
    e->replicated = sl_device_alloc(stream->device, SL_MEMORY_REPLICATED, replicated_bytes);
    size_t shared_bytes = lay_out_shared(e, NULL), described_bytes = lay_out_described(e, NULL);
    e->shared = sl_device_alloc(stream->device, SL_MEMORY_SHARED, shared_bytes);
    e->described = aligned_alloc(64, described_bytes);
    e->n_bytes = bytes + replicated_bytes + shared_bytes + described_bytes;
    if (e->scratch == NULL || e->replicated == NULL || (e->shared == NULL && shared_bytes > 0) ||
        e->described == NULL) {
        sl_engine_destroy(&e);
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for %zu bytes of activations; use smaller chunks",
                       bytes + replicated_bytes);
    }
    lay_out(e, e->scratch);
    lay_out_replicated(e, e->replicated);
    lay_out_shared(e, e->shared);
    lay_out_described(e, e->described);
    SL_TRY_OR(sl_activations_create(e, max_rows, &e->own, err), sl_engine_destroy(&e));
    e->n_bytes += e->own->n_bytes;
    *engine_out = e;
    return SL_OK;
}

void sl_engine_destroy(struct sl_engine **engine) {
    struct sl_engine *e = *engine;
    if (e != NULL) {
        sl_activations_destroy(&e->own);
        sl_device_free(e->stream->device, SL_MEMORY_DEVICE, e->scratch);
        sl_device_free(e->stream->device, SL_MEMORY_REPLICATED, e->replicated);
        sl_device_free(e->stream->device, SL_MEMORY_SHARED, e->shared);
        free(e->described);
        free(e);
        *engine = NULL;
    }
}

size_t sl_engine_bytes(const struct sl_engine *engine) {
    return engine->n_bytes;
}

struct sl_stream *sl_engine_stream(struct sl_engine *engine) {
    return engine->stream;
}

const struct sl_ops *sl_engine_ops(const struct sl_engine *engine) {
    return engine->model->ops;
}

void sl_engine_multiply(struct sl_engine *e, const struct sl_matrix *w, struct sl_matmul product) {
    product.x_stride = w->k;
    product.y_stride = sl_matrix_outputs(w);
    product.scratch = e->products;
    e->model->ops->matmul(e->stream, w, &product);
}
