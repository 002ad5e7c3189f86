// SPDX-License-Identifier: Apache-2.0
// Purpose: parses "HOST:PORT", converts it for gRPC, and finds out why a server cannot listen there.
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/close.h"
#include "net/rpc/rpc_internal.h"

static enum sl_status malformed(const char *text, struct sl_error *err) {
    return sl_fail(err, SL_ERR_INVALID, "address '%.256s': expected HOST:PORT or [IPV6]:PORT", text);
}

enum sl_status sl_rpc_address_parse(const char *text, struct sl_rpc_address *address_out, struct sl_error *err) {
    struct sl_rpc_address address = {.bracketed = text[0] == '['};
    const char *host = text + (address.bracketed ? 1 : 0);
    const char *host_end = address.bracketed ? strchr(host, ']') : strchr(host, ':');
    if (!host_end || host_end == host || (size_t)(host_end - host) >= sizeof address.host) {
        return malformed(text, err);
    }
    const char *colon = host_end + (address.bracketed ? 1 : 0);
    if (*colon != ':' || colon[1] < '0' || colon[1] > '9') { // strtol would also take signs and spaces
        return malformed(text, err);
    }
    memcpy(address.host, host, (size_t)(host_end - host));
    char *end;
    errno = 0;
    const long port = strtol(colon + 1, &end, 10);
    if (*end || errno || port > 65535) { // this also refuses a second colon: an IPv6 address without brackets
        return malformed(text, err);
    }
    address.port = (int)port;
    struct in6_addr v6;
    if (address.bracketed && inet_pton(AF_INET6, address.host, &v6) != 1) {
        return malformed(text, err);
    }
    *address_out = address;
    return SL_OK;
}

void sl_rpc_address_format(const struct sl_rpc_address *address, char *text, size_t text_bytes) {
    snprintf(text, text_bytes, address->bracketed ? "[%s]:%d" : "%s:%d", address->host, address->port);
}

void sl_rpc_address_target(const struct sl_rpc_address *address, char *target, size_t target_bytes) {
    struct in_addr v4;
    char text[sizeof address->host + 16];
    sl_rpc_address_format(address, text, sizeof text);
    const char *scheme = address->bracketed                            ? "ipv6:"
                         : inet_pton(AF_INET, address->host, &v4) == 1 ? "ipv4:"
                                                                       : "dns:///";
    snprintf(target, target_bytes, "%s%s", scheme, text);
}

enum sl_status sl_rpc_addresses_parse(const char *list, struct sl_rpc_addresses *addresses_out, struct sl_error *err) {
    struct sl_rpc_addresses addresses = {0};
    for (const char *at = list, *end; at; at = *end ? end + 1 : NULL) {
        end = at + strcspn(at, ",");
        SL_FAIL_IF(addresses.n == SL_RPC_MAX_ADDRESSES || end - at >= SL_RPC_ADDRESS_BYTES, err, SL_ERR_INVALID,
                   "'%.256s': expected at most %d addresses, HOST:PORT,HOST:PORT,...", list, SL_RPC_MAX_ADDRESSES);
        char *text = addresses.text[addresses.n++];
        memcpy(text, at, (size_t)(end - at));
        text[end - at] = '\0';
        struct sl_rpc_address parsed;
        SL_TRY(sl_rpc_address_parse(text, &parsed, err));
    }
    *addresses_out = addresses;
    return SL_OK;
}

// Resolves an address to listen on; the caller frees the result. text_out: the address for messages.
static enum sl_status resolve(const struct sl_rpc_address *address, char *text_out, size_t text_bytes,
                              struct addrinfo **found_out, struct sl_error *err) {
    char port[16];
    sl_rpc_address_format(address, text_out, text_bytes);
    snprintf(port, sizeof port, "%d", address->port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    const int failure = getaddrinfo(address->host, port, &hints, found_out);
    return failure ? sl_fail(err, SL_ERR_INVALID, "cannot listen on %s: %s", text_out, gai_strerror(failure)) : SL_OK;
}

enum sl_status sl_rpc_address_may_listen(const struct sl_rpc_address *address, bool has_credentials, bool insecure,
                                         struct sl_error *err) {
    char text[sizeof address->host + 16];
    struct addrinfo *found;
    SL_TRY(resolve(address, text, sizeof text, &found, err));
    enum sl_status status = SL_OK;
    for (const struct addrinfo *at = found; at && status == SL_OK; at = at->ai_next) {
        status = sl_tls_may_listen(at->ai_addr, text, SL_TLS_OPTION_NAMES, has_credentials, insecure, err);
    }
    freeaddrinfo(found);
    return status;
}

enum sl_status sl_rpc_address_near(const struct sl_rpc_address *address, struct sl_rpc_address *near_out,
                                   struct sl_error *err) {
    char text[sizeof address->host + 16];
    struct addrinfo *found;
    SL_TRY(resolve(address, text, sizeof text, &found, err));
    const bool is_v6 = found->ai_family == AF_INET6;
    const bool is_wildcard =
        is_v6 ? IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)found->ai_addr)->sin6_addr)
              : ((const struct sockaddr_in *)(const void *)found->ai_addr)->sin_addr.s_addr == htonl(INADDR_ANY);
    struct sl_rpc_address near = {.port = address->port, .bracketed = is_v6 && !is_wildcard};
    int failure = 0;
    if (is_wildcard) { // gRPC listens there for both families
        snprintf(near.host, sizeof near.host, "127.0.0.1");
    } else {
        failure = getnameinfo(found->ai_addr, found->ai_addrlen, near.host, sizeof near.host, NULL, 0, NI_NUMERICHOST);
    }
    freeaddrinfo(found);
    SL_FAIL_IF(failure, err, SL_ERR_INVALID, "cannot reach %s: %s", text, gai_strerror(failure));
    *near_out = near;
    return SL_OK;
}

enum sl_status sl_rpc_address_diagnose(const struct sl_rpc_address *address, struct sl_error *err) {
    char text[sizeof address->host + 16];
    struct addrinfo *found;
    SL_TRY(resolve(address, text, sizeof text, &found, err));
    int error = 0;
    for (const struct addrinfo *at = found; at && !error; at = at->ai_next) {
        const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const int on = 1;
        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
            bind(fd, at->ai_addr, at->ai_addrlen) || listen(fd, 1)) {
            error = errno;
        }
        sl_close(fd);
    }
    freeaddrinfo(found);
    SL_FAIL_IF(error == EADDRINUSE, err, SL_ERR_EXISTS,
               "cannot listen on %s: the address is in use; stop its owner or take another", text);
    return sl_fail(err, error ? SL_ERR_INVALID : SL_ERR_IO, "cannot listen on %s: %s", text,
                   error ? strerror(error) : "gRPC refuses it");
}
