// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention of decode over an offloaded layer (TailorKV, section 4.2): a few channels of the keys tell which
 *          slots are worth fetching.
 *
 *     ahead (in layer l - 1)   q''_c = | mean over the group of the predicted query |;  per KV head the `channels` c with
 *                              the largest q''_c * absmax_c, absmax over the prompt's keys
 *     in layer l               score_j = sum over those c of (group mean of q)_c * K_jc, for prompt slots outside of
 *                              sinks and recent; the topk largest, with sinks, recent and all generated slots, are
 *                              attended to
 *
 * Layer 0 has no layer before it: it cannot be offloaded (compress/recipe.c refuses it).
 * Here the offloaded pages are in this process's memory; what is fetched is counted all the same.
 */
#ifndef SL_COMPRESS_RETRIEVE_H
#define SL_COMPRESS_RETRIEVE_H

#include "compress/recipe.h"
#include "engine/ops.h"
#include "kvcache/session.h"

struct sl_retriever;

// plan->recipe offloads layers. n_prompt: slots before it are the prompt's.
enum sl_status sl_retriever_create(const struct sl_plan *plan, const struct sl_ops *ops, struct sl_team *team,
                                   const struct sl_session *session, int64_t n_prompt,
                                   struct sl_retriever **retriever_out, struct sl_error *err);
void sl_retriever_destroy(struct sl_retriever **retriever);

/*
 * The attention of one layer: for offloaded layers by retrieval (a call of one row; more rows attend densely), for the
 * others by ops->attend. Where layer + 1 is offloaded, attend->next_q chooses its channels.
 */
enum sl_status sl_retriever_attend(struct sl_retriever *retriever, int layer, const struct sl_attend *attend,
                                   struct sl_error *err);

// Slots fetched so far (topk of every KV head and step).
int64_t sl_retriever_fetched(const struct sl_retriever *retriever);

#endif
