// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: tells every store, once a second, which capsules are documents', learns which of them it has, and deletes
 *          documents whose time is over.
 *
 * Design: a store gets the whole set each time (Store.Protect), at the same time as all others, so that a round takes no
 *         longer than the slowest of them, and a second at most. So a store that was restarted knows it again within a
 *         second, and one that missed a deletion does not keep the capsule. A store that does not answer, or whose answer is
 *         wrong, is told less often, and so is one that other calls have found silent: a wrong answer may have 64 MiB, and a
 *         missing one takes the round its second. sl_document_keeper_tell() tells it in any case.
 * Threads: one of its own; the functions from any thread.
 */
#pragma once

#include "coordinator/documents/documents.h"
#include "coordinator/workers/registry.h"

struct sl_document_keeper;

// Starts the thread. It calls lead_fn(arg) before each round, and makes the round and calls round_fn(arg) only if that
// returns true: another coordinator may lead. All must outlive the thread. SL_ERR_EXHAUSTED.
enum sl_status sl_document_keeper_start(struct sl_documents *documents, struct sl_registry *registry,
                                        bool (*lead_fn)(void *arg), void (*round_fn)(void *arg), void *arg,
                                        struct sl_document_keeper **keeper_out, struct sl_error *err);
void sl_document_keeper_stop(struct sl_document_keeper **keeper); // accepts NULL, nulls

// Has the thread tell all stores now. Returns after a round that began after this call: each store has answered, or failed
// to answer within a second. Returns earlier at SL_TOLD_MS: a round takes longer where stores or etcd stand still.
void sl_document_keeper_tell(struct sl_document_keeper *keeper);
#define SL_TOLD_MS 5000
// Begins a round now, and does not wait for it: a store that has registered learns of its documents before they are asked.
void sl_document_keeper_hurry(struct sl_document_keeper *keeper);
// Removes a document from the registry, as sl_documents_remove(); the thread then has the stores forget its capsule.
enum sl_status sl_document_keeper_delete(struct sl_document_keeper *keeper, struct sl_document *document,
                                         struct sl_error *err);
