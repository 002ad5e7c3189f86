// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for TLS under the links. The peer shakes hands a bit at a time, with a worker's certificate, another role's,
 *          another authority's or none. In any state it may send any bytes, damage, cut and repeat its own records, stall, end or go. A
 *          link opens only to a worker of the cluster, and a frame is delivered only as it was sealed. A stalled link is lost in time,
 *          every event is reported once, and nothing leaks.
 *
 * Design: the first byte chooses the peer's identity, and which of the two connects. The rest are steps, each a byte and its arguments. The
 *         peer is OpenSSL over memory, so that its bytes can be held back, cut and changed on their way to the socket. The certificates are
 *         made once (tools/test-ca.sh), in the folder of the run. One thread.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/fabric/link/link_internal.h"
#include "tests/fuzz/fuzz_folder.h"

#define MAX_STEPS   48
#define PATIENCE_NS (6 * SL_NS_PER_S) // longer than a link may take to be met
#define FRAME_ID    1
#define FILL        0x5a // of all headers and data that the other side seals
#define MAX_FORGED  (2 * 255)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

enum who { WORKER, CLIENT, STRANGER, NOBODY, N_WHO };
enum step {
    STEP_SHAKE,
    STEP_FLIP,
    STEP_RAW,
    STEP_WRITE,
    STEP_STALL,
    STEP_END,
    STEP_GO,
    STEP_SEND,
    STEP_GOODBYE,
    STEP_FORGE,
    N_STEPS
};

struct side { // the product's
    struct sl_links *links;
    struct sl_link *link;
    int n_lost, n_sending;
};

static struct side side;
static unsigned port;
static int listener = -1; // of the other side, where the product connects
static SSL_CTX *contexts[N_WHO];

// ---- the product's side ------------------------------------------------------------------------------------------------

static void *on_accepted(void *arg, struct sl_link *link, const char *from) {
    (void)from;
    require(side.link == NULL);
    side.link = link;
    return arg;
}

static void on_frame(void *owner, struct sl_link *link, const struct sl_link_frame *frame) {
    (void)owner;
    require(link->state == LINK_OPEN && (frame->bytes == 0 || (link->met && frame->data)));
    require(frame->id == FRAME_ID && frame->header_bytes + frame->bytes <= MAX_FORGED);
    for (size_t i = 0; i < frame->header_bytes + frame->bytes; i++) { // one after the other
        require(((const uint8_t *)frame->header)[i] == FILL);
    }
}

static void on_lost(void *owner, enum sl_status status, const char *text) {
    (void)owner;
    require(status < 0 && text[0] != '\0' && side.n_lost++ == 0 && side.n_sending == 0);
}

static void on_sent(struct sl_link_send *send, enum sl_status status) {
    (void)status;
    require(side.n_sending-- > 0);
    free(send);
}

static void send_something(void) {
    struct sl_link_send *send = calloc(1, sizeof *send);
    require(send != NULL);
    *send = (struct sl_link_send){.id = 3, .header = "an answer", .header_bytes = 9, .done = on_sent};
    side.n_sending++;
    sl_link_send(side.link, send);
}

// ---- the other side ------------------------------------------------------------------------------------------------------

struct other {
    SSL *ssl;
    BIO *in, *out; // what has come for it, what it has to say
    int fd;
    enum who who;
};

