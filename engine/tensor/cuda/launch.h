// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the operations of engine/tensor/ops.h that the GPU computes. Each function queues one operation, whose
 *          formula is there under the name after sl_gpu_.
 *
 * Parameters: every pointer leads to device memory, or to shared memory of the host, unless stated to be the host's.
 *         heads: struct gpu_heads, or [n_heads]. x, x_stride: as struct sl_vectors and struct sl_lists: row h is
 *         x + h * x_stride. Counts: [n_heads]. most_slots: at least the n_slots of every head. It decides how many
 *         threads there are and how much room is needed, never a result.
 *         work: memory for intermediate results, of sl_gpu_<operation>_work() bytes, at a multiple of 64; not shared
 *         between queues.
 * Bits:   operations marked "exact" give the bits of engine/tensor/cpu. The others sum in another order, which does not
 *         depend on what else is in the call.
 * Failures: none; a wait for the queue returns CUDA's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/tensor/cuda/heads.h"
#include "engine/tensor/ops.h"

struct gpu_queue; // a stream of CUDA, or of the emulator
