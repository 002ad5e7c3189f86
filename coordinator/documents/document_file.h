// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a document as a file in the folder of --state, so that it survives the coordinator's process.
 *
 *          DIR/document-<hash of tenant and name>    document_record.h
 *
 * Design: not in the database of jobs, which the coordinator deletes when the disk does not take what jobs write. A file
 *         appears whole or not at all (base/whole_file.h). A damaged one is renamed to damaged-document-..., so that an
 *         operator can look at it.
 */
#pragma once

#include "coordinator/documents/document_record.h"

// SL_ERR_IO: the disk is full, or fails. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_document_file_write(const char *folder, const struct sl_document *document, struct sl_error *err);
// Removes the file; one that does not exist is no error. SL_ERR_IO.
enum sl_status sl_document_file_remove(const char *folder, const struct sl_document *document, struct sl_error *err);

// Reads all documents of the folder. SL_ERR_IO: the folder cannot be listed.
enum sl_status sl_document_files_read(const char *folder, sl_document_fn fn, void *arg, struct sl_error *err);
