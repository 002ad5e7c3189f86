// SPDX-License-Identifier: Apache-2.0
#include "coordinator/documents/document_prompt.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Joins the document's text, a line break, and what comes after it, as `sluice run` joins a file and a question.
static enum sl_status join(const struct sl_document *document, const char *rest, char **text_out,
                           struct sl_error *err) {
    size_t n_rest = strlen(rest);
    char *text = malloc(document->text_bytes + 1 + n_rest + 1);
    SL_FAIL_IF(text == NULL, err, SL_ERR_EXHAUSTED, "no memory for a prompt of %zu bytes",
               document->text_bytes + n_rest);
    memcpy(text, document->text, document->text_bytes);
    text[document->text_bytes] = '\n';
    memcpy(text + document->text_bytes + 1, rest, n_rest + 1);
    *text_out = text;
    return SL_OK;
}

enum sl_status sl_document_prompt_check(const struct sl_document *document, uint64_t model_fingerprint,
                                        const Sluice__V1__GenerateRequest *request, struct sl_error *err) {
    SL_FAIL_IF(document->model_fingerprint != model_fingerprint, err, SL_ERR_PRECONDITION,
               "document: %s was read by another model (%016" PRIx64 ", the cluster's is %016" PRIx64
               "): delete it, and add it again",
               document->name, document->model_fingerprint, model_fingerprint);
    switch (request->prompt_case) {
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT:
        return !document->chat
                   ? SL_OK
                   : sl_fail(err, SL_ERR_INVALID,
                             "document: %s was read for chats: ask it by a user's message, or add it with raw",
                             document->name);
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT:
        SL_FAIL_IF(!document->chat, err, SL_ERR_INVALID,
                   "document: %s was read for texts: ask it by a text, or add it without raw", document->name);
        return request->chat->n_messages > 0 && strcmp(request->chat->messages[0]->role, "user") == 0
                   ? SL_OK
                   : sl_fail(err, SL_ERR_INVALID,
                             "document: %s was read at the beginning of a chat: the first message must be a user's",
                             document->name);
    default:
        return sl_fail(err, SL_ERR_INVALID, "document: the prompt after it must be a text or a chat");
    }
}

enum sl_status sl_document_prompt_init(struct sl_document_prompt *prompt_out, const struct sl_document *document,
                                       uint64_t model_fingerprint, const Sluice__V1__GenerateRequest *request,
                                       struct sl_error *err) {
    SL_TRY(sl_document_prompt_check(document, model_fingerprint, request, err));
    struct sl_document_prompt *prompt = prompt_out;
    *prompt = (struct sl_document_prompt){.request = *request};
    if (request->recipe[0] == '\0') {
        prompt->request.recipe = (char *)document->recipe;
    }
    bool is_chat = request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    SL_TRY(join(document, is_chat ? request->chat->messages[0]->content : request->text, &prompt->text, err));
    if (!is_chat) {
        prompt->request.text = prompt->text;
        return SL_OK;
    }
    size_t n = request->chat->n_messages;
    prompt->messages = malloc(n * sizeof *prompt->messages);
    if (prompt->messages == NULL) {
        sl_document_prompt_cleanup(prompt);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %zu messages", n);
    }
    memcpy(prompt->messages, request->chat->messages, n * sizeof *prompt->messages);
    prompt->first = *request->chat->messages[0];
    prompt->first.content = prompt->text;
    prompt->messages[0] = &prompt->first;
    prompt->chat = *request->chat;
    prompt->chat.messages = prompt->messages;
    prompt->request.chat = &prompt->chat;
    return SL_OK;
}

void sl_document_prompt_cleanup(struct sl_document_prompt *prompt) {
    free(prompt->messages);
    free(prompt->text);
    prompt->messages = NULL;
    prompt->text = NULL;
}

void sl_document_reading_init(struct sl_document_reading *reading, const char *name, const char *text,
                              const char *recipe, bool chat) {
    Sluice__V1__GenerateRequest *request = &reading->request;
    sluice__v1__generate_request__init(request);
    sluice__v1__sampling__init(&reading->greedy);
    reading->greedy.temperature_present_case = SLUICE__V1__SAMPLING__TEMPERATURE_PRESENT_TEMPERATURE;
    request->sampling = &reading->greedy;
    request->recipe = (char *)recipe;
    request->max_new_tokens_present_case = SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    request->max_new_tokens = 1;
    snprintf(reading->label, sizeof reading->label, "document %s", name);
    request->label = reading->label;
    if (!chat) {
        request->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
        request->text = (char *)text;
        return;
    }
    sluice__v1__chat__init(&reading->chat);
    sluice__v1__chat_message__init(&reading->message);
    reading->message.role = (char *)"user";
    reading->message.content = (char *)text;
    reading->messages[0] = &reading->message;
    reading->chat.messages = reading->messages;
    reading->chat.n_messages = 1;
    request->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    request->chat = &reading->chat;
}
