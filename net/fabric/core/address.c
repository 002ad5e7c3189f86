// SPDX-License-Identifier: Apache-2.0
// Purpose: addresses of fabrics: "HOST:PORT", "[HOST]:PORT", and with certificates "NAME@HOST:PORT".
#include <netdb.h>
#include <string.h>

#include "net/fabric/core/core.h"

static enum sl_status split(const char *address, char *host_out, size_t host_bytes, const char **port_out,
                            struct sl_error *err) {
    const char *colon = strrchr(address, ':');
    SL_FAIL_IF(!colon || colon == address || !colon[1], err, SL_ERR_INVALID,
               "fabric address \"%s\": expected HOST:PORT", address);
    const char *at = strchr(address, '@'), *host = at ? at + 1 : address;
    size_t n = host < colon ? (size_t)(colon - host) : 0;
    if (n > 1 && host[0] == '[' && host[n - 1] == ']') {
        host++;
        n -= 2;
    }
    SL_FAIL_IF(n == 0 || n >= host_bytes, err, SL_ERR_INVALID,
               "fabric address \"%s\": the host name is empty or too long", address);
    memcpy(host_out, host, n);
    host_out[n] = '\0';
    *port_out = colon + 1;
    return SL_OK;
}

enum sl_status sl_address_host(const char *address, char *host_out, size_t host_bytes, struct sl_error *err) {
    const char *port = NULL;
    return split(address, host_out, host_bytes, &port, err);
}

enum sl_status sl_address_resolve(const char *address, struct sockaddr_storage *sockaddr_out, socklen_t *bytes_out,
                                  struct sl_error *err) {
    char host[128];
    const char *port = NULL;
    SL_TRY(split(address, host, sizeof host, &port, err));
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(host, port, &hints, &found);
    SL_FAIL_IF(rc != 0, err, SL_ERR_INVALID, "fabric address \"%s\": %s", address, gai_strerror(rc));
    memset(sockaddr_out, 0, sizeof *sockaddr_out);
    memcpy(sockaddr_out, found->ai_addr, found->ai_addrlen);
    *bytes_out = found->ai_addrlen;
    freeaddrinfo(found);
    return SL_OK;
}
