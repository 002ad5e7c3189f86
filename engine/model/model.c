// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: converts mapped files to matrices in the kernels' layout.
 *
 * Design: the family's row (engine/model/families.h) defines which tensors there are; each is looked up by its name
 *         with the shape that the configuration implies. Matrices keep the file's type, or the nearest type that
 *         kernels support (engine/model/tensors.h), and are packed one after the other. The mapped pages of a packed
 *         matrix are then released, so loading needs the memory of one model, not two. Norms and biases become f32.
 * Invariants: a model exists only when every tensor was found, checked and packed.
 */
#include "engine/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/model/model_internal.h"
#include "engine/tensor/shared_weights.h"
#include "engine/tensor/weights.h"

#define MAX_NAME 128

struct loader {
    struct sl_model *model;
    const struct sl_family *family;
    struct sl_stream *stream;
    enum sl_weight_format weights; // format of the layers' matrices and the head
    bool keeps_codes;              // blocks of codes stay as they are
    struct sl_error *err;
    int layer;                          // the layer whose tensors are being loaded; -1: tensors outside the layers
    float *vectors, *next_vector;       // model->vectors, in memory that the host can write
    char notes[256];                    // "Q4_1 as bf16, Q8_0 as int8"
    struct sl_model_progress *progress; // may be NULL
    size_t done_bytes;
};

// Counts bytes of the file. The count never goes back: it may begin with what another process had packed.
static void advance(struct loader *l, size_t bytes) {
    l->done_bytes += bytes;
    sl_shared_weights_progress(l->model->shared, l->done_bytes);
    if (l->progress != NULL && l->done_bytes > atomic_load(&l->progress->done_bytes)) {
        atomic_store(&l->progress->done_bytes, l->done_bytes);
    }
}

// Returns the full name of a tensor of the current layer, or of one outside the layers.
static const char *tensor_name(const struct loader *l, const char *name, const char *suffix, char out[MAX_NAME]) {
    if (l->layer < 0) {
        snprintf(out, MAX_NAME, "%s.%s", name, suffix);
    } else {
        snprintf(out, MAX_NAME, "%s.%d.%s.%s", l->family->layers, l->layer, name, suffix);
    }
    return out;
}

// --- vectors -------------------------------------------------------------------------------------------------------

// Returns the floats from one vector to the next: vectors are aligned to 64 bytes.
static size_t vector_stride(int64_t n) {
    return ((size_t)n + 15) / 16 * 16;
}

// Copies a vector of n into the rest of the vectors, after `offset` floats that are in use.
static enum sl_status copy_vector(struct loader *l, const char *name, const char *suffix, int64_t n, int64_t offset) {
    char full[MAX_NAME];
    struct sl_tensor_source source;
    struct sl_rows rows;
    SL_TRY(sl_tensors_find(l->model->tensors, tensor_name(l, name, suffix, full), 1, n, 0, &source, l->err));
    SL_TRY(sl_tensors_read(l->model->tensors, &source, SL_F32, NULL, &rows, l->err));
    for (int64_t i = 0; i < n; i++) {
        l->next_vector[offset + i] = sl_weight_element(rows.data, SL_F32, i);
    }
    sl_tensors_release(l->model->tensors, &source, &rows);
    l->model->weight_bytes += source.bytes;
    l->model->memory_bytes += (size_t)n * sizeof(float);
    advance(l, source.bytes);
    return SL_OK;
}

static const float *take_vector(struct loader *l, int64_t n) {
    const float *vector = l->model->vectors + (l->next_vector - l->vectors);
    l->next_vector += vector_stride(n);
    return vector;
}

// Loads a norm. No name: there is no such norm, and *norm stays empty.
static enum sl_status load_norm(struct loader *l, const char *name, int64_t n, struct sl_norm *norm) {
    if (name == NULL) {
        return SL_OK;
    }
    norm->kind = l->family->norm;
    norm->n = n;
    norm->eps = l->model->config.norm_eps;
    enum sl_status status = copy_vector(l, name, "weight", n, 0);
    if (status == SL_OK) {
        norm->weight = take_vector(l, n);
    }
    if (status == SL_OK && norm->kind == SL_NORM_LAYER) {
        status = copy_vector(l, name, "bias", n, 0);
        norm->bias = status == SL_OK ? take_vector(l, n) : NULL;
    }
    return status;
}

// --- matrices ------------------------------------------------------------------------------------------------------

