// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the form of a request's head, for every HTTP listener.
 *
 * Design: a head that a proxy in front of us could read differently is malformed, and so are paths with a zero byte: they
 *         could make one client's body another client's request. libmicrohttpd hides some of that, so the path is compared
 *         with its bytes in the request line.
 * Threads: the HTTP daemon's.
 */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

struct sl_http_line { // the path as it stands in the request line
    const char *path; // in the daemon's buffer; NULL: not seen
    size_t n;
    bool is_malformed; // it has control characters, a zero byte, or an escape that is none
};

// Reads the path of a request line, while it is still escaped (MHD_OPTION_URI_LOG_CALLBACK).
struct sl_http_line sl_http_line_read(const char *path);

// Returns what is malformed in a head; NULL: nothing. version: as the daemon gives it.
const char *sl_http_form_check(struct MHD_Connection *connection, const struct sl_http_line *line, const char *version);
