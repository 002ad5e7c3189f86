// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: closes connections whose header blocks do not end, or whose streams are reset in the read that opens them.
 *
 * Design: HTTP/2 lets a client continue a header block with any number of CONTINUATION frames. gRPC core (seen in 1.51)
 *         compares the metadata with its limit when the block ends, and until then keeps all of it: 900 MB became 1.8 GB
 *         in 9 s, which it did not give back. No channel argument bounds that. So this file defines the two functions by
 *         which libgrpc.so gets the bytes of a connection, in every program that has a server:
 *
 *             recvmsg()   connections without TLS that rpc_accept.c has accepted
 *             SSL_read()  servers' sides of TLS. The fabric uses SSL_read_ex()
 *
 *         Both follow the frames in the bytes that pass, without a copy, and count the bytes of the current block. Above
 *         MOST the read fails, and gRPC closes the connection. MOST is eight times the metadata that gRPC accepts.
 *         Too many resets end a connection as well (rpc_resets.c).
 * Threads: any. gRPC reads a connection on one thread at a time; the mutex is for a thread that still
 *         reads the descriptor's previous connection.
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
#include "net/rpc/rpc_internal.h"

enum {
    MOST = 64 << 10, // bytes of a header block, with the heads of its frames
    PREFACE = 24,    // before a client's first frame
    HEAD = 9,
    HEADERS = 1,
    RST_STREAM = 3,
    CONTINUATION = 9,
    END_HEADERS = 4,
    CHUNK = 256,
    CHUNKS = 4096,
};

// The position in the frames of a connection.
struct frames {
    pthread_mutex_t mutex;
    bool is_watched;
    uint8_t head[HEAD];
    uint8_t n_head;
    uint32_t n_skipped;             // bytes to come of the preface, or of a frame's payload
    uint32_t n_block;               // bytes of a header block that has not ended
    int port;                       // of the server
    uint32_t newest, newest_before; // the newest stream, now and before the last read
    int64_t resets_since_ns;        // rpc_resets.c
    int n_resets;
};

static void begin(struct frames *frames, bool is_watched, int port) {
    SL_LOCKED(&frames->mutex);
    frames->is_watched = is_watched;
    frames->port = port;
    frames->n_head = 0;
    frames->n_skipped = PREFACE;
    frames->n_block = frames->newest = 0;
    frames->n_resets = 0; // those were another connection's
}

// Returns what the client did wrong, or NULL.
static const char *count_frame(struct frames *frames) {
    const uint8_t *head = frames->head;
    const uint32_t stream = (uint32_t)((head[5] & 0x7f) << 24 | head[6] << 16 | head[7] << 8 | head[8]);
    frames->n_head = 0;
    frames->n_skipped = (uint32_t)head[0] << 16 | (uint32_t)head[1] << 8 | head[2];
    if (head[3] == HEADERS || head[3] == CONTINUATION) {
        frames->n_block += frames->n_skipped + HEAD;
        frames->newest = stream > frames->newest ? stream : frames->newest;
    }
    if (frames->n_block > MOST) {
        return "sent more than 64 KiB of headers of one call";
    }
    if (frames->n_block > 0 && head[4] & END_HEADERS && (head[3] == HEADERS || head[3] == CONTINUATION)) {
        frames->n_block = 0;
    }
    return head[3] == RST_STREAM && stream > frames->newest_before &&
                   sl_rpc_resets_in_a_read(&frames->resets_since_ns, &frames->n_resets)
               ? "opens calls and cancels them at once"
               : NULL;
}

// Follows n bytes. Returns what the client did wrong, or NULL.
static const char *follow(struct frames *frames, const uint8_t *bytes, size_t n) {
    while (n > 0) {
        size_t n_taken = n < frames->n_skipped ? n : frames->n_skipped;
        if (frames->n_skipped > 0) {
            frames->n_skipped -= (uint32_t)n_taken;
        } else {
            n_taken = n < (size_t)(HEAD - frames->n_head) ? n : (size_t)(HEAD - frames->n_head);
            memcpy(frames->head + frames->n_head, bytes, n_taken);
            frames->n_head = (uint8_t)(frames->n_head + n_taken);
        }
        const char *wrong = frames->n_head == HEAD ? count_frame(frames) : NULL;
        if (wrong) {
            return wrong;
        }
        bytes += n_taken;
        n -= n_taken;
    }
    return NULL;
}

