// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: follows the frames of each connection. Closes those whose header blocks do not end, whose streams are reset in the
 *          read that opens them, or whose callers hold too much of unfinished messages.
 *
 * Design: HTTP/2 lets a client continue a header block with any number of CONTINUATION frames. gRPC core (seen in 1.51)
 *         compares the metadata with its limit when the block ends, and until then keeps all of it: 900 MB became 1.8 GB
 *         in 9 s, which it did not give back. No channel argument bounds that, nor messages that have not ended. So this file
 *         defines the functions by which libgrpc.so gets and sends the bytes of a connection, in every program that
 *         has a server:
 *
 *             recvmsg()  sendmsg()    connections without TLS that rpc_accept.c has accepted, or that begin as a client's do
 *             shutdown()
 *             SSL_read() SSL_write()  servers' sides of TLS, and clients' of HTTP/2. The fabric uses SSL_read_ex() and
 *                                     SSL_write_ex()
 *
 *         All follow the frames in the bytes that pass, without a copy. They count the bytes of the current header block, and
 *         tell rpc_streams.c what streams open, close and get. gRPC also keeps acknowledgments of pings and settings that a
 *         client does not read, without a bound: they are counted. When a client has too much of something, the read fails, and
 *         gRPC closes the connection. MOST is eight times the metadata that gRPC accepts.
 *         Too many resets end a connection as well (rpc_resets.c).
 * Threads: any. gRPC reads a connection on one thread at a time, and writes on another; the mutex is for the two, and for
 *         a thread that still reads the descriptor's previous connection.
 */
#include <dlfcn.h>
#include <errno.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "net/rpc/connections/rpc_connections.h"
#include "net/trust/certificate.h"

enum {
    MOST = 64 << 10, // bytes of a header block, with the heads of its frames
    MOST_OWED = 10000,
    PREFACE = 24, // before a client's first frame
    HEAD = 9,
    DATA = 0,
    HEADERS = 1,
    RST_STREAM = 3,
    SETTINGS = 4,
    PING = 6,
    CONTINUATION = 9,
    ACK = 1,
    END_STREAM = 1,
    END_HEADERS = 4,
    CHUNK = 256,
    CHUNKS = 4096,
};

// The position in the frames of one direction of a connection.
struct position {
    uint8_t head[HEAD];
    uint8_t n_head;
    uint32_t n_skipped; // bytes to come of the preface, or of a frame's payload
};

struct frames {
    pthread_mutex_t mutex;
    bool is_watched;
    const char *wrong; // what the client did; every further read fails, because gRPC may pass over one failure
    struct position in, out;
    uint32_t n_block;        // bytes of a header block that has not ended
    uint32_t n_owed;         // pings and settings of the client that are not acknowledged
    uint32_t data_of;        // the stream whose data comes; 0: the frame has no data
    int port;                // of the server
    uint32_t newest_before;  // the newest stream before the last read
    int64_t resets_since_ns; // rpc_resets.c
    int n_resets;
    struct sl_rpc_streams streams;
};

// Begins to follow a connection, or not. Lock held.
static void begin(struct frames *frames, bool is_watched, bool is_client, int port, uint64_t caller) {
    sl_rpc_streams_end(&frames->streams); // of another connection
    frames->is_watched = is_watched;
    frames->wrong = NULL;
    frames->port = port;
    frames->in = (struct position){.n_skipped = is_client ? 0 : PREFACE};
    frames->out = (struct position){.n_skipped = is_client ? PREFACE : 0};
    frames->n_block = frames->data_of = frames->n_owed = 0;
    frames->n_resets = 0;
    frames->streams.owner = sl_rpc_owner_of(caller);
    frames->streams.caller = caller;
    frames->streams.are_replies = is_client;
}

static uint32_t stream_of(const uint8_t *head) {
    return (uint32_t)(head[5] & 0x7f) << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8];
}

// Begins a frame's payload.
static void skip_head(struct position *at) {
    at->n_head = 0;
    at->n_skipped = (uint32_t)at->head[0] << 16 | (uint32_t)at->head[1] << 8 | at->head[2];
}

static bool is_acknowledged(const uint8_t *head) {
    return head[3] == PING || head[3] == SETTINGS;
}

// Begins or ends a stream, or none. Returns what the client, or the server, did wrong, or NULL.
static const char *count_stream(struct frames *frames, const uint8_t *head) {
    const uint32_t stream = stream_of(head);
    if (frames->streams.are_replies) {
        if (head[3] == RST_STREAM || (head[3] <= HEADERS && head[4] & END_STREAM)) {
            sl_rpc_streams_close(&frames->streams, stream);
        }
        return NULL;
    }
    if (head[3] == HEADERS && !sl_rpc_streams_open(&frames->streams, stream)) {
        return "opens more calls at once than it may";
    }
    if (head[3] == RST_STREAM) {
        sl_rpc_streams_close(&frames->streams, stream);
    }
    if (head[3] != RST_STREAM || stream <= frames->newest_before ||
        !sl_rpc_resets_in_a_read(&frames->resets_since_ns, &frames->n_resets)) {
        return NULL;
    }
    sl_rpc_resets_note(frames->streams.caller);
    return "opens calls and cancels them at once";
}

