// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the retaining heads of a model (Locret, section 3.1): per layer a small network that predicts from a
 *          token's own projections how important it will be for each KV head.
 *
 *     score[r][h] = sum_i W2[h][i] silu(hidden[r][i]),   hidden[r] = W1 [q_r | k_r | v_r]
 *     W1 [R][(H + 2 Hk) d], W2 [Hk][R], no biases; q, k and v before RoPE, all heads of each one after the other
 *
 * File: retaining_heads.safetensors beside the model, with tensors layers.<i>.w1 and layers.<i>.w2 for every layer and
 *       nothing else; tools/convert_retaining_heads.py makes it from the authors' checkpoints.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/forward_internal.h"
#include "engine/tensor/half.h"

#define FILE_NAME  "retaining_heads.safetensors"
#define MAX_NAME   32
#define MAX_HIDDEN (1 << 16)

// --- the file ------------------------------------------------------------------------------------------------------

// Finds a tensor of the file and checks its shape; failures name the file.
static enum sl_status find(const struct sl_safetensors *tensors, int layer, const char *which, int64_t rows,
                           int64_t columns, const struct sl_tensor **tensor_out, struct sl_error *err) {
    char name[MAX_NAME];
    snprintf(name, sizeof name, "layers.%d.%s", layer, which);
    enum sl_status status = sl_safetensors_find(tensors, name, 2, rows, columns, tensor_out, err);
    SL_FAIL_IF(status == SL_ERR_NOT_FOUND, err, SL_ERR_INVALID,
               "%s: tensor %s is missing, expected one of shape [%lld, %lld]", FILE_NAME, name, (long long)rows,
               (long long)columns);
    if (status != SL_OK) {
        sl_error_prefix(err, FILE_NAME);
    }
    return status;
}

// Reads the rows of the first layer's W1; every other tensor must match them.
static enum sl_status find_hidden(const struct sl_safetensors *tensors, const struct sl_model_config *c,
                                  int *hidden_out, struct sl_error *err) {
    size_t n;
    const struct sl_tensor *list = sl_safetensors_list(tensors, &n);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i].name, "layers.0.w1") != 0) {
            continue;
        }
        SL_FAIL_IF(list[i].n_dims != 2 || list[i].shape[0] < 1 || list[i].shape[0] > MAX_HIDDEN, err, SL_ERR_INVALID,
                   "%s: tensor layers.0.w1 must have 1 to %d rows of %lld columns", FILE_NAME, MAX_HIDDEN,
                   (long long)sl_qkv_dim(c));
        *hidden_out = (int)list[i].shape[0];
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_INVALID, "%s: tensor layers.0.w1 is missing, expected one of %lld columns", FILE_NAME,
                   (long long)sl_qkv_dim(c));
}

static bool is_expected(const char *name, int n_layers) {
    for (int i = 0; i < 2 * n_layers; i++) {
        char expected[MAX_NAME];
        snprintf(expected, sizeof expected, "layers.%d.w%d", i / 2, i % 2 + 1);
        if (strcmp(name, expected) == 0) {
            return true;
        }
    }
    return false;
}

static enum sl_status check_shapes(const struct sl_safetensors *tensors, const struct sl_model_config *c,
                                   int *hidden_out, struct sl_error *err) {
    int hidden = 0;
    enum sl_status status = find_hidden(tensors, c, &hidden, err);
    for (int l = 0; l < c->n_layers && status == SL_OK; l++) {
        const struct sl_tensor *tensor;
        status = find(tensors, l, "w1", hidden, sl_qkv_dim(c), &tensor, err);
        SL_THEN(status, find(tensors, l, "w2", c->n_kv_heads, hidden, &tensor, err));
    }
    SL_TRY(status);
    // Every expected tensor exists, so a further one would be ignored: a bias, an extra layer. Rejects it.
    size_t n;
    const struct sl_tensor *list = sl_safetensors_list(tensors, &n);
    for (size_t i = 0; i < n && n > 2 * (size_t)c->n_layers; i++) {
        SL_FAIL_IF(!is_expected(list[i].name, c->n_layers), err, SL_ERR_UNSUPPORTED,
                   "%s: tensor %.96s: expected are only layers.0 to .%d, .w1 and .w2", FILE_NAME, list[i].name,
                   c->n_layers - 1);
    }
    *hidden_out = hidden;
    return SL_OK;
}

