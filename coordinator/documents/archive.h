// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: where documents outlive the process: etcd (document_etcd.h), the folder of --state, or nowhere.
 *
 *          DIR/document-<hash of tenant and name>    document_record.h
 *
 * Design: files are not in the database of jobs, which the coordinator deletes when the disk does not take what jobs write.
 *         A file appears whole or not at all (base/whole_file.h). A damaged one is renamed to damaged-document-..., so that
 *         an operator can look at it.
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
 * when this coordinator was alone. SL_ERR_IO: the folder cannot be listed. Further statuses: document_etcd.h.
 */
enum sl_status sl_document_archive_read(struct sl_document_archive *archive, int64_t term, sl_document_fn fn, void *arg,
                                        struct sl_error *err);
// Writes a document; is_new: with its text. SL_ERR_IO: the disk is full, or fails. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_document_archive_write(struct sl_document_archive *archive, const struct sl_document *document,
                                         bool is_new, struct sl_error *err);
// Removes it; a file that does not exist is not an error.
enum sl_status sl_document_archive_remove(struct sl_document_archive *archive, const struct sl_document *document,
                                          struct sl_error *err);
