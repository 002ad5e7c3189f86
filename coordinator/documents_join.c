// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: makes the prompt of a question on several documents out of the tokens that their capsules have, so that a decode
 *          worker can join the capsules (engine/runner/join.h).
 *
 *     first document, break, second document, break, ..., question        the same tokens, whether they are joined or read
 *
 * Design: each document is encoded as it was for its capsule; what its chat or begin token adds around the text is cut off by
 *         comparison with the same prompt of another text. The tokens of the whole prompt are these pieces, not those of the
 *         whole text: so a piece is found in the capsule for certain.
 *         A part begins `reread` tokens after its document does, and ends with a page of the capsule. Whatever no part covers
 *         is read: in view of everything before it. A capsule that is not the one of these tokens, as after a change of the
 *         template, makes no part. Without parts, prefill reads what follows the first document: so it is with recipes that
 *         offload layers, because stores search the keys that they have, which are those of the positions where each document
 *         was read.
 * Threads: any.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator_internal.h"
#include "coordinator/documents/document_prompt.h"
#include "engine/job/job_chat.h"

#define REREAD     32 // docs/USING.md has the measurement
#define MAX_REREAD (1 << 20)
#define AGAIN      "or have the texts read again (`sluice run --no-reuse`, by HTTP \"reuse\": false)"

struct ids {
    int32_t *ids; // owned
    size_t n;
};

// ---- what can be joined ---------------------------------------------------------------------------------------------

static enum sl_status check_fields(const Sluice__V1__GenerateRequest *request, struct sl_error *err) {
    SL_FAIL_IF(request->n_documents > SL_MAX_JOINS_OF_JOB + 1, err, SL_ERR_INVALID, "documents: %zu names, at most %d",
               request->n_documents, SL_MAX_JOINS_OF_JOB + 1);
    SL_FAIL_IF(request->document[0] != '\0', err, SL_ERR_INVALID,
               "documents: name them here or one in document, not both");
    SL_FAIL_IF(request->conversation != NULL, err, SL_ERR_INVALID,
               "documents: a conversation begins with one document: name it in document");
    for (size_t i = 0; i < request->n_documents; i++) {
        for (size_t j = 0; j < i; j++) {
            SL_FAIL_IF(strcmp(request->documents[i], request->documents[j]) == 0, err, SL_ERR_INVALID,
                       "documents: %.64s is named twice", request->documents[i]);
        }
    }
    bool given = request->reread_present_case == SLUICE__V1__GENERATE_REQUEST__REREAD_PRESENT_REREAD;
    return !given || (request->reread >= 0 && request->reread <= MAX_REREAD)
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "reread: is %" PRId32 ", must be 0 to %d", request->reread, MAX_REREAD);
}

static enum sl_status check_documents(const struct sl_coordinator *coordinator,
                                      const Sluice__V1__GenerateRequest *request, const struct sl_joined_prompt *prompt,
                                      struct sl_error *err) {
    const struct sl_document *first = prompt->documents[0];
    int64_t n_tokens = 0;
    for (int i = 0; i < prompt->n_documents; i++) {
        const struct sl_document *document = prompt->documents[i];
        SL_TRY(sl_document_prompt_check(document, coordinator->model_fingerprint, request, err));
        SL_FAIL_IF(!request->no_reuse && sl_document_is_compacted(document), err, SL_ERR_INVALID,
                   "documents: %s was read under %s, which evicts: it is asked alone; add it again under another "
                   "recipe, " AGAIN,
                   document->name, document->recipe);
        n_tokens += document->n_tokens;
    }
    for (int i = 1; i < prompt->n_documents; i++) { // last: the remedy for one that is asked alone is another
        const struct sl_document *document = prompt->documents[i];
        SL_FAIL_IF(
            !request->no_reuse && strcmp(document->recipe, first->recipe) != 0, err, SL_ERR_INVALID,
            "documents: %s was read under %s and %s under %s: only capsules of one recipe can be joined; add one "
            "of them again, " AGAIN,
            first->name, first->recipe, document->name, document->recipe);
    }
    int64_t n_positions = coordinator->model.max_positions;
    SL_FAIL_IF(n_tokens > n_positions, err, SL_ERR_INVALID,
               "documents: %s and %d more have %" PRId64 " tokens together, and the model has %" PRId64 " positions",
               first->name, prompt->n_documents - 1, n_tokens, n_positions);
    return SL_OK;
}

// ---- tokens ---------------------------------------------------------------------------------------------------------

static enum sl_status encode(const struct sl_coordinator *coordinator, const Sluice__V1__GenerateRequest *request,
                             struct ids *out, struct sl_error *err) {
    const struct sl_request_rules *rules = &coordinator->rules;
    if (request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT) {
        return sl_tokenizer_encode(rules->tokenizer, request->text, strlen(request->text), true, &out->ids, &out->n,
                                   err);
    }
    return rules->chat_template == NULL
               ? sl_fail(err, SL_ERR_INVALID, "%s", rules->no_chat_because)
               : sl_job_chat(rules->chat_template, rules->tokenizer, request->chat, &out->ids, &out->n, err);
}

