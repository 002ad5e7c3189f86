// SPDX-License-Identifier: Apache-2.0
#include "engine/model/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/model/gguf/document.h"
#include "engine/model/model_internal.h"
#include "engine/tensor/half.h"
#include "engine/tensor/shared_weights.h"
#include "engine/tensor/weights.h"

#define MAX_NAME  160
#define TASK_ROWS 16

struct sl_tensors {
    struct sl_safetensors *safetensors; // one of the two
    struct sl_gguf *gguf;               // is NULL
    int head_dim;                       // for q and k, if the file has their rows in another order; else 0
    void **made;                        // [n_made]
    size_t n_made;
    struct sl_shared_weights *shared; // whose waiting processes see that rows are made; may be NULL
};

// --- names -----------------------------------------------------------------------------------------------------------

static const struct {
    const char *name, *gguf; // in a layer, the part after its number; otherwise the full name
    bool rotates;
} names[] = {
    {"model.embed_tokens", "token_embd", false},
    {"transformer.word_embeddings", "token_embd", false},
    {"model.norm", "output_norm", false},
    {"transformer.ln_f", "output_norm", false},
    {"lm_head", "output", false},
    {"input_layernorm", "attn_norm", false},
    {"post_attention_layernorm", "ffn_norm", false},
    {"self_attn.q_proj", "attn_q", true},
    {"self_attn.k_proj", "attn_k", true},
    {"self_attn.v_proj", "attn_v", false},
    {"self_attn.q_norm", "attn_q_norm", false},
    {"self_attn.k_norm", "attn_k_norm", false},
    {"self_attn.qkv_proj", "attn_qkv", false},
    {"self_attention.query_key_value", "attn_qkv", false},
    {"self_attn.o_proj", "attn_output", false},
    {"self_attention.dense", "attn_output", false},
    {"mlp.gate_proj", "ffn_gate", false},
    {"mlp.up_proj", "ffn_up", false},
    {"mlp.gate_up_proj", "ffn_up", false},
    {"mlp.dense_h_to_4h", "ffn_up", false},
    {"mlp.down_proj", "ffn_down", false},
    {"mlp.dense_4h_to_h", "ffn_down", false},
};

// Translates "model.layers.3.self_attn.q_proj.weight" to "blk.3.attn_q.weight". Copies names that are not in the
// table.
static void translate(const char *name, char out[MAX_NAME], bool *rotates_out) {
    const char *suffix = strrchr(name, '.'), *rest = name;
    int layer = -1, n = 0;
    *rotates_out = false;
    if (sscanf(name, "model.layers.%d.%n", &layer, &n) == 1 || sscanf(name, "transformer.h.%d.%n", &layer, &n) == 1) {
        rest += n;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0] && suffix != NULL && suffix >= rest; i++) {
        size_t length = (size_t)(suffix - rest);
        if (strlen(names[i].name) != length || memcmp(names[i].name, rest, length) != 0) {
            continue;
        }
        if (layer >= 0) {
            snprintf(out, MAX_NAME, "blk.%d.%s%s", layer, names[i].gguf, suffix);
        } else {
            snprintf(out, MAX_NAME, "%s%s", names[i].gguf, suffix);
        }
        *rotates_out = names[i].rotates;
        return;
    }
    snprintf(out, MAX_NAME, "%s", name);
}

// --- opening ---------------------------------------------------------------------------------------------------------

enum sl_status sl_tensors_open(const char *model, const struct sl_model_config *config, struct sl_tensors **tensors_out,
                               struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_tensors, t, err, "out of memory");
    enum sl_status status = sl_model_gguf_open(model, &t->gguf, err);
    if (status == SL_OK && t->gguf == NULL) {
        status = sl_safetensors_open(model, &t->safetensors, err);
    }
    SL_TRY_OR(status, sl_tensors_close(&t));
    if (t->gguf != NULL && sl_gguf_text_is(sl_gguf_text(t->gguf, "general.architecture"), "llama")) {
        t->head_dim = config->head_dim;
    }
    *tensors_out = t;
    return SL_OK;
}