// Returns what the other end did wrong, or NULL.
static const char *count_frame(struct frames *frames) {
    const uint8_t *head = frames->in.head;
    skip_head(&frames->in);
    frames->data_of = head[3] == DATA ? stream_of(head) : 0;
    if (head[3] == HEADERS || head[3] == CONTINUATION) {
        frames->n_block += frames->in.n_skipped + HEAD;
    }
    frames->n_owed += is_acknowledged(head) && !(head[4] & ACK);
    if (frames->n_owed > MOST_OWED) { // gRPC keeps what it cannot send
        return "sends pings or settings, and does not read what acknowledges them";
    }
    if (frames->n_block > MOST) {
        return "sent more than 64 KiB of headers of one call";
    }
    if (frames->n_block > 0 && head[4] & END_HEADERS && (head[3] == HEADERS || head[3] == CONTINUATION)) {
        frames->n_block = 0;
    }
    return count_stream(frames, head);
}

// Takes bytes of a frame's head, or of its payload.
static size_t take(struct position *at, const uint8_t *bytes, size_t n) {
    if (at->n_skipped > 0) {
        const size_t n_taken = n < at->n_skipped ? n : at->n_skipped;
        at->n_skipped -= (uint32_t)n_taken;
        return n_taken;
    }
    const size_t n_taken = n < (size_t)(HEAD - at->n_head) ? n : (size_t)(HEAD - at->n_head);
    memcpy(at->head + at->n_head, bytes, n_taken);
    at->n_head = (uint8_t)(at->n_head + n_taken);
    return n_taken;
}

// Follows n bytes from the other end, until it does something wrong.
static void follow(struct frames *frames, const uint8_t *bytes, size_t n) {
    while (n > 0 && !frames->wrong) {
        const bool is_data = frames->in.n_skipped > 0 && frames->data_of > 0;
        const size_t n_taken = take(&frames->in, bytes, n);
        if (is_data && !sl_rpc_streams_data(&frames->streams, frames->data_of, bytes, n_taken)) {
            frames->wrong =
                frames->streams.are_replies
                    ? "announces a reply of more than 64 MiB"
                    : "holds more than its part of the memory for requests that have not arrived completely";
        } else if (frames->in.n_head == HEAD) {
            frames->wrong = count_frame(frames);
        }
        bytes += n_taken;
        n -= n_taken;
    }
}

// Follows n bytes to the other end, for the streams that a client begins, and that either ends.
static void follow_out(struct frames *frames, const uint8_t *bytes, size_t n) {
    while (n > 0) {
        const size_t n_taken = take(&frames->out, bytes, n);
        if (frames->out.n_head == HEAD) {
            const uint8_t *head = frames->out.head;
            const bool is_request = frames->streams.are_replies && head[3] == HEADERS;
            if (is_request && !sl_rpc_streams_open(&frames->streams, stream_of(head))) {
                frames->wrong = "has more calls than there is memory for";
            } else if (head[3] == RST_STREAM || (head[3] == HEADERS && head[4] & END_STREAM && !is_request)) {
                sl_rpc_streams_close(&frames->streams, stream_of(head));
            }
            frames->n_owed -= frames->n_owed > 0 && is_acknowledged(head) && head[4] & ACK;
            skip_head(&frames->out);
        }
        bytes += n_taken;
        n -= n_taken;
    }
}

static atomic_ullong n_cut; // connections with servers

uint64_t sl_rpc_headers_count_cut(void) {
    return atomic_load(&n_cut);
}

static void complain(const char *wrong, bool of_server) {
    static atomic_llong complained_ns;
    atomic_fetch_add(&n_cut, of_server);
    const int64_t now_ns = sl_now_ns();
    long long before_ns = atomic_load(&complained_ns);
    if (now_ns - before_ns > SL_NS_PER_S && atomic_compare_exchange_strong(&complained_ns, &before_ns, now_ns)) {
        sl_log_warn("rpc", "a %s %s: its connection is closed", of_server ? "server" : "client", wrong);
    }
}

// ---- without TLS -----------------------------------------------------------------------------------------------------

static _Atomic(struct frames *) chunks[CHUNKS]; // [fd / CHUNK][fd % CHUNK]; stay until the process ends

static struct frames *find(int fd) {
    struct frames *chunk = fd >= 0 && fd < CHUNKS * CHUNK ? atomic_load(&chunks[fd / CHUNK]) : NULL;
    return chunk ? &chunk[fd % CHUNK] : NULL;
}

