// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tensors of a model folder: model.safetensors, or the shards that model.safetensors.index.json lists,
 *          memory-mapped and fully checked before use.
 *
 * File: u64 header length (little endian), header (JSON: name -> dtype, shape, data_offsets), data. Offsets count
 *       from the start of the data. Sorted by offset, the tensors must follow each other without gap or overlap, and
 *       each must have exactly the bytes that its shape and type need.
 * Threads: immutable after opening.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/tensor/ops.h"

#define SL_TENSOR_MAX_DIMS 8

struct sl_tensor {
    const char *name;
    const char *dtype_name; // as in the file: "F32", "BF16", ...
    enum sl_dtype dtype;    // SL_DTYPES: a type that no kernel reads
    int n_dims;
    int64_t shape[SL_TENSOR_MAX_DIMS];
    const unsigned char *data; // in the mapping; may be unaligned
    size_t bytes;
};

struct sl_safetensors;

// Opens a folder. SL_ERR_NOT_FOUND (a file or a listed tensor is missing), SL_ERR_INVALID (malformed, truncated),
// SL_ERR_IO.
enum sl_status sl_safetensors_open(const char *model_dir, struct sl_safetensors **tensors_out, struct sl_error *err);
// Opens one file of the folder, by its name: SL_ERR_NOT_FOUND if there is none.
enum sl_status sl_safetensors_open_file(const char *model_dir, const char *name, struct sl_safetensors **tensors_out,
                                        struct sl_error *err);
void sl_safetensors_close(struct sl_safetensors **tensors);

// Returns all tensors, sorted by name.
const struct sl_tensor *sl_safetensors_list(const struct sl_safetensors *tensors, size_t *n_out);

// Returns a number for the files as they are now (mapped_file.h).
uint64_t sl_safetensors_identity(const struct sl_safetensors *tensors);

// Finds the tensor of this name, which must have this shape (n_dims 1 or 2; columns is ignored for 1) and a supported
// type. SL_ERR_NOT_FOUND, SL_ERR_INVALID or SL_ERR_UNSUPPORTED name the tensor, the found and the expected value.
enum sl_status sl_safetensors_find(const struct sl_safetensors *tensors, const char *name, int n_dims, int64_t rows,
                                   int64_t columns, const struct sl_tensor **tensor_out, struct sl_error *err);

// Tells the kernel that the whole mapping is about to be read, or that its pages may be dropped for now.
void sl_safetensors_will_read(const struct sl_safetensors *tensors);
void sl_tensor_drop_pages(const struct sl_tensor *tensor);
