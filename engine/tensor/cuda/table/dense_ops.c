// SPDX-License-Identifier: Apache-2.0
// Purpose: weights, products, norms and rotations. See ops.h.
#include <assert.h>
#include <stdlib.h>

#include "engine/tensor/cuda/table/library.h"
#include "engine/tensor/cuda/table/ops.h"
#include "engine/tensor/cuda/table/pack.h"

// The struct that sl_matrix.packed points to here.
struct gpu_packed {
    struct sl_device *device;
    void *block; // device memory
    struct gpu_matrix matrix;
    enum sl_memory memory; // the kind of memory of the block
};

// --- weights ---------------------------------------------------------------------------------------------------------

struct packing {
    const struct sl_matrix *matrix;
    const struct gpu_matrix *as;
    void *bytes;
};

static void pack_rows_of(void *arg, int64_t begin, int64_t end, int) {
    const struct packing *p = arg;
    for (int64_t j = begin; j < end; j++) {
        sl_gpu_matrix_pack_row(p->matrix, p->as, j, p->bytes);
    }
}

static void unpack(struct sl_matrix *matrix) {
    struct gpu_packed *packed = matrix->packed;
    if (packed != NULL) {
        sl_device_free(packed->device, packed->memory, packed->block);
        free(packed);
    }
    matrix->packed = NULL;
    matrix->packed_bytes = 0;
}

// Allocates the memory of a packed matrix, and sets matrix->packed; the caller writes its contents.
static enum sl_status take_packed(struct sl_device *device, enum sl_memory memory, struct sl_matrix *matrix,
                                  struct sl_error *err) {
    SL_NEW_OR_FAIL(struct gpu_packed, packed, err, "out of memory");
    sl_gpu_matrix_describe(matrix, &packed->matrix);
    packed->device = device;
    packed->memory = memory;
    packed->block = sl_device_alloc(device, memory, packed->matrix.bytes);
    if (packed->block == NULL) {
        size_t bytes = packed->matrix.bytes;
        free(packed);
        return sl_fail(err, SL_ERR_EXHAUSTED, "the device has no room for %zu bytes of weights%s", bytes,
                       memory == SL_MEMORY_SHARED ? ", which it would read from the host's memory" : "");
    }
    bool is_quantized = matrix->format != SL_WEIGHT_STORED;
    packed->matrix.weights = packed->block;
    packed->matrix.scales = is_quantized ? (const uint16_t *)((char *)packed->block + packed->matrix.scales_at) : NULL;
    packed->matrix.bias = matrix->bias;
    packed->matrix.up_bias = matrix->up_bias > 0 ? matrix->up_bias : matrix->n / 2;
    packed->matrix.first_id = matrix->first_id;
    matrix->rounds_x = packed->matrix.kind != GPU_WEIGHT_F32 && packed->matrix.kind != GPU_WEIGHT_F16;
    matrix->packed = packed;
    matrix->packed_bytes = packed->matrix.bytes;
    return SL_OK;
}

static enum sl_status pack_into(struct sl_stream *stream, enum sl_memory memory, struct sl_matrix *matrix,
                                struct sl_error *err) {
    SL_TRY(take_packed(stream->device, memory, matrix, err));
    struct gpu_packed *packed = matrix->packed;
    size_t bytes = packed->matrix.bytes;
    bool stays = memory == SL_MEMORY_SHARED;
    struct packing packing = {matrix, &packed->matrix,
                              stays ? packed->block : sl_device_alloc(stream->device, SL_MEMORY_SHARED, bytes)};
    enum sl_status status = SL_OK;
    if (packing.bytes == NULL) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no room for %zu bytes of weights in the host's memory", bytes);
    } else {
        sl_stream_run(stream, matrix->n, 16, pack_rows_of, &packing);
        if (!stays) {
            sl_stream_copy(stream, packed->block, packing.bytes, bytes);
        }
        status = sl_stream_wait(stream, err);
    }
    if (!stays) {
        sl_device_free(stream->device, SL_MEMORY_SHARED, packing.bytes);
    }
    if (status != SL_OK) {
        unpack(matrix);
    }
    return status;
}

static enum sl_status pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return pack_into(stream, SL_MEMORY_DEVICE, matrix, err);
}

// Uses host memory, which kernels reach: a step looks up only some rows of a gigabyte of embeddings.
static enum sl_status pack_rows(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return pack_into(stream, SL_MEMORY_SHARED, matrix, err);
}