void sl_tensors_close(struct sl_tensors **tensors) {
    struct sl_tensors *t = *tensors;
    if (t == NULL) {
        return;
    }
    for (size_t i = 0; i < t->n_made; i++) {
        free(t->made[i]);
    }
    free(t->made);
    sl_safetensors_close(&t->safetensors);
    sl_gguf_close(&t->gguf);
    free(t);
    *tensors = NULL;
}

void sl_tensors_will_read(const struct sl_tensors *t) {
    if (t->safetensors != NULL) {
        sl_safetensors_will_read(t->safetensors);
        return;
    }
    size_t bytes;
    const unsigned char *base = sl_gguf_mapping(t->gguf, &bytes);
    (void)madvise((void *)base, bytes, MADV_WILLNEED); // advice: failure is harmless
}

size_t sl_tensors_bytes(const struct sl_tensors *t) {
    size_t n, bytes = 0;
    if (t->safetensors != NULL) {
        const struct sl_tensor *tensors = sl_safetensors_list(t->safetensors, &n);
        for (size_t i = 0; i < n; i++) {
            bytes += tensors[i].bytes;
        }
        return bytes;
    }
    const struct sl_gguf_tensor *tensors = sl_gguf_tensors(t->gguf, &n);
    for (size_t i = 0; i < n; i++) {
        bytes += tensors[i].bytes;
    }
    return bytes;
}

void sl_tensors_tell(struct sl_tensors *t, struct sl_shared_weights *shared) {
    t->shared = shared;
}

uint64_t sl_tensors_identity(const struct sl_tensors *t) {
    return t->gguf != NULL ? sl_gguf_identity(t->gguf) : sl_safetensors_identity(t->safetensors);
}

// --- finding ---------------------------------------------------------------------------------------------------------

static enum sl_status find_in_gguf(const struct sl_tensors *t, const char *name, int n_dims, int64_t rows,
                                   int64_t columns, struct sl_tensor_source *source_out, struct sl_error *err) {
    char full[MAX_NAME];
    bool rotates;
    translate(name, full, &rotates);
    const struct sl_gguf_tensor *found = sl_gguf_tensor(t->gguf, full);
    SL_FAIL_IF(found == NULL, err, SL_ERR_NOT_FOUND, "tensor %s is missing", full);
    SL_FAIL_IF(found->n_dims != n_dims || found->shape[0] != rows || (n_dims == 2 && found->shape[1] != columns), err,
               SL_ERR_INVALID, "tensor %s has shape [%lld, %lld] of %d, expected [%lld, %lld] of %d", full,
               (long long)found->shape[0], (long long)found->shape[1], found->n_dims, (long long)rows,
               n_dims == 2 ? (long long)columns : 0, n_dims);
    SL_FAIL_IF(n_dims == 1 && found->type->n_weights != 1, err, SL_ERR_UNSUPPORTED,
               "tensor %s of one dimension has type %s", full, found->type->name);
    *source_out = (struct sl_tensor_source){
        found->type, found->data, found->bytes, rows, n_dims == 2 ? columns : 1, rotates ? t->head_dim : 0};
    return SL_OK;
}

enum sl_status sl_tensors_find(const struct sl_tensors *t, const char *name, int n_dims, int64_t rows, int64_t columns,
                               struct sl_tensor_source *source_out, struct sl_error *err) {
    if (t->gguf != NULL) {
        return find_in_gguf(t, name, n_dims, rows, columns, source_out, err);
    }
    const struct sl_tensor *tensor;
    SL_TRY(sl_safetensors_find(t->safetensors, name, n_dims, rows, columns, &tensor, err));
    *source_out = (struct sl_tensor_source){
        sl_block_type_of(tensor->dtype), tensor->data, tensor->bytes, rows, n_dims == 2 ? columns : 1, 0};
    return SL_OK;
}

