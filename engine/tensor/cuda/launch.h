// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what of engine/tensor/ops.h the GPU computes: each function queues one operation, whose formula stands there under the name
 *          behind sl_gpu_.
 *
 * Parameters: every pointer leads to device memory, or to shared memory of the host, unless it is said to be the host's. heads:
 *         [n_heads]. x, x_stride: as struct sl_vectors and struct sl_lists: row h is x + h * x_stride. Counts: [n_heads].
 *         most_slots: at least the n_slots of every head. What it decides is how many threads there are and how much room is
 *         needed, never a result.
 *         work: what an operation puts aside, of sl_gpu_<operation>_work() bytes, at a multiple of 64; not shared between
 *         queues. layout: the host's, that of the working pages of all heads.
 * Bits:   Operations marked "exact" give the bits of engine/tensor/cpu. The others are sums in another order: still one order,
 *         whatever else is in the call.
 * Failures: none; CUDA's come back where somebody waits for the queue.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/tensor/cuda/heads.h"

struct gpu_queue; // a stream of CUDA, or of the emulator
