// SPDX-License-Identifier: Apache-2.0
#include "gateway/import_query.h"

#include <stdlib.h>
#include <string.h>

struct query {
    const char *name;
    int64_t keep_ms;
    struct sl_refusal *refusal;
    enum sl_status status;
};

// Reads a field; MHD_NO: it is refused.
static enum MHD_Result read_field(void *arg, enum MHD_ValueKind kind, const char *key, const char *value) {
    (void)kind;
    struct query *query = arg;
    char *end = "";
    if (strcmp(key, "name") == 0) {
        query->name = value;
    } else if (strcmp(key, "keep_ms") == 0 && value && value[0] >= '0' && value[0] <= '9') {
        query->keep_ms = strtoll(value, &end, 10);
    } else {
        end = NULL;
    }
    if (end && *end == '\0') {
        return MHD_YES;
    }
    query->status = strcmp(key, "keep_ms") == 0
                        ? sl_refuse_field(query->refusal, key, "keep_ms: expected a number of ms")
                        : sl_refuse_field(query->refusal, "", "unknown field \"%.60s\"", key);
    return MHD_NO;
}

enum sl_status sl_import_query_read(struct MHD_Connection *connection, const char **name_out, int64_t *keep_ms_out,
                                    struct sl_refusal *refusal) {
    struct query query = {.refusal = refusal, .status = SL_OK};
    MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, read_field, &query);
    if (query.status == SL_OK && (!query.name || query.name[0] == '\0')) {
        return sl_refuse_field(refusal, "name", "name: expected in the query: /v1/documents/import?name=NAME");
    }
    *name_out = query.name;
    *keep_ms_out = query.keep_ms;
    return query.status;
}