// times: of what it has to say, in halves; 2 is as it should be.
static void flush_halves(struct other *other, uint8_t flipped, size_t at, int times) {
    uint8_t bytes[8192];
    int n = BIO_read(other->out, bytes, sizeof bytes);
    if (n > 0) {
        bytes[at % (size_t)n] ^= flipped;
        for (; times >= 2; times -= 2) {
            (void)!send(other->fd, bytes, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        (void)!send(other->fd, bytes, times > 0 ? (size_t)n / 2 : 0, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

static void flush(struct other *other, uint8_t flipped, size_t at) {
    flush_halves(other, flipped, at, 2);
}

// A frame of lengths of the input's, and what becomes of its record: bits that are flipped, where, and how much of it goes how often.
static size_t forge(struct other *other, const uint8_t *data, size_t size) {
    if (size < 6) {
        return size;
    }
    uint8_t frame[sizeof(struct sl_link_prefix) + MAX_FORGED];
    const struct sl_link_prefix prefix = {SL_LINK_MAGIC, FRAME_ID, data[0], data[1]};
    memcpy(frame, &prefix, sizeof prefix);
    memset(frame + sizeof prefix, FILL, sizeof frame - sizeof prefix);
    (void)SSL_write(other->ssl, frame, (int)(sizeof prefix + prefix.header_bytes + prefix.data_bytes));
    flush_halves(other, data[2], (size_t)data[3] | (size_t)data[4] << 8, data[5] % 6);
    return 6;
}

static void hear(struct other *other) {
    uint8_t bytes[8192];
    ssize_t n = recv(other->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0) {
        BIO_write(other->in, bytes, (int)n);
    }
}

static size_t take_step(struct other *other, const uint8_t *data, size_t size) {
    static const struct sl_link_prefix frame = {SL_LINK_MAGIC, FRAME_ID, 0, 0};
    uint8_t read[256];
    size_t n = 1, n_raw;
    hear(other);
    switch ((enum step)(data[0] % N_STEPS)) {
    case STEP_SHAKE:
        (void)SSL_do_handshake(other->ssl);
        flush(other, 0, 0);
        break;
    case STEP_FLIP:
        (void)SSL_do_handshake(other->ssl);
        if (size >= 3) {
            flush(other, data[1], data[2]);
            n = 3;
        }
        break;
    case STEP_RAW:
        n_raw = size >= 2 ? data[1] : 0;
        n_raw = size >= 2 && n_raw > size - 2 ? size - 2 : n_raw;
        if (size >= 2) {
            (void)!send(other->fd, data + 2, n_raw, MSG_NOSIGNAL | MSG_DONTWAIT);
            n = 2 + n_raw;
        }
        break;
    case STEP_WRITE:
        (void)SSL_write(other->ssl, &frame, sizeof frame);
        (void)SSL_read(other->ssl, read, sizeof read);
        flush(other, 0, 0);
        break;
    case STEP_STALL:
        sl_links_tick(side.links, sl_now_ns() + PATIENCE_NS);
        require(side.link->met || side.link->state >= LINK_ENDING);
        break;
    case STEP_END:
        shutdown(other->fd, SHUT_WR);
        break;
    case STEP_GO:
        shutdown(other->fd, SHUT_RDWR);
        break;
    case STEP_SEND:
        send_something();
        break;
    case STEP_GOODBYE:
        (void)SSL_shutdown(other->ssl);
        flush(other, 0, 0);
        break;
    case STEP_FORGE:
        n += forge(other, data + 1, size - 1);
        break;
    case N_STEPS:
        break;
    }
    ERR_clear_error();
    for (int i = 0; i < 3; i++) {
        sl_links_progress(side.links);
    }
    require(side.link->state != LINK_OPEN || other->who == WORKER); // no other identity gets in
    if (side.link->state == LINK_OPEN && !side.link->met) {
        sl_link_set_met(side.link);
    }
    return n;
}

// ---- both ------------------------------------------------------------------------------------------------------------

static SSL_CTX *context_of(const char *folder, const char *name) {
    char certificate[512], key[512];
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    require(context != NULL);
    if (name) {
        snprintf(certificate, sizeof certificate, "%s/%s.pem", folder, name);
        snprintf(key, sizeof key, "%s/%s.key", folder, name);
        require(SSL_CTX_use_certificate_chain_file(context, certificate) == 1);
        require(SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) == 1);
    }
    return context;
}

static void listen_here(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM, 0);
    require(listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof address) == 0 &&
            listen(listener, 8) == 0);
}

static void remove_certificates(void) {
    char command[512];
    snprintf(command, sizeof command, "rm -rf %s/ours %s/theirs", fuzz_folder(), fuzz_folder());
    require(system(command) == 0);
}

// Not within the first input: its time limit would hold for the programs that make certificates.
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    static const struct sl_link_events events = {on_accepted, on_frame, on_lost};
    static char ca[512], certificate[512], key[512];
    char command[1536];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sl_error err = {0};
    const char *folder = fuzz_folder();
    snprintf(command, sizeof command,
             "tools/test-ca.sh %s/ours worker/kvstore/us worker/kvstore/w client/c && tools/test-ca.sh %s/theirs "
             "worker/kvstore/w",
             folder, folder);
    require(system(command) == 0 && atexit(remove_certificates) == 0);
    snprintf(ca, sizeof ca, "%s/ours/ca.pem", folder);
    snprintf(certificate, sizeof certificate, "%s/ours/worker-kvstore-us.pem", folder);
    snprintf(key, sizeof key, "%s/ours/worker-kvstore-us.key", folder);
    struct sl_tls_files files = {ca, certificate, key, .revoked = NULL};
    require(sl_log_configure("error", &err) == SL_OK);
    require(sl_links_create(&files, &events, &side, &side.links, &err) == SL_OK);
    require(sl_links_listen(side.links, (struct sockaddr *)&address, sizeof address, &port, &err) == SL_OK);
    char ours[512], theirs[512];
    snprintf(ours, sizeof ours, "%s/ours", folder);
    snprintf(theirs, sizeof theirs, "%s/theirs", folder);
    contexts[WORKER] = context_of(ours, "worker-kvstore-w");
    contexts[CLIENT] = context_of(ours, "client-c");
    contexts[STRANGER] = context_of(theirs, "worker-kvstore-w");
    contexts[NOBODY] = context_of(ours, NULL);
    listen_here();
    return 0;
}

// The socket of the other side; else a port of it waits for a minute, and soon there is none left, and what it says waits for the
// kernel's word that what it said before has come.
static int end_of(int fd) {
    struct linger none = {.l_onoff = 1};
    int yes = 1;
    require(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none) == 0 &&
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) == 0);
    return fd;
}

