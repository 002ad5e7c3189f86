// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: prefill's side of offloaded layers: their pages go to kvstores while the prompt is being read, and come back
 *          tile by tile when attention needs them, so that this worker holds a bounded number of their tokens.
 *
 * Design: this worker holds slots [held, n_slots), held a multiple of SL_ATTEND_SPLIT: the tokens of the current split,
 *         and of splits that the stores do not serve yet. A thread of the job ships segments while the engine reads on,
 *         each as soon as all of its tokens have been read. They are cut at multiples of SL_KV_SEGMENT_TOKENS tokens,
 *         independently of the steps, so that prompts with the same beginning have the same segments and stores keep
 *         one of each. The last segment is cut once more, after its last full page, so that a longer prompt can reuse
 *         its full pages. In an offloaded layer attention goes over [0, held) in tiles of SL_ATTEND_SPLIT slots,
 *         fetched by one-sided reads into two buffers: while one is computed on, the next tile is read into the other;
 *         during this layer's MLP it is the first tile of the next offloaded layer. Then attention goes over the held
 *         slots (ops->attend_before, ops->attend): the result is bit-identical to one attention over everything.
 *
 * Failure: a store that is lost or full ends the job with its name (SL_ERR_PEER_LOST, SL_ERR_EXHAUSTED): the
 *          coordinator retries with other stores. With replicas every segment goes to both; reads come from the first
 *          that works. One-sided reads do not check leases: a worker that was suspended for longer than a lease may
 *          have read another session's data. sl_offload_finish() succeeds only if every lease outlived the last read.
 *          Until then, results that depend on a read must not leave this job (of place=offload with a budget no state
 *          between chunks is archived).
 * Threads: the engine's thread and the handler's call the functions below, one after the other; the ships have a
 *          thread.
 */
#pragma once

#include "engine/compress/plan/plan.h"
#include "engine/kvcache/capsule.h"
#include "net/node/node.h"
#include "engine/offload/remote_kv/offloaded_heads.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "engine/tensor/ops.h"

struct sl_offload;

struct sl_offload_config {
    struct sl_node *node;
    const struct sl_plan *plan; // all of these must stay valid
    const char *job_id;
    const struct sl_capsule_id *capsule; // of the layers that stay; its model is the rope set's
    const int32_t *tokens;               // [plan->n_prompt]
    const struct sl_hash128 *salt;       // of the tokens' hashes
    Sluice__V1__StoreShare *const *stores;
    size_t n_stores;
    struct sl_rpc_call *parent; // of the calls made here; may be NULL
    int64_t restore_ms;         // how long to wait for stores that read the prompt's document back; 1.5 s at least
    bool (*alive)(void *arg);   // called several times a second while they do; false gives up. May be NULL
    void *arg;
};

/*
 * Slots and tokens: a segment, the remote KV and the held part are counted in slots of an offloaded head. If the recipe
 * does not thin (sl_recipe_thins()), slot j is token j. If it does, the prompt's first n tokens are the first
 * sl_plan_offloaded_slots(plan, n) slots of every offloaded head; the newest sl_plan_undecided_slots() of them may
 * still be evicted, and are not shipped before the prompt has been read. Slots of prompts with the same beginning agree
 * only as far as their chunks agree, which the names of segments do not tell. So only the same prompt under the same
 * recipe finds such remote KVs again.
 */

// Opens the remote KVs at all stores. SL_ERR_INVALID: the shares of a replica do not cover every offloaded head once.
enum sl_status sl_offload_open(const struct sl_offload_config *config, struct sl_offload **offload_out,
                               struct sl_error *err);
/*
 * Ends ships and reads, and releases remote KVs that were not passed on. Call before the session is freed, whose pages
 * may still be in transit. Accepts NULL, nulls.
 */
void sl_offload_close(struct sl_offload **offload);

// Returns how many slots from the first on every share already has: a multiple of SL_PAGE_SLOTS, or all.
int64_t sl_offload_n_stored(const struct sl_offload *offload);
bool sl_offload_is_stored(const struct sl_offload *offload); // all
// Returns the last token at or before n_tokens where reading can begin with the stored slots: whole pages, and whole
// splits if rows are kept in another format than they are read in; 0 if the recipe thins.
int64_t sl_offload_begins_at(const struct sl_offload *offload, int64_t n_tokens);

// Returns the staging memory that segments in transit and tiles take if the device has its own memory; else 0.
size_t sl_offload_staging_bytes(const struct sl_offload *offload);
// Takes that memory until sl_offload_close(); call once, before sl_offload_begin(). SL_ERR_EXHAUSTED: there is no room
// now.
enum sl_status sl_offload_stage(struct sl_offload *offload, struct sl_error *err);

/*
 * Prepares `session`, which is empty or holds sl_offload_begins_at() tokens, for reading on: fetches the slots of its
 * offloaded layers that this worker must hold. Blocks until they are there. SL_ERR_EXHAUSTED: no room in the arena.
 */
enum sl_status sl_offload_begin(struct sl_offload *offload, struct sl_session *session, struct sl_error *err);

// Call after a step: ships new segments and drops pages of `session` that are not needed here any more. Waits only
// while SL_KV_SEGMENTS_QUEUED segments are in transit. Returns the failure of earlier ships.
enum sl_status sl_offload_step(struct sl_offload *offload, struct sl_session *session, struct sl_error *err);

// Replaces ops->attend for an offloaded layer while prefill reads. Does nothing in the model's last layer, whose attention
// is not used.
enum sl_status sl_offload_attend(struct sl_offload *offload, int layer, const struct sl_attend *attend,
                                 struct sl_error *err);

/*
 * Call when the prompt has been read (or with session == NULL if every share had all of it): ships the last segments,
 * then waits until every remote KV can be asked about all of it. SL_AGAIN: not yet at until_ns; call it again. On
 * success *shares_out has the shares as decode needs them, malloc'd; free them with sl_remote_kv_shares_free().
 */
enum sl_status sl_offload_finish(struct sl_offload *offload, struct sl_session *session, int64_t until_ns,
                                 Sluice__V1__AnnexShare ***shares_out, size_t *n_shares_out, struct sl_error *err);
void sl_remote_kv_shares_free(Sluice__V1__AnnexShare ***shares, size_t n_shares);
// Passes the shares on: the receiver now owns the leases, and sl_offload_close() does not end them.
void sl_offload_pass_leases(struct sl_offload *offload);

// Returns the arena bytes that the buffers for reading back take, now or later.
size_t sl_offload_arena_bytes(const struct sl_offload *offload);

struct sl_offload_stats {
    // Each replica counts; tokens that have slots.
    int64_t shipped_bytes, shipped_tokens, stored_tokens;
    int64_t read_back_bytes, read_back_wait_ns;
    int64_t restore_ns; // waited for stores that read the prompt's document back from their disks
};
void sl_offload_get_stats(const struct sl_offload *offload, struct sl_offload_stats *stats_out);
