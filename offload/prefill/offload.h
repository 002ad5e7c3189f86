// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: prefill's side of offloaded layers: their pages go to kvstores while the prompt is being read, and come back
 *          tile by tile when attention needs them, so that this worker holds a bounded number of tokens of them.
 *
 * Design: what is held here is [held, n_slots), held a multiple of SL_ATTEND_SPLIT: the tokens of the split at hand, and
 *         of splits that the stores do not answer for yet. Segments are shipped by a thread of the job's own while the
 *         engine reads on, each as soon as all of its tokens have been read. They are cut at multiples of
 *         SL_KV_SEGMENT_TOKENS tokens whatever the steps were, so that prompts with the same beginning have the same
 *         segments and stores keep one of each; the last one is cut once more, behind its last full page, so that a
 *         longer prompt finds what it can use. In an offloaded layer attention goes over [0, held) in tiles of
 *         SL_ATTEND_SPLIT slots, fetched by one-sided reads into two buffers: while one is computed on, the next tile is
 *         read into the other, the next offloaded layer's first one while this layer's MLP runs. Then comes what is held
 *         (ops->attend_before, ops->attend): the bits are those of one attention over everything.
 *
 * Failure: a store that is lost or full ends the job with its name (SL_ERR_PEER_LOST, SL_ERR_EXHAUSTED): the coordinator
 *          tries again with other stores. With replicas every segment goes to both; reads come from the first that lives.
 *          Reads are one-sided and see no lease: what a worker that was stopped for longer than a lease has read may be
 *          another's. sl_offload_finish() succeeds only when every lease has lived beyond the last read; until then
 *          nothing that depends on one may leave this job (of place=offload with a budget no state between chunks is
 *          archived).
 * Threads: the functions below are the engine's thread's and the handler's, one after the other; the ships have a thread.
 */
#pragma once

#include "compress/plan/plan.h"
#include "kvcache/capsule.h"
#include "node/node.h"
#include "offload/annex/lanes.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "tensor/ops.h"

struct sl_offload;

struct sl_offload_config {
    struct sl_node *node;
    const struct sl_plan *plan; // all of these must stay valid
    const char *job_id;
    uint64_t model_fingerprint;    // of the rope set
    const int32_t *tokens;         // [plan->n_prompt]
    const struct sl_hash128 *salt; // of their hashes
    Sluice__V1__StoreShare *const *stores;
    size_t n_stores;
    struct sl_rpc_call *parent; // of the calls made here; may be NULL
};

/*
 * Whose segments of a prompt are alike: those of one model, but where resident layers are quantized those of one recipe. A
 * prompt may be read on from such pages (a stored prefix, a conversation's next turn), which gives other bits than reading
 * all of it: nobody whose recipe does not quantize them shall meet these.
 */
uint64_t sl_offload_fingerprint(const struct sl_plan *plan, uint64_t model_fingerprint);

/*
 * Slots and tokens: a segment, an annex and what is held here are counted in slots of a lane. Where the recipe does not thin
 * (sl_recipe_thins()) slot j is token j. Where it does, the prompt's first n tokens are the first
 * sl_plan_offloaded_slots(plan, n) slots of every lane; the newest sl_plan_undecided_slots() of them may still be evicted,
 * and are not shipped before the prompt has been read. Slots of prompts that begin alike are alike as far as their chunks
 * are, which the names of segments do not tell: such annexes are found again by the same prompt under the same recipe alone.
 */

// Opens the annexes at all stores. SL_ERR_INVALID: the shares do not cover every lane once a replica.
enum sl_status sl_offload_open(const struct sl_offload_config *config, struct sl_offload **offload_out,
                               struct sl_error *err);
/*
 * Ends ships and reads and releases annexes that were not handed on. Before the session goes, whose pages may still be
 * on their way. Accepts NULL, nulls.
 */
void sl_offload_close(struct sl_offload **offload);

// Slots from the first on that every share has already: a multiple of SL_PAGE_SLOTS, or all.
int64_t sl_offload_n_stored(const struct sl_offload *offload);
bool sl_offload_is_stored(const struct sl_offload *offload); // all
// The last token at or before n_tokens where reading can begin with what the stores have: whole pages, and whole splits
// where rows are kept in another format than they are read in; 0 where the recipe thins.
int64_t sl_offload_begins_at(const struct sl_offload *offload, int64_t n_tokens);

// Of a device with memory of its own: what segments on their way and tiles that are read back take of staging memory. 0: nothing.
size_t sl_offload_staging_bytes(const struct sl_offload *offload);
// They are taken, until sl_offload_close(), once and before sl_offload_begin(). SL_ERR_EXHAUSTED: there is no room now.
enum sl_status sl_offload_stage(struct sl_offload *offload, struct sl_error *err);

/*
 * Make `session`, which is empty or holds sl_offload_begins_at() tokens, ready for reading on: of its offloaded layers the
 * slots that this worker must hold are fetched. Blocks for them.
 * SL_ERR_EXHAUSTED: no room in the arena.
 */
enum sl_status sl_offload_begin(struct sl_offload *offload, struct sl_session *session, struct sl_error *err);

// Behind a step: ship what is new, and let go of pages in `session` that are not needed here any more. Waits only when
// SL_KV_SEGMENTS_QUEUED segments are on their way already. Comes back with the failure of ships that went before.
enum sl_status sl_offload_step(struct sl_offload *offload, struct sl_session *session, struct sl_error *err);

// In place of ops->attend for an offloaded layer while prefill reads.
enum sl_status sl_offload_attend(struct sl_offload *offload, int layer, const struct sl_attend *attend,
                                 struct sl_error *err);

/*
 * The prompt has been read (or, session == NULL, every share had all of it): the last segments, then wait until every
 * annex can be asked about all of it. SL_AGAIN: not yet at until_ns; call it again. On success the shares as decode needs
 * them: *shares_out is malloc'd with everything in it and freed by sl_annex_shares_free().
 */
enum sl_status sl_offload_finish(struct sl_offload *offload, struct sl_session *session, int64_t until_ns,
                                 Sluice__V1__AnnexShare ***shares_out, size_t *n_shares_out, struct sl_error *err);
void sl_annex_shares_free(Sluice__V1__AnnexShare ***shares, size_t n_shares);
// Somebody else has the shares: the leases are theirs, and sl_offload_close() does not end them.
void sl_offload_hand_on(struct sl_offload *offload);

// What the buffers for reading back take from the arena now, and will take at most.
size_t sl_offload_arena_bytes(const struct sl_offload *offload);

struct sl_offload_stats {
    // Replicas count as often as there are; tokens that have slots.
    int64_t shipped_bytes, shipped_tokens, stored_tokens;
    int64_t read_back_bytes, read_back_wait_ns;
};
void sl_offload_get_stats(const struct sl_offload *offload, struct sl_offload_stats *stats_out);
