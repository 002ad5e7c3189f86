// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/request_documents.h"

#include <stdint.h>
#include <string.h>

static enum sl_status take_reread(struct sl_openai_request *request, const json_t *value, struct sl_refusal *refusal) {
    json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 0 || n > INT32_MAX) {
        return sl_refuse_field(refusal, "reread", "reread: expected an integer, 0 or more");
    }
    request->message.reread_present_case = SLUICE__V1__GENERATE_REQUEST__REREAD_PRESENT_REREAD;
    request->message.reread = (int32_t)n;
    return SL_OK;
}

enum sl_status sl_openai_take_documents(struct sl_openai_request *request, const char *name, const json_t *value,
                                        struct sl_refusal *refusal) {
    if (strcmp(name, "reread") == 0) {
        return take_reread(request, value, refusal);
    }
    size_t n = json_array_size(value);
    bool fits = n >= 1 && n <= SL_OPENAI_MAX_DOCUMENTS;
    for (size_t i = 0; fits && i < n; i++) {
        request->documents[i] = (char *)json_string_value(json_array_get(value, i));
        fits = request->documents[i] != NULL;
    }
    if (!fits) {
        return sl_refuse_field(refusal, name, "documents: expected a list of 1 to %d names", SL_OPENAI_MAX_DOCUMENTS);
    }
    request->message.documents = request->documents;
    request->message.n_documents = n;
    return SL_OK;
}
