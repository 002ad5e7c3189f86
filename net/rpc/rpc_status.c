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

// A status has the code of its first row, a code the status of its first row.
static const struct {
    enum sl_status status;
    int code;
} rows[] = {
    {SL_OK, GRPC_STATUS_OK},
    {SL_ERR_INVALID, GRPC_STATUS_INVALID_ARGUMENT},
    {SL_ERR_NOT_FOUND, GRPC_STATUS_NOT_FOUND},
    {SL_ERR_EXISTS, GRPC_STATUS_ALREADY_EXISTS},
    {SL_ERR_RANGE, GRPC_STATUS_OUT_OF_RANGE},
    {SL_ERR_UNSUPPORTED, GRPC_STATUS_UNIMPLEMENTED},
    {SL_ERR_CANCELLED, GRPC_STATUS_CANCELLED},
    {SL_ERR_DEADLINE, GRPC_STATUS_DEADLINE_EXCEEDED},
    {SL_ERR_PRECONDITION, GRPC_STATUS_FAILED_PRECONDITION},
    {SL_ERR_DENIED, GRPC_STATUS_PERMISSION_DENIED},
    {SL_ERR_DENIED, GRPC_STATUS_UNAUTHENTICATED},
    {SL_ERR_PEER_LOST, GRPC_STATUS_UNAVAILABLE},
    {SL_ERR_IO, GRPC_STATUS_UNAVAILABLE},
    {SL_ERR_PEER_STALE, GRPC_STATUS_ABORTED},
    {SL_ERR_PEER_CORRUPT, GRPC_STATUS_DATA_LOSS},
    {SL_ERR_EXHAUSTED, GRPC_STATUS_RESOURCE_EXHAUSTED},
};
#define N_ROWS (sizeof rows / sizeof rows[0])

int sl_rpc_code_of_status(enum sl_status status) {
    for (size_t i = 0; i < N_ROWS; i++) {
        if (rows[i].status == status) {
            return rows[i].code;
        }
    }
    // SL_ERR_INTERNAL; or SL_AGAIN or SL_INPROGRESS, from a function with a bug: a finished call cannot have them
    return GRPC_STATUS_INTERNAL;
}

enum sl_status sl_rpc_status_of_code(int code) {
    for (size_t i = 0; i < N_ROWS; i++) {
        if (rows[i].code == code) {
            return rows[i].status;
        }
    }
    return SL_ERR_INTERNAL; // UNKNOWN, INTERNAL, and numbers that do not exist
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
