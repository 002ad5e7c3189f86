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
 *             listener is not a gRPC server's   same result as the C library's
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
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/log.h"
#include "net/rpc/connections/rpc_connections.h"

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

bool sl_rpc_accept_cut(const char *text) {
    struct sl_rpc_peer peer, found;
    const bool is_known = sl_rpc_peer_read(text, &peer);
    for (int fd = 0, highest = atomic_load(&highest_fd); is_known && fd <= highest; fd++) {
        const bool is_it = sl_rpc_peer_of_socket(fd, &found) && memcmp(&found, &peer, sizeof found) == 0;
        struct port *port = is_it ? port_of(fd) : NULL;
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