static bool add_chunk(int i) {
    struct frames *chunk = calloc(CHUNK, sizeof *chunk), *none = NULL;
    for (int k = 0; chunk && k < CHUNK; k++) {
        pthread_mutex_init(&chunk[k].mutex, NULL);
    }
    if (chunk && !atomic_compare_exchange_strong(&chunks[i], &none, chunk)) {
        free(chunk); // another thread was faster
    }
    return chunk;
}

bool sl_rpc_headers_watch(int fd, bool in_clear, int port) {
    if (!find(fd) && (!in_clear || fd >= CHUNKS * CHUNK || !add_chunk(fd / CHUNK))) {
        return !in_clear;
    }
    SL_LOCKED(&find(fd)->mutex);
    begin(find(fd), in_clear, false, port, sl_rpc_caller_of_socket(fd));
    return true;
}

// Returns true for the bytes with which a client begins a connection.
static bool begins_http2(const void *bytes, size_t n) {
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    return n >= PREFACE && memcmp(bytes, preface, PREFACE) == 0;
}

// Begins to follow a connection that this process has made. Without memory, nothing bounds what its server sends.
static void watch_client(int fd) {
    if (!find(fd) && (fd < 0 || fd >= CHUNKS * CHUNK || !add_chunk(fd / CHUNK))) {
        return;
    }
    SL_LOCKED(&find(fd)->mutex);
    if (!find(fd)->is_watched) { // else a server's
        begin(find(fd), true, true, sl_rpc_local_port(fd), 0);
    }
}

// Returns the next function of a name in link order, which is looked up once.
static void *next_of(_Atomic(void *) *known, const char *name) {
    void *found = atomic_load(known);
    if (!found) {
        found = dlsym(RTLD_NEXT, name);
        atomic_store(known, found);
    }
    return found;
}

// Tells what recvmsg() returned. Without room for bytes, which gRPC may ask for, 0 is not an end.
static bool is_end(ssize_t n, const struct msghdr *message) {
    bool has_room = false;
    for (size_t i = 0; n == 0 && i < message->msg_iovlen; i++) {
        has_room |= message->msg_iov[i].iov_len > 0;
    }
    return has_room || (n < 0 && errno != EAGAIN && errno != EINTR);
}

__attribute__((visibility("default"))) ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    static _Atomic(void *) known;
    ssize_t (*next)(int fd, struct msghdr *message, int flags);
    void *found = next_of(&known, "recvmsg");
    memcpy(&next, &found, sizeof next); // ISO C has no conversion between the two kinds of pointers
    const ssize_t n = next(fd, message, flags);
    const bool has_ended = is_end(n, message);
    struct frames *frames = (n > 0 || has_ended) && !(flags & (MSG_ERRQUEUE | MSG_PEEK)) ? find(fd) : NULL;
    if (!frames) {
        return n;
    }
    pthread_mutex_lock(&frames->mutex);
    size_t n_left = n > 0 ? (size_t)n : 0;
    frames->newest_before = frames->streams.newest;
    for (size_t i = 0; frames->is_watched && i < message->msg_iovlen && n_left > 0; i++) {
        const struct iovec *part = &message->msg_iov[i];
        const size_t n_part = part->iov_len < n_left ? part->iov_len : n_left;
        follow(frames, part->iov_base, n_part);
        n_left -= n_part;
    }
    frames->is_watched &= !has_ended;
    const char *wrong = frames->is_watched ? frames->wrong : NULL;
    if (wrong || has_ended) {
        sl_rpc_streams_end(&frames->streams);
    }
    const int port = frames->port;
    const bool of_server = frames->streams.are_replies;
    pthread_mutex_unlock(&frames->mutex);
    // A descriptor that gRPC has closed may be another connection's now.
    if (!wrong || sl_rpc_local_port(fd) != port) {
        return n;
    }
    complain(wrong, of_server);
    errno = ECONNRESET;
    return -1;
}

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    static _Atomic(void *) known;
    ssize_t (*next)(int fd, const struct msghdr *message, int flags);
    void *found = next_of(&known, "sendmsg");
    memcpy(&next, &found, sizeof next);
    if (message->msg_iovlen > 0 && begins_http2(message->msg_iov->iov_base, message->msg_iov->iov_len)) {
        watch_client(fd);
    }
    struct frames *frames = find(fd);
    if (!frames) {
        return next(fd, message, flags);
    }
    pthread_mutex_lock(&frames->mutex);
    if (!frames->is_watched) { // another library's, and may block
        pthread_mutex_unlock(&frames->mutex);
        return next(fd, message, flags);
    }
    // With the lock: a client that learns that its call has ended may open the next one before this thread has followed it.
    const ssize_t n = next(fd, message, flags);
    const int error = errno;
    size_t n_left = n > 0 ? (size_t)n : 0;
    for (size_t i = 0; i < message->msg_iovlen && n_left > 0; i++) {
        const struct iovec *part = &message->msg_iov[i];
        const size_t n_part = part->iov_len < n_left ? part->iov_len : n_left;
        follow_out(frames, part->iov_base, n_part);
        n_left -= n_part;
    }
    pthread_mutex_unlock(&frames->mutex);
    errno = error;
    return n;
}

