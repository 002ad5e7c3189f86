// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: from a mapped folder to matrices that the kernels like.
 *
 * Design: a tensor is looked up by its Hugging Face name with the shape that the configuration implies. Matrices keep
 *         the file's type and are packed one after the other; the pages of the file behind a packed matrix are then
 *         given back, so that loading needs the model once in memory and not twice. Norm vectors become f32.
 * Invariants: a model exists only when every tensor was found, checked and packed.
 */
#include "engine/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/weights.h"
#include "engine/model_internal.h"

#define MAX_NAME 96

struct loader {
    struct sl_model *model;
    struct sl_team *team;
    enum sl_weight_format weights; // of the layers' matrices and the head
    struct sl_error *err;
    float *next_norm; // in model->norms
};

// The tensor `name` as part `part` of *matrix: n more rows.
static enum sl_status find_part(struct loader *l, const char *name, int64_t n, int64_t k, int part,
                                struct sl_matrix *matrix, const struct sl_tensor **tensor_out) {
    enum sl_dtype dtype;
    enum sl_status status = sl_safetensors_find(l->model->tensors, name, 2, n, k, tensor_out, &dtype, l->err);
    if (status != SL_OK) {
        return status;
    }
    if (part > 0 && dtype != matrix->dtype) {
        return sl_fail(l->err, SL_ERR_UNSUPPORTED, "tensor %s has another type than its neighbours", name);
    }
    matrix->parts[part] = (struct sl_rows){(*tensor_out)->data, n};
    matrix->dtype = dtype;
    matrix->n += n;
    matrix->k = k;
    l->model->weight_bytes += (*tensor_out)->bytes;
    return SL_OK;
}

// A tensor that is a part of a matrix.
struct part {
    const char *name; // NULL: no more parts
    int64_t n;
};

static enum sl_status load_matrix(struct loader *l, const struct part *parts, int64_t k, struct sl_matrix *matrix) {
    const struct sl_tensor *tensors[SL_MAX_PARTS];
    enum sl_status status = SL_OK;
    int n_parts = 0;
    for (; n_parts < SL_MAX_PARTS && parts[n_parts].name != NULL && status == SL_OK; n_parts++) {
        status = find_part(l, parts[n_parts].name, parts[n_parts].n, k, n_parts, matrix, &tensors[n_parts]);
    }
    if (status == SL_OK) {
        matrix->format = l->weights;
        status = l->model->ops->pack(l->team, matrix, l->err);
    }
    for (int i = 0; i < n_parts && status == SL_OK && matrix->packed != NULL; i++) {
        sl_tensor_drop_pages(tensors[i]);
    }
    return status;
}

static enum sl_status load_norm(struct loader *l, const char *name, struct sl_norm *norm) {
    const struct sl_tensor *tensor;
    enum sl_dtype dtype;
    int n = l->model->config.hidden;
    enum sl_status status = sl_safetensors_find(l->model->tensors, name, 1, n, 0, &tensor, &dtype, l->err);
    if (status != SL_OK) {
        return status;
    }
    for (int i = 0; i < n; i++) {
        l->next_norm[i] = sl_weight_element(tensor->data, dtype, i);
    }
    *norm = (struct sl_norm){.kind = SL_NORM_RMS, .n = n, .eps = l->model->config.norm_eps, .weight = l->next_norm};
    l->next_norm += sl_norm_stride(n);
    l->model->weight_bytes += tensor->bytes;
    return SL_OK;
}

static enum sl_status load_layer(struct loader *l, int index) {
    const struct sl_model_config *c = &l->model->config;
    struct sl_model_layer *layer = &l->model->layers[index];
    int64_t e = c->hidden, f = c->intermediate;
    int64_t q_dim = (int64_t)c->n_heads * c->head_dim, kv_dim = (int64_t)c->n_kv_heads * c->head_dim;

    const struct {
        struct sl_matrix *matrix;
        int64_t k;
        struct part parts[SL_MAX_PARTS + 1];
    } matrices[] = {
        {&layer->qkv, e, {{"self_attn.q_proj", q_dim}, {"self_attn.k_proj", kv_dim}, {"self_attn.v_proj", kv_dim}}},
        {&layer->o, q_dim, {{"self_attn.o_proj", e}}},
        {&layer->up, e, {{"mlp.gate_proj", f}, {"mlp.up_proj", f}}},
        {&layer->down, f, {{"mlp.down_proj", e}}},
    };
    layer->up.activation = SL_ACT_SILU;
    layer->up.gated = true;
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
        char names[SL_MAX_PARTS][MAX_NAME];
        struct part parts[SL_MAX_PARTS + 1] = {{NULL, 0}};
        for (int p = 0; p < SL_MAX_PARTS && matrices[i].parts[p].name != NULL; p++) {
            snprintf(names[p], sizeof names[p], "model.layers.%d.%s.weight", index, matrices[i].parts[p].name);
            parts[p] = (struct part){names[p], matrices[i].parts[p].n};
        }
        enum sl_status status = load_matrix(l, parts, matrices[i].k, matrices[i].matrix);
        if (status != SL_OK) {
            return status;
        }
    }
    char name[MAX_NAME];
    snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", index);
    enum sl_status status = load_norm(l, name, &layer->attention_norm);
    if (status != SL_OK) {
        return status;
    }
    snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", index);
    return load_norm(l, name, &layer->mlp_norm);
}

