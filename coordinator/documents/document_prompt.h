// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the requests that documents stand for: the one whose prompt begins with a document's text, and the one that
 *          reads the text before any question.
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

// Returns SL_ERR_INVALID or SL_ERR_PRECONDITION if the request cannot be about the document; err names both.
enum sl_status sl_document_prompt_check(const struct sl_document *document, uint64_t model_fingerprint,
                                        const Sluice__V1__GenerateRequest *request, struct sl_error *err);

/*
 * Writes the request with the whole prompt. The client's request and the document must outlive it. SL_ERR_INVALID: err
 * begins with the field; SL_ERR_PRECONDITION: another model (fingerprint) has read the document; SL_ERR_EXHAUSTED.
 */
enum sl_status sl_document_prompt_init(struct sl_document_prompt *prompt_out, const struct sl_document *document,
                                       uint64_t model_fingerprint, const Sluice__V1__GenerateRequest *request,
                                       struct sl_error *err);
void sl_document_prompt_cleanup(struct sl_document_prompt *prompt);

// The job that reads a text: a prompt as a question about it would begin, and one token. Not movable.
struct sl_document_reading {
    Sluice__V1__GenerateRequest request; // points into the fields below, and to the text and recipe
    Sluice__V1__Sampling greedy;
    Sluice__V1__Chat chat;
    Sluice__V1__ChatMessage message, *messages[1];
    char label[SL_DOCUMENT_NAME_BYTES + 16];
};
// Writes the request. chat: the text is a user's message. The strings must outlive it.
void sl_document_reading_init(struct sl_document_reading *reading, const char *name, const char *text,
                              const char *recipe, bool chat);
