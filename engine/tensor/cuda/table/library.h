// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: products by a library (driver.h) instead of our own kernel: for bf16 weights and rows of prompts.
 *
 * Design: a row must not depend on how many others are in the call, and no library promises that. So a shape of matrix
 *         has one way for every number of rows, and the device is checked when a model is loaded (or when a matrix of a
 *         shape first comes). The same rows in calls of many sizes must have the same bits, and must equal our kernel's
 *         up to rounding. Otherwise our kernel is used, and the log says why.
 */
#pragma once

#include "engine/tensor/cuda/dense/launch.h"
#include "engine/tensor/cuda/table/device.h"

// Does what sl_gpu_matmul() does, by the library. Returns false, with nothing queued, where there is none or it does
// not cover this product. Waits where a shape is new.
bool sl_gpu_library_matmul(struct gpu_stream *stream, const struct gpu_matrix *w, const struct sl_matmul *args);

// Tries the library with matrices like w, if they were not tried before. Waits.
void sl_gpu_library_prepare(struct gpu_stream *stream, const struct gpu_matrix *w);

// Tries the library and returns the way for matrices like w. Returns SL_ERR_UNSUPPORTED where there is none, with a
// text that says why; SL_ERR_EXHAUSTED; and the failures of waits.
enum sl_status sl_gpu_library_try(struct gpu_stream *stream, const struct gpu_library *library,
                                  const struct gpu_matrix *w, int *way_out, struct sl_error *err);