static enum sl_status encode_text(const struct sl_coordinator *coordinator, const char *text, bool chat,
                                  struct ids *out, struct sl_error *err) {
    struct sl_document_reading reading;
    sl_document_reading_init(&reading, "", text, "", chat);
    return encode(coordinator, &reading.request, out, err);
}

enum sl_status sl_coordinator_encode_compacted(const struct sl_coordinator *coordinator, const char *text, bool chat,
                                               int32_t **ids_inout, int64_t *n_inout, struct sl_error *err) {
    struct ids asked = {0};
    char *question = NULL;
    SL_FAIL_IF(asprintf(&question, "%s\nQ", text) < 0, err, SL_ERR_EXHAUSTED, "no memory for a document");
    enum sl_status status = encode_text(coordinator, question, chat, &asked, err);
    free(question);
    int64_t n = 0, most = *n_inout < (int64_t)asked.n ? *n_inout : (int64_t)asked.n;
    while (status == SL_OK && n < most && (*ids_inout == NULL || (*ids_inout)[n] == asked.ids[n])) {
        n++;
    }
    if (status == SL_OK) {
        free(*ids_inout);
        *ids_inout = asked.ids;
        *n_inout = n;
    }
    return status;
}

// Writes a text of one letter that neither begins nor ends as the other text does, spaces apart.
static void choose_other(const char *text, char other_out[2]) {
    size_t n = strlen(text), first = strspn(text, " \t\r\n");
    while (n > first && strchr(" \t\r\n", text[n - 1]) != NULL) {
        n--;
    }
    other_out[0] = 'x';
    other_out[1] = '\0';
    while (n > first && (other_out[0] == text[first] || other_out[0] == text[n - 1])) {
        other_out[0]++;
    }
}

// Finds where the text's own tokens are in those of its prompt: [*begin_out, *end_out).
static enum sl_status find_text(const struct sl_coordinator *coordinator, const char *text, bool chat,
                                const struct ids *all, size_t *begin_out, size_t *end_out, struct sl_error *err) {
    char other[2];
    struct ids frame = {0};
    choose_other(text, other);
    SL_TRY(encode_text(coordinator, other, chat, &frame, err));
    size_t most = all->n < frame.n ? all->n : frame.n, begin = 0, end = 0;
    while (begin < most && all->ids[begin] == frame.ids[begin]) {
        begin++;
    }
    while (end < most - begin && all->ids[all->n - 1 - end] == frame.ids[frame.n - 1 - end]) {
        end++;
    }
    free(frame.ids);
    *begin_out = begin;
    *end_out = all->n - end;
    return SL_OK;
}

// Encodes the client's prompt, and finds where its own tokens begin.
static enum sl_status encode_question(const struct sl_coordinator *coordinator,
                                      const Sluice__V1__GenerateRequest *request, struct ids *question_out,
                                      size_t *begin_out, struct sl_error *err) {
    bool chat = request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    size_t end;
    enum sl_status status =
        chat ? SL_OK : sl_request_check_bytes(&coordinator->rules, request->text, strlen(request->text), err);
    SL_THEN(status, encode(coordinator, request, question_out, err));
    SL_TRY_OR(status, sl_error_prefix(err, chat ? "chat" : "text"));
    return find_text(coordinator, chat ? request->chat->messages[0]->content : request->text, chat, question_out,
                     begin_out, &end, err);
}

// ---- the prompt -----------------------------------------------------------------------------------------------------

static enum sl_status append(struct sl_joined_prompt *prompt, const int32_t *ids, size_t n, struct sl_error *err) {
    int32_t *grown = realloc(prompt->ids.ids, (prompt->ids.n_ids + n + 1) * sizeof *grown);
    SL_FAIL_IF(grown == NULL, err, SL_ERR_EXHAUSTED, "no memory for a prompt of %zu tokens", prompt->ids.n_ids + n);
    if (n > 0) { // a question may have no tokens, and then no array
        memcpy(grown + prompt->ids.n_ids, ids, n * sizeof *grown);
    }
    prompt->ids.ids = grown;
    prompt->ids.n_ids += n;
    return SL_OK;
}

// Names the part of a later document that is joined; its text begins at the prompt's end. Takes the tokens over if so.
static void add_part(struct sl_joined_prompt *prompt, int i, struct ids *all, size_t begin, size_t end) {
    const struct sl_document *document = prompt->documents[i];
    int64_t n_capsule = document->capsule_tokens, from = (int64_t)begin + prompt->n_reread;
    struct sl_hash128 hash =
        n_capsule < (int64_t)all->n ? sl_prefix_hash(&prompt->salt, all->ids, n_capsule) : (struct sl_hash128){{0}};
    if (!sl_hash128_equals(&hash, &document->capsule.prefix_hash)) {
        return;
    }
    int64_t until = (int64_t)end < n_capsule ? (int64_t)end : n_capsule,
            n = until / SL_PAGE_SLOTS * SL_PAGE_SLOTS - from;
    if (n < SL_PREFIX_BLOCK) {
        return;
    }
    struct sl_job_join *join = &prompt->joins[prompt->n_joins];
    *join = (struct sl_job_join){.tokens = all->ids,
                                 .n_all = n_capsule + 1,
                                 .from = from,
                                 .n_tokens = n,
                                 .at = (int64_t)prompt->ids.n_ids + prompt->n_reread,
                                 .first_key = document->first_key,
                                 .document = i};
    prompt->n_joins++;
    prompt->joined_tokens += n;
    all->ids = NULL;
}

