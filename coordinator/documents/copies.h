// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: brings each document's capsule into as many stores as it should be in.
 *
 * Design: one thread copies capsules from a store that has one to the next store in the order of the document's prompts
 *         (workers/stores.h), one after another. The coordinator only asks: the source pins the capsule (Store.Lookup), the
 *         target reserves memory for it (Store.Reserve), and the source ships it there (Store.Fetch). Of too many copies,
 *         the thread has the last store in the order forget its one.
 * Threads: one of its own.
 */
#pragma once

#include "coordinator/documents/documents.h"
#include "coordinator/workers/registry.h"

struct sl_document_copies;

// Starts the thread. documents and registry must outlive it. SL_ERR_EXHAUSTED.
enum sl_status sl_document_copies_start(struct sl_documents *documents, struct sl_registry *registry,
                                        struct sl_document_copies **copies_out, struct sl_error *err);
// Gives up the copy under way, and ends the thread. Accepts NULL, nulls.
void sl_document_copies_stop(struct sl_document_copies **copies);
