// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: several devices that compute one model together (tensor parallelism), as one device. Each is a rank: it has
 *          its share of the weights, and of the heads of every layer.
 *
 * Design: the caller uses ranks as it would use one device, and decides for all of them: they cannot disagree. An
 *         operation is called on all ranks at once, each in a thread of its own, on the share of its own device. The
 *         call returns when all ranks have queued their parts. Sessions, pages and capsules do not depend on the number
 *         of ranks: one number of ranks can read what another number has written.
 *
 *             weights            rows of every matrix: a rank packs its own from the file, and no other rank reads them
 *             attention          query heads, each on the rank of its KV head where they can be divided evenly
 *             slots, pages       KV heads, while they are made, chosen and moved
 *             rows               of norms, angles and the embedding, where memory is one; else every rank computes all
 *             rank 0             operations that compare heads, and small ones
 *
 *         All ranks reach all memory by the same addresses. Teams of processors have one memory; each team can run on a
 *         NUMA node of its own. Other devices have memory of their own: weights and pages are in the memory of the rank
 *         that uses them, and every rank has a replica of the activations that pass between products, norms and
 *         attention. Ranks gather the columns that the others computed (gather.c). Nothing is summed over ranks: the
 *         bits are those of one rank, for any number of ranks.
 *
 * Failures: a rank is lost when its thread or device makes no progress for SL_RANK_STILL_MS, or when its device fails.
 *         The device of all ranks then fails too: waits say which rank, and the process should end
 *         (engine/tensor/device.h). The thread may return later, so the caller must end the process soon and free
 *         nothing that the thread uses.
 */
#pragma once

#include "engine/tensor/ops.h"

#define SL_RANK_STILL_MS 5000

struct sl_group_ops;

struct sl_ranks_config {
    int n;
    struct sl_device *devices[SL_MAX_RANKS]; // of one kind, each with a team of its own; closed with the ranks
    struct sl_team *teams[SL_MAX_RANKS];     // the devices' teams; not owned
    const struct sl_ops *ops;                // the operations of all of them
    const struct sl_group_ops *group;        // the collective for devices with memory of their own; NULL: they copy
    int64_t still_ms;                        // 0: SL_RANK_STILL_MS
};

// Opens the ranks. *ops_out lives as long as the device. On failure the caller still owns the devices. Returns
// SL_ERR_INVALID for a wrong n; SL_ERR_EXHAUSTED.
enum sl_status sl_ranks_open(const struct sl_ranks_config *config, struct sl_device **device_out,
                             const struct sl_ops **ops_out, struct sl_error *err);

// Returns how many ranks a device consists of; 1 for any other device.
int sl_ranks_count(const struct sl_device *device);

// Returns a rank's device, for memory that only this rank uses; for any other device, that device.
struct sl_device *sl_ranks_device(struct sl_device *device, int rank);

// Runs an empty operation on all ranks, to measure what an operation costs besides its work.
void sl_ranks_barrier(struct sl_stream *stream);

// Returns `status`, which a rank returned, with an error text that names the rank.
enum sl_status sl_ranks_say_whose(int rank, int n, enum sl_status status, const struct sl_error *why,
                                  struct sl_error *err);

// Returns the bytes of packed weights that a rank of the device holds.
size_t sl_ranks_weight_bytes(const struct sl_device *device, int rank);