// Appends a document and the break after it.
static enum sl_status add_document(struct sl_coordinator *coordinator, struct sl_joined_prompt *prompt, int i,
                                   const struct ids *line_break, struct sl_error *err) {
    const struct sl_document *document = prompt->documents[i];
    struct ids all = {0};
    size_t begin = 0, end = 0;
    enum sl_status status = encode_text(coordinator, document->text, document->chat, &all, err);
    SL_THEN(status, find_text(coordinator, document->text, document->chat, &all, &begin, &end, err));
    SL_TRY_OR(status, free(all.ids));
    const int32_t *ids = all.ids;
    if (i == 0) {
        begin = 0; // with what stands before every text
        prompt->first_tokens = (int64_t)end < document->capsule_tokens ? (int64_t)end : document->capsule_tokens;
    } else if (prompt->not_joined == SLUICE__V1__NOT_JOINED__NOT_JOINED_NOTHING) {
        add_part(prompt, i, &all, begin, end);
    }
    status = append(prompt, ids + begin, end - begin, err);
    SL_THEN(status, append(prompt, line_break->ids, line_break->n, err));
    free(all.ids);
    return status;
}

static enum sl_status make_tokens(struct sl_coordinator *coordinator, const Sluice__V1__GenerateRequest *request,
                                  struct sl_joined_prompt *prompt, struct sl_error *err) {
    struct ids line_break = {0}, question = {0};
    size_t begin = 0;
    enum sl_status status =
        sl_tokenizer_encode(coordinator->rules.tokenizer, "\n", 1, false, &line_break.ids, &line_break.n, err);
    SL_THEN(status, encode_question(coordinator, request, &question, &begin, err));
    for (int i = 0; status == SL_OK && i < prompt->n_documents; i++) {
        status = add_document(coordinator, prompt, i, &line_break, err);
    }
    SL_THEN(status, append(prompt, question.ids + begin, question.n - begin, err));
    free(line_break.ids);
    free(question.ids);
    return status;
}

enum sl_status sl_joined_prompt_init(struct sl_joined_prompt *prompt, struct sl_coordinator *coordinator,
                                     const struct sl_identity *caller, const Sluice__V1__GenerateRequest *request,
                                     struct sl_error *err) {
    *prompt = (struct sl_joined_prompt){.n_reread = REREAD};
    sluice__v1__token_ids__init(&prompt->ids);
    enum sl_status status = check_fields(request, err);
    SL_THEN(status, sl_tenant_salt(&coordinator->salt_secret, caller->tenant, &prompt->salt, err));
    for (size_t i = 0; status == SL_OK && i < request->n_documents; i++) {
        status = sl_coordinator_find_document(coordinator, caller->tenant, request->documents[i], &prompt->documents[i],
                                              err);
        prompt->n_documents += status == SL_OK;
        if (status != SL_OK) {
            sl_error_prefix(err, "documents");
        }
    }
    SL_THEN(status, check_documents(coordinator, request, prompt, err));
    if (status == SL_OK) {
        bool given = request->reread_present_case == SLUICE__V1__GENERATE_REQUEST__REREAD_PRESENT_REREAD;
        prompt->n_reread = given ? request->reread : prompt->n_reread;
        prompt->joins = calloc((size_t)prompt->n_documents, sizeof *prompt->joins);
        prompt->not_joined = request->no_reuse ? SLUICE__V1__NOT_JOINED__NOT_JOINED_OFF
                             : prompt->documents[0]->n_offloaded_heads > 0
                                 ? SLUICE__V1__NOT_JOINED__NOT_JOINED_OFFLOADED
                                 : SLUICE__V1__NOT_JOINED__NOT_JOINED_NOTHING;
        status = prompt->joins != NULL ? make_tokens(coordinator, request, prompt, err)
                                       : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a prompt of documents");
    }
    if (prompt->n_joins > 0) {
        prompt->not_joined = SLUICE__V1__NOT_JOINED__NOT_JOINED_NOT_SAID;
    }
    if (status != SL_OK) {
        sl_joined_prompt_cleanup(prompt);
    }
    return status;
}

void sl_joined_prompt_cleanup(struct sl_joined_prompt *prompt) {
    while (prompt->n_documents > 0) {
        sl_document_unref(&prompt->documents[--prompt->n_documents]);
    }
    sl_job_joins_free(prompt->joins, prompt->n_joins);
    prompt->joins = NULL;
    prompt->n_joins = 0;
    free(prompt->ids.ids);
    prompt->ids.ids = NULL;
}
