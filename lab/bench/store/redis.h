// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a Redis server of this machine beside a bench, and its commands SET and GET over a socket (the protocol RESP).
 * Threads: a connection belongs to one thread.
 */
#pragma once

#include "base/child.h"

struct sl_redis {
    struct sl_child child;
    char folder[64], socket[96];
    int port, held; // held: a socket that keeps the port (base/held_port.h)
};

// Starts the server without persistence; forks, so call it before this process has threads. SL_ERR_NOT_FOUND: no
// redis-server is in PATH. Stop it after failures, too.
enum sl_status sl_redis_start(struct sl_redis *redis, struct sl_error *err);
void sl_redis_stop(struct sl_redis *redis);

// Connects over the server's Unix socket, or over TCP. Calls on the connection take 30 s at most.
enum sl_status sl_redis_connect(const struct sl_redis *redis, bool over_tcp, int *fd_out, struct sl_error *err);

enum sl_status sl_redis_set(int fd, const char *key, const void *data, size_t bytes, struct sl_error *err);
// Reads `bytes` of value, with the reply around them, into the buffer, which has SL_REDIS_BESIDE bytes more.
#define SL_REDIS_BESIDE 64
enum sl_status sl_redis_get(int fd, const char *key, void *buffer, size_t bytes, struct sl_error *err);
