// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/messages.h"

#include <stdlib.h>
#include <string.h>

#include "gateway/openai/unused.h"

enum { MAX_MESSAGES = 4096 };

static const char FIELD[] = "messages";

static enum sl_status no_memory(struct sl_refusal *refusal) {
    sl_refuse(refusal, 503, "no memory for the request");
    return SL_ERR_EXHAUSTED;
}

// Rejects a field of a message, or of a part of its content, that asks for something. at: "messages[1]".
static enum sl_status check_field(struct sl_openai_request *request, enum sl_openai_place place, const char *at,
                                  const char *name, const json_t *value, struct sl_refusal *refusal) {
    bool is_known;
    SL_REFUSE_FIELD_IF(!sl_openai_asks_nothing(place, name, value, &is_known), refusal, FIELD,
                       "%s.%.40s is not supported", at, name);
    sl_openai_note_ignored(place, name, request->ignored, sizeof request->ignored);
    return SL_OK;
}

// Checks a part of a content; `at` is its place in the request.
static enum sl_status check_part(struct sl_openai_request *request, const char *at, const json_t *part,
                                 struct sl_refusal *refusal) {
    const char *type = json_string_value(json_object_get(part, "type")), *key;
    json_t *value;
    SL_REFUSE_FIELD_IF(!type || strcmp(type, "text") != 0, refusal, FIELD, "%s: type \"%.40s\" is not supported", at,
                       type ? type : "");
    SL_REFUSE_FIELD_IF(!json_is_string(json_object_get(part, "text")), refusal, FIELD, "%s: has no text", at);
    json_object_foreach((json_t *)part, key, value) {
        if (strcmp(key, "type") != 0 && strcmp(key, "text") != 0) {
            SL_TRY(check_field(request, SL_OPENAI_PART, at, key, value, refusal));
        }
    }
    return SL_OK;
}

static enum sl_status join_parts(struct sl_openai_request *request, size_t i, const json_t *parts, char **joined_out,
                                 struct sl_refusal *refusal) {
    size_t n_bytes = 0, k;
    const json_t *part;
    json_array_foreach(parts, k, part) {
        char at[64];
        snprintf(at, sizeof at, "messages[%zu].content[%zu]", i, k);
        SL_TRY(check_part(request, at, part, refusal));
        n_bytes += strlen(json_string_value(json_object_get(part, "text")));
    }
    char *joined = malloc(n_bytes + 1), *end = joined;
    if (!joined) {
        return no_memory(refusal);
    }
    *end = '\0';
    json_array_foreach(parts, k, part) {
        end = stpcpy(end, json_string_value(json_object_get(part, "text")));
    }
    *joined_out = joined;
    return SL_OK;
}

static enum sl_status check_fields(struct sl_openai_request *request, size_t i, const json_t *json,
                                   struct sl_refusal *refusal) {
    const char *key;
    json_t *value;
    char at[32];
    snprintf(at, sizeof at, "messages[%zu]", i);
    json_object_foreach((json_t *)json, key, value) {
        if (strcmp(key, "role") != 0 && strcmp(key, "content") != 0) {
            SL_TRY(check_field(request, SL_OPENAI_MESSAGE, at, key, value, refusal));
        }
    }
    return SL_OK;
}

static enum sl_status take_message(struct sl_openai_request *request, size_t i, const json_t *json,
                                   struct sl_refusal *refusal) {
    const char *role = json_string_value(json_object_get(json, "role"));
    const json_t *content = json_object_get(json, "content");
    SL_TRY(check_fields(request, i, json, refusal));
    SL_REFUSE_FIELD_IF(!role, refusal, FIELD, "messages[%zu].role: expected a string", i);
    // Clients send back an answer that had no text, such as a refusal, as null.
    const bool is_silent = strcmp(role, "assistant") == 0 && (!content || json_is_null(content));
    enum sl_status status = SL_OK;
    if (json_is_array(content)) {
        status = join_parts(request, i, content, &request->joined[i], refusal);
    } else if (!json_is_string(content) && !is_silent) {
        status = sl_refuse_field(refusal, FIELD, "messages[%zu].content: expected a string or a list of texts", i);
    }
    Sluice__V1__ChatMessage *message = &request->messages[i];
    sluice__v1__chat_message__init(message);
    message->role = (char *)(strcmp(role, "developer") == 0 ? "system" : role); // OpenAI's newer name for it
    message->content = request->joined[i] ? request->joined[i] : is_silent ? "" : (char *)json_string_value(content);
    request->message_list[i] = message;
    return status;
}

enum sl_status sl_openai_take_messages(struct sl_openai_request *request, const json_t *messages,
                                       struct sl_refusal *refusal) {
    size_t n = json_array_size(messages), i;
    SL_REFUSE_FIELD_IF(n == 0 || n > MAX_MESSAGES, refusal, FIELD, "messages: expected a list of 1 to %d",
                       MAX_MESSAGES);
    request->messages = calloc(n, sizeof *request->messages);
    request->message_list = calloc(n, sizeof *request->message_list);
    request->joined = calloc(n, sizeof *request->joined);
    if (!request->messages || !request->message_list || !request->joined) {
        return no_memory(refusal);
    }
    sluice__v1__chat__init(&request->chat);
    request->chat.messages = request->message_list;
    request->chat.n_messages = n;
    request->message.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    request->message.chat = &request->chat;
    const json_t *message;
    enum sl_status status = SL_OK;
    json_array_foreach(messages, i, message) {
        SL_THEN(status, take_message(request, i, message, refusal));
    }
    return status;
}
