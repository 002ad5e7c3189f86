// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the messages of a conversation so far, and a request made of all of them.
 * Invariants: messages are "system" (at most one, the first), then "user" and "assistant" in turn; all are UTF-8.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "proto/sluice/v1/inference.pb-c.h"

struct sl_messages {
    Sluice__V1__ChatMessage *items; // role and content are owned
    Sluice__V1__ChatMessage **list; // pointers to the items
    size_t n, capacity;
    char *documents; // text to put before the next message; NULL: none
    size_t n_documents;
    size_t n_asked;        // bytes of documents at the beginning of the last message
    Sluice__V1__Chat chat; // either the chat of the last request,
    char *text;            // or its text
};

// Adds a message; content is copied. SL_ERR_INVALID: the conversation would be too long.
enum sl_status sl_messages_add(struct sl_messages *messages, const char *role, const char *content,
                               struct sl_error *err);
// Adds the user's next message, with the pending documents in front of it.
enum sl_status sl_messages_add_user(struct sl_messages *messages, const char *line, struct sl_error *err);
void sl_messages_drop_last(struct sl_messages *messages);
// Removes the last message; its documents become pending again. False: it had none, or there is no memory.
bool sl_messages_take_back(struct sl_messages *messages);
void sl_messages_clear(struct sl_messages *messages); // keeps the system message, drops documents
void sl_messages_cleanup(struct sl_messages *messages);

// Adds a document for the next message. Takes the document over in any case.
enum sl_status sl_messages_add_document(struct sl_messages *messages, char *document, struct sl_error *err);

// True if a text's last 1,024 bytes are one passage of at most 256 bytes, again and again: a small model that samples
// the likeliest token may go on so to the end of its context.
bool sl_repeats_itself(const char *text, size_t n);

// Makes the whole conversation the request's prompt: a chat, or one text of all messages in order. Valid until the next
// call.
enum sl_status sl_messages_request(struct sl_messages *messages, bool as_text, Sluice__V1__GenerateRequest *request,
                                   struct sl_error *err);

// Writes {"messages": [{"role": ..., "content": ...}, ...]}, which is valid in a body for /v1/chat/completions, with
// "document": its name unless that is "". The file must not exist.
enum sl_status sl_messages_save(const struct sl_messages *messages, const char *document, const char *path,
                                struct sl_error *err);
