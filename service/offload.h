// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: prefill's side of offloaded layers: their pages go to kvstores while the prompt is being read, and come back
 *          tile by tile when attention needs them, so that this worker holds a constant number of tokens of them.
 *
 * Design: what is held here is [held, n_tokens), held a multiple of SL_ATTEND_SPLIT: the tokens of the split at hand, and
 *         of splits whose stretches have not been acknowledged. After every step the full pages are shipped as a stretch
 *         (prefill's step sizes are multiples of SL_PAGE_SLOTS for recipes that offload) by a thread of its own, while the
 *         engine reads the next chunk. In an offloaded layer attention goes over [0, held) in tiles of SL_ATTEND_SPLIT
 *         slots, fetched by one-sided reads into two buffers, one being read while the other is computed on, the next
 *         layer's first tile among them; then over what is held (ops->attend_before, ops->attend): the bits are those of
 *         one attention over everything.
 *
 * Failure: a store that is lost or full ends the job with its name (SL_ERR_PEER_LOST, SL_ERR_EXHAUSTED): the coordinator
 *          tries again with other stores. With replicas every stretch goes to both, reads come from the first that lives.
 * Threads: the functions below are the engine's thread's and the handler's, one after the other; the ships have a thread.
 */
#ifndef SL_SERVICE_OFFLOAD_H
#define SL_SERVICE_OFFLOAD_H

#include "kvcache/kvcache.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "retrieve/lanes.h"
#include "service/node.h"

struct sl_offload;

struct sl_offload_config {
    struct sl_node *node;
    const struct sl_plan *plan;
    const char *job_id;
    uint64_t model_fingerprint; // of the rope set
    const int32_t *tokens;      // [plan->n_prompt]
    Sluice__V1__StoreShare *const *stores;
    size_t n_stores;
    struct sl_rpc_call *parent; // of the calls made here; may be NULL
};

// Opens the annexes at all stores. SL_ERR_INVALID: the shares do not cover every lane `replicas` times.
enum sl_status sl_offload_open(const struct sl_offload_config *config, struct sl_offload **offload_out,
                               struct sl_error *err);
void sl_offload_close(struct sl_offload **offload); // ends ships and reads; releases annexes that were not handed on

// Tokens of the prompt's beginning that every share has already: reading may begin there (a multiple of
// SL_PAGE_SLOTS), or n_prompt.
int64_t sl_offload_n_stored(const struct sl_offload *offload);

// Behind a step: ship what is new, and let go of pages in `session` that are not needed here any more. Waits only for
// memory: when two stretches are on their way already.
enum sl_status sl_offload_step(struct sl_offload *offload, struct sl_session *session, struct sl_error *err);

// In place of ops->attend for an offloaded layer while prefill reads.
enum sl_status sl_offload_attend(struct sl_offload *offload, int layer, const struct sl_attend *attend,
                                 struct sl_error *err);

/*
 * The prompt has been read: the last stretch, then wait until every annex can be asked about all of it. The shares as
 * decode needs them: *shares_out is malloc'd with everything in it and freed by sl_annex_shares_free(). From then on the
 * leases are the receiver's.
 */
enum sl_status sl_offload_finish(struct sl_offload *offload, struct sl_session *session, int64_t deadline_ns,
                                 Sluice__V1__AnnexShare ***shares_out, size_t *n_shares_out, struct sl_error *err);
void sl_annex_shares_free(Sluice__V1__AnnexShare ***shares, size_t n_shares);

struct sl_offload_stats {
    int64_t shipped_bytes, shipped_tokens, stored_tokens;
    int64_t read_back_bytes, read_back_wait_ns;
};
void sl_offload_get_stats(const struct sl_offload *offload, struct sl_offload_stats *stats_out);

#endif
