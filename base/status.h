// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the one result type of the project, and the text that goes with a failure.
 *
 * Design: codes are grouped by what is lost, so that the group implies the recovery:
 *
 *      0          success
 *      positive   nothing is wrong: try again, or wait for a completion
 *     -1 .. -19   the request is lost   reply to the client
 *    -20 .. -39   the peer is lost      route around it
 *    -40 .. -59   this node is short    drain, shed, or refuse with a retry hint
 *    -60 ..       the process is wrong  a bug; log it and restart
 *
 * The function that detects the cause describes it once, with sl_fail(); all its callers only propagate the status. A
 * function's outputs are written only when it returns SL_OK.
 */
#pragma once

#include <stdarg.h>

// To add one: take a free number in the group whose recovery fits, and extend net/rpc/rpc_status.c.
#define SL_STATUS_MAP(X)                                                                                               \
    X(OK, 0, "ok")                                                                                                     \
    X(AGAIN, 1, "try again")                                                                                           \
    X(INPROGRESS, 2, "in progress")                                                                                    \
    X(ERR_INVALID, -1, "invalid argument")                                                                             \
    X(ERR_NOT_FOUND, -2, "not found")                                                                                  \
    X(ERR_EXISTS, -3, "already exists")                                                                                \
    X(ERR_RANGE, -4, "out of range")                                                                                   \
    X(ERR_UNSUPPORTED, -5, "not supported")                                                                            \
    X(ERR_CANCELLED, -6, "cancelled")                                                                                  \
    X(ERR_DEADLINE, -7, "deadline exceeded")                                                                           \
    X(ERR_PRECONDITION, -8, "precondition failed")                                                                     \
    X(ERR_DENIED, -9, "permission denied")                                                                             \
    X(ERR_PEER_LOST, -20, "peer lost")                                                                                 \
    X(ERR_PEER_STALE, -21, "stale generation or lease")                                                                \
    X(ERR_PEER_CORRUPT, -22, "data from the peer failed its digest")                                                   \
    X(ERR_EXHAUSTED, -40, "resource exhausted")                                                                        \
    X(ERR_IO, -41, "input/output error")                                                                               \
    X(ERR_INTERNAL, -60, "internal error")

enum sl_status {
#define X(name, number, text) SL_##name = number,
    SL_STATUS_MAP(X)
#undef X
};

// Describes a failure for people: it names the thing and, if there is one, the remedy.
struct sl_error {
    enum sl_status status;
    char text[384];
};

#pragma GCC visibility push(default) // exported by libsluice.so (client/libsluice/sluice.h)

// Returns the fixed text of a status, e.g. "peer lost". Never NULL.
const char *sl_status_text(enum sl_status status);

/*
 * Records `status` and a printf-style text in *err (err may be NULL) and returns `status`:
 *     return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s has %d dimensions, expected 2", path, name, n);
 */
enum sl_status sl_fail(struct sl_error *err, enum sl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Puts "what: " before the text of *err (err may be NULL), for context that only the caller has.
void sl_error_prefix(struct sl_error *err, const char *what);

#pragma GCC visibility pop