enum sl_status sl_retaining_open(const char *model_dir, const struct sl_model_config *config,
                                 struct sl_safetensors **tensors_out, int *hidden_out, struct sl_error *err) {
    struct sl_safetensors *tensors = NULL;
    enum sl_status status = sl_safetensors_open_file(model_dir, FILE_NAME, &tensors, err);
    if (status == SL_ERR_NOT_FOUND) {
        *tensors_out = NULL;
        *hidden_out = 0;
        return SL_OK;
    }
    SL_THEN(status, check_shapes(tensors, config, hidden_out, err));
    SL_TRY_OR(status, sl_safetensors_close(&tensors));
    *tensors_out = tensors;
    return SL_OK;
}

// --- loading -------------------------------------------------------------------------------------------------------

static size_t dtype_bytes(enum sl_dtype dtype) {
    return dtype == SL_F32 ? 4 : 2;
}

static bool is_finite(const unsigned char *element, enum sl_dtype dtype) {
    float value;
    uint16_t half;
    if (dtype == SL_F32) {
        memcpy(&value, element, sizeof value);
        return isfinite(value);
    }
    memcpy(&half, element, sizeof half);
    return isfinite(dtype == SL_F16 ? sl_f16_to_f32(half) : sl_bf16_to_f32(half));
}

// Rejects values that are not finite: one of them would make every score NaN, and scores decide what is evicted.
static enum sl_status check_finite(const struct sl_tensor *tensor, struct sl_error *err) {
    size_t size = dtype_bytes(tensor->dtype);
    for (size_t i = 0; i < tensor->bytes / size; i++) {
        if (!is_finite(tensor->data + i * size, tensor->dtype)) {
            int64_t columns = tensor->shape[1];
            return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s: element [%lld, %lld] is not finite, expected a number",
                           FILE_NAME, tensor->name, (long long)((int64_t)i / columns),
                           (long long)((int64_t)i % columns));
        }
    }
    return SL_OK;
}

// Loads one of the two matrices of a layer.
static enum sl_status load(struct sl_model *model, int layer, const char *which, struct sl_matrix matrix,
                           struct sl_stream *stream, struct sl_matrix *matrix_out, struct sl_error *err) {
    const struct sl_tensor *tensor;
    SL_TRY(find(model->retaining_tensors, layer, which, matrix.n, matrix.k, &tensor, err));
    SL_TRY(check_finite(tensor, err));
    matrix.dtype = tensor->dtype;
    matrix.parts[0] = (struct sl_rows){tensor->data, matrix.n, tensor->dtype};
    *matrix_out = matrix;
    model->weight_bytes += tensor->bytes;
    SL_TRY(model->ops->pack(stream, matrix_out, err));
    if (!sl_matrix_reads_parts(matrix_out)) {
        sl_tensor_drop_pages(tensor);
    }
    return SL_OK;
}

enum sl_status sl_retaining_load(struct sl_model *model, const char *model_dir, struct sl_stream *stream,
                                 struct sl_error *err) {
    struct sl_model_config *c = &model->config;
    enum sl_status status = sl_retaining_open(model_dir, c, &model->retaining_tensors, &c->retaining_hidden, err);
    for (int l = 0; l < c->n_layers && status == SL_OK && c->retaining_hidden > 0; l++) {
        struct sl_retaining *heads = &model->layers[l].retaining;
        const struct sl_matrix w1 = {.n = c->retaining_hidden, .k = sl_qkv_dim(c), .activation = SL_ACT_SILU};
        const struct sl_matrix w2 = {.n = c->n_kv_heads, .k = c->retaining_hidden};
        status = load(model, l, "w1", w1, stream, &heads->w1, err);
        SL_THEN(status, load(model, l, "w2", w2, stream, &heads->w2, err));
    }
    return status;
}

void sl_retaining_unload(struct sl_model *model, int layer) {
    model->ops->unpack(&model->layers[layer].retaining.w1);
    model->ops->unpack(&model->layers[layer].retaining.w2);
}