static int64_t rows_of(const struct sl_model_config *c, enum sl_extent extent) {
    switch (extent) {
    case SL_EXTENT_NONE:
        break;
    case SL_EXTENT_Q:
        return (int64_t)c->n_heads * c->head_dim;
    case SL_EXTENT_KV:
        return (int64_t)c->n_kv_heads * c->head_dim;
    case SL_EXTENT_QKV:
        return ((int64_t)c->n_heads + 2 * (int64_t)c->n_kv_heads) * c->head_dim;
    case SL_EXTENT_E:
        return c->hidden;
    case SL_EXTENT_F:
        return c->intermediate;
    case SL_EXTENT_GATE_UP:
        return 2 * (int64_t)c->intermediate;
    case SL_EXTENT_V:
        return c->n_vocab;
    }
    return 0;
}

// Returns the columns of a layer's matrix, or of the head if layer is -1.
static int64_t columns_of(const struct sl_model_config *c, int layer, int which) {
    if (layer < 0) {
        return c->hidden;
    }
    return which == SL_O ? (int64_t)c->n_heads * c->head_dim : which == SL_DOWN ? c->intermediate : c->hidden;
}

static int64_t matrix_rows(const struct sl_model_config *c, const struct sl_family_matrix *source) {
    int64_t rows = 0;
    for (int p = 0; p < SL_MAX_PARTS && source->parts[p].name != NULL; p++) {
        rows += rows_of(c, source->parts[p].rows);
    }
    return rows;
}

// Returns the format for pack(): a file's codes stay as they are unless another format is requested.
static enum sl_weight_format format_of(enum sl_dtype dtype, enum sl_weight_format asked) {
    bool is_codes = asked == SL_WEIGHT_STORED && sl_dtype_is_codes(dtype);
    return !is_codes ? asked : dtype == SL_Q8_0 ? SL_WEIGHT_INT8 : SL_WEIGHT_INT4;
}

// Notes types that differ from ours, for the log.
static void note(struct loader *l, const struct sl_tensor_source *source, const struct sl_matrix *matrix) {
    static const char *const kept[] = {[SL_F32] = "f32", [SL_F16] = "f16", [SL_BF16] = "bf16"};
    const char *format = matrix->format == SL_WEIGHT_STORED && !sl_dtype_is_codes(matrix->dtype)
                             ? kept[matrix->dtype]
                             : sl_weight_format_name(matrix->format);
    char text[32];
    snprintf(text, sizeof text, "%s as %s", source->type->name, format);
    size_t used = strlen(l->notes);
    if (source->type->n_weights > 1 && strstr(l->notes, text) == NULL && used + sizeof text < sizeof l->notes) {
        snprintf(l->notes + used, sizeof l->notes - used, "%s%s", used > 0 ? ", " : "", text);
    }
}

// Finds the tensors of a matrix and counts them: all rows, of k columns.
static enum sl_status find_matrix(struct loader *l, const struct sl_family_matrix *source, int64_t k,
                                  struct sl_tensor_source sources[SL_MAX_PARTS], int *n_out) {
    enum sl_status status = SL_OK;
    int n = 0;
    for (; n < SL_MAX_PARTS && source->parts[n].name != NULL && status == SL_OK; n++) {
        char full[MAX_NAME];
        status = sl_tensors_find(l->model->tensors, tensor_name(l, source->parts[n].name, "weight", full), 2,
                                 rows_of(&l->model->config, source->parts[n].rows), k, &sources[n], l->err);
    }
    *n_out = n;
    return status;
}

// Returns true where the matrix can be SL_WEIGHT_CODES (sl_ops.keeps_codes): the types of its parts.
static bool has_codes(const struct loader *l, const struct sl_tensor_source *sources, int n, struct sl_matrix *matrix) {
    int64_t rows = 0;
    for (int i = 0; i < n; i++) {
        matrix->parts[i].dtype = sources[i].type->dtype;
        if (!l->keeps_codes || !sl_dtype_is_codes(sources[i].type->dtype) || (i + 1 < n && sources[i].rows % 16 != 0)) {
            return false;
        }
        rows += sources[i].rows;
    }
    return !matrix->gated || rows / 2 % 16 == 0;
}

