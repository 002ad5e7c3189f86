// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tensors of a model by the family's names for them, from either kind of file: safetensors, or GGUF.
 *
 * Design: finding reads only the directory. Reading returns rows of a type that kernels support: in place if the file
 *         has them in that form, otherwise rows that are made here. GGUF has its own types
 *         (engine/model/gguf/blocks.h), other names, and for Llamas another order of the rows of q and k: the two
 *         channels that rotate together are adjacent there.
 * Threads: none; reading records which rows were made.
 */
#pragma once

#include "engine/model/gguf/blocks.h"
#include "engine/model/safetensors.h"

struct sl_model_config;
struct sl_shared_weights;
struct sl_tensors;

// A tensor in a file: `rows` of `columns`; a one-dimensional tensor has rows of one.
struct sl_tensor_source {
    const struct sl_block_type *type;
    const unsigned char *data; // in the mapping
    size_t bytes;
    int64_t rows, columns;
    int head_dim; // of heads whose rows must be reordered; 0: none
};

// Opens the tensors of a model. SL_ERR_NOT_FOUND, SL_ERR_INVALID, SL_ERR_IO, SL_ERR_UNSUPPORTED.
enum sl_status sl_tensors_open(const char *model, const struct sl_model_config *config, struct sl_tensors **tensors_out,
                               struct sl_error *err);
void sl_tensors_close(struct sl_tensors **tensors);
void sl_tensors_will_read(const struct sl_tensors *tensors); // announces that all tensors will be read soon
size_t sl_tensors_bytes(const struct sl_tensors *tensors);   // bytes of all tensors, as stored

// Shows processes that wait for `shared`, which must not be closed before, that rows are made. NULL: none wait.
void sl_tensors_tell(struct sl_tensors *tensors, struct sl_shared_weights *shared);

uint64_t sl_tensors_identity(const struct sl_tensors *tensors); // mapped_file.h, of all files

// Finds a tensor, as sl_safetensors_find() does.
enum sl_status sl_tensors_find(const struct sl_tensors *tensors, const char *name, int n_dims, int64_t rows,
                               int64_t columns, struct sl_tensor_source *source_out, struct sl_error *err);

/*
 * Returns the type in which rows of all n sources can be read. The only loss is rounding to 16 bits. Blocks of
 * quantized weights become codes if these are exact (Q8_0, Q4_0, Q5_0, Q3_K), else `widened` (sl_ops.widened), and
 * bf16 if their range exceeds f16. They become f32 if `format` quantizes them anyway, so that they are rounded once.
 */
enum sl_dtype sl_sources_type(const struct sl_tensor_source *sources, int n, enum sl_dtype widened,
                              enum sl_weight_format format);

// Reads rows of `dtype`; the members of the stream make them if the file does not have them. They stay until they are
// released, or the tensors are closed. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_tensors_read(struct sl_tensors *tensors, const struct sl_tensor_source *source, enum sl_dtype dtype,
                               struct sl_stream *stream, struct sl_rows *rows_out, struct sl_error *err);
// Frees rows that were made; drops the pages of mapped rows, which can still be read.
void sl_tensors_release(struct sl_tensors *tensors, const struct sl_tensor_source *source, const struct sl_rows *rows);
