// SPDX-License-Identifier: Apache-2.0
#include "net/admin/form.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

// Returns what follows "http://" or "https://"; NULL: the target is a path.
static const char *host_of(const char *target) {
    return strncasecmp(target, "http://", 7) == 0    ? target + 7
           : strncasecmp(target, "https://", 8) == 0 ? target + 8
                                                     : NULL;
}

const char *sl_http_path(const char *target) {
    const char *host = host_of(target);
    const char *path = host ? host + strcspn(host, "/") : target;
    return *path ? path : "/";
}

struct sl_http_line sl_http_line_read(const char *path) {
    struct sl_http_line line = {.path = path, .n = strlen(path)};
    const char *host = host_of(path);
    if (host) {
        const size_t n = strcspn(host, "/?");
        line.is_malformed = n == 0 || n >= sizeof line.host || memchr(host, '@', n) || memchr(host, '%', n);
        memcpy(line.host, host, line.is_malformed ? 0 : n);
    } else {
        line.is_malformed = *path != '/' && strcmp(path, "*") != 0;
    }
    for (const char *at = path; *at; at++) {
        const bool is_escape = *at == '%';
        const bool is_whole = is_escape && isxdigit((unsigned char)at[1]) && isxdigit((unsigned char)at[2]);
        const bool is_zero = is_whole && at[1] == '0' && at[2] == '0';
        line.is_malformed |= (unsigned char)*at <= ' ' || *at == 0x7f || (is_escape && !is_whole) || is_zero;
    }
    return line;
}

struct framing {
    int n_lengths, n_codings, n_hosts;
    bool is_chunked, is_malformed;
};

static bool is_token(const char *name) {
    size_t n = 0;
    while (name[n] && (isalnum((unsigned char)name[n]) || strchr("!#$%&'*+-.^_`|~", name[n]))) {
        n++;
    }
    return n > 0 && name[n] == '\0';
}

static bool has_control(const char *value) {
    while (*value && (*value == '\t' || (unsigned char)*value >= ' ') && *value != 0x7f) {
        value++;
    }
    return *value != '\0';
}

static enum MHD_Result see_header(void *cls, enum MHD_ValueKind kind, const char *name, const char *value) {
    (void)kind;
    struct framing *framing = cls;
    framing->is_malformed |= !is_token(name) || (value && has_control(value));
    framing->n_hosts += strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0;
    framing->n_lengths += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
    if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0) {
        framing->n_codings++;
        framing->is_chunked = value && strcasecmp(value, "chunked") == 0;
    }
    return MHD_YES;
}

const char *sl_http_form_check(struct MHD_Connection *connection, const struct sl_http_line *line,
                               const char *version) {
    struct framing framing = {0};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, see_header, &framing);
    // The daemon ends the path at a zero byte; the version after it then stands farther away than one space.
    if (line->is_malformed || (line->path && version != line->path + line->n + 1)) {
        return "the request line is malformed";
    }
    if (framing.is_malformed) {
        return "a header is malformed";
    }
    if (framing.n_hosts > 1 || (framing.n_hosts == 0 && strcmp(version, MHD_HTTP_VERSION_1_0) != 0)) {
        return "expected one Host header";
    }
    return framing.n_lengths + framing.n_codings > 1 || (framing.n_codings == 1 && !framing.is_chunked)
               ? "expected one Content-Length, or Transfer-Encoding: chunked"
               : NULL;
}
