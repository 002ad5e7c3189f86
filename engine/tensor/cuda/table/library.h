// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: products by a library (driver.h) in the place of our own kernel: of bf16 weights, for rows of prompts.
 *
 * Design: a row must not depend on how many others are in the call, and nobody promises that of a library. So a shape of matrix has
 *         one way for every number of rows, and when a model is loaded (else when a matrix of a shape first comes) the device is asked: the same rows in calls of
 *         many sizes must have the same bits, and be our kernel's but for rounding. Else our kernel goes on, and the log says why.
 */
#pragma once

#include "engine/tensor/cuda/dense/launch.h"
#include "engine/tensor/cuda/table/device.h"

// sl_gpu_matmul() by the library. false: there is none, or not for this product; nothing is queued then. Waits where a shape is new.
bool sl_gpu_library_matmul(struct gpu_stream *stream, const struct gpu_matrix *w, const struct gpu_product *args);

// Tries the library with matrices like w, if it was not tried with them before. Waits.
void sl_gpu_library_prepare(struct gpu_stream *stream, const struct gpu_matrix *w);

// The way for matrices like w, which is tried. SL_ERR_UNSUPPORTED: none, says why. SL_ERR_EXHAUSTED, and what waits return.
enum sl_status sl_gpu_library_try(struct gpu_stream *stream, const struct gpu_library *library,
                                  const struct gpu_matrix *w, int *way_out, struct sl_error *err);