// gRPC shuts a connection down before it closes its descriptor, which may then be another connection's.
__attribute__((visibility("default"))) int shutdown(int fd, int how) {
    static _Atomic(void *) known;
    int (*next)(int fd, int how);
    void *found = next_of(&known, "shutdown");
    memcpy(&next, &found, sizeof next);
    struct frames *frames = how == SHUT_RDWR ? find(fd) : NULL;
    if (frames) {
        SL_LOCKED(&frames->mutex);
        frames->is_watched = false;
        sl_rpc_streams_end(&frames->streams);
    }
    return next(fd, how);
}

// ---- with TLS --------------------------------------------------------------------------------------------------------

static int tls_index = -1; // of a connection's struct frames

static void free_frames(void *parent, void *of_tls, CRYPTO_EX_DATA *data, int index, long argument, void *pointer) {
    (void)parent, (void)data, (void)index, (void)argument, (void)pointer;
    struct frames *frames = of_tls;
    if (frames) {
        pthread_mutex_lock(&frames->mutex); // gRPC orders this after the last write; ThreadSanitizer cannot see how
        sl_rpc_streams_end(&frames->streams);
        pthread_mutex_unlock(&frames->mutex);
        pthread_mutex_destroy(&frames->mutex);
        free(frames);
    }
}

static void make_index(void) {
    tls_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, free_frames);
}

// Returns the hash of the identity in the peer's certificate. Without one, the server refuses every call.
static uint64_t caller_of(const SSL *ssl) {
    X509 *certificate = SSL_get1_peer_certificate(ssl);
    struct sl_identity caller = {.role = 0};
    (void)sl_certificate_identity(certificate, &caller, NULL);
    X509_free(certificate);
    return sl_rpc_caller_hash(&caller);
}

// Returns the frames of a connection that is followed; NULL: it is not.
static struct frames *known_frames_of(SSL *ssl) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_index);
    return tls_index >= 0 ? SSL_get_ex_data(ssl, tls_index) : NULL;
}

// Returns the frames of a connection; NULL: no memory.
static struct frames *frames_of(SSL *ssl) {
    struct frames *frames = known_frames_of(ssl);
    if (frames || tls_index < 0 || !(frames = calloc(1, sizeof *frames))) {
        return frames;
    }
    pthread_mutex_init(&frames->mutex, NULL);
    begin(frames, true, !SSL_is_server(ssl), 0, caller_of(ssl));
    if (SSL_set_ex_data(ssl, tls_index, frames) != 1) {
        free(frames);
        return NULL;
    }
    return frames;
}

__attribute__((visibility("default"))) int SSL_read(SSL *ssl, void *to, int bytes) {
    static _Atomic(void *) known;
    int (*next)(SSL * ssl, void *to, int bytes);
    void *found = next_of(&known, "SSL_read");
    memcpy(&next, &found, sizeof next);
    const int n = next(ssl, to, bytes);
    const bool of_server = !SSL_is_server(ssl);
    struct frames *frames = n <= 0 ? NULL : of_server ? known_frames_of(ssl) : frames_of(ssl);
    if (!frames) {
        return n > 0 && !of_server ? -1 : n;
    }
    pthread_mutex_lock(&frames->mutex);
    frames->newest_before = frames->streams.newest;
    follow(frames, to, (size_t)n);
    const char *wrong = frames->wrong;
    pthread_mutex_unlock(&frames->mutex);
    if (wrong) {
        complain(wrong, of_server);
    }
    return wrong ? -1 : n;
}

__attribute__((visibility("default"))) int SSL_write(SSL *ssl, const void *from, int bytes) {
    static _Atomic(void *) known;
    int (*next)(SSL * ssl, const void *from, int bytes);
    void *found = next_of(&known, "SSL_write");
    memcpy(&next, &found, sizeof next);
    struct frames *frames = !SSL_is_init_finished(ssl) ? NULL
                            : SSL_is_server(ssl) || begins_http2(from, bytes > 0 ? (size_t)bytes : 0)
                                ? frames_of(ssl)
                                : known_frames_of(ssl);
    const int n = next(ssl, from, bytes);
    if (frames && n > 0) {
        SL_LOCKED(&frames->mutex);
        follow_out(frames, from, (size_t)n);
    }
    return n;
}
