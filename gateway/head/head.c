// SPDX-License-Identifier: Apache-2.0
#include "gateway/head/head.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *header(struct MHD_Connection *connection, const char *name) {
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

bool sl_head_is_chunked(struct MHD_Connection *connection) {
    return header(connection, MHD_HTTP_HEADER_TRANSFER_ENCODING) != NULL;
}

enum sl_status sl_head_check(int64_t max_body_bytes, struct MHD_Connection *connection, const struct sl_http_line *line,
                             const char *version, struct sl_refusal *refusal) {
    const char *length = header(connection, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const char *encoding = header(connection, MHD_HTTP_HEADER_CONTENT_ENCODING);
    const char *why = sl_http_form_check(connection, line, version);
    if (why) {
        sl_refuse(refusal, 400, "%s", why);
    } else if (length && strtoll(length, NULL, 10) > max_body_bytes) {
        sl_refuse(refusal, 413, "the body has more than %" PRId64 " bytes (--max-body)", max_body_bytes);
    } else if (encoding && strcasecmp(encoding, "identity") != 0) {
        sl_refuse(refusal, 415, "Content-Encoding: %.40s is not supported: send the body as it is", encoding);
    } else {
        return SL_OK;
    }
    return SL_ERR_INVALID;
}

// ---- hosts and sites --------------------------------------------------------------------------------------------------

// Returns true if a list "a,b,c" has the entry, whatever its case, or "*".
static bool has(const char *list, const char *entry, size_t n) {
    for (const char *at = list; *at; at += strspn(at, ", ")) {
        const size_t n_at = strcspn(at, ", ");
        if ((n_at == n && strncasecmp(at, entry, n) == 0) || (n_at == 1 && *at == '*')) {
            return true;
        }
        at += n_at;
    }
    return false;
}

static bool is_host(const char *at, size_t n) {
    return !memchr(at, ':', n) && !memchr(at, '/', n) && at[n - 1] != '.';
}

static bool ends_with(const char *at, size_t n, const char *end) {
    const size_t n_end = strlen(end);
    return n > n_end && strncmp(at + n - n_end, end, n_end) == 0;
}

// Browsers write no path, and no port that the scheme has anyway.
static bool is_origin(const char *at, size_t n) {
    const bool is_https = n > 8 && strncasecmp(at, "https://", 8) == 0,
               is_http = n > 7 && strncasecmp(at, "http://", 7) == 0;
    const char *colon = memchr(at, ':', n);
    if (n == 4 && strncmp(at, "null", n) == 0) {
        return true;
    }
    if (!colon || (size_t)(colon - at) + 3 >= n || strncmp(colon, "://", 3) != 0) {
        return false;
    }
    const char *host = colon + 3;
    return !memchr(host, '/', n - (size_t)(host - at)) && !(is_https && ends_with(at, n, ":443")) &&
           !(is_http && ends_with(at, n, ":80"));
}

// Rejects the first entry of a list that is neither "*" nor of the form.
static enum sl_status check_list(const char *list, bool (*is_good)(const char *at, size_t n), const char *complaint,
                                 struct sl_error *err) {
    for (const char *at = list + strspn(list, ", "); *at; at += strspn(at, ", ")) {
        const size_t n = strcspn(at, ", ");
        SL_FAIL_IF(!(n == 1 && *at == '*') && !is_good(at, n), err, SL_ERR_INVALID, "%s: no request matches \"%.*s\"",
                   complaint, n < 100 ? (int)n : 100, at);
        at += n;
    }
    return SL_OK;
}

enum sl_status sl_head_rules_check(const char *allowed_hosts, const char *allowed_origins, struct sl_error *err) {
    const enum sl_status status =
        check_list(allowed_hosts, is_host, "--allowed-hosts takes names without a scheme, a port or a final dot", err);
    return status == SL_OK
               ? check_list(
                     allowed_origins, is_origin,
                     "--allowed-origins takes SCHEME://HOST or SCHEME://HOST:PORT, without a final slash, a path or "
                     "the scheme's usual port",
                     err)
               : status;
}

// Returns the length of the host in "host:port" or "[v6]:port".
static size_t host_length(const char *text) {
    const char *colon = strrchr(text, ':');
    size_t n = colon && !strchr(colon, ']') ? (size_t)(colon - text) : strlen(text);
    return n > 0 && text[n - 1] == '.' ? n - 1 : n;
}

static bool is_ours(const struct sl_head_rules *rules, const char *text) {
    char host[SL_HTTP_HOST_BYTES];
    struct in_addr address;
    const size_t n = host_length(text), n_listen = host_length(rules->listen);
    if (n == 0 || n >= sizeof host) {
        return false;
    }
    memcpy(host, text, n);
    host[n] = '\0';
    return host[0] == '[' || inet_pton(AF_INET, host, &address) == 1 || strcasecmp(host, "localhost") == 0 ||
           (n == n_listen && strncasecmp(host, rules->listen, n) == 0) || has(rules->allowed_hosts, host, n);
}

// Returns true if an origin, "https://host:port", is the host that the request asks for.
static bool is_same_site(const char *origin, const char *host) {
    const char *slashes = strstr(origin, "://");
    return slashes && host && strcasecmp(slashes + 3, host) == 0;
}

const char *sl_head_allowed_origin(const struct sl_head_rules *rules, struct MHD_Connection *connection) {
    const char *origin = header(connection, MHD_HTTP_HEADER_ORIGIN);
    return origin && has(rules->allowed_origins, origin, strlen(origin)) ? origin : NULL;
}

static bool is_any_of(const char *value, const char *one, const char *other) {
    return !value || strcmp(value, one) == 0 || strcmp(value, other) == 0;
}

// Returns true if a link of another site led a browser to this page, which has no data of its own.
static bool is_link(struct MHD_Connection *connection) {
    const char *mode = header(connection, "Sec-Fetch-Mode"), *dest = header(connection, "Sec-Fetch-Dest");
    return mode && dest && strcmp(mode, "navigate") == 0 && strcmp(dest, "document") == 0;
}

enum sl_status sl_head_check_site(const struct sl_head_rules *rules, struct MHD_Connection *connection,
                                  const struct sl_http_line *line, bool may_be_linked, struct sl_refusal *refusal) {
    const char *host = line->host[0] != '\0' ? line->host : header(connection, MHD_HTTP_HEADER_HOST);
    const char *origin = header(connection, MHD_HTTP_HEADER_ORIGIN);
    if (host && (!rules->needs_key || rules->allowed_hosts[0] != '\0') && !is_ours(rules, host)) {
        sl_refuse(refusal, 403, "this is not \"%.100s\" (--allowed-hosts)", host);
        return SL_ERR_DENIED;
    }
    const bool is_foreign = (origin && !is_same_site(origin, host)) ||
                            !is_any_of(header(connection, "Sec-Fetch-Site"), "same-origin", "none");
    if (is_foreign && !sl_head_allowed_origin(rules, connection) && !(may_be_linked && is_link(connection))) {
        sl_refuse(refusal, 403, "a web page of %.100s may not send this (--allowed-origins)",
                  origin ? origin : "another site");
        return SL_ERR_DENIED;
    }
    return SL_OK;
}

void sl_head_add_cors(const struct sl_head_rules *rules, struct MHD_Connection *connection,
                      struct MHD_Response *response) {
    if (rules->allowed_origins[0] == '\0') {
        return;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_VARY, MHD_HTTP_HEADER_ORIGIN);
    const char *origin = sl_head_allowed_origin(rules, connection);
    if (!origin) {
        return;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_EXPOSE_HEADERS,
                            "retry-after, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
                            "x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "
                            "x-ratelimit-reset-tokens, x-sluice-ignored");
    const char *asked = header(connection, MHD_HTTP_HEADER_ACCESS_CONTROL_REQUEST_HEADERS);
    if (header(connection, MHD_HTTP_HEADER_ACCESS_CONTROL_REQUEST_METHOD)) { // the browser asks ahead of a request
        MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD, POST, DELETE");
        MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_HEADERS,
                                asked ? asked : "authorization");
        MHD_add_response_header(response, "Access-Control-Allow-Private-Network", "true");
        MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_MAX_AGE, "600");
    }
}
