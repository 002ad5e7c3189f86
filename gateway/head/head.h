// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: judges a request by its head, before a byte of its body is read: its form, the host that it asks for, and the
 *          web page that sent it.
 *
 * Design: a web page of any site can make its visitor's browser send requests to 127.0.0.1. Browsers mark them
 *         (Sec-Fetch-Site, Origin), so that such requests are refused unless --allowed-origins has the site. A page whose
 *         own name resolves to 127.0.0.1 looks like the same site, but its name is in the Host header: where callers need
 *         no key, a name must be ours. Numbers need no check, because no page can resolve to another one.
 *
 *         Malformed heads are refused: see net/admin/form.h.
 * Threads: the HTTP daemon's.
 */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

#include "gateway/openai/refusal.h"
#include "net/admin/form.h"

struct sl_head_rules { // the strings live as long as the gateway
    const char *listen;
    const char *allowed_hosts, *allowed_origins; // "NAME,NAME,...", "" or "*"
    bool needs_key;                              // callers need a key or token
};

// Rejects entries of the lists that no request can match, such as a host with a port. SL_ERR_INVALID.
enum sl_status sl_head_rules_check(const char *allowed_hosts, const char *allowed_origins, struct sl_error *err);

// Checks the head. version: as the daemon gives it. max_body_bytes: INT64_MAX: a body that is passed on as it comes. On failure *refusal has the reason.
enum sl_status sl_head_check(int64_t max_body_bytes, struct MHD_Connection *connection, const struct sl_http_line *line,
                             const char *version, struct sl_refusal *refusal);
// Checks the host and the web page that the request comes from. may_be_linked: other sites may link to the path.
enum sl_status sl_head_check_site(const struct sl_head_rules *rules, struct MHD_Connection *connection,
                                  const struct sl_http_line *line, bool may_be_linked, struct sl_refusal *refusal);
// Returns the Origin header if --allowed-origins has it, for as long as the request lives; else NULL.
const char *sl_head_allowed_origin(const struct sl_head_rules *rules, struct MHD_Connection *connection);
// Tells a browser what its page may read of a response, if its origin is allowed.
void sl_head_add_cors(const struct sl_head_rules *rules, struct MHD_Connection *connection,
                      struct MHD_Response *response);
// Returns true if the body comes in chunks.
bool sl_head_is_chunked(struct MHD_Connection *connection);
