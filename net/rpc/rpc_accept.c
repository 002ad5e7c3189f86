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
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/log.h"
#include "net/rpc/rpc_internal.h"

enum { MAX_PORTS = 16 };

// A process has one accept4(), and so one table.
static struct port {
    atomic_int number; // 0: free
    atomic_ullong n_accepted, n_refused;
    atomic_llong complained_ns;
} ports[MAX_PORTS];

static atomic_int highest_fd; // of a connection that gRPC got

static struct port *find(int number) {
    for (size_t i = 0; number > 0 && i < MAX_PORTS; i++) {
        if (atomic_load(&ports[i].number) == number) {
            return &ports[i];
        }
    }
    return NULL;
}

enum sl_status sl_rpc_accept_guard(int port, struct sl_error *err) {
    for (size_t i = 0; i < MAX_PORTS; i++) {
        int free_number = 0;
        if (atomic_compare_exchange_strong(&ports[i].number, &free_number, port)) {
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_EXHAUSTED, "a process has at most %d gRPC servers", MAX_PORTS);
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

// Returns the guarded port that a socket listens on, or NULL.
static struct port *port_of(int listener) {
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;
    if (getsockname(listener, (struct sockaddr *)&address, &bytes) != 0) {
        return NULL;
    }
    switch (address.ss_family) {
    case AF_INET:
        return find(ntohs(((const struct sockaddr_in *)&address)->sin_port));
    case AF_INET6:
        return find(ntohs(((const struct sockaddr_in6 *)&address)->sin6_port));
    default:
        return NULL;
    }
}

static void complain(struct port *port, const char *why) {
    const int64_t now_ns = sl_now_ns();
    long long before_ns = atomic_load(&port->complained_ns);
    if (now_ns - before_ns > SL_NS_PER_S && atomic_compare_exchange_strong(&port->complained_ns, &before_ns, now_ns)) {
        sl_log_warn("rpc", "port %d: %s; the limit is %d descriptors (ulimit -n)", atomic_load(&port->number), why,
                    sl_descriptors_limit());
    }
}

// Returns true if a connected socket's peer is the host and port of a text of gRPC's.
static bool is_peer(int fd, const char *peer, int number) {
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;
    char host[INET6_ADDRSTRLEN] = "";
    if (getpeername(fd, (struct sockaddr *)&address, &bytes) != 0) {
        return false;
    }
    if (address.ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&address;
        return ntohs(v4->sin_port) == number && inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host) &&
               strstr(peer, host);
    }
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&address;
    if (address.ss_family != AF_INET6 || ntohs(v6->sin6_port) != number ||
        !inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host)) {
        return false;
    }
    return strstr(peer, strncmp(host, "::ffff:", 7) == 0 ? host + 7 : host); // gRPC writes mapped ones as IPv4
}

bool sl_rpc_accept_cut(const char *peer) {
    const char *colon = strrchr(peer, ':');
    const int number = colon ? atoi(colon + 1) : 0, highest = atomic_load(&highest_fd);
    for (int fd = 0; number > 0 && fd <= highest; fd++) {
        struct port *port = is_peer(fd, peer, number) ? port_of(fd) : NULL;
        if (port) {
            // Resets the connection at once, as close() would, but gRPC still owns the descriptor, and sees an error.
            // After shutdown() the peer could go on to write, and wait.
            const struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
            (void)connect(fd, &nowhere, sizeof nowhere);
            complain(port, "a client opens calls and cancels them at once: its connection is closed");
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
                complain(port, strerror(errno));
            }
            errno = EAGAIN;
            return -1;
        }
        if (fd < ceiling) {
            int highest = atomic_load(&highest_fd);
            while (fd > highest && !atomic_compare_exchange_weak(&highest_fd, &highest, fd)) {
            }
            atomic_fetch_add(&port->n_accepted, 1);
            return fd;
        }
        refuse(fd);
        atomic_fetch_add(&port->n_refused, 1);
        complain(port, "refuses connections above three quarters of the limit");
        if (bytes) {
            *bytes = room;
        }
    }
}