// Embedding, layers, final norm, head.
static enum sl_status load_tensors(struct loader *l) {
    struct sl_model *model = l->model;
    const struct sl_model_config *c = &model->config;
    const struct sl_tensor *embedding;
    enum sl_status status =
        find_part(l, "model.embed_tokens.weight", c->n_vocab, c->hidden, 0, &model->embed, &embedding);
    for (int i = 0; i < c->n_layers && status == SL_OK; i++) {
        status = load_layer(l, i);
    }
    if (status == SL_OK) {
        status = load_norm(l, "model.norm.weight", &model->final_norm);
    }
    if (status != SL_OK) {
        return status;
    }
    if (!c->tied_embeddings) {
        return load_matrix(l, (struct part[]){{"lm_head.weight", c->n_vocab}, {NULL, 0}}, c->hidden, &model->head);
    }
    model->head = model->embed;
    model->head.format = l->weights;
    return model->ops->pack(l->team, &model->head, l->err);
}

static enum sl_status allocate(struct sl_model *model, struct sl_error *err) {
    const struct sl_model_config *c = &model->config;
    size_t n_norms = 2 * (size_t)c->n_layers + 1;
    model->inv_freq = calloc((size_t)c->head_dim / 2, sizeof *model->inv_freq);
    model->layers = calloc((size_t)c->n_layers, sizeof *model->layers);
    model->norms = aligned_alloc(64, n_norms * sl_norm_stride(c->hidden) * sizeof(float));
    if (model->inv_freq == NULL || model->layers == NULL || model->norms == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for a model of %d layers", c->n_layers);
    }
    return SL_OK;
}

enum sl_status sl_model_load(const char *model_dir, const struct sl_ops *ops, enum sl_weight_format weights,
                             struct sl_team *team, struct sl_model **model_out, struct sl_error *err) {
    struct sl_model *model = calloc(1, sizeof *model);
    if (model == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    model->ops = ops;
    enum sl_status status = sl_model_config_load(model_dir, &model->config, err);
    if (status == SL_OK) {
        status = sl_safetensors_open(model_dir, &model->tensors, err);
    }
    if (status == SL_OK) {
        status = allocate(model, err);
    }
    if (status == SL_OK) {
        sl_rope_inv_freq(&model->config, model->inv_freq);
        model->rope = (struct sl_rope){model->config.head_dim, model->config.head_dim, model->inv_freq, 1.0};
        sl_safetensors_will_read(model->tensors);
        struct loader loader = {model, team, weights, err, model->norms};
        status = load_tensors(&loader);
    }
    if (status == SL_OK) {
        status = sl_retaining_load(model, model_dir, team, err);
    }
    if (status != SL_OK) {
        sl_model_destroy(&model);
        return status;
    }
    *model_out = model;
    return SL_OK;
}

void sl_model_destroy(struct sl_model **model) {
    struct sl_model *m = *model;
    if (m == NULL) {
        return;
    }
    for (int i = 0; m->layers != NULL && i < m->config.n_layers; i++) {
        struct sl_model_layer *layer = &m->layers[i];
        struct sl_matrix *matrices[] = {&layer->qkv, &layer->o, &layer->up, &layer->down};
        for (size_t j = 0; j < sizeof matrices / sizeof matrices[0]; j++) {
            m->ops->unpack(matrices[j]);
        }
        sl_retaining_unload(m, i);
    }
    m->ops->unpack(&m->head);
    sl_safetensors_close(&m->tensors);
    sl_safetensors_close(&m->retaining_tensors);
    free(m->layers);
    free(m->norms);
    free(m->inv_freq);
    free(m);
    *model = NULL;
}

const struct sl_model_config *sl_model_get_config(const struct sl_model *model) {
    return &model->config;
}

const struct sl_rope *sl_model_get_rope(const struct sl_model *model) {
    return &model->rope;
}

size_t sl_model_weight_bytes(const struct sl_model *model) {
    return model->weight_bytes;
}
