// SPDX-License-Identifier: Apache-2.0
// Purpose: texts of statuses and errors.
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

enum sl_status sl_fail(struct sl_error *err, enum sl_status status, const char *format, ...) {
    if (err) {
        va_list args;
        // Formatted into a copy first: an argument may be the text that is replaced.
        char text[sizeof err->text];
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        memcpy(err->text, text, sizeof text);
        err->status = status;
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