static enum sl_status draw(struct sl_stream *stream, struct sl_matrix *matrix, bool is_rows, uint64_t first,
                           struct sl_error *err) {
    assert(matrix->dtype == SL_BF16 && matrix->format == SL_WEIGHT_STORED);
    enum sl_memory memory = is_rows ? SL_MEMORY_SHARED : SL_MEMORY_DEVICE;
    SL_TRY(take_packed(stream->device, memory, matrix, err));
    struct gpu_packed *packed = matrix->packed;
    sl_gpu_draw(sl_gpu_stream(stream)->queue, &packed->matrix, first, packed->block);
    enum sl_status status = sl_stream_wait(stream, err);
    if (status != SL_OK) {
        unpack(matrix);
    }
    return status;
}

static const struct gpu_matrix *on_device(const struct sl_matrix *matrix) {
    return &((const struct gpu_packed *)matrix->packed)->matrix;
}

// --- dense -----------------------------------------------------------------------------------------------------------

static size_t matmul_scratch(const struct sl_matrix *, int64_t) {
    return 0;
}

static void matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    struct sl_matmul product = *args;
    struct gpu_stream *s = sl_gpu_stream(stream);
    if (args->reading && sl_gpu_library_matmul(s, on_device(w), args)) {
        return;
    }
    size_t bytes = sl_gpu_matmul_work(on_device(w), args->m, args->reading);
    product.scratch = bytes > 0 ? sl_gpu_scratch(s, bytes) : NULL;
    if (bytes == 0 || product.scratch != NULL) {
        sl_gpu_matmul(s->queue, on_device(w), &product);
    }
}

static void prepare(struct sl_stream *stream, const struct sl_matrix *w) {
    sl_gpu_library_prepare(sl_gpu_stream(stream), on_device(w));
}

static void embed(struct sl_stream *stream, const struct sl_matrix *table, const int32_t *ids, int64_t m, float *out) {
    sl_gpu_embed(sl_gpu_stream(stream)->queue, on_device(table), ids, m, out);
}

static void norm(struct sl_stream *stream, const struct sl_norm *norm, struct sl_row_vectors x, float *out,
                 int64_t out_stride) {
    sl_gpu_norm(sl_gpu_stream(stream)->queue, norm, x, out, out_stride);
}

static void angles(struct sl_stream *stream, const struct sl_rope *rope, const int64_t *positions, int64_t m,
                   float *cosines, float *sines) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    const double *inv_freq = sl_gpu_describe(s, rope->inv_freq, (size_t)rope->rotary_dim / 2 * sizeof *inv_freq);
    if (inv_freq != NULL) {
        struct sl_rope of = {rope->head_dim, rope->rotary_dim, inv_freq, rope->scale};
        sl_gpu_angles(s->queue, &of, positions, m, cosines, sines);
    }
}

static void rotate(struct sl_stream *stream, const struct sl_rope *rope, const float *cosines, const float *sines,
                   struct sl_row_vectors x) {
    sl_gpu_rotate(sl_gpu_stream(stream)->queue, rope, cosines, sines, x);
}

static void pick(struct sl_stream *stream, const float *logits, int64_t n_vocab, const struct sl_pick *asked, int64_t m,
                 struct sl_picked *picked_out) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    const struct sl_pick *there = sl_gpu_describe(s, asked, (size_t)m * sizeof *asked);
    void *work = sl_gpu_scratch(s, sl_gpu_pick_work(m));
    if (there != NULL && work != NULL) {
        sl_gpu_pick(s->queue, logits, n_vocab, there, m, work, picked_out);
    }
}

// --- between ranks ---------------------------------------------------------------------------------------------------

static void put_columns(struct sl_stream *stream, const struct sl_columns *columns, int rank) {
    sl_gpu_put_columns(sl_gpu_stream(stream)->queue, columns, rank);
}

static void take_columns(struct sl_stream *stream, const struct sl_columns *columns, int rank) {
    sl_gpu_take_columns(sl_gpu_stream(stream)->queue, columns, rank);
}

void sl_gpu_dense_fill(struct sl_ops *ops) {
    ops->widened = SL_BF16;
    ops->pack = pack;
    ops->unpack = unpack;
    ops->pack_rows = pack_rows;
    ops->prepare = prepare;
    ops->draw = draw;
    ops->matmul_scratch = matmul_scratch;
    ops->matmul = matmul;
    ops->embed = embed;
    ops->norm = norm;
    ops->angles = angles;
    ops->rotate = rotate;
    ops->pick = pick;
    ops->put_columns = put_columns;
    ops->take_columns = take_columns;
}