static int meet(bool product_connects) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    struct sl_error err;
    int fd;
    if (product_connects) {
        require(getsockname(listener, (struct sockaddr *)&address, &bytes) == 0);
        require(sl_link_connect(side.links, (struct sockaddr *)&address, bytes, &side, &side.link, &err) == SL_OK);
        fd = end_of(accept(listener, NULL, NULL));
    } else {
        address.sin_port = htons((uint16_t)port);
        fd = end_of(socket(AF_INET, SOCK_STREAM, 0));
        require(connect(fd, (struct sockaddr *)&address, bytes) == 0);
    }
    for (int i = 0; i < 100 && (!side.link || side.link->state == LINK_CONNECTING); i++) {
        sl_links_progress(side.links);
    }
    require(side.link != NULL);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    side = (struct side){.links = side.links};
    bool product_connects = data[0] & 0x80;
    struct other other = {.who = (enum who)(data[0] % N_WHO), .in = BIO_new(BIO_s_mem()), .out = BIO_new(BIO_s_mem())};
    other.fd = meet(product_connects);
    other.ssl = SSL_new(contexts[other.who]);
    require(other.ssl && other.in && other.out);
    SSL_set_bio(other.ssl, other.in, other.out); // which has them from now on
    if (product_connects) {
        SSL_set_accept_state(other.ssl);
    } else {
        SSL_set_connect_state(other.ssl);
    }
    data++, size--;
    for (int i = 0; i < MAX_STEPS && size > 0; i++) {
        size_t n = take_step(&other, data, size);
        data += n;
        size -= n;
    }
    sl_link_close(&side.link);
    require(side.n_sending == 0 && side.links->first == NULL && side.links->n_unmet == 0);
    close(other.fd);
    SSL_free(other.ssl);
    return 0;
}
