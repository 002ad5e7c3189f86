// SPDX-License-Identifier: Apache-2.0
// Purpose: the addresses of connections, as sockets have them and as gRPC writes them.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/hash.h"
#include "net/rpc/connections/rpc_connections.h"

int sl_rpc_local_port(int fd) {
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) {
        return 0;
    }
    return address.ss_family == AF_INET    ? ntohs(((const struct sockaddr_in *)&address)->sin_port)
           : address.ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)&address)->sin6_port)
                                           : 0;
}

static void map_v4(struct in_addr v4, uint8_t host_out[16]) {
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
    memcpy(host_out, prefix, sizeof prefix);
    memcpy(host_out + sizeof prefix, &v4, sizeof v4);
}

bool sl_rpc_peer_read(const char *text, struct sl_rpc_peer *peer_out) {
    const char *begin = strchr(text, ':'), *end = strrchr(text, ':');
    char host[INET6_ADDRSTRLEN];
    struct in_addr v4;
    if (!begin || begin == end) {
        return false;
    }
    begin += strncasecmp(begin + 1, "%5B", 3) == 0 ? 4 : begin[1] == '[' ? 2 : 1;
    const size_t n = strcspn(begin, "%]"), n_most = (size_t)(end - begin), n_host = n < n_most ? n : n_most;
    if (n_host >= sizeof host) {
        return false;
    }
    memcpy(host, begin, n_host);
    host[n_host] = '\0';
    peer_out->number = atoi(end + 1);
    if (inet_pton(AF_INET, host, &v4) == 1) {
        map_v4(v4, peer_out->host);
        return peer_out->number > 0;
    }
    return inet_pton(AF_INET6, host, peer_out->host) == 1 && peer_out->number > 0;
}

bool sl_rpc_peer_of_socket(int fd, struct sl_rpc_peer *peer_out) {
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;
    if (getpeername(fd, (struct sockaddr *)&address, &bytes) != 0) {
        return false;
    }
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&address;
    if (address.ss_family == AF_INET) {
        map_v4(v4->sin_addr, peer_out->host);
        peer_out->number = ntohs(v4->sin_port);
    } else if (address.ss_family == AF_INET6) {
        memcpy(peer_out->host, &v6->sin6_addr, sizeof peer_out->host);
        peer_out->number = ntohs(v6->sin6_port);
    }
    return address.ss_family == AF_INET || address.ss_family == AF_INET6;
}

static bool is_here(const struct sl_rpc_peer *peer) {
    static const uint8_t v4[13] = {[10] = 0xff, [11] = 0xff, [12] = 127}, v6[16] = {[15] = 1};
    return memcmp(peer->host, v4, sizeof v4) == 0 || memcmp(peer->host, v6, sizeof v6) == 0;
}

static uint64_t caller_of(const struct sl_rpc_peer *peer) {
    return sl_hash(peer, is_here(peer) ? sizeof *peer : sizeof peer->host, 0) | 1;
}

uint64_t sl_rpc_caller_of_peer(const char *text) {
    struct sl_rpc_peer peer;
    return sl_rpc_peer_read(text, &peer) ? caller_of(&peer) : 1;
}

uint64_t sl_rpc_caller_of_socket(int fd) {
    struct sl_rpc_peer peer;
    return sl_rpc_peer_of_socket(fd, &peer) ? caller_of(&peer) : 1;
}
