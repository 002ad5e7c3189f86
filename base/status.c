// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <stdio.h>
#include <string.h>

const char *sl_status_text(enum sl_status status) {
    switch (status) {
#define X(name, number, text)                                                                                          \
    case SL_##name:                                                                                                    \
        return text;
        SL_STATUS_MAP(X)
#undef X
    }
    return "unknown status"; // e.g. a number from another version of the protocol
}

// Formats beside and then copies: an argument may be the very text that is replaced.
static void describe(struct sl_error *err, enum sl_status status, const char *format, va_list args) {
    char text[sizeof err->text];
    vsnprintf(text, sizeof text, format, args);
    memcpy(err->text, text, sizeof text);
    err->status = status;
}

enum sl_status sl_fail(struct sl_error *err, enum sl_status status, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        describe(err, status, format, args);
        va_end(args);
        err->reason = SL_REASON_NONE;
        err->culprit[0] = '\0';
    }
    return status;
}

enum sl_status sl_fail_from(struct sl_error *err, enum sl_status status, const struct sl_error *cause,
                            const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        describe(err, status, format, args);
        va_end(args);
        err->reason = cause->reason;
        memmove(err->culprit, cause->culprit, sizeof err->culprit);
    }
    return status;
}

void sl_error_prefix(struct sl_error *err, const char *what) {
    if (err) {
        char text[sizeof err->text];
        size_t used = (size_t)snprintf(text, sizeof text, "%s: ", what);
        if (used < sizeof text) {
            size_t n = strnlen(err->text, sizeof text - used - 1);
            memcpy(text + used, err->text, n);
            text[used + n] = '\0';
        }
        memcpy(err->text, text, sizeof text);
    }
}

// ---- reason and culprit ------------------------------------------------------------------------------------------

static bool is_address(const char *text) {
    for (; *text; text++) {
        if (*text <= ' ' || *text > '~' || *text == ',') {
            return false;
        }
    }
    return true;
}

void sl_error_blame(struct sl_error *err, enum sl_reason reason, const char *address) {
    if (!err) {
        return;
    }
    err->reason = reason;
    size_t used = strlen(err->culprit), n = strlen(address);
    if (n > 0 && is_address(address) && used + (used > 0) + n < sizeof err->culprit && !sl_error_blames(err, address)) {
        snprintf(err->culprit + used, sizeof err->culprit - used, "%s%s", used > 0 ? "," : "", address);
    }
}

bool sl_error_blames(const struct sl_error *err, const char *address) {
    size_t n = strlen(address);
    for (const char *at = err->culprit; n > 0 && *at;) {
        size_t bytes = strcspn(at, ",");
        if (bytes == n && memcmp(at, address, n) == 0) {
            return true;
        }
        at += bytes + (at[bytes] == ',');
    }
    return false;
}

enum scope { LOCAL, SENT };

static const struct {
    const char *name;
    enum scope scope;
} reasons[] = {
#define X(name, text, scope) {text, scope},
    SL_REASON_MAP(X)
#undef X
};
#define N_REASONS (sizeof reasons / sizeof *reasons)

const char *sl_reason_name(enum sl_reason reason) {
    return (size_t)reason < N_REASONS ? reasons[reason].name : "";
}

enum sl_reason sl_reason_of_name(const char *name, size_t n) {
    for (size_t i = 0; i < N_REASONS; i++) {
        if (strlen(reasons[i].name) == n && memcmp(reasons[i].name, name, n) == 0) {
            return (enum sl_reason)i;
        }
    }
    return SL_REASON_NONE;
}

bool sl_reason_is_sent(enum sl_reason reason) {
    return (size_t)reason < N_REASONS && reasons[reason].scope == SENT;
}