// --- types -----------------------------------------------------------------------------------------------------------

// Returns whether the weights fit f16, which has a limited range: larger ones become infinite, smaller ones lose
// bits.
static bool fits_f16(const struct sl_tensor_source *source) {
    const struct sl_block_type *type = source->type;
    float largest = 0;
    for (size_t at = 0; at + type->bytes <= source->bytes; at += type->bytes) {
        float bound = sl_block_bound(type, source->data + at);
        if (!(bound <= 65504.0F)) {
            return false;
        }
        largest = bound > largest ? bound : largest;
    }
    return largest >= 0x1p-10F; // errors are at most 2^-25: 1/32,768 of it
}

// Returns the type itself, or a type that it converts to without loss; `widened` if there is none.
static enum sl_dtype nearest(const struct sl_block_type *type, enum sl_dtype widened) {
    if (type->dtype <= SL_Q4_0) {
        return type->dtype;
    }
    return type->fits_q8_0 ? SL_Q8_0 : widened;
}

static enum sl_dtype common_of(enum sl_dtype a, enum sl_dtype b, enum sl_dtype widened) {
    if (a == b) {
        return a;
    }
    if (sl_dtype_is_codes(a) && sl_dtype_is_codes(b)) {
        return SL_Q8_0;
    }
    bool is_rounded = (a == widened && sl_dtype_is_codes(b)) || (b == widened && sl_dtype_is_codes(a));
    return is_rounded ? widened : SL_F32;
}

enum sl_dtype sl_sources_type(const struct sl_tensor_source *sources, int n, enum sl_dtype widened,
                              enum sl_weight_format format) {
    bool is_exact = true;
    for (int i = 0; i < n && widened == SL_F16; i++) {
        bool is_number = sources[i].type->n_weights == 1;
        bool fits = is_number ? sources[i].type->dtype != SL_BF16 : fits_f16(&sources[i]);
        widened = fits ? SL_F16 : SL_BF16;
    }
    enum sl_dtype dtype = nearest(sources[0].type, widened);
    for (int i = 0; i < n; i++) {
        dtype = common_of(dtype, nearest(sources[i].type, widened), widened);
    }
    for (int i = 0; i < n; i++) {
        is_exact = is_exact && (dtype != widened || sources[i].type->dtype == widened);
    }
    return is_exact || format == SL_WEIGHT_STORED ? dtype : SL_F32;
}

// --- reading ---------------------------------------------------------------------------------------------------------

struct conversion {
    const struct sl_tensor_source *source;
    enum sl_dtype dtype;
    unsigned char *out;
    struct sl_shared_weights *shared;
};

static void put_numbers(const float *x, int n, enum sl_dtype dtype, unsigned char *to) {
    if (dtype == SL_F32) {
        memcpy(to, x, (size_t)n * sizeof *x);
        return;
    }
    for (int i = 0; i < n; i++) {
        uint16_t half = dtype == SL_F16 ? sl_f32_to_f16(x[i]) : sl_f32_to_bf16(x[i]);
        memcpy(to + 2 * i, &half, sizeof half);
    }
}

static void convert_row(const struct sl_tensor_source *source, const unsigned char *from, enum sl_dtype dtype,
                        unsigned char *to) {
    const struct sl_block_type *type = source->type;
    int64_t n_blocks = source->columns / type->n_weights;
    size_t to_bytes = sl_dtype_row_bytes(dtype, source->columns) / (size_t)n_blocks;
    if (type->dtype == dtype) {
        memcpy(to, from, (size_t)n_blocks * type->bytes);
        return;
    }
    for (int64_t b = 0; b < n_blocks; b++, from += type->bytes, to += to_bytes) {
        if (dtype == SL_Q8_0) {
            sl_block_to_q8_0(type, from, to);
        } else {
            float x[SL_MAX_BLOCK];
            sl_block_widen(type, from, x);
            put_numbers(x, type->n_weights, dtype, to);
        }
    }
}

