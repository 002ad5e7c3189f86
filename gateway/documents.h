// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the calls of /v1/documents: lists, adds, shows and deletes documents of the caller's tenant, and passes them on as
 *          files (net/document/exported.h).
 *
 * Threads: the thread that answers; a call blocks as long as the coordinator takes.
 */
#pragma once

#include <microhttpd.h>

#include "client/libsluice/sluice.h"
#include "gateway/intake.h"

enum sl_document_verb {
    SL_DOCUMENT_NONE, // not about documents
    SL_DOCUMENT_LIST,
    SL_DOCUMENT_ADD,
    SL_DOCUMENT_SHOW,
    SL_DOCUMENT_DELETE,
    SL_DOCUMENT_IMPORT,
    SL_DOCUMENT_EXPORT,
    SL_DOCUMENT_MEASURE, // only the size of the exported file
};

struct sl_document_call {
    struct sl_client *client;
    enum sl_document_verb verb;
    const char *name;           // of a document; "": the list, or one to be added
    int64_t keep_ms;            // of an import
    int64_t deadline_ms;        // of reading a text, for requests that set none; of an import or export
    bool (*stopped)(void *arg); // true if the client has left
    // Import: as in struct sl_document_pieces.
    enum sl_status (*read_fn)(void *arg, void *bytes_out, size_t size, size_t *n_out, struct sl_error *err);
    // Export: called with each piece of the file, of file_bytes in all. Only the first call is made to measure it, with n 0.
    enum sl_status (*write_fn)(void *arg, const void *bytes, size_t n, int64_t file_bytes, struct sl_error *err);
    void *arg;
};

/*
 * Makes the call. Frees the intake's body, if there is one. *json_out is malloc'd, NULL if there was no memory for it, or after an export. On
 * failure *refusal has the reason.
 */
enum sl_status sl_document_call_run(const struct sl_document_call *call, struct sl_intake *intake, char **json_out,
                                    struct sl_refusal *refusal);

// Reads the query of POST /v1/documents/import?name=NAME&keep_ms=TIME, whose body is the file. *name_out lives as long as
// the request. SL_ERR_INVALID: *refusal has the reason.
enum sl_status sl_documents_read_query(struct MHD_Connection *connection, const char **name_out, int64_t *keep_ms_out,
                                       struct sl_refusal *refusal);
