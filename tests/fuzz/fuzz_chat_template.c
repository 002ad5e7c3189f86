// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for chat templates: whatever the template and the messages are, rendering ends, gives
 * well-formed UTF-8 or an error with a text, and gives the same again.
 *
 * Design: the input is a template. A zero byte and a conversation may follow it: a JSON list of strings, in which roles
 * and texts alternate.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat/chat_internal.h"
#include "engine/text/tokenizer/tokenizer.h"

#define MAX_MESSAGES 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static const char *string_at(const json_t *list, size_t i, const char *otherwise) {
    const char *string = json_string_value(json_array_get(list, i));
    return string ? string : otherwise;
}

static void check_render(const struct sl_chat_template *chat_template, const json_t *list, bool prompt) {
    struct sl_chat_message messages[MAX_MESSAGES];
    struct sl_chat chat = {.messages = messages, .add_generation_prompt = prompt, .time_ms = 1735689600000};
    while (chat.n_messages < MAX_MESSAGES && 2 * chat.n_messages < json_array_size(list)) {
        struct sl_chat_message *message = &messages[chat.n_messages];
        message->role = string_at(list, 2 * chat.n_messages, "user");
        message->content = string_at(list, 2 * chat.n_messages + 1, "");
        chat.n_messages++;
    }
    char *texts[2] = {NULL, NULL};
    struct sl_error err = {0};
    enum sl_status status = sl_chat_template_render(chat_template, &chat, &texts[0], &err);
    require((status == SL_OK) == (texts[0] != NULL) && (status == SL_OK || err.text[0]));
    require(sl_chat_template_render(chat_template, &chat, &texts[1], NULL) == status);
    if (status == SL_OK) {
        require(sl_utf8_valid(texts[0], strlen(texts[0]), NULL) && strcmp(texts[0], texts[1]) == 0);
    } else {
        require(sl_utf8_valid(err.text, strlen(err.text), NULL));
    }
    free(texts[0]);
    free(texts[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *source = malloc(size + 1);
    require(source != NULL);
    memcpy(source, data, size);
    source[size] = '\0';
    size_t n_source = strlen(source);
    json_t *list = n_source < size ? json_loadb(source + n_source + 1, size - n_source - 1, 0, NULL)
                                   : json_pack("[ssssss]", "system", " s\n", "user", "q<|end|> \xc3\xa9", "assistant",
                                               "<think>\nt\n</think>\n\nanswer");
    struct sl_chat_template *chat_template = NULL;
    struct sl_error err = {0};
    enum sl_status status = sl_chat_template_parse(source, &chat_template, &err);
    require((status == SL_OK) == (chat_template != NULL));
    require(status == SL_OK || (err.text[0] && sl_utf8_valid(err.text, strlen(err.text), NULL)));
    if (chat_template) {
        check_render(chat_template, list, true);
        check_render(chat_template, list, false);
    }
    sl_chat_template_destroy(&chat_template);
    json_decref(list);
    free(source);
    return 0;
}