static void complain(const char *wrong) {
    static atomic_llong complained_ns;
    const int64_t now_ns = sl_now_ns();
    long long before_ns = atomic_load(&complained_ns);
    if (now_ns - before_ns > SL_NS_PER_S && atomic_compare_exchange_strong(&complained_ns, &before_ns, now_ns)) {
        sl_log_warn("rpc", "a client %s: its connection is closed", wrong);
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
    begin(find(fd), in_clear, port);
    return true;
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

__attribute__((visibility("default"))) ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    static _Atomic(void *) known;
    ssize_t (*next)(int fd, struct msghdr *message, int flags);
    void *found = next_of(&known, "recvmsg");
    memcpy(&next, &found, sizeof next); // ISO C has no conversion between the two kinds of pointers
    const ssize_t n = next(fd, message, flags);
    struct frames *frames = n > 0 && !(flags & (MSG_ERRQUEUE | MSG_PEEK)) ? find(fd) : NULL;
    if (!frames) {
        return n;
    }
    pthread_mutex_lock(&frames->mutex);
    const char *wrong = NULL;
    size_t n_left = (size_t)n;
    frames->newest_before = frames->newest;
    for (size_t i = 0; frames->is_watched && !wrong && i < message->msg_iovlen && n_left > 0; i++) {
        const struct iovec *part = &message->msg_iov[i];
        const size_t n_part = part->iov_len < n_left ? part->iov_len : n_left;
        wrong = follow(frames, part->iov_base, n_part);
        n_left -= n_part;
    }
    frames->is_watched &= !wrong;
    const int port = frames->port;
    pthread_mutex_unlock(&frames->mutex);
    // A descriptor that gRPC has closed may be another connection's now.
    if (!wrong || sl_rpc_local_port(fd) != port) {
        return n;
    }
    complain(wrong);
    errno = ECONNRESET;
    return -1;
}

// ---- with TLS --------------------------------------------------------------------------------------------------------

static int tls_index = -1; // of a connection's struct frames

static void free_frames(void *parent, void *frames, CRYPTO_EX_DATA *data, int index, long argument, void *pointer) {
    (void)parent, (void)data, (void)index, (void)argument, (void)pointer;
    if (frames) {
        pthread_mutex_destroy(&((struct frames *)frames)->mutex);
        free(frames);
    }
}

static void make_index(void) {
    tls_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, free_frames);
}

typedef int read_fn(SSL *ssl, void *to, int bytes);

// Returns the frames of a connection; NULL: no memory.
static struct frames *frames_of(SSL *ssl) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_index);
    struct frames *frames = tls_index >= 0 ? SSL_get_ex_data(ssl, tls_index) : NULL;
    if (frames || tls_index < 0 || !(frames = calloc(1, sizeof *frames))) {
        return frames;
    }
    pthread_mutex_init(&frames->mutex, NULL);
    begin(frames, true, 0);
    if (SSL_set_ex_data(ssl, tls_index, frames) != 1) {
        free(frames);
        return NULL;
    }
    return frames;
}

__attribute__((visibility("default"))) int SSL_read(SSL *ssl, void *to, int bytes) {
    static _Atomic(void *) known;
    read_fn *next;
    void *found = next_of(&known, "SSL_read");
    memcpy(&next, &found, sizeof next);
    const int n = next(ssl, to, bytes);
    if (n <= 0 || !SSL_is_server(ssl)) {
        return n;
    }
    struct frames *frames = frames_of(ssl);
    if (!frames) {
        return -1;
    }
    pthread_mutex_lock(&frames->mutex);
    frames->newest_before = frames->newest;
    const char *wrong = follow(frames, to, (size_t)n);
    pthread_mutex_unlock(&frames->mutex);
    if (wrong) {
        complain(wrong);
    }
    return wrong ? -1 : n;
}
