// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for what follows the HTTP/2 frames of a connection: any bytes in both directions, in any pieces. What ends
 *          a connection also ends it if the same bytes arrive in smaller pieces; an ended connection holds no memory for unfinished
 *          messages.
 *
 * Design: the input is steps: a byte with a direction and the length of the pieces, and the first one with the side, one with the number of bytes, and these bytes. A
 *         connection gets them in pieces, and then another one gets them as they are. The functions of the socket are in this file.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "net/rpc/connections/rpc_connections.h"

enum { FD = 1, PORT = 7, MOST_STREAMS = 4, MOST_BYTES = 600, MOST_INPUT = 4096, OUT = 128, CLIENT = 64, HEAD = 5 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
ssize_t frames_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t frames_sendmsg(int fd, const struct msghdr *message, int flags);
int frames_shutdown(int fd, int how);
void *fuzz_dlsym(void *handle, const char *name);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

// ---- the socket ------------------------------------------------------------------------------------------------------

static const uint8_t *coming;

static ssize_t receive(int fd, struct msghdr *message, int flags) {
    (void)fd, (void)flags;
    size_t n = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        memcpy(message->msg_iov[i].iov_base, coming + n, message->msg_iov[i].iov_len);
        n += message->msg_iov[i].iov_len;
    }
    return (ssize_t)n;
}

static ssize_t send_all(int fd, const struct msghdr *message, int flags) {
    (void)fd, (void)flags;
    return (ssize_t)message->msg_iov->iov_len;
}

static int shut_down(int fd, int how) {
    (void)fd, (void)how;
    return 0;
}

void *fuzz_dlsym(void *handle, const char *name) {
    (void)handle;
    ssize_t (*to_receive)(int fd, struct msghdr *message, int flags) = receive;
    ssize_t (*to_send)(int fd, const struct msghdr *message, int flags) = send_all;
    int (*to_shut_down)(int fd, int how) = shut_down;
    void *found;
    memcpy(&found,
           strcmp(name, "recvmsg") == 0   ? (void *)&to_receive
           : strcmp(name, "sendmsg") == 0 ? (void *)&to_send
                                          : (void *)&to_shut_down,
           sizeof found);
    return found;
}

uint64_t sl_rpc_caller_of_socket(int fd) {
    (void)fd;
    return 0; // no caller: what one run notes would change the next
}

int sl_rpc_local_port(int fd) {
    (void)fd;
    return PORT;
}

// ---- a connection ----------------------------------------------------------------------------------------------------

// Returns whether the connection goes on.
static bool pass(bool out, const uint8_t *bytes, size_t n) {
    uint8_t room[256];
    struct iovec parts[2] = {{room, n / 2}, {room + n / 2, n - n / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (out) {
        memcpy(room, bytes, n);
        parts[0].iov_len = n;
        message.msg_iovlen = 1;
        return frames_sendmsg(FD, &message, 0) == (ssize_t)n;
    }
    coming = bytes;
    const ssize_t got = frames_recvmsg(FD, &message, 0);
    require(got == (ssize_t)n || (got == -1 && errno == ECONNRESET));
    return got >= 0;
}

// Another connection can hold all that there is.
static void require_nothing_is_held(void) {
    static const uint8_t head[HEAD] = {0, 0, 1, 0, 0}, bytes[MOST_BYTES];
    struct sl_rpc_streams other = {.owner = 9};
    require(sl_rpc_streams_open(&other, 1) && sl_rpc_streams_data(&other, 1, head, HEAD) &&
            sl_rpc_streams_data(&other, 1, bytes, MOST_BYTES) && !sl_rpc_streams_data(&other, 1, bytes, 1));
    sl_rpc_streams_end(&other);
}

// Returns after how many steps the connection was to be closed; INT_MAX: it was not.
static int follow_steps(const uint8_t *data, size_t size, bool in_pieces) {
    static const uint8_t preface[25] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const bool is_client = size > 0 && data[0] & CLIENT; // a server's replies come
    require(is_client || sl_rpc_headers_watch(FD, true, PORT));
    require(pass(is_client, preface, sizeof preface - 1));
    bool goes_on = true;
    int step = 0;
    for (; goes_on && size > 2; step++) {
        const bool out = data[0] & OUT;
        const size_t piece = in_pieces ? (data[0] & 31) + 1 : UINT8_MAX, n = data[1] < size - 2 ? data[1] : size - 2;
        for (size_t at = 0; at < n && goes_on; at += piece) {
            goes_on = pass(out, data + 2 + at, n - at < piece ? n - at : piece);
        }
        data += 2 + n, size -= 2 + n;
    }
    frames_shutdown(FD, SHUT_RDWR);
    require_nothing_is_held();
    return goes_on ? INT_MAX : step;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size = size < MOST_INPUT ? size : MOST_INPUT; // fewer resets than end a connection, which depends on the pieces
    sl_rpc_streams_allow(MOST_STREAMS, MOST_BYTES);
    sl_rpc_streams_allow_replies(MOST_BYTES);
    require(follow_steps(data, size, true) <= follow_steps(data, size, false));
    return 0;
}
