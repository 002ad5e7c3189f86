// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a port of the loopback interface for a server that is another program, and is told its port before it starts.
 * Design: a socket that is bound but does not listen keeps the port: the kernel gives it to no connection and to no program that
 *         binds port 0. With SO_REUSEADDR on both sides the server can bind it and listen (Linux; etcd and Redis set the option).
 */
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/close.h"

// Returns a socket that holds a free port until it is closed; below 0: none, see errno.
static inline int sl_hold_port(int *port_out) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, (struct sockaddr *)&address, n) != 0 || getsockname(fd, (struct sockaddr *)&address, &n) != 0) {
        sl_close(fd);
        return -1;
    }
    *port_out = ntohs(address.sin_port);
    return fd;
}
