// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the request that a client means by naming a document: its prompt begins with the document's text.
 *
 * Design: the whole prompt is one text, which is tokenized as if the client had sent it. So the answer is that of the
 *         whole prompt, and prefill finds the document's capsule as the prompt's beginning, like any stored prefix.
 */
#pragma once

#include "coordinator/documents/document.h"
#include "proto/sluice/v1/inference.pb-c.h"

struct sl_document_prompt {
    Sluice__V1__GenerateRequest request; // points into the client's request, the document, and the fields below
    Sluice__V1__Chat chat;
    Sluice__V1__ChatMessage first;
    Sluice__V1__ChatMessage **messages; // owned
    char *text;                         // owned
};

/*
 * Writes the request with the whole prompt. The client's request and the document must outlive it. SL_ERR_INVALID: err
 * begins with the field; SL_ERR_PRECONDITION: another model (fingerprint) has read the document; SL_ERR_EXHAUSTED.
 */
enum sl_status sl_document_prompt_init(struct sl_document_prompt *prompt_out, const struct sl_document *document,
                                       uint64_t model_fingerprint, const Sluice__V1__GenerateRequest *request,
                                       struct sl_error *err);
void sl_document_prompt_cleanup(struct sl_document_prompt *prompt);