// Describes the matrix of the sources: all but the rows of its parts.
static void describe_matrix(struct loader *l, const struct sl_tensor_source *sources, int n, struct sl_matrix *matrix) {
    bool codes = has_codes(l, sources, n, matrix);
    matrix->dtype = codes ? matrix->parts[0].dtype : sl_sources_type(sources, n, l->model->ops->widened, l->weights);
    matrix->format = codes ? SL_WEIGHT_CODES : format_of(matrix->dtype, l->weights);
    matrix->k = sources[0].columns;
    for (int i = 0; i < n; i++) {
        matrix->n += sources[i].rows;
        matrix->parts[i] = (struct sl_rows){NULL, sources[i].rows, codes ? matrix->parts[i].dtype : matrix->dtype};
        note(l, &sources[i], matrix);
    }
}

// Reads the rows of the sources as the parts of *matrix.
static enum sl_status read_matrix(struct loader *l, const struct sl_tensor_source *sources, int n,
                                  struct sl_matrix *matrix) {
    enum sl_status status = SL_OK;
    describe_matrix(l, sources, n, matrix);
    for (int i = 0; i < n && status == SL_OK; i++) {
        status = sl_tensors_read(l->model->tensors, &sources[i], matrix->parts[i].dtype, l->stream, &matrix->parts[i],
                                 l->err);
    }
    return status;
}

// Does the same for a matrix that is packed next, but reads no rows if another process has packed them.
static enum sl_status read_to_pack(struct loader *l, const struct sl_tensor_source *sources, int n,
                                   struct sl_matrix *matrix) {
    struct sl_matrix described = *matrix;
    describe_matrix(l, sources, n, &described);
    if (sl_shared_weights_hold(l->model->shared, &described)) {
        *matrix = described;
        return SL_OK;
    }
    return read_matrix(l, sources, n, matrix);
}

static void release_matrix(struct sl_model *model, const struct sl_tensor_source *sources, int n,
                           struct sl_matrix *matrix) {
    for (int i = 0; i < n; i++) {
        sl_tensors_release(model->tensors, &sources[i], &matrix->parts[i]);
        matrix->parts[i].data = NULL;
    }
}

static void count_memory(struct sl_model *model, const struct sl_matrix *matrix) {
    size_t stored = (size_t)matrix->n * sl_dtype_row_bytes(matrix->dtype, matrix->k);
    model->memory_bytes += matrix->packed != NULL ? matrix->packed_bytes : stored;
}

static enum sl_status pack_matrix(struct loader *l, const struct sl_tensor_source *sources, int n,
                                  struct sl_matrix *matrix) {
    matrix->shared = l->model->shared;
    SL_TRY(l->model->ops->pack(l->stream, matrix, l->err));
    if (!sl_matrix_reads_parts(matrix)) {
        release_matrix(l->model, sources, n, matrix);
    }
    count_memory(l->model, matrix);
    for (int i = 0; i < n; i++) {
        advance(l, sources[i].bytes);
    }
    return SL_OK;
}

static enum sl_status load_matrix(struct loader *l, const struct sl_family_matrix *source, int64_t k, bool has_bias,
                                  struct sl_matrix *matrix) {
    struct sl_tensor_source sources[SL_MAX_PARTS];
    int n_parts;
    enum sl_status status = find_matrix(l, source, k, sources, &n_parts);
    SL_THEN(status, read_to_pack(l, sources, n_parts, matrix));
    int64_t above = 0;
    for (int i = 0; i < n_parts && status == SL_OK; i++) {
        l->model->weight_bytes += sources[i].bytes;
        if (has_bias) {
            status = copy_vector(l, source->parts[i].name, "bias", sources[i].rows, above);
        }
        above += sources[i].rows;
    }
    if (status == SL_OK) {
        matrix->bias = has_bias ? take_vector(l, matrix->n) : NULL;
        status = pack_matrix(l, sources, n_parts, matrix);
    }
    return status;
}

enum sl_status sl_model_matrix_open(const struct sl_model *model, int layer, int which, enum sl_weight_format format,
                                    struct sl_model_source *source_out, struct sl_error *err) {
    const struct sl_model_config *c = &model->config;
    const struct sl_family_matrix head = {
        .parts = {{c->tied_embeddings ? c->family->embed : c->family->head, SL_EXTENT_V}}};
    struct loader l = {
        .model = (struct sl_model *)model, .family = c->family, .weights = format, .err = err, .layer = layer};
    *source_out = (struct sl_model_source){0};
    enum sl_status status = find_matrix(&l, layer < 0 ? &head : &c->family->matrices[which],
                                        columns_of(c, layer, which), source_out->sources, &source_out->n);
    SL_THEN(status, read_matrix(&l, source_out->sources, source_out->n, &source_out->matrix));
    source_out->matrix.format = format;
    return status;
}

