// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for the bodies of requests to the gateway, and for its replies. An accepted body becomes a message that gRPC can
 *          carry; every line of a reply is JSON, whatever bytes tokens have.
 * Design: the first byte is the kind of request; the bytes after the first zero are a token's.
 */
#include <stdlib.h>
#include <string.h>

#include "gateway/openai/answer.h"
#include "gateway/openai/refusal.h"
#include "gateway/openai/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

// Frees `text`: events of a stream, or one object.
static void check_lines(char *text) {
    require(text != NULL);
    for (char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + strspn(line, "\n") : NULL) {
        char *begin = strncmp(line, "data: ", 6) == 0 ? line + 6 : line;
        if (strncmp(begin, "[DONE]", 6) != 0) {
            json_t *json = json_loadb(begin, strcspn(begin, "\n"), 0, NULL);
            require(json_is_object(json));
            json_decref(json);
        }
    }
    free(text);
}

static void answer(const struct sl_openai_request *request, ProtobufCBinaryData raw) {
    struct sl_openai_answer words = {.request = request, .model = "m", .job_id = "j"};
    Sluice__V1__Alternative alternative = SLUICE__V1__ALTERNATIVE__INIT, *list[] = {&alternative};
    Sluice__V1__Token token = SLUICE__V1__TOKEN__INIT;
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    alternative.raw = token.raw = raw;
    token.text = "x";
    token.alternatives = list;
    token.n_alternatives = 1;
    finished.statistics = &statistics;
    if (request->stream) {
        check_lines(sl_openai_begin(&words));
    }
    for (size_t i = 0; i < request->n_prompts; i++) {
        if (request->stream) {
            check_lines(sl_openai_token(&words, &token));
            check_lines(sl_openai_end(&words, &finished));
        } else {
            require(sl_openai_keep(&words, &token) == SL_OK);
            check_lines(sl_openai_whole(&words, &finished));
        }
    }
    require(words.index == request->n_prompts);
    sl_openai_answer_cleanup(&words);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    const uint8_t *zero = memchr(data + 1, 0, size - 1);
    size_t n = zero ? (size_t)(zero - data) - 1 : size - 1;
    struct sl_openai_request *request = NULL;
    struct sl_refusal refusal = {0};
    enum sl_status status = sl_openai_request_parse(data[0] & 1, (const char *)data + 1, n, NULL, &request, &refusal);
    if (status == SL_OK) {
        for (size_t i = 0; i < request->n_prompts; i++) {
            if (i > 0) {
                sl_openai_request_select(request, i);
            }
            size_t packed = sluice__v1__generate_request__get_packed_size(&request->message);
            uint8_t *bytes = malloc(packed + 1);
            require(bytes && sluice__v1__generate_request__pack(&request->message, bytes) == packed);
            free(bytes);
        }
        answer(request, zero ? (ProtobufCBinaryData){size - n - 2, (uint8_t *)zero + 1} : (ProtobufCBinaryData){0});
        sl_openai_request_destroy(&request);
    } else {
        require(request == NULL && refusal.http_status == 400);
        check_lines(sl_refusal_json(&refusal));
    }
    return 0;
}
