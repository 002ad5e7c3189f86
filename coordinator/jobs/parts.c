// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/parts.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define IN_TEXT   SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT
#define IN_TOKENS SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS

void sl_request_parts_init(struct sl_request_parts *parts, size_t max_bytes) {
    *parts = (struct sl_request_parts){.max_bytes = max_bytes};
}

// Makes room for n more items of this size; for text also its terminator. *added_out: bytes more than before.
static enum sl_status grow(struct sl_request_parts *parts, void **array, size_t item_bytes, size_t n, size_t *added_out,
                           struct sl_error *err) {
    size_t most = parts->max_bytes / item_bytes;
    *added_out = 0;
    SL_FAIL_IF(n > most || parts->n > most - n, err, SL_ERR_RANGE,
               "prompt: more than %zu bytes; see sluice-coordinator --max-prompt", parts->max_bytes);
    size_t needed = parts->n + n + 1;
    if (needed <= parts->n_allocated) {
        return SL_OK;
    }
    size_t wanted = parts->n_allocated * 2 > needed ? parts->n_allocated * 2 : needed;
    wanted = wanted > most + 1 ? most + 1 : wanted;
    void *grown = realloc(*array, wanted * item_bytes);
    SL_FAIL_IF(!grown, err, SL_ERR_EXHAUSTED, "no memory for a prompt of %zu bytes", wanted * item_bytes);
    *added_out = (wanted - parts->n_allocated) * item_bytes;
    *array = grown;
    parts->n_allocated = wanted;
    return SL_OK;
}

static enum sl_status append(struct sl_request_parts *parts, const Sluice__V1__GenerateRequest *part, size_t *added_out,
                             struct sl_error *err) {
    bool is_text = part->prompt_case == IN_TEXT;
    size_t n = is_text ? strlen(part->text) : part->tokens->n_ids;
    enum sl_status status = is_text ? grow(parts, (void **)&parts->text, 1, n, added_out, err)
                                    : grow(parts, (void **)&parts->ids, sizeof *parts->ids, n, added_out, err);
    if (status == SL_OK && is_text) {
        memcpy(parts->text + parts->n, part->text, n + 1);
        parts->n += n;
    } else if (status == SL_OK && n > 0) { // without tokens there is no array
        memcpy(parts->ids + parts->n, part->tokens->ids, n * sizeof *parts->ids);
        parts->n += n;
    }
    return status;
}

// Returns whether a later message has fields that only the first message may set.
static bool says_more_than_its_part(const Sluice__V1__GenerateRequest *part) {
    Sluice__V1__GenerateRequest prompt = SLUICE__V1__GENERATE_REQUEST__INIT;
    prompt.base = part->base; // with fields of newer clients, which are ignored
    prompt.prompt_case = part->prompt_case;
    if (part->prompt_case == IN_TEXT) {
        prompt.text = part->text;
    } else {
        prompt.tokens = part->tokens;
    }
    return protobuf_c_message_get_packed_size(&part->base) > protobuf_c_message_get_packed_size(&prompt.base);
}

enum sl_status sl_request_parts_add(struct sl_request_parts *parts, Sluice__V1__GenerateRequest *part,
                                    size_t *added_out, struct sl_error *err) {
    *added_out = 0;
    bool is_first = parts->request == NULL;
    if (is_first) {
        parts->request = part;
    }
    SL_FAIL_IF(part->prompt_case != IN_TEXT && part->prompt_case != IN_TOKENS, err, SL_ERR_INVALID,
               "prompt: of a request in parts it is text or tokens");
    SL_FAIL_IF(part->prompt_case == IN_TEXT ? parts->ids != NULL : parts->text != NULL, err, SL_ERR_INVALID,
               "prompt: a part is %s and the one before was not", part->prompt_case == IN_TEXT ? "text" : "tokens");
    SL_FAIL_IF(!is_first && says_more_than_its_part(part), err, SL_ERR_INVALID,
               "a part behind the first has more than its part of the prompt");
    return append(parts, part, added_out, err);
}

enum sl_status sl_request_parts_finish(struct sl_request_parts *parts, const Sluice__V1__GenerateRequest **request_out,
                                       struct sl_error *err) {
    Sluice__V1__GenerateRequest *request = parts->request;
    SL_FAIL_IF(!request, err, SL_ERR_INVALID, "the request has no parts");
    if (parts->text) {
        free(request->text);
        request->text = parts->text;
        parts->text = NULL;
    } else if (parts->ids) {
        free(request->tokens->ids);
        request->tokens->ids = parts->ids;
        request->tokens->n_ids = parts->n;
        parts->ids = NULL;
    }
    *request_out = request;
    return SL_OK;
}

void sl_request_parts_cleanup(struct sl_request_parts *parts) {
    if (parts->request) {
        sluice__v1__generate_request__free_unpacked(parts->request, NULL);
    }
    free(parts->text);
    free(parts->ids);
    *parts = (struct sl_request_parts){0};
}
