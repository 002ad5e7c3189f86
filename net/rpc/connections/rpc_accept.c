// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: accepts connections for gRPC, so that a flood of them neither stops a server from listening nor takes its
 *          last descriptors.
 *
 * Design: gRPC core (seen in 1.51) stops listening for good when accept4() fails with anything but EAGAIN: after one
 *         EMFILE the port never answers again. Its C interface takes no accepted connection with TLS, and has no limit
 *         of connections. So this file defines accept4(), which libgrpc.so then calls instead of the C library's, in
 *         every program that has a server:
 *
 *             listener is no gRPC server's   same result as the C library's
 *             descriptor below the ceiling   gRPC gets it
 *             descriptor at or above it      closed at once with a reset; then the next connection
 *             failure                        EAGAIN, unless the listener itself is at fault: gRPC keeps waiting
 *
 *         The kernel assigns the lowest free number, so a descriptor at the ceiling means that this many are open, and
 *         no count is needed. The ceiling is three quarters of the limit; files, the fabric, the admin port and calls
 *         to other processes share the rest. The limit is read each time, because an operator may change it while the
 *         process runs (prlimit).
 * Threads: any; gRPC calls accept4() on a polling thread.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/hash.h"
#include "base/log.h"
#include "net/rpc/connections/connections.h"

// A process has one accept4(), and so one table.
static struct port {
    atomic_int number; // 0: free
    atomic_bool in_clear;
    atomic_ullong n_accepted, n_refused;
    atomic_llong complained_ns;
} ports[SL_RPC_SERVERS];

static atomic_int highest_fd; // the highest descriptor that gRPC got for a connection

static struct port *find(int number) {
    for (size_t i = 0; number > 0 && i < SL_RPC_SERVERS; i++) {
        if (atomic_load(&ports[i].number) == number) {
            return &ports[i];
        }
    }
    return NULL;
}

enum sl_status sl_rpc_accept_guard(int port, bool in_clear, struct sl_error *err) {
    for (size_t i = 0; i < SL_RPC_SERVERS; i++) {
        int free_number = 0;
        if (atomic_compare_exchange_strong(&ports[i].number, &free_number, port)) {
            atomic_store(&ports[i].in_clear, in_clear);
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_EXHAUSTED, "a process has at most %d gRPC servers", SL_RPC_SERVERS);
}

void sl_rpc_accept_release(int port) {
    struct port *found = find(port);
    if (found) {
        atomic_store(&found->number, 0);
    }
}

void sl_rpc_accept_counts(int port, uint64_t *n_accepted_out, uint64_t *n_refused_out) {
    struct port *found = find(port);
    *n_accepted_out = found ? atomic_load(&found->n_accepted) : 0;
    *n_refused_out = found ? atomic_load(&found->n_refused) : 0;
}

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

// Returns the guarded port that a socket listens on, or NULL.
static struct port *port_of(int listener) {
    return find(sl_rpc_local_port(listener));
}

// of_descriptors: more of them may help.
static void complain(struct port *port, const char *why, bool of_descriptors) {
    const int64_t now_ns = sl_now_ns();
    long long before_ns = atomic_load(&port->complained_ns);
    char limit[64] = "";
    if (of_descriptors) {
        snprintf(limit, sizeof limit, "; the limit is %d descriptors (ulimit -n)", sl_descriptors_limit());
    }
    if (now_ns - before_ns > SL_NS_PER_S && atomic_compare_exchange_strong(&port->complained_ns, &before_ns, now_ns)) {
        sl_log_warn("rpc", "port %d: %s%s", atomic_load(&port->number), why, limit);
    }
}

struct peer {
    struct in6_addr host; // an IPv4 address is mapped
    int number;           // of its port
};

static struct in6_addr map_v4(struct in_addr v4) {
    struct in6_addr mapped = {.s6_addr = {[10] = 0xff, [11] = 0xff}};
    memcpy(mapped.s6_addr + 12, &v4, sizeof v4);
    return mapped;
}

// Reads "ipv4:HOST:PORT", "ipv6:[HOST]:PORT" or "ipv6:%5BHOST%25ZONE%5D:PORT"; gRPC writes mapped addresses as IPv4.
static bool read_peer(const char *text, struct peer *peer_out) {
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
        peer_out->host = map_v4(v4);
        return peer_out->number > 0;
    }
    return inet_pton(AF_INET6, host, &peer_out->host) == 1 && peer_out->number > 0;
}

