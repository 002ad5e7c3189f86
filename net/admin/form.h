// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the form of a request's head, for every HTTP listener.
 *
 * Design: a head is malformed if a proxy in front of us could read it differently, because one client's body could then
 *         become another client's request. So is a path with a zero byte. libmicrohttpd hides some of that, so the path is
 *         compared with its bytes in the request line.
 * Threads: the HTTP daemon's.
 */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

#define SL_HTTP_HOST_BYTES 256

struct sl_http_line { // the target as in the request line
    const char *path; // in the daemon's buffer; NULL: not seen
    size_t n;
    char host[SL_HTTP_HOST_BYTES]; // of a target "http://HOST/PATH", which replaces the Host header; "": a path alone
    bool is_malformed; // it has control characters, a zero byte, an invalid escape, or neither a path nor a host
};

// Reads the target of a request line, while it is still escaped (MHD_OPTION_URI_LOG_CALLBACK).
struct sl_http_line sl_http_line_read(const char *path);

// Returns the path of a target: what comes after the host in "http://HOST/PATH", which clients write to proxies.
const char *sl_http_path(const char *target);

// Returns what is malformed in a head; NULL: nothing. version: HTTP's, as libmicrohttpd passes it.
const char *sl_http_form_check(struct MHD_Connection *connection, const struct sl_http_line *line, const char *version);
