// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the calls of /v1/documents: lists, adds, shows and deletes documents of the caller's tenant.
 *
 * Threads: the thread that answers; a call blocks as long as the coordinator takes.
 */
#pragma once

#include "client/libsluice/sluice.h"
#include "gateway/intake.h"

struct sl_document_call {
    struct sl_client *client;
    const char *method; // "GET", "POST" or "DELETE"
    const char *name;   // of a document; "": the list, or one to be added
    int64_t deadline_ms; // of reading a text, for requests that set none
    bool (*stopped)(void *arg); // true if the client has left
    void *arg;
};

/*
 * Makes the call. Frees the intake's body. *json_out is malloc'd, NULL if there was no memory for it. On failure *refusal
 * has the reason.
 */
enum sl_status sl_document_call_run(const struct sl_document_call *call, struct sl_intake *intake, char **json_out,
                                    struct sl_refusal *refusal);
