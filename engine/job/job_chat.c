// SPDX-License-Identifier: Apache-2.0
#include "engine/job/job_chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

static enum sl_status check(const struct sl_chat_template *chat_template, const Sluice__V1__Chat *chat,
                            struct sl_error *err) {
    size_t n_bytes = 0;
    SL_FAIL_IF(chat == NULL || chat->n_messages == 0 || chat->n_messages > SL_MAX_CHAT_MESSAGES, err, SL_ERR_INVALID,
               "%zu messages, must be 1 to %d", chat ? chat->n_messages : 0, SL_MAX_CHAT_MESSAGES);
    for (size_t i = 0; i < chat->n_messages; i++) {
        size_t n_role = strlen(chat->messages[i]->role);
        SL_FAIL_IF(n_role < 1 || n_role > SL_MAX_ROLE_BYTES, err, SL_ERR_INVALID,
                   "message %zu: the role has %zu bytes, must be 1 to %d", i, n_role, SL_MAX_ROLE_BYTES);
        SL_FAIL_IF(!sl_chat_template_knows_role(chat_template, chat->messages[i]->role), err, SL_ERR_INVALID,
                   "message %zu: the model's template has no role \"%s\"", i, chat->messages[i]->role);
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
    SL_TRY(sl_tokenizer_encode(tokenizer, text, strlen(text), false, &ids, &n_ids, err));
    if (n_ids == 0) {
        free(ids);
        return sl_fail(err, SL_ERR_INVALID, "the model's template makes nothing of these messages");
    }
    *ids_out = ids;
    *n_ids_out = n_ids;
    return SL_OK;
}

// Renders the first n messages up to the start of the next answer. answer: if not NULL, replaces the content of
// message `at`.
static enum sl_status render(const struct sl_chat_template *chat_template, const Sluice__V1__Chat *chat, size_t n,
                             size_t at, const char *answer, char **text_out, struct sl_error *err) {
    struct sl_chat_message *messages = malloc(n * sizeof(*messages));
    SL_FAIL_IF(messages == NULL, err, SL_ERR_EXHAUSTED, "no memory for %zu messages", n);
    for (size_t i = 0; i < n; i++) {
        bool replaced = answer != NULL && i == at;
        messages[i] = (struct sl_chat_message){chat->messages[i]->role, replaced ? answer : chat->messages[i]->content};
    }
    struct sl_chat whole = {
        .messages = messages, .n_messages = n, .add_generation_prompt = true, .time_ms = sl_wall_ms()};
    enum sl_status status = sl_chat_template_render(chat_template, &whole, text_out, err);
    free(messages);
    return status;
}

enum sl_status sl_job_chat(const struct sl_chat_template *chat_template, const struct sl_tokenizer *tokenizer,
                           const Sluice__V1__Chat *chat, int32_t **ids_out, size_t *n_ids_out, struct sl_error *err) {
    char *text = NULL;
    enum sl_status status = check(chat_template, chat, err);
    SL_THEN(status, render(chat_template, chat, chat->n_messages, 0, NULL, &text, err));
    SL_THEN(status, encode(tokenizer, text, ids_out, n_ids_out, err));
    free(text);
    return status;
}

// ---- a further turn -------------------------------------------------------------------------------------------------

// Placeholder for an answer whose tokens exist already. No template trims, escapes or recognizes it.
#define ANSWER "sluice-answer-7c1f0e2b"

static size_t without_space(const char *text) {
    size_t n = strlen(text);
    while (n > 0 && strchr(" \t\r\n", text[n - 1])) {
        n--;
    }
    return n;
}

// Returns the text after the answer in `whole`, which must consist of `before`, the answer, and more. NULL: it does
// not.
static const char *behind_answer(const char *before, const char *whole) {
    size_t n = without_space(before); // some templates begin an answer with a space that they omit later
    const char *answer = strstr(whole, ANSWER);
    if (answer == NULL || strstr(answer + 1, ANSWER) != NULL || (size_t)(answer - whole) < n ||
        memcmp(before, whole, n) != 0 || strspn(whole + n, " \t\r\n") < (size_t)(answer - whole) - n) {
        return NULL;
    }
    return answer + strlen(ANSWER);
}

enum sl_status sl_job_chat_turn(const struct sl_chat_template *chat_template, const struct sl_tokenizer *tokenizer,
                                const Sluice__V1__Chat *chat, size_t n_before, int32_t **ids_out, size_t *n_ids_out,
                                struct sl_error *err) {
    char *before = NULL, *whole = NULL;
    enum sl_status status = check(chat_template, chat, err);
    if (status == SL_OK && (n_before < 1 || n_before + 1 >= chat->n_messages)) {
        status = sl_fail(err, SL_ERR_INVALID, "%zu messages, and no new one behind the answer to the first %zu",
                         chat->n_messages, n_before);
    }
    SL_THEN(status, render(chat_template, chat, n_before, 0, NULL, &before, err));
    SL_THEN(status, render(chat_template, chat, chat->n_messages, n_before, ANSWER, &whole, err));
    if (status == SL_OK) {
        const char *rest = behind_answer(before, whole);
        status = rest != NULL
                     ? encode(tokenizer, rest, ids_out, n_ids_out, err)
                     : sl_fail(err, SL_ERR_PRECONDITION,
                               "the model's template writes earlier messages differently after new ones are added");
    }
    free(before);
    free(whole);
    return status;
}