void sl_model_matrix_close(const struct sl_model *model, struct sl_model_source *source) {
    release_matrix((struct sl_model *)model, source->sources, source->n, &source->matrix);
}

// --- the model -----------------------------------------------------------------------------------------------------

static bool has_window(const struct sl_model_config *c, int layer) {
    return (c->window_layers[layer / 64] >> (layer % 64) & 1) != 0;
}

static enum sl_status load_layer(struct loader *l, int index) {
    const struct sl_model_config *c = &l->model->config;
    const struct sl_family *family = l->family;
    struct sl_model_layer *layer = &l->model->layers[index];
    l->layer = index;
    layer->window = has_window(c, index) ? c->window : 0;
    layer->up.activation = c->activation;
    layer->up.gated = family->gated;

    struct sl_matrix *matrices[SL_N_LAYER_MATRICES] = {&layer->qkv, &layer->o, &layer->up, &layer->down};
    enum sl_status status = SL_OK;
    for (int i = 0; i < SL_N_LAYER_MATRICES && status == SL_OK; i++) {
        status = load_matrix(l, &family->matrices[i], columns_of(c, index, i), c->has_bias[i], matrices[i]);
    }
    const struct {
        const char *name;
        int64_t n;
        struct sl_norm *norm;
    } norms[] = {{family->attention_norm, c->hidden, &layer->attention_norm},
                 {family->mlp_norm, c->hidden, &layer->mlp_norm},
                 {family->q_norm, c->head_dim, &layer->q_norm},
                 {family->k_norm, c->head_dim, &layer->k_norm}};
    for (size_t i = 0; i < sizeof norms / sizeof norms[0] && status == SL_OK; i++) {
        status = load_norm(l, norms[i].name, norms[i].n, norms[i].norm);
    }
    l->layer = -1;
    return status;
}

// Loads rows that are looked up one at a time: in place in the file if possible.
static enum sl_status load_embedding(struct loader *l, struct sl_tensor_source sources_out[SL_MAX_PARTS]) {
    struct sl_model *model = l->model;
    const struct sl_family_matrix embed = {.parts = {{l->family->embed, SL_EXTENT_V}}};
    enum sl_weight_format asked = l->weights;
    int n;
    enum sl_status status = find_matrix(l, &embed, model->config.hidden, sources_out, &n);
    if (status == SL_OK) {
        l->weights = SL_WEIGHT_STORED;
        status = read_matrix(l, sources_out, n, &model->embed);
        l->weights = asked;
        model->embed.format = SL_WEIGHT_STORED;
        model->weight_bytes += sources_out[0].bytes;
        status = model->ops->pack_rows(l->stream, &model->embed, l->err);
    }
    if (status == SL_OK && !model->config.tied_embeddings) { // tied ones are counted when the head is packed
        advance(l, sources_out[0].bytes);
    }
    return status;
}

// Loads the head from the embedding's rows, unless quantizing would round rows that were already rounded for lookup.
static enum sl_status load_tied_head(struct loader *l, const struct sl_tensor_source *embed) {
    struct sl_matrix *head = &l->model->head;
    if (l->keeps_codes || sl_sources_type(embed, 1, l->model->ops->widened, l->weights) != l->model->embed.dtype) {
        SL_TRY(read_to_pack(l, embed, 1, head));
        return pack_matrix(l, embed, 1, head);
    }
    *head = l->model->embed;
    head->packed = NULL;
    head->format = format_of(head->dtype, l->weights);
    head->shared = l->model->shared;
    SL_TRY(l->model->ops->pack(l->stream, head, l->err));
    count_memory(l->model, head);
    advance(l, embed->bytes);
    return SL_OK;
}

// Sets the bytes of the embedding beside the mapping and the head; frees host rows if a device has its own copy.
static void finish_embedding(struct sl_model *model, const struct sl_tensor_source *source) {
    struct sl_matrix *embed = &model->embed;
    bool is_made = embed->parts[0].data != source->data;
    bool is_heads = model->head.parts[0].data == embed->parts[0].data && sl_matrix_reads_parts(&model->head);
    if (!sl_matrix_reads_parts(embed)) {
        model->embedding_bytes = embed->packed_bytes;
        if (is_made && !is_heads) {
            release_matrix(model, source, 1, embed);
        }
    } else if (is_made && !is_heads) {
        model->embedding_bytes = (size_t)embed->n * sl_dtype_row_bytes(embed->dtype, embed->k);
    }
    model->memory_bytes += model->embedding_bytes;
}

