// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tensors of a model by the names that its family has for them, whatever file they lie in: safetensors, or GGUF.
 *
 * Design: finding looks at the directory alone. Reading gives rows of a type that kernels know: where they lie, if the file
 *         has them like that, or else rows that are made here. GGUF has types of its own (engine/model/gguf/blocks.h), other names,
 *         and for Llamas another order of the rows of q and k: the two channels that rotate together are neighbours there.
 * Threads: none; reading keeps account of what was made.
 */
#pragma once

#include "engine/model/gguf/blocks.h"
#include "engine/model/safetensors.h"

struct sl_model_config;
struct sl_tensors;

// A tensor in a file: `rows` of `columns`; of one dimension: rows of one.
struct sl_tensor_source {
    const struct sl_block_type *type;
    const unsigned char *data; // in the mapping
    size_t bytes;
    int64_t rows, columns;
    int head_dim; // of heads whose rows are to be put in order; 0: they are
};

// SL_ERR_NOT_FOUND, SL_ERR_INVALID, SL_ERR_IO, SL_ERR_UNSUPPORTED.
enum sl_status sl_tensors_open(const char *model, const struct sl_model_config *config, struct sl_tensors **tensors_out,
                               struct sl_error *err);
void sl_tensors_close(struct sl_tensors **tensors);
void sl_tensors_will_read(const struct sl_tensors *tensors); // soon, all of it
size_t sl_tensors_bytes(const struct sl_tensors *tensors);   // of all tensors, as stored

// As sl_safetensors_find().
enum sl_status sl_tensors_find(const struct sl_tensors *tensors, const char *name, int n_dims, int64_t rows,
                               int64_t columns, struct sl_tensor_source *source_out, struct sl_error *err);

/*
 * The type that rows of all n sources can be had as. Nothing is lost but what 16 bits round: blocks of quantized weights become
 * codes where these are exact (Q8_0, Q4_0, Q5_0, Q3_K), or else `widened` (sl_ops.widened), and bf16 where f16 has no room for them;
 * f32 if `format` quantizes them anyway, so that they are rounded once.
 */
enum sl_dtype sl_sources_type(const struct sl_tensor_source *sources, int n, enum sl_dtype widened,
                              enum sl_weight_format format);

// Rows of `dtype`, which the members of the stream make if they do not lie there. They stay until they are released, or the
// tensors are closed. SL_ERR_EXHAUSTED.
enum sl_status sl_tensors_read(struct sl_tensors *tensors, const struct sl_tensor_source *source, enum sl_dtype dtype,
                               struct sl_stream *stream, struct sl_rows *rows_out, struct sl_error *err);
// What was made is freed; what is mapped gives its memory back and may still be read.
void sl_tensors_release(struct sl_tensors *tensors, const struct sl_tensor_source *source, const struct sl_rows *rows);
