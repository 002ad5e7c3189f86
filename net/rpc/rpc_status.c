// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the one translation between our statuses and gRPC's codes.
 *
 * Design: the code implies the same recovery to a foreign client that the status implies here. A node with a hardware
 *         or system failure (SL_ERR_IO) is UNAVAILABLE, because the remedy is another node; it comes back as a lost
 *         peer, because it is one for its clients. SL_ERR_RANGE is OUT_OF_RANGE, so that it survives the round trip.
 *         PERMISSION_DENIED and UNAUTHENTICATED come back as SL_ERR_DENIED.
 */
#include <grpc/status.h>

#include "base/status.h"
#include "net/rpc/rpc.h"

int sl_rpc_code_of_status(enum sl_status status) {
    switch (status) {
    case SL_OK:
        return GRPC_STATUS_OK;
    case SL_ERR_INVALID:
        return GRPC_STATUS_INVALID_ARGUMENT;
    case SL_ERR_NOT_FOUND:
        return GRPC_STATUS_NOT_FOUND;
    case SL_ERR_EXISTS:
        return GRPC_STATUS_ALREADY_EXISTS;
    case SL_ERR_RANGE:
        return GRPC_STATUS_OUT_OF_RANGE;
    case SL_ERR_UNSUPPORTED:
        return GRPC_STATUS_UNIMPLEMENTED;
    case SL_ERR_CANCELLED:
        return GRPC_STATUS_CANCELLED;
    case SL_ERR_DEADLINE:
        return GRPC_STATUS_DEADLINE_EXCEEDED;
    case SL_ERR_PRECONDITION:
        return GRPC_STATUS_FAILED_PRECONDITION;
    case SL_ERR_DENIED:
        return GRPC_STATUS_PERMISSION_DENIED;
    case SL_ERR_PEER_LOST:
    case SL_ERR_IO:
        return GRPC_STATUS_UNAVAILABLE;
    case SL_ERR_PEER_STALE:
        return GRPC_STATUS_ABORTED;
    case SL_ERR_PEER_CORRUPT:
        return GRPC_STATUS_DATA_LOSS;
    case SL_ERR_EXHAUSTED:
        return GRPC_STATUS_RESOURCE_EXHAUSTED;
    case SL_AGAIN: // a finished call cannot have these results: the function that returned them has a bug
    case SL_INPROGRESS:
    case SL_ERR_INTERNAL:
        break;
    }
    return GRPC_STATUS_INTERNAL;
}

enum sl_status sl_rpc_status_of_code(int code) {
    switch (code) {
    case GRPC_STATUS_OK:
        return SL_OK;
    case GRPC_STATUS_CANCELLED:
        return SL_ERR_CANCELLED;
    case GRPC_STATUS_INVALID_ARGUMENT:
        return SL_ERR_INVALID;
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        return SL_ERR_DEADLINE;
    case GRPC_STATUS_NOT_FOUND:
        return SL_ERR_NOT_FOUND;
    case GRPC_STATUS_ALREADY_EXISTS:
        return SL_ERR_EXISTS;
    case GRPC_STATUS_RESOURCE_EXHAUSTED:
        return SL_ERR_EXHAUSTED;
    case GRPC_STATUS_PERMISSION_DENIED:
    case GRPC_STATUS_UNAUTHENTICATED:
        return SL_ERR_DENIED;
    case GRPC_STATUS_FAILED_PRECONDITION:
        return SL_ERR_PRECONDITION;
    case GRPC_STATUS_ABORTED:
        return SL_ERR_PEER_STALE;
    case GRPC_STATUS_OUT_OF_RANGE:
        return SL_ERR_RANGE;
    case GRPC_STATUS_UNIMPLEMENTED:
        return SL_ERR_UNSUPPORTED;
    case GRPC_STATUS_UNAVAILABLE:
        return SL_ERR_PEER_LOST;
    case GRPC_STATUS_DATA_LOSS:
        return SL_ERR_PEER_CORRUPT;
    default: // UNKNOWN, INTERNAL, and numbers that do not exist
        return SL_ERR_INTERNAL;
    }
}

const char *sl_rpc_code_name(int code) {
    static const char *const names[] = {
        "OK",        "CANCELLED",       "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
        "NOT_FOUND", "ALREADY_EXISTS",  "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
        "ABORTED",   "OUT_OF_RANGE",    "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
        "DATA_LOSS", "UNAUTHENTICATED",
    };
    const int n_names = (int)(sizeof names / sizeof names[0]);
    return code >= 0 && code < n_names ? names[code] : "UNKNOWN";
}