static enum sl_status check_stop(const struct loader *l) {
    bool stops = l->progress != NULL && atomic_load(&l->progress->stops);
    return stops ? sl_fail(l->err, SL_ERR_CANCELLED, "stopped while the model was loaded") : SL_OK;
}

// Loads embedding, layers, final norm, head.
static enum sl_status load_tensors(struct loader *l) {
    struct sl_model *model = l->model;
    const struct sl_model_config *c = &model->config;
    const struct sl_family_matrix head = {.parts = {{l->family->head, SL_EXTENT_V}}};
    struct sl_tensor_source embed[SL_MAX_PARTS];
    SL_TRY(check_stop(l)); // perhaps while another process packed
    SL_TRY(load_embedding(l, embed));
    for (int i = 0; i < c->n_layers; i++) {
        SL_TRY(check_stop(l));
        SL_TRY(load_layer(l, i));
    }
    SL_TRY(check_stop(l));
    SL_TRY(load_norm(l, l->family->final_norm, c->hidden, &model->final_norm));
    SL_TRY(c->tied_embeddings ? load_tied_head(l, embed) : load_matrix(l, &head, c->hidden, false, &model->head));
    finish_embedding(model, embed);
    return SL_OK;
}

// Returns the floats of all norms and biases.
static size_t vector_floats(const struct sl_model_config *c) {
    const struct sl_family *family = c->family;
    size_t norm_vectors = family->norm == SL_NORM_LAYER ? 2 : 1, layer = 0;
    for (int i = 0; i < SL_N_LAYER_MATRICES; i++) {
        layer += c->has_bias[i] ? vector_stride(matrix_rows(c, &family->matrices[i])) : 0;
    }
    const char *const head_norms[] = {family->q_norm, family->k_norm};
    for (size_t i = 0; i < 2; i++) {
        layer += head_norms[i] != NULL ? norm_vectors * vector_stride(c->head_dim) : 0;
    }
    layer += (family->mlp_norm != NULL ? 2 : 1) * norm_vectors * vector_stride(c->hidden);
    return (size_t)c->n_layers * layer + norm_vectors * vector_stride(c->hidden);
}

// Lets a device tune its products now, and not in the first request. Retaining heads are multiplied in another way.
static enum sl_status prepare_products(const struct sl_model *model, struct sl_stream *stream, struct sl_error *err) {
    if (model->ops->prepare == NULL) {
        return SL_OK;
    }
    for (int l = 0; l < model->config.n_layers; l++) {
        const struct sl_model_layer *layer = &model->layers[l];
        const struct sl_matrix *matrices[] = {&layer->qkv, &layer->o, &layer->up, &layer->down};
        for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
            model->ops->prepare(stream, matrices[i]);
        }
    }
    return sl_stream_wait(stream, err);
}

// Loads everything. If the device has its own memory, vectors are gathered in a shared block and copied at once.
static enum sl_status load_all(struct sl_model *model, const char *model_dir, enum sl_weight_format weights,
                               struct sl_stream *stream, struct sl_model_progress *progress, struct sl_error *err) {
    size_t bytes = vector_floats(&model->config) * sizeof(float);
    bool one = model->device->ops->one_memory;
    float *vectors = one ? model->vectors : sl_device_alloc(model->device, SL_MEMORY_SHARED, bytes);
    SL_FAIL_IF(vectors == NULL, err, SL_ERR_EXHAUSTED, "out of memory for %zu bytes of norms", bytes);
    if (!sl_shared_weights_are_ready(model->shared)) {
        sl_tensors_will_read(model->tensors);
    }
    struct loader loader = {.model = model,
                            .family = model->config.family,
                            .stream = stream,
                            .weights = weights,
                            .keeps_codes = model->ops->keeps_codes && weights == SL_WEIGHT_STORED,
                            .err = err,
                            .layer = -1,
                            .vectors = vectors,
                            .next_vector = vectors,
                            .progress = progress};
    enum sl_status status = load_tensors(&loader);
    if (!one) {
        sl_stream_copy(stream, model->vectors, vectors, bytes);
        enum sl_status copied = sl_stream_wait(stream, status == SL_OK ? err : NULL);
        SL_THEN(status, copied);
        sl_device_free(model->device, SL_MEMORY_SHARED, vectors);
    }
    status = status == SL_OK && model->shared != NULL ? sl_model_share_end(model, model_dir, err) : status;
    SL_THEN(status, prepare_products(model, stream, err));
    if (status == SL_OK && loader.notes[0] != '\0') {
        sl_log_info("engine", "%s: %s", model_dir, loader.notes);
    }
    return status == SL_OK ? sl_retaining_load(model, model_dir, stream, err) : status;
}

