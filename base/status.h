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
 * The function that first knows the cause describes it once, with sl_fail(); its callers only propagate the status.
 * The text is for people: no program decides by its words. What a program has to know beyond the status is the reason,
 * and the culprit: sl_error_blame() sets both where the cause is first known, sl_fail_from() carries them on, and
 * net/rpc/ sends them to other processes.
 * A function's outputs are written only when it returns SL_OK.
 */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

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

/*
 * The causes that a program tells apart although they share a status. The second column is the name in the metadata of
 * a call, which is part of the protocol: names stay. The third one says if the reason of a failed call concerns that
 * call's connection alone (LOCAL), or is sent on to the caller's own callers (SENT).
 */
#define SL_REASON_MAP(X)                                                                                               \
    X(NONE, "", LOCAL)                                                                                                 \
    X(OLD_TERM, "old-term", SENT)               /* the worker has seen a newer coordinator: base/term.h */             \
    X(STORE, "store", SENT)                     /* the stores that the culprit names have failed or refused */         \
    X(UNCONNECTED, "unconnected", LOCAL)        /* no server listens at the address, or it speaks no gRPC */           \
    X(UNKNOWN_METHOD, "unknown-method", LOCAL)  /* the server is another one, or of another version */                 \
    X(PROMPT_TOO_LONG, "prompt-too-long", SENT) /* for the model: a shorter one, or a shorter answer, is accepted */

enum sl_reason {
#define X(name, text, scope) SL_REASON_##name,
    SL_REASON_MAP(X)
#undef X
};

#define SL_CULPRIT_BYTES 272 // two addresses of workers, and the comma between them

struct sl_error {
    enum sl_status status;
    char text[384]; // what went wrong, for a person: it names the thing and, where there is one, the remedy
    enum sl_reason reason;
    char culprit[SL_CULPRIT_BYTES]; // "HOST:PORT,..." of the peers at fault; "": none is known
};

#pragma GCC visibility push(default) // exported by libsluice.so (client/libsluice/sluice.h)

// Returns the fixed text of a status, e.g. "peer lost". Never NULL.
const char *sl_status_text(enum sl_status status);

/*
 * Records `status` and a printf-style text in *err (err may be NULL), clears its reason and culprit, and returns `status`:
 *     return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s has %d dimensions, expected 2", path, name, n);
 */
enum sl_status sl_fail(struct sl_error *err, enum sl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Puts "what: " before the text of *err (err may be NULL), for context that only the caller has. Reason and culprit stay.
void sl_error_prefix(struct sl_error *err, const char *what);

#pragma GCC visibility pop

// Records a failure as sl_fail() does, with the reason and the culprit of `cause`, which may be err. For a text that
// contains the cause's.
enum sl_status sl_fail_from(struct sl_error *err, enum sl_status status, const struct sl_error *cause,
                            const char *format, ...) __attribute__((format(printf, 4, 5)));

/*
 * Sets the reason, and adds a peer's address to the culprits of *err (err may be NULL), whose text is written already. The
 * address may be "" (none). One that does not fit, or has characters that no address has, is left out: half of it would name
 * another peer.
 */
void sl_error_blame(struct sl_error *err, enum sl_reason reason, const char *address);
// Returns true if the culprits include this address, as a whole.
bool sl_error_blames(const struct sl_error *err, const char *address);

// Returns the name of a reason in a call's metadata. Never NULL.
const char *sl_reason_name(enum sl_reason reason);
// Returns the reason of a name that has n bytes. SL_REASON_NONE: this version does not know it.
enum sl_reason sl_reason_of_name(const char *name, size_t n);
// Returns true if a server sends this reason to its callers.
bool sl_reason_is_sent(enum sl_reason reason);

// Returns the status of a call that did not return SL_OK. This macro and SL_FAIL_IF are only for functions that have
// nothing to release at that point.
#define SL_TRY(call)                                                                                                   \
    do {                                                                                                               \
        enum sl_status tried_ = (call);                                                                                \
        if (tried_ != SL_OK) {                                                                                         \
            return tried_;                                                                                             \
        }                                                                                                              \
    } while (0)

// Does what SL_TRY does, after `undo`, which releases what the function holds at that point.
#define SL_TRY_OR(call, undo)                                                                                          \
    do {                                                                                                               \
        enum sl_status tried_ = (call);                                                                                \
        if (tried_ != SL_OK) {                                                                                         \
            undo;                                                                                                      \
            return tried_;                                                                                             \
        }                                                                                                              \
    } while (0)

// Makes the next call of a chain if those before it succeeded, and keeps its status in the variable `status`. For functions
// that have something to release at the end.
#define SL_THEN(status, ...)                                                                                           \
    do {                                                                                                               \
        if ((status) == SL_OK) {                                                                                       \
            (status) = (__VA_ARGS__);                                                                                  \
        }                                                                                                              \
    } while (0)

// Does what SL_THEN does, if the condition holds, too.
#define SL_THEN_IF(status, condition, ...)                                                                             \
    do {                                                                                                               \
        if ((status) == SL_OK && (condition)) {                                                                        \
            (status) = (__VA_ARGS__);                                                                                  \
        }                                                                                                              \
    } while (0)

// Declares `object`, a struct on the heap with every byte zero; returns SL_ERR_EXHAUSTED with the printf-style text in
// *err if there is no memory. For a function that creates it and holds nothing yet.
#define SL_NEW_OR_FAIL(type, object, err, ...)                                                                         \
    type *object = calloc(1, sizeof *object); /* NOLINT(bugprone-macro-parentheses): names */                          \
    SL_FAIL_IF(object == NULL, err, SL_ERR_EXHAUSTED, __VA_ARGS__)

// Declares `object` as what *inout refers to, and sets *inout to NULL; returns if it is NULL. For a function that
// destroys it.
#define SL_TAKE_OR_RETURN(object, inout)                                                                               \
    __typeof__(*(inout)) object = *(inout); /* NOLINT(bugprone-macro-parentheses): a name */                           \
    if (!object) {                                                                                                     \
        return;                                                                                                        \
    }                                                                                                                  \
    *(inout) = NULL

// Sets the variable `status` to sl_fail(err, status, format, ...) if the calls before succeeded and the condition holds.
#define SL_THEN_FAIL_IF(status, condition, ...)                                                                        \
    do {                                                                                                               \
        if ((status) == SL_OK && (condition)) {                                                                        \
            (status) = sl_fail(__VA_ARGS__);                                                                           \
        }                                                                                                              \
    } while (0)

// Returns sl_fail(err, status, format, ...) if the condition holds.
#define SL_FAIL_IF(condition, ...)                                                                                     \
    do {                                                                                                               \
        if (condition) {                                                                                               \
            return sl_fail(__VA_ARGS__);                                                                               \
        }                                                                                                              \
    } while (0)

// Does what SL_FAIL_IF does, after `undo`.
#define SL_FAIL_OR(condition, undo, ...)                                                                               \
    do {                                                                                                               \
        if (condition) {                                                                                               \
            undo;                                                                                                      \
            return sl_fail(__VA_ARGS__);                                                                               \
        }                                                                                                              \
    } while (0)