// Returns the file's index of row j: in a head of d rows, rows i and i + d / 2 are at 2 i and 2 i + 1.
static int64_t place_of(const struct sl_tensor_source *source, int64_t j) {
    if (source->head_dim == 0) {
        return j;
    }
    int64_t half = source->head_dim / 2, within = j % source->head_dim;
    return j - within + 2 * (within % half) + within / half;
}

static void convert_rows(void *arg, int64_t begin, int64_t end, int member) {
    const struct conversion *c = arg;
    size_t from_bytes = c->source->bytes / (size_t)c->source->rows;
    size_t to_bytes = sl_dtype_row_bytes(c->dtype, c->source->columns);
    (void)member;
    for (int64_t j = begin; j < end; j++) {
        convert_row(c->source, c->source->data + (size_t)place_of(c->source, j) * from_bytes, c->dtype,
                    c->out + (size_t)j * to_bytes);
    }
    sl_shared_weights_progress_within(c->shared);
}

static enum sl_status keep(struct sl_tensors *t, void *made, struct sl_error *err) {
    void **grown = realloc(t->made, (t->n_made + 1) * sizeof *grown);
    SL_FAIL_IF(grown == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    t->made = grown;
    t->made[t->n_made++] = made;
    return SL_OK;
}

enum sl_status sl_tensors_read(struct sl_tensors *t, const struct sl_tensor_source *source, enum sl_dtype dtype,
                               struct sl_stream *stream, struct sl_rows *rows_out, struct sl_error *err) {
    if (source->type->dtype == dtype && source->head_dim == 0) {
        *rows_out = (struct sl_rows){source->data, source->rows, dtype};
        return SL_OK;
    }
    size_t bytes = (size_t)source->rows * sl_dtype_row_bytes(dtype, source->columns);
    struct conversion c = {source, dtype, malloc(bytes), t->shared};
    SL_FAIL_IF(c.out == NULL, err, SL_ERR_EXHAUSTED, "out of memory for %zu bytes of weights", bytes);
    SL_TRY_OR(keep(t, c.out, err), free(c.out));
    sl_stream_run(stream, source->rows, TASK_ROWS, convert_rows, &c);
    *rows_out = (struct sl_rows){c.out, source->rows, dtype};
    return SL_OK;
}

void sl_tensors_release(struct sl_tensors *t, const struct sl_tensor_source *source, const struct sl_rows *rows) {
    struct sl_tensor tensor = {.data = source->data, .bytes = source->bytes};
    for (size_t i = 0; i < t->n_made; i++) {
        if (t->made[i] == rows->data) {
            free(t->made[i]);
            t->made[i] = t->made[--t->n_made];
            break;
        }
    }
    sl_tensor_drop_pages(&tensor);
}

// Returns true where rounding weights of this type to bf16 loses little beside what the file has lost, or what bytes of
// activations lose (engine/tensor/cpu/dense/code_matmul.h).
static bool is_near_bf16(const struct sl_block_type *type) {
    return type->dtype == SL_BF16 || sl_dtype_is_codes(type->dtype);
}

bool sl_model_exceeds_bf16(const char *model) {
    struct sl_gguf *gguf;
    size_t n = 0;
    bool exceeds = false;
    if (sl_model_gguf_open(model, &gguf, NULL) != SL_OK || gguf == NULL) {
        return false;
    }
    const struct sl_gguf_tensor *tensors = sl_gguf_tensors(gguf, &n);
    for (size_t i = 0; i < n && !exceeds; i++) {
        exceeds = tensors[i].n_dims > 1 && !is_near_bf16(tensors[i].type);
    }
    sl_gguf_close(&gguf);
    return exceeds;
}
