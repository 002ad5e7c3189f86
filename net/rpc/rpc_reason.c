// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reason and culprit of a failed call as trailing metadata of gRPC, at both ends of the call.
 *
 * Design: both values are ASCII and bounded. The reader trusts neither: it ignores a value that is too long, has other
 *         characters, or comes twice, and a reason that it does not know or that no server sends. A peer of an older
 *         version sends none, and an older reader ignores them: the failure then has a status and a text alone.
 */
#include <string.h>

#include "net/rpc/rpc_internal.h"

#define REASON_KEY  "sluice-reason"
#define CULPRIT_KEY "sluice-culprit"

size_t sl_rpc_reason_attach(struct sl_rpc_reason_entries *entries, const struct sl_error *err) {
    if (!sl_reason_is_sent(err->reason)) {
        return 0;
    }
    size_t n = 0;
    // Copies: the entries outlive *err.
    entries->metadata[n++] = (grpc_metadata){.key = grpc_slice_from_static_string(REASON_KEY),
                                             .value = grpc_slice_from_static_string(sl_reason_name(err->reason))};
    if (err->culprit[0]) {
        strcpy(entries->culprit, err->culprit);
        entries->metadata[n++] = (grpc_metadata){.key = grpc_slice_from_static_string(CULPRIT_KEY),
                                                 .value = grpc_slice_from_static_string(entries->culprit)};
    }
    return n;
}

// Returns the only value of a key, or NULL.
static const grpc_slice *find(const grpc_metadata_array *metadata, const char *key) {
    const grpc_slice *found = NULL;
    for (size_t i = 0; i < metadata->count; i++) {
        if (grpc_slice_str_cmp(metadata->metadata[i].key, key) == 0) {
            if (found) {
                return NULL;
            }
            found = &metadata->metadata[i].value;
        }
    }
    return found;
}

// Adds the addresses of a list, which sl_error_blame() checks one by one.
static void add_culprits(const grpc_slice *value, enum sl_reason reason, struct sl_error *err) {
    char list[SL_CULPRIT_BYTES];
    size_t n = GRPC_SLICE_LENGTH(*value);
    if (n >= sizeof list || memchr(GRPC_SLICE_START_PTR(*value), '\0', n)) {
        return;
    }
    memcpy(list, GRPC_SLICE_START_PTR(*value), n);
    list[n] = '\0';
    for (char *next = list, *address; (address = strsep(&next, ",")) != NULL;) {
        sl_error_blame(err, reason, address);
    }
}

void sl_rpc_reason_take(const grpc_metadata_array *metadata, struct sl_error *err) {
    const grpc_slice *name = find(metadata, REASON_KEY), *culprit = find(metadata, CULPRIT_KEY);
    enum sl_reason reason =
        name ? sl_reason_of_name((const char *)GRPC_SLICE_START_PTR(*name), GRPC_SLICE_LENGTH(*name)) : SL_REASON_NONE;
    if (!err || !sl_reason_is_sent(reason)) {
        return;
    }
    sl_error_blame(err, reason, "");
    if (culprit) {
        add_culprits(culprit, reason, err);
    }
}
