// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: documents as keys in etcd, so that the next leader has them.
 *
 *          PREFIX/documents/<hash of tenant and name>      document_record.h, without the text
 *          PREFIX/texts/<hash of tenant and name>/<0000>   the text, compressed (zlib), in pieces that etcd takes
 *
 * Design: the record is written last, so a text without one was not added, and is removed by the next leader. Both are
 *         removed at once. etcd refuses the changes of a coordinator that does not lead any more. etcd keeps its last 5000
 *         changes and more in memory (--snapshot-count), at twice their bytes, also of texts that were removed: hence zlib.
 * Threads: one at a time for each etcd.
 */
#pragma once

#include "coordinator/documents/document_record.h"
#include "coordinator/election/etcd.h"

// etcd takes no change at all when it has 2 GiB, by default, and then there is no leader either.
#define SL_DOCUMENTS_ETCD_BYTES ((size_t)256 << 20) // of all texts

// Writes a document; is_new: with its text. SL_ERR_PEER_LOST as sl_etcd_put(), SL_ERR_EXHAUSTED.
enum sl_status sl_document_etcd_write(struct sl_etcd *etcd, int64_t term, const struct sl_document *document,
                                      bool is_new, struct sl_error *err);
// Removes a document; one that does not exist is not an error. SL_ERR_PEER_LOST.
enum sl_status sl_document_etcd_remove(struct sl_etcd *etcd, int64_t term, const struct sl_document *document,
                                       struct sl_error *err);
// Reads all documents; a damaged one stays in etcd, and the log names it. SL_ERR_PEER_LOST, SL_ERR_PEER_CORRUPT, SL_ERR_EXHAUSTED.
enum sl_status sl_documents_etcd_read(struct sl_etcd *etcd, int64_t term, sl_document_fn fn, void *arg,
                                      struct sl_error *err);
