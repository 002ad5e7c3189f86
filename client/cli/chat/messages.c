// SPDX-License-Identifier: Apache-2.0
#include "client/cli/chat/messages.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/close.h"
#include "client/cli/message_json.h"
#include "client/cli/request.h"

#define MAX_MESSAGES 4096 // limit of one request

static enum sl_status no_memory(struct sl_error *err) {
    return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the conversation");
}

static enum sl_status grow(struct sl_messages *m, struct sl_error *err) {
    size_t capacity = m->capacity > 0 ? 2 * m->capacity : 16;
    Sluice__V1__ChatMessage *items = realloc(m->items, capacity * sizeof *items);
    m->items = items ? items : m->items;
    Sluice__V1__ChatMessage **list = realloc(m->list, capacity * sizeof *list);
    m->list = list ? list : m->list;
    if (!items || !list) {
        return no_memory(err);
    }
    for (size_t i = 0; i < capacity; i++) {
        m->list[i] = &m->items[i];
    }
    m->capacity = capacity;
    return SL_OK;
}

enum sl_status sl_messages_add(struct sl_messages *m, const char *role, const char *content, struct sl_error *err) {
    SL_FAIL_IF(m->n >= MAX_MESSAGES, err, SL_ERR_INVALID,
               "the conversation has %zu messages, the most that a request takes; /new", m->n);
    enum sl_status status = m->n == m->capacity ? grow(m, err) : SL_OK;
    char *role_copy = status == SL_OK ? strdup(role) : NULL, *content_copy = status == SL_OK ? strdup(content) : NULL;
    if (!role_copy || !content_copy) {
        free(role_copy);
        free(content_copy);
        return status == SL_OK ? no_memory(err) : status;
    }
    sluice__v1__chat_message__init(&m->items[m->n]);
    m->items[m->n].role = role_copy;
    m->items[m->n].content = content_copy;
    m->n++;
    m->n_asked = 0;
    return SL_OK;
}

void sl_messages_drop_last(struct sl_messages *m) {
    if (m->n > 0) {
        m->n--;
        free(m->items[m->n].role);
        free(m->items[m->n].content);
        m->n_asked = 0;
    }
}

static void drop_documents(struct sl_messages *m) {
    free(m->documents);
    m->documents = NULL;
    m->n_documents = 0;
}

void sl_messages_clear(struct sl_messages *m) {
    size_t n_kept = m->n > 0 && strcmp(m->items[0].role, "system") == 0;
    while (m->n > n_kept) {
        sl_messages_drop_last(m);
    }
    drop_documents(m);
}

void sl_messages_cleanup(struct sl_messages *m) {
    while (m->n > 0) {
        sl_messages_drop_last(m);
    }
    drop_documents(m);
    free(m->text);
    free(m->items);
    free(m->list);
    *m = (struct sl_messages){0};
}

enum sl_status sl_messages_add_document(struct sl_messages *m, char *document, struct sl_error *err) {
    size_t n = strlen(document);
    enum sl_status status =
        m->n_documents + n > SL_MAX_PROMPT_BYTES
            ? sl_fail(err, SL_ERR_INVALID,
                      "documents of %zu bytes are more than %zu MiB, the most that one message carries",
                      m->n_documents + n, SL_MAX_PROMPT_BYTES >> 20)
            : SL_OK;
    char *all = status == SL_OK ? realloc(m->documents, m->n_documents + n + 2) : NULL;
    SL_THEN(status, all ? SL_OK : no_memory(err));
    if (status == SL_OK) {
        memcpy(all + m->n_documents, document, n);
        all[m->n_documents + n] = '\n';
        all[m->n_documents + n + 1] = '\0';
        m->documents = all;
        m->n_documents += n + 1;
    }
    free(document);
    return status;
}

enum sl_status sl_messages_add_user(struct sl_messages *m, const char *line, struct sl_error *err) {
    if (!m->documents) {
        return sl_messages_add(m, "user", line, err);
    }
    char *content;
    enum sl_status status = asprintf(&content, "%s%s", m->documents, line) < 0 ? no_memory(err) : SL_OK;
    if (status == SL_OK) {
        status = sl_messages_add(m, "user", content, err);
        free(content);
    }
    if (status == SL_OK) {
        m->n_asked = m->n_documents;
        drop_documents(m);
    }
    return status;
}

bool sl_messages_take_back(struct sl_messages *m) {
    size_t n = m->n_asked;
    bool any = n > 0 && !m->documents;
    if (any) {
        m->documents = strndup(m->items[m->n - 1].content, n);
        m->n_documents = m->documents ? n : 0;
    }
    sl_messages_drop_last(m);
    return any && m->documents;
}

// Joins messages to a text: questions start on lines of their own, and answers follow them directly.
static enum sl_status join(struct sl_messages *m, struct sl_error *err) {
    size_t n_bytes = 1;
    for (size_t i = 0; i < m->n; i++) {
        n_bytes += strlen(m->items[i].content) + 1;
    }
    char *text = malloc(n_bytes), *end = text;
    if (!text) {
        return no_memory(err);
    }
    for (size_t i = 0; i < m->n; i++) {
        bool again = i > 0 && strcmp(m->items[i].role, "user") == 0;
        end = stpcpy(end, again ? "\n" : "");
        end = stpcpy(end, m->items[i].content);
    }
    *end = '\0';
    free(m->text);
    m->text = text;
    return SL_OK;
}

bool sl_repeats_itself(const char *text, size_t n) {
    enum { BYTES = 1024, MAX_PERIOD = 256 };
    for (size_t period = 1; n >= BYTES && period <= MAX_PERIOD; period++) {
        const char *end = text + n - BYTES;
        if (memcmp(end, end + period, BYTES - period) == 0) {
            return true;
        }
    }
    return false;
}

enum sl_status sl_messages_request(struct sl_messages *m, bool as_text, Sluice__V1__GenerateRequest *request,
                                   struct sl_error *err) {
    if (!as_text) {
        sluice__v1__chat__init(&m->chat);
        m->chat.messages = m->list;
        m->chat.n_messages = m->n;
        request->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
        request->chat = &m->chat;
        return SL_OK;
    }
    SL_TRY(join(m, err));
    request->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request->text = m->text;
    return SL_OK;
}

static json_t *as_json(const struct sl_messages *m, const char *document) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < m->n; i++) {
        json_t *one = json_pack("{s:s, s:o}", "role", m->items[i].role, "content", sl_text_json(m->items[i].content));
        if (!one || json_array_append_new(list, one) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list ? json_pack("{s:o, s:s*}", "messages", list, "document", document[0] ? document : NULL) : NULL;
}

enum sl_status sl_messages_save(const struct sl_messages *m, const char *document, const char *path,
                                struct sl_error *err) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file) {
        int why = errno;
        sl_close(fd);
        return sl_fail(err, SL_ERR_INVALID, "%s: %s%s", path, strerror(why),
                       why == EEXIST ? "; a file that is there is not overwritten" : "");
    }
    bool written = sl_json_print(as_json(m, document), JSON_INDENT(1), file);
    written &= fclose(file) == 0;
    if (!written) {
        unlink(path); // do not leave a partly written file
        return sl_fail(err, SL_ERR_IO, "%s cannot be written", path);
    }
    return SL_OK;
}