// Returns false for an address of another kind.
static bool peer_of(const struct sockaddr_storage *address, struct peer *peer_out) {
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
    const bool is_v4 = address->ss_family == AF_INET;
    if (!is_v4 && address->ss_family != AF_INET6) {
        return false;
    }
    *peer_out =
        (struct peer){is_v4 ? map_v4(v4->sin_addr) : v6->sin6_addr, ntohs(is_v4 ? v4->sin_port : v6->sin6_port)};
    return true;
}

// Returns true if a socket is connected to the peer.
static bool is_peer(int fd, const struct peer *peer) {
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;
    struct peer found;
    return getpeername(fd, (struct sockaddr *)&address, &bytes) == 0 && peer_of(&address, &found) &&
           found.number == peer->number && memcmp(&found.host, &peer->host, sizeof found.host) == 0;
}

static size_t owner_of(const struct in6_addr *host, int number) {
    return sl_hash(host, sizeof *host, (uint64_t)number) % SL_RPC_OWNERS;
}

size_t sl_rpc_owner_of_peer(const char *text) {
    struct peer peer;
    return read_peer(text, &peer) ? owner_of(&peer.host, peer.number) : 0;
}

size_t sl_rpc_owner_of_socket(int fd) {
    struct sockaddr_storage address = {0};
    struct peer peer;
    socklen_t bytes = sizeof address;
    const bool is_known = getpeername(fd, (struct sockaddr *)&address, &bytes) == 0 && peer_of(&address, &peer);
    return is_known ? owner_of(&peer.host, peer.number) : 0;
}

bool sl_rpc_accept_cut(const char *text) {
    struct peer peer;
    const bool is_known = read_peer(text, &peer);
    for (int fd = 0, highest = atomic_load(&highest_fd); is_known && fd <= highest; fd++) {
        struct port *port = is_peer(fd, &peer) ? port_of(fd) : NULL;
        if (port) {
            // Resets the connection at once, as close() would, but gRPC still owns the descriptor, and sees an error.
            // After shutdown() the peer could go on to write, and wait.
            const struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
            (void)connect(fd, &nowhere, sizeof nowhere);
            complain(port, "a client cancels calls at once, or lets too many wait for it: its connection is closed",
                     false);
            return true;
        }
    }
    return false;
}

static void refuse(int fd) {
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0}; // reset on close: the kernel keeps no state
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
}

// Calls the next accept4() in link order: the C library's, or that of a library which overrides it.
static int next_accept4(int listener, struct sockaddr *address, socklen_t *bytes, int flags) {
    int (*next)(int listener, struct sockaddr *address, socklen_t *bytes, int flags);
    void *found = dlsym(RTLD_NEXT, "accept4");
    memcpy(&next, &found, sizeof next); // ISO C has no conversion between the two kinds of pointers
    return next(listener, address, bytes, flags);
}

__attribute__((visibility("default"))) int accept4(int listener, struct sockaddr *address, socklen_t *bytes,
                                                   int flags) {
    struct port *port = port_of(listener);
    if (!port) {
        return next_accept4(listener, address, bytes, flags);
    }
    const int ceiling = sl_descriptors_for_clients();
    const socklen_t room = bytes ? *bytes : 0;
    for (;;) {
        const int fd = next_accept4(listener, address, bytes, flags);
        if (fd < 0 && (errno == EBADF || errno == EINVAL || errno == ENOTSOCK || errno == EFAULT || errno == EINTR)) {
            return -1;
        }
        if (fd < 0) {
            if (errno != EAGAIN) {
                complain(port, strerror(errno), true);
            }
            errno = EAGAIN;
            return -1;
        }
        if (fd < ceiling && sl_rpc_headers_watch(fd, atomic_load(&port->in_clear), atomic_load(&port->number))) {
            int highest = atomic_load(&highest_fd);
            while (fd > highest && !atomic_compare_exchange_weak(&highest_fd, &highest, fd)) {
            }
            atomic_fetch_add(&port->n_accepted, 1);
            return fd;
        }
        refuse(fd);
        atomic_fetch_add(&port->n_refused, 1);
        complain(port, "refuses connections: too many, or no memory", true);
        if (bytes) {
            *bytes = room;
        }
    }
}
