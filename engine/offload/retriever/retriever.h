// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: decode's attention over offloaded layers: what a step attends to, and how the wait for it is hidden.
 *
 *   retrieve=near          in layer l the query goes to the store that has the keys; the topk rows come back
 *   retrieve=near,ahead=1  the query of layer l + 1 is predicted in layer l (TailorKV, eq. 12) and sent then. From
 *                          time to time the true query is asked for as well (SL_NEAR_PROBE): the share of its topk that
 *                          the prediction had is the recall, kept per layer as a moving average. A layer whose recall
 *                          is below `least_recall` asks with the true query until probes are better
 *   retrieve=pull          TailorKV's own method: in layer l - 1 the predicted query selects channels, whose keys are
 *                          fetched into one of two buffers; in layer l the true query scores them here, and the topk
 *                          rows are fetched
 *
 * A step attends to, in this order, independently of where rows came from: sinks, the topk by ascending token, the
 * recent slots, all generated tokens. So one process and a cluster compute the same bits.
 *
 * If no answer comes within the deadline, the KV heads in the question attend to their resident slots alone in this
 * layer and step. This is counted and reported to `on_fallback`: it is never silent. After `lost_ms` without any answer
 * of a share the step fails; it fails at once if its stores were lost meanwhile. A retry elsewhere gives better tokens.
 * If a prompt has no more tokens than sinks, recent and topk together, there is nothing to select: every token is
 * resident, and attention is ops->attend.
 *
 * Threads: one at a time; the engine's, once it steps.
 */
#pragma once

#include "engine/compress/plan/plan.h"
#include "engine/kvcache/session.h"
#include "engine/offload/remote_kv/source.h"

struct sl_retriever;

struct sl_retriever_config {
    const struct sl_plan *plan; // recipe: topk, channels, sinks, recent, retrieve, ahead, keep; used at creation alone
    const struct sl_ops *ops;
    struct sl_stream *stream;
    struct sl_arena *arena;     // for the hot caches: sl_plan_hot_cache_bytes(), in one process a little more
    struct sl_session *session; // see resident_only
    struct sl_source *source;   // not owned; must outlive the retriever
    // slots of an offloaded head that are offloaded: the prompt's tokens, unless the recipe thins
    int64_t n_prompt;
    /*
     * true: the session's offloaded layers are still empty: creation fetches sinks and recent slots into them. false:
     * the session holds every slot (one process); only topk come from the source, which may be NULL if there is nothing
     * to select.
     */
    bool resident_only;
    // near: a layer's offloaded heads are divided into questions that each search at least this much; 0: 4
    int64_t search_bytes;
    // MiB
    double least_recall;                                        // 0: 0.8
    int64_t deadline_ms;                                        // of one answer; 0: 500
    int64_t lost_ms;                                            // 0: 3000
    void (*on_fallback)(void *arg, int layer, const char *why); // may be NULL
    void *arg;
};

/*
 * Creates the retriever. SL_ERR_INVALID: unsupported rows, or shares that do not cover every offloaded head.
 * SL_ERR_PRECONDITION: the session does not hold what resident_only says. SL_ERR_EXHAUSTED. SL_ERR_PEER_LOST: a share
 * did not answer.
 */
enum sl_status sl_retriever_create(const struct sl_retriever_config *config, struct sl_retriever **retriever_out,
                                   struct sl_error *err);
void sl_retriever_destroy(struct sl_retriever **retriever);

// Returns true if every layer needs attend->next_q (want_next_q of engine/model/model.h), for asking ahead.
bool sl_retriever_wants_next_q(const struct sl_recipe *recipe);
bool sl_retriever_serves(const struct sl_retriever *retriever, int layer); // by retrieval, not by ops->attend

/*
 * Process one layer of one step, one row, in two parts, so that the questions of many sequences are pending before a
 * caller waits for an answer. ask sends the questions that this layer's attention still needs and those that the next
 * layer is predicted to need. attend waits and fills attend->out: offloaded layers by retrieval, others by ops->attend.
 * attend asks by itself if ask was not called. Call both for every layer of every step, in order. SL_ERR_PEER_LOST: a
 * share is lost, or has been silent for lost_ms.
 */
enum sl_status sl_retriever_ask(struct sl_retriever *retriever, int layer, const struct sl_attend *attend,
                                struct sl_error *err);
enum sl_status sl_retriever_attend(struct sl_retriever *retriever, int layer, const struct sl_attend *attend,
                                   struct sl_error *err);

struct sl_retriever_stats {
    int64_t n_steps;
    // of the topk of every offloaded head and step: came over the network; were in the hot cache
    int64_t rows_fetched, rows_kept;
    int64_t n_asks, n_fallbacks; // layers of steps; those without an answer
    int64_t n_replica_asks;
    uint64_t bytes_sent, bytes_received;
    int64_t wait_ns;  // the engine waited for an answer
    int64_t round_ns; // from request to the use of its answer, summed: 1 - wait_ns / round_ns is the hidden share
    int64_t store_ns; // of that, the search
    double recall;    // of predictions, mean over probed layers; 1 without predictions
    int64_t n_probes, n_exact; // layers of steps asked with the true query although ahead=1
    size_t hot_cache_bytes;
};
void sl_retriever_get_stats(const struct sl_retriever *retriever, struct sl_retriever_stats *stats_out);
