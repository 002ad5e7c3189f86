// SPDX-License-Identifier: Apache-2.0
// Purpose: W3C's trace context as gRPC metadata, at both ends of a call.
#include "net/rpc/rpc_internal.h"

#define KEY "traceparent"

void sl_rpc_trace_attach(struct sl_rpc_trace_entry *entry, grpc_op *op) {
    const struct sl_trace trace = sl_trace_current();
    if (!sl_trace_is_set(&trace)) {
        return;
    }
    sl_trace_format(&trace, entry->text);
    entry->metadata = (grpc_metadata){.key = grpc_slice_from_static_string(KEY),
                                      .value = grpc_slice_from_static_buffer(entry->text, sizeof entry->text - 1)};
    op->data.send_initial_metadata.metadata = &entry->metadata;
    op->data.send_initial_metadata.count = 1;
}

bool sl_rpc_trace_take(const grpc_metadata_array *metadata, struct sl_trace *trace_out) {
    const grpc_metadata *found = NULL;
    for (size_t i = 0; i < metadata->count; i++) {
        if (grpc_slice_str_cmp(metadata->metadata[i].key, KEY) == 0) {
            if (found) {
                return false; // more than one context counts as none
            }
            found = &metadata->metadata[i];
        }
    }
    return found &&
           sl_trace_parse((const char *)GRPC_SLICE_START_PTR(found->value), GRPC_SLICE_LENGTH(found->value), trace_out);
}
