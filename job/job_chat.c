// SPDX-License-Identifier: Apache-2.0
// Purpose: the prompt of a job that is given as messages. See job_chat.h.
#include "job/job_chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

static enum sl_status check(const Sluice__V1__Chat *chat, struct sl_error *err) {
    size_t n_bytes = 0;
    if (chat == NULL || chat->n_messages == 0 || chat->n_messages > SL_MAX_CHAT_MESSAGES) {
        return sl_fail(err, SL_ERR_INVALID, "%zu messages, must be 1 to %d", chat ? chat->n_messages : 0,
                       SL_MAX_CHAT_MESSAGES);
    }
    for (size_t i = 0; i < chat->n_messages; i++) {
        size_t n_role = strlen(chat->messages[i]->role);
        if (n_role < 1 || n_role > SL_MAX_ROLE_BYTES) {
            return sl_fail(err, SL_ERR_INVALID, "message %zu: the role has %zu bytes, must be 1 to %d", i, n_role,
                           SL_MAX_ROLE_BYTES);
        }
        n_bytes += strlen(chat->messages[i]->content);
    }
    return n_bytes <= SL_MAX_CHAT_BYTES
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "messages of %zu bytes, at most %zu", n_bytes, SL_MAX_CHAT_BYTES);
}

static enum sl_status encode(const struct sl_tokenizer *tokenizer, const char *text, int32_t **ids_out,
                             size_t *n_ids_out, struct sl_error *err) {
    int32_t *ids = NULL;
    size_t n_ids = 0;
    enum sl_status status = sl_tokenizer_encode(tokenizer, text, strlen(text), false, &ids, &n_ids, err);
    if (status != SL_OK) {
        return status;
    }
    if (n_ids == 0) {
        free(ids);
        return sl_fail(err, SL_ERR_INVALID, "the model's template makes nothing of these messages");
    }
    *ids_out = ids;
    *n_ids_out = n_ids;
    return SL_OK;
}

enum sl_status sl_job_chat(const struct sl_chat_template *chat_template, const struct sl_tokenizer *tokenizer,
                           const Sluice__V1__Chat *chat, int32_t **ids_out, size_t *n_ids_out, struct sl_error *err) {
    enum sl_status status = check(chat, err);
    if (status != SL_OK) {
        return status;
    }
    struct sl_chat_message *messages = malloc(chat->n_messages * sizeof(*messages));
    if (messages == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %zu messages", chat->n_messages);
    }
    for (size_t i = 0; i < chat->n_messages; i++) {
        messages[i] = (struct sl_chat_message){chat->messages[i]->role, chat->messages[i]->content};
    }
    struct sl_chat whole = {
        .messages = messages, .n_messages = chat->n_messages, .add_generation_prompt = true, .time_ms = sl_wall_ms()};
    char *text = NULL;
    status = sl_chat_template_render(chat_template, &whole, &text, err);
    if (status == SL_OK) {
        status = encode(tokenizer, text, ids_out, n_ids_out, err);
    }
    free(text);
    free(messages);
    return status;
}
