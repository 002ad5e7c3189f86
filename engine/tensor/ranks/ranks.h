// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: several devices that compute one model together (tensor parallelism), as one device. Each is a rank: it has its share of
 *          the weights, and of the heads of every layer.
 *
 * Design: whoever drives a model drives ranks as it would one device, and decides for all of them: they cannot disagree. An
 *         operation is called on all ranks at once, each in a thread of its own, on the share that its own device has; it returns
 *         when all have queued theirs. Sessions, pages and capsules do not know how many ranks there are: what one number of them
 *         has made any other reads.
 *
 *             weights            rows of every matrix: a rank packs its own from the file, and no other ever reads them
 *             attention          query heads, each where its KV head is, as far as they can be divided evenly
 *             slots, pages       KV heads, while they are made, chosen and moved
 *             rows               of norms, angles and the embedding, where memory is one; else every rank computes all of them
 *             what compares heads, and what is small: rank 0
 *
 *         All ranks reach all memory by the same addresses. Teams of processors have one memory, each on a NUMA node of its own where that is
 *         asked for. Other devices have their own: weights and pages lie where they are used, and every rank has a replica of the
 *         activations that products, norms and attention hand to each other; ranks gather the columns that the others computed (gather.c).
 *         Nothing is summed over ranks: the bits are those of one rank, however many there are.
 *
 * Failures: a rank whose thread or device stands still for SL_RANK_STILL_MS, or whose device fails, is lost, and the device with it: waits say which, and
 *         the process should end (engine/tensor/device.h). The thread may come back, so whoever is told ends the process
 *         soon, and frees nothing that the thread was given.
 */
#pragma once

#include "engine/tensor/ops.h"

#define SL_RANK_STILL_MS 5000

struct sl_group_ops;

struct sl_ranks_config {
    int n;
    struct sl_device *devices[SL_MAX_RANKS]; // alike, each with a team of its own; closed with the ranks
    struct sl_team *teams[SL_MAX_RANKS];     // theirs; not owned
    const struct sl_ops *ops;                // of all of them
    const struct sl_group_ops *group;        // how devices with memory of their own gather; NULL: by copies
    int64_t still_ms;                        // 0: SL_RANK_STILL_MS
};

// ops_out: the device's, and as long there as it. On failure the devices are the caller's. SL_ERR_INVALID: n. SL_ERR_EXHAUSTED.
enum sl_status sl_ranks_open(const struct sl_ranks_config *config, struct sl_device **device_out,
                             const struct sl_ops **ops_out, struct sl_error *err);

// Of a device: how many ranks it is; 1 of any other.
int sl_ranks_count(const struct sl_device *device);

// A rank's device, for memory that is to be its own; any other device is its only one.
struct sl_device *sl_ranks_device(struct sl_device *device, int rank);

// All ranks come together and do nothing: what an operation costs beside its work.
void sl_ranks_meet(struct sl_stream *stream);

// A status that a rank gave, with its text, as of that rank: what `status` is.
enum sl_status sl_ranks_say_whose(int rank, int n, enum sl_status status, const struct sl_error *why,
                                  struct sl_error *err);

// Returns how many bytes of activations a rank has sent to the memory of others, and received from it.
struct sl_ranks_traffic {
    uint64_t sent, received;
};
struct sl_ranks_traffic sl_ranks_traffic(const struct sl_device *device, int rank);

// Bytes of packed weights that a rank of the device holds.
size_t sl_ranks_weight_bytes(const struct sl_device *device, int rank);
