// SPDX-License-Identifier: Apache-2.0
#include "net/admin/listen.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/close.h"
#include "net/trust/tls_files.h"

enum {
    BACKLOG = 512,
    SEND_BYTES = 256 << 10, // per connection, for the answer in the kernel: bounds the memory that a client which does
                            // not read can hold
};

// Resolves "[::1]:8000" or "127.0.0.1:8000".
static enum sl_status resolve(const struct sl_http_place *place, struct addrinfo **found_out, struct sl_error *err) {
    const char *text = place->text;
    char host[256];
    const char *colon = strrchr(text, ':');
    // The C library would accept 99999 and listen at port 34463.
    if (!colon || colon == text || (size_t)(colon - text) >= sizeof host || colon[1] == '\0' ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1) || strlen(colon + 1) > 5 || atoi(colon + 1) > 65535) {
        return sl_fail(err, SL_ERR_INVALID, "%s %.200s: expected HOST:PORT", place->option, text);
    }
    bool bracketed = text[0] == '[' && colon[-1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(colon - text) - 2 * bracketed, text + bracketed);
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    int failed = getaddrinfo(host, colon + 1, &hints, found_out);
    return failed == 0 ? SL_OK
                       : sl_fail(err, SL_ERR_INVALID, "%s %.200s: %s", place->option, text, gai_strerror(failed));
}

static void describe(int fd, char *address_out, size_t address_bytes) {
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
    if (getsockname(fd, (struct sockaddr *)&bound, &n) == 0) {
        getnameinfo((struct sockaddr *)&bound, n, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    }
    snprintf(address_out, address_bytes, bound.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

enum sl_status sl_http_listen(const struct sl_http_place *place, int *fd_out, char *address_out, size_t address_bytes,
                              struct sl_error *err) {
    struct addrinfo *found;
    SL_TRY(resolve(place, &found, err));
    enum sl_status status = SL_OK;
    if (!place->for_anybody) {
        status = sl_tls_may_listen(found->ai_addr, place->text, "--https-cert and --https-key", place->has_certificates,
                                   place->insecure, err);
    }
    int fd = -1, on = 1, send_bytes = SEND_BYTES;
    if (status == SL_OK) {
        fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
            setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes) != 0 ||
            bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
            status = sl_fail(err, SL_ERR_IO, "%s %.200s: %s", place->option, place->text, strerror(errno));
        }
    }
    freeaddrinfo(found);
    if (status == SL_OK) {
        describe(fd, address_out, address_bytes);
        *fd_out = fd;
    } else {
        sl_close(fd);
    }
    return status;
}
