// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what has been said in a conversation, and a request made of all of it.
 * Invariants: messages are "system" (at most one, the first), then "user" and "assistant" by turns; all are UTF-8.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "proto/sluice/v1/inference.pb-c.h"

struct sl_messages {
    Sluice__V1__ChatMessage *items; // role and content are owned
    Sluice__V1__ChatMessage **list; // to the items
    size_t n, capacity;
    char *documents; // that the next message begins with; NULL: none
    size_t n_documents;
    size_t n_asked;        // bytes of documents that the last message begins with
    Sluice__V1__Chat chat; // of the request that was made last,
    char *text;            // or its text
};

// content is copied. SL_ERR_INVALID: more than a conversation may hold.
enum sl_status sl_messages_add(struct sl_messages *messages, const char *role, const char *content,
                               struct sl_error *err);
// The user's next one, with the documents in front of it, which are used up then.
enum sl_status sl_messages_add_user(struct sl_messages *messages, const char *line, struct sl_error *err);
void sl_messages_drop_last(struct sl_messages *messages);
// The same; the documents that it began with stand before the next one. False: it had none, or there is no memory.
bool sl_messages_take_back(struct sl_messages *messages);
void sl_messages_clear(struct sl_messages *messages); // the system message stays, documents do not
void sl_messages_cleanup(struct sl_messages *messages);

// A document for the next message; taken over in any case.
enum sl_status sl_messages_add_document(struct sl_messages *messages, char *document, struct sl_error *err);

// The whole conversation as the request's prompt: a chat, or one text in which messages follow on each other. Valid until the next call.
enum sl_status sl_messages_request(struct sl_messages *messages, bool as_text, Sluice__V1__GenerateRequest *request,
                                   struct sl_error *err);

// {"messages": [{"role": ..., "content": ...}, ...]}, as a body for /v1/chat/completions has them. The file must not exist.
enum sl_status sl_messages_save(const struct sl_messages *messages, const char *path, struct sl_error *err);