static enum sl_status allocate(struct sl_model *model, struct sl_error *err) {
    const struct sl_model_config *c = &model->config;
    model->inv_freq = calloc(SL_MAX_ROPE_SETS * (size_t)c->rotary_dim / 2, sizeof *model->inv_freq);
    model->layers = calloc((size_t)c->n_layers, sizeof *model->layers);
    model->vectors = sl_device_alloc(model->device, SL_MEMORY_REPLICATED, vector_floats(c) * sizeof(float));
    SL_FAIL_IF(model->inv_freq == NULL || model->layers == NULL || model->vectors == NULL, err, SL_ERR_EXHAUSTED,
               "out of memory for a model of %d layers", c->n_layers);
    for (int set = 0; set < SL_MAX_ROPE_SETS; set++) {
        double *inv_freq = model->inv_freq + (size_t)set * (size_t)c->rotary_dim / 2;
        sl_rope_inv_freq(c, set, inv_freq);
        model->ropes[set] = (struct sl_rope){c->head_dim, c->rotary_dim, inv_freq, c->rope.scale};
    }
    return SL_OK;
}

struct loading {
    const char *model_dir;
    const struct sl_ops *ops;
    enum sl_weight_format weights;
    struct sl_stream *stream;
    struct sl_model_progress *progress; // may be NULL
};

static enum sl_status load(const struct loading *l, bool shares, struct sl_model **model_out, struct sl_error *err) {
    int64_t begin_ns = sl_now_ns();
    SL_NEW_OR_FAIL(struct sl_model, model, err, "out of memory");
    model->ops = l->ops;
    model->device = l->stream->device;
    enum sl_status status = sl_model_config_load(l->model_dir, &model->config, err);
    SL_THEN(status, sl_tensors_open(l->model_dir, &model->config, &model->tensors, err));
    SL_THEN(status, allocate(model, err));
    if (status == SL_OK) {
        if (l->progress != NULL) { // first: waiting for another process is progress, too
            atomic_store(&l->progress->total_bytes, sl_tensors_bytes(model->tensors));
        }
        if (shares) {
            sl_model_share_begin(model, l->model_dir, l->weights, l->stream, l->progress);
        }
        status = load_all(model, l->model_dir, l->weights, l->stream, l->progress, err);
    }
    SL_TRY_OR(status, sl_model_destroy(&model));
    double seconds = (double)(sl_now_ns() - begin_ns) / 1e9;
    sl_log_info("engine", "%s: %.1f MB of weights, %.1f MB in memory as %s for tier %s, loaded in %.2f s", l->model_dir,
                (double)model->weight_bytes / 1e6, (double)model->memory_bytes / 1e6, sl_weight_format_name(l->weights),
                l->ops->name, seconds);
    *model_out = model;
    return SL_OK;
}

enum sl_status sl_model_load(const char *model_dir, const struct sl_ops *ops, enum sl_weight_format weights,
                             struct sl_stream *stream, struct sl_model_progress *progress, struct sl_model **model_out,
                             struct sl_error *err) {
    const struct loading loading = {model_dir, ops, weights, stream, progress};
    return load(&loading, false, model_out, err);
}

enum sl_status sl_model_load_shared(const char *model_dir, const struct sl_ops *ops, enum sl_weight_format weights,
                                    struct sl_stream *stream, struct sl_model_progress *progress,
                                    struct sl_model **model_out, struct sl_error *err) {
    const struct loading loading = {model_dir, ops, weights, stream, progress};
    enum sl_status status = load(&loading, stream->device->ops->one_memory, model_out, err);
    if (status == SL_ERR_PEER_STALE) {
        sl_log_warn("engine", "%s: weights are not shared: those of another process have another layout", model_dir);
        status = load(&loading, false, model_out, err);
    }
    return status;
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
    m->ops->unpack(&m->embed);
    sl_shared_weights_close(&m->shared);
    sl_tensors_close(&m->tensors);
    sl_safetensors_close(&m->retaining_tensors);
    free(m->layers);
    sl_device_free(m->device, SL_MEMORY_REPLICATED, m->vectors);
    free(m->inv_freq);
    free(m);
    *model = NULL;
}
