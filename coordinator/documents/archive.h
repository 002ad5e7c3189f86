// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: where documents outlive the process: etcd (document_etcd.h), a folder (document_file.h), or nowhere.
 * Threads: one at a time; the term from any.
 */
#pragma once

#include <stdatomic.h>

#include "coordinator/documents/document_etcd.h"

struct sl_document_archive {
    char *folder;         // owned; NULL: none
    struct sl_etcd *etcd; // NULL: none
    _Atomic int64_t term; // the caller's, with which etcd takes changes; 0: none
};

// SL_ERR_EXHAUSTED. folder "": none.
enum sl_status sl_document_archive_open(struct sl_document_archive *archive_out, const char *folder,
                                        struct sl_etcd *etcd, struct sl_error *err);
void sl_document_archive_close(struct sl_document_archive *archive);

/*
 * Reads all documents. With etcd and a folder, moves to etcd what fn takes of the folder's documents: they are from the time
 * when this coordinator was alone. Statuses: document_file.h, document_etcd.h.
 */
enum sl_status sl_document_archive_read(struct sl_document_archive *archive, int64_t term, sl_document_fn fn, void *arg,
                                        struct sl_error *err);
// Writes a document; is_new: with its text. Statuses likewise.
enum sl_status sl_document_archive_write(struct sl_document_archive *archive, const struct sl_document *document,
                                         bool is_new, struct sl_error *err);
enum sl_status sl_document_archive_remove(struct sl_document_archive *archive, const struct sl_document *document,
                                          struct sl_error *err);
