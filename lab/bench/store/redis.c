// SPDX-License-Identifier: Apache-2.0
#include "lab/bench/store/redis.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/held_port.h"

#define START_MS 10000
#define STOP_MS  3000
#define CALL_S   30

enum sl_status sl_redis_start(struct sl_redis *redis, struct sl_error *err) {
    char path[PATH_MAX], port[16];
    if (!sl_child_find("redis-server", path)) {
        return sl_fail(err, SL_ERR_NOT_FOUND, "no redis-server is in PATH (package redis-server)");
    }
    snprintf(redis->folder, sizeof redis->folder, "/tmp/sluice-redis-XXXXXX");
    SL_FAIL_OR(!mkdtemp(redis->folder), redis->folder[0] = '\0', err, SL_ERR_IO,
               "no folder in /tmp for redis-server's socket: %m");
    snprintf(redis->socket, sizeof redis->socket, "%s/socket", redis->folder);
    redis->held = sl_hold_port(&redis->port);
    SL_FAIL_OR(redis->held < 0, rmdir(redis->folder);
               redis->folder[0] = '\0', err, SL_ERR_IO, "no port for redis-server: %m");
    snprintf(port, sizeof port, "%d", redis->port);
    char *argv[] = {path, "--port",       port, "--bind",    "127.0.0.1", "--unixsocket", redis->socket, "--save",
                    "",   "--appendonly", "no", "--logfile", "/dev/null", "--dir",        redis->folder, NULL};
    enum sl_status status = sl_child_start(&redis->child, "redis", argv, err);
    int64_t deadline_ns = sl_deadline_in_ms(START_MS);
    for (int fd; status == SL_OK; sl_sleep_ms(20)) {
        if (sl_redis_connect(redis, false, &fd, err) == SL_OK) {
            close(fd);
            break;
        }
        status = sl_now_ns() > deadline_ns ? SL_ERR_PEER_LOST : SL_OK;
    }
    return status;
}

void sl_redis_stop(struct sl_redis *redis) {
    if (redis->folder[0] == '\0') {
        return;
    }
    sl_child_signal(&redis->child, SIGTERM);
    sl_child_wait_end(&redis->child, STOP_MS, stderr);
    unlink(redis->socket);
    rmdir(redis->folder);
    redis->folder[0] = '\0';
    close(redis->held);
}

enum sl_status sl_redis_connect(const struct sl_redis *redis, bool over_tcp, int *fd_out, struct sl_error *err) {
    struct sockaddr_in tcp = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)redis->port)};
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    snprintf(local.sun_path, sizeof local.sun_path, "%s", redis->socket);
    const struct sockaddr *address = over_tcp ? (struct sockaddr *)&tcp : (struct sockaddr *)&local;
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct timeval limit = {.tv_sec = CALL_S};
    if (fd < 0 || connect(fd, address, over_tcp ? sizeof tcp : sizeof local) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
        (over_tcp && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)) {
        sl_fail(err, SL_ERR_PEER_LOST, "redis-server at %s: %m", redis->socket);
        sl_close(fd);
        return SL_ERR_PEER_LOST;
    }
    *fd_out = fd;
    return SL_OK;
}

static bool send_all(int fd, const void *data, size_t bytes, int flags) {
    for (ssize_t n; bytes > 0; data = (const char *)data + n, bytes -= (size_t)n) {
        n = send(fd, data, bytes, flags | MSG_NOSIGNAL);
        if (n <= 0) {
            return false;
        }
    }
    return true;
}

enum sl_status sl_redis_set(int fd, const char *key, const void *data, size_t bytes, struct sl_error *err) {
    char head[128], reply[8] = "";
    int n = snprintf(head, sizeof head, "*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n", strlen(key), key, bytes);
    bool is_set = send_all(fd, head, (size_t)n, MSG_MORE) && send_all(fd, data, bytes, MSG_MORE) &&
                  send_all(fd, "\r\n", 2, 0) && recv(fd, reply, 5, MSG_WAITALL) == 5 &&
                  memcmp(reply, "+OK\r\n", 5) == 0;
    return is_set ? SL_OK : sl_fail(err, SL_ERR_PEER_LOST, "redis: SET of %zu bytes failed: %.5s", bytes, reply);
}

enum sl_status sl_redis_get(int fd, const char *key, void *buffer, size_t bytes, struct sl_error *err) {
    char command[128], head[32];
    int n = snprintf(command, sizeof command, "*2\r\n$3\r\nGET\r\n$%zu\r\n%s\r\n", strlen(key), key);
    size_t n_head = (size_t)snprintf(head, sizeof head, "$%zu\r\n", bytes), got = 0;
    bool is_sent = send_all(fd, command, (size_t)n, 0);
    for (size_t all = n_head + bytes + 2;
         is_sent && got < all && (got < n_head || memcmp(buffer, head, n_head) == 0);) {
        ssize_t more = recv(fd, (char *)buffer + got, all - got, 0);
        if (more <= 0) {
            break;
        }
        got += (size_t)more;
    }
    return got == n_head + bytes + 2 ? SL_OK
                                     : sl_fail(err, SL_ERR_PEER_LOST, "redis: GET of %zu bytes gave %zu", bytes, got);
}
