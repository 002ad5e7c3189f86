// SPDX-License-Identifier: Apache-2.0
// Links, UCX, clock, thread and addresses under a fabric that is fuzzed. See fuzz_transports.h.
#include "tests/fuzz/fuzz_transports.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "net/fabric/core/ucx.h"

#define MAX_LINKS 6
#define LOOK_NS   (200 * 1000)        // that pass with every look at the clock
#define HURRY_NS  (20 * SL_NS_PER_MS) // in the end, when only deadlines are left

struct fuzz_wire fuzz_wire;

void fuzz_require(bool holds) {
    if (!holds) {
        abort();
    }
}

void fuzz_fill(uint8_t *to, size_t bytes, uint8_t seed) {
    for (size_t i = 0; i < bytes && i < 32768; i++) {
        to[i] = (uint8_t)(seed + i * 7);
    }
    if (bytes > 32768) {
        memset(to + 32768, seed, bytes - 32768);
    }
}

// ---- clock and thread ------------------------------------------------------------------------------------------------

int64_t sl_now_ns(void) {
    return fuzz_wire.now_ns += fuzz_wire.step ? LOOK_NS : HURRY_NS;
}

int64_t sl_deadline_in_ms(int64_t ms) {
    return ms < 0 ? SL_NO_DEADLINE : sl_now_ns() + ms * SL_NS_PER_MS;
}

enum sl_status sl_thread_start(const char *name, void *(*fn)(void *), void *arg, pthread_t *thread_out,
                               struct sl_error *err) {
    (void)name, (void)err;
    *thread_out = pthread_self();
    fuzz_wire.fabric = arg;
    fn(arg);
    return SL_OK;
}

int pthread_join(pthread_t thread, void **answer) {
    (void)thread, (void)answer;
    return 0;
}

// ---- addresses: all the same -------------------------------------------------------------------------------------------

enum sl_status sl_address_resolve(const char *address, struct sockaddr_storage *sockaddr_out, socklen_t *bytes_out,
                                  struct sl_error *err) {
    (void)address, (void)err;
    struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    memcpy(sockaddr_out, &loopback, sizeof loopback);
    *bytes_out = sizeof loopback;
    return SL_OK;
}

enum sl_status sl_address_host(const char *address, char *host_out, size_t host_bytes, struct sl_error *err) {
    (void)address, (void)err;
    strncpy(host_out, "127.0.0.1", host_bytes);
    return SL_OK;
}

// ---- what is sent ------------------------------------------------------------------------------------------------------

void fuzz_touch(const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        fuzz_wire.touched ^= ((const uint8_t *)data)[i];
    }
}

static size_t least_of(unsigned id) {
    static const size_t least[SL_WIRE_END] = {[SL_WIRE_HELLO] = sizeof(struct sl_wire_hello),
                                              [SL_WIRE_BEAT] = 8,
                                              [SL_WIRE_CLAIM] = sizeof(struct sl_wire_claim),
                                              [SL_WIRE_SEGMENT] = SL_SEGMENT_HEADER_BYTES(1),
                                              [SL_WIRE_FINAL] = sizeof(struct sl_wire_final),
                                              [SL_WIRE_QUERY] = sizeof(struct sl_wire_query),
                                              [SL_WIRE_ABORT] = sizeof(struct sl_wire_abort),
                                              [SL_WIRE_ANSWER] = sizeof(struct sl_wire_answer),
                                              [SL_WIRE_REQUEST] = sizeof(struct sl_wire_request),
                                              [SL_WIRE_REPLY] = sizeof(struct sl_wire_reply),
                                              [SL_WIRE_CANCEL] = sizeof(struct sl_wire_cancel),
                                              [SL_WIRE_READ] = sizeof(struct sl_wire_read),
                                              [SL_WIRE_PLACE] = sizeof(struct sl_wire_place),
                                              [SL_WIRE_READ_REPLY] = sizeof(struct sl_wire_read_reply),
                                              [SL_WIRE_LOOK] = sizeof(struct sl_wire_look),
                                              [SL_WIRE_LOOK_REPLY] = offsetof(struct sl_wire_look_reply, place)};
    return least[id];
}

// Checks what the fabric may send to the peer: a stranger learns only that it has connected to the wrong one.
static void look_at(const struct sl_peer *peer, unsigned id, const void *header, size_t bytes) {
    fuzz_require(id > 0 && id < SL_WIRE_END && bytes >= least_of(id) && bytes <= SL_LINK_HEADER_MAX);
    memcpy(fuzz_wire.last[id], header, bytes < sizeof fuzz_wire.last[id] ? bytes : sizeof fuzz_wire.last[id]);
    if (id == SL_WIRE_HELLO && !peer->connector && peer->state == PEER_CONNECTING) {
        struct sl_wire_hello hello;
        memcpy(&hello, header, sizeof hello);
        fuzz_require(hello.wanted == peer->fabric->epoch ||
                     (hello.epoch != peer->fabric->epoch && hello.number == 0 && hello.address_bytes == 0));
    } else if (id == SL_WIRE_ANSWER) {
        struct sl_wire_answer answer;
        memcpy(&answer, header, sizeof answer);
        fuzz_require(memchr(answer.text, '\0', sizeof answer.text) != NULL);
    }
    fuzz_require(id == SL_WIRE_HELLO || peer->state != PEER_CONNECTING);
}

static void end_sends(struct sl_link *link, enum sl_status status) {
    while (link->first_send) {
        struct sl_link_send *send = link->first_send;
        link->first_send = send->next;
        send->done(send, status);
    }
}

void sl_link_send(struct sl_link *link, struct sl_link_send *send) {
    fuzz_require(!link->ended);
    look_at(link->owner, send->id, send->header, send->header_bytes);
    for (size_t i = 0; i < send->n_parts; i++) {
        fuzz_touch(send->parts[i].iov_base, send->parts[i].iov_len);
    }
    link->theirs_ended |= send->id == SL_WIRE_BYE; // the receiver of that closes
    struct sl_link_send **at = &link->first_send;
    while (*at) {
        at = &(*at)->next;
    }
    send->next = NULL;
    *at = send;
    if (!fuzz_wire.hold || link->lost) {
        end_sends(link, link->lost ? SL_ERR_PEER_LOST : SL_OK);
    }
}

// ---- links -------------------------------------------------------------------------------------------------------------

static const struct sl_link_events *events;

static void end_receive(struct sl_link *link, enum sl_status status) {
    sl_link_received_fn received = link->received;
    link->received = NULL;
    if (received) {
        if (status == SL_OK) {
            fuzz_fill(link->to, link->bytes, link->seed);
        }
        received(link->arg, status, status == SL_OK ? link->bytes : 0);
    }
}

static void lose(struct sl_link *link, enum sl_status status) {
    end_receive(link, status);
    end_sends(link, status);
}

void fuzz_lose(struct sl_link *link, bool by_peer) {
    if (!link->lost && !link->ended) {
        link->lost = true;
        link->theirs_ended |= by_peer;
        lose(link, SL_ERR_PEER_LOST);
        events->on_lost(link->owner, SL_ERR_PEER_LOST, "it went");
    }
}

static struct sl_link *add_link(void *owner) {
    struct sl_link *link = calloc(1, sizeof *link);
    fuzz_require(link != NULL);
    link->owner = owner;
    link->next = fuzz_wire.links;
    fuzz_wire.links = link;
    return link;
}

struct sl_link *fuzz_connect(void) {
    size_t n = 0;
    for (struct sl_link *at = fuzz_wire.links; at; at = at->next) {
        n++;
    }
    if (n >= MAX_LINKS) {
        return NULL;
    }
    struct sl_link *link = add_link(NULL);
    link->owner = events->on_accepted(fuzz_wire.fabric, link, "127.0.0.1");
    fuzz_require(link->owner != NULL);
    return link;
}

enum sl_status sl_links_create(const struct sl_tls_files *files, const struct sl_link_events *told, void *arg,
                               struct sl_links **links_out, struct sl_error *err) {
    (void)files, (void)arg, (void)err;
    events = told;
    *links_out = (struct sl_links *)&fuzz_wire;
    return SL_OK;
}

enum sl_status sl_links_listen(struct sl_links *links, const struct sockaddr *address, socklen_t bytes,
                               unsigned *port_out, struct sl_error *err) {
    (void)links, (void)address, (void)bytes, (void)err;
    *port_out = 1;
    return SL_OK;
}

void sl_links_destroy(struct sl_links **links) {
    *links = NULL;
}

bool sl_links_progress(struct sl_links *links) {
    (void)links;
    if (fuzz_wire.step && !fuzz_wire.step()) {
        fuzz_wire.step = NULL;
        fuzz_wire.hold = false;
        atomic_store(&fuzz_wire.fabric->stopping, true);
    }
    if (!fuzz_wire.hold) {
        fuzz_complete();
    }
    for (struct sl_link *link = fuzz_wire.links; link; link = link->next) {
        if (link->theirs_ended) {
            fuzz_lose(link, true);
        }
    }
    return true;
}

bool sl_links_busy(const struct sl_links *links) {
    (void)links;
    return true;
}

int sl_links_fd(const struct sl_links *links) {
    (void)links;
    return -1;
}

void sl_links_tick(struct sl_links *links, int64_t now_ns) {
    (void)links, (void)now_ns;
}

enum sl_status sl_link_connect(struct sl_links *links, const struct sockaddr *address, socklen_t bytes, void *owner,
                               struct sl_link **link_out, struct sl_error *err) {
    (void)links, (void)address, (void)bytes, (void)err;
    *link_out = add_link(owner);
    (*link_out)->connected = true;
    return SL_OK;
}

void sl_link_expect(struct sl_link *link, const char *address) {
    (void)link, (void)address;
}

const char *sl_links_name(const struct sl_links *links) {
    (void)links;
    return "";
}

void sl_link_set_met(struct sl_link *link) {
    link->met = true;
}

const char *sl_link_name(const struct sl_link *link) {
    (void)link;
    return "tcp";
}

void sl_link_end_sends(struct sl_link *link) {
    link->ended = true;
    lose(link, SL_ERR_CANCELLED);
}

void sl_link_finish(struct sl_link *link) {
    fuzz_require(link->ended && !link->first_send && !link->received);
}

bool sl_link_is_over(const struct sl_link *link) {
    return link->lost || link->theirs_ended;
}

bool sl_link_ended_by_peer(const struct sl_link *link) {
    return link->theirs_ended;
}

void sl_link_close(struct sl_link **link) {
    if (*link) {
        struct sl_link **at = &fuzz_wire.links;
        (*link)->ended = true;
        lose(*link, SL_ERR_CANCELLED);
        while (*at != *link) {
            at = &(*at)->next;
        }
        *at = (*link)->next;
        free(*link);
        *link = NULL;
    }
}

void sl_link_receive(struct sl_link *link, void *to, sl_link_received_fn done, void *arg) {
    fuzz_require(!link->received && link->bytes > 0 && !link->ended);
    link->to = to;
    link->received = done;
    link->arg = arg;
}

// ---- UCX -----------------------------------------------------------------------------------------------------------------

// Operations under way over UCX, in order.
struct pending {
    struct pending *next;
    struct sl_peer *peer;
    struct sl_peer_send *send;
    struct sl_peer_op *op;
    sl_received_fn received;
    void *arg;
    uint8_t *to;
    size_t bytes;
    uint8_t seed;
};
static struct pending *first_pending;
static const struct sl_ucx_events *ucx_events;

static void pend(struct pending what) {
    struct pending **at = &first_pending, *pending = malloc(sizeof *pending);
    fuzz_require(pending != NULL);
    while (*at) {
        at = &(*at)->next;
    }
    what.next = NULL;
    *pending = what;
    *at = pending;
}

static void end_pending(struct pending *it) {
    enum sl_status status = it->peer->ep ? SL_OK : SL_ERR_CANCELLED;
    if (it->send) {
        ucx_events->on_sent(it->send, status);
        return;
    }
    it->peer->n_operations--;
    if (it->op) {
        it->op->done(it->op, status);
    } else {
        if (status == SL_OK) {
            fuzz_fill(it->to, it->bytes, it->seed);
        }
        it->received(it->arg, it->peer, status, status == SL_OK ? it->bytes : 0);
    }
}

static void end_all_pending(bool gone_only) {
    for (struct pending **at = &first_pending; *at;) {
        struct pending *it = *at;
        if (gone_only && it->peer->ep) {
            at = &it->next;
            continue;
        }
        *at = it->next;
        end_pending(it);
        free(it);
        at = &first_pending;
    }
}

void fuzz_complete(void) {
    for (struct sl_link *link = fuzz_wire.links; link; link = link->next) {
        end_receive(link, SL_OK);
        end_sends(link, SL_OK);
    }
    end_all_pending(false);
}

enum sl_status sl_ucx_start(struct sl_fabric *fabric, const struct sl_ucx_events *told, struct sl_error *err) {
    (void)err;
    ucx_events = told;
    fabric->ucx = fuzz_wire.with_ucx ? (struct sl_ucx *)&fuzz_wire : NULL;
    return SL_OK;
}

bool sl_ucx_puts_from_devices(char *version_out, size_t bytes) {
    snprintf(version_out, bytes, "0.0.0");
    return false;
}

bool sl_ucx_knows_cuda(const struct sl_fabric *fabric) {
    (void)fabric;
    return false;
}

// No fuzzer has a device's memory to send from.
enum sl_status sl_ucx_register(struct sl_fabric *fabric, struct sl_region *region, struct sl_error *err) {
    (void)fabric, (void)region, (void)err;
    fuzz_require(false);
    return SL_ERR_INTERNAL;
}

void sl_ucx_stop(struct sl_fabric *fabric) {
    fuzz_require(first_pending == NULL);
    fabric->ucx = NULL;
}

bool sl_ucx_progress(struct sl_ucx *ucx) {
    (void)ucx;
    end_all_pending(true);
    return false;
}

int sl_ucx_arm(struct sl_ucx *ucx) {
    (void)ucx;
    return -1;
}

const void *sl_ucx_address(const struct sl_ucx *ucx, size_t *bytes_out) {
    (void)ucx;
    *bytes_out = 8;
    return "address";
}

enum sl_status sl_ucx_connect(struct sl_peer *peer, const void *address, size_t bytes, struct sl_error *err) {
    fuzz_touch(address, bytes);
    if (*(const uint8_t *)address == 0) {
        return sl_fail(err, SL_ERR_PEER_LOST, "no address");
    }
    peer->ep = &fuzz_wire;
    return SL_OK;
}

void sl_ucx_disconnect(struct sl_peer *peer) {
    peer->ep = NULL;
}

bool sl_ucx_is_disconnected(struct sl_peer *peer) {
    return peer->ep == NULL;
}

void sl_ucx_transport(const struct sl_peer *peer, char *name_out, size_t name_bytes) {
    (void)peer;
    strncpy(name_out, "posix", name_bytes);
}

void sl_ucx_send(struct sl_peer_send *send, enum sl_wire_id id, const void *data, size_t bytes) {
    look_at(send->peer, id, send->header, send->header_bytes);
    fuzz_require(send->to == send->peer->its_number);
    for (size_t i = 0; i < send->n_iov; i++) {
        fuzz_touch(send->iov[i].iov_base, send->iov[i].iov_len);
    }
    fuzz_touch(data, send->n_iov > 0 ? 0 : bytes);
    if (fuzz_wire.hold) {
        pend((struct pending){.peer = send->peer, .send = send});
    } else {
        ucx_events->on_sent(send, SL_OK);
    }
}

bool sl_ucx_receive(struct sl_peer *peer, struct sl_message *message, void *to, sl_received_fn done, void *arg) {
    message->taken = true;
    peer->n_operations++;
    struct pending what = {.peer = peer,
                           .received = done,
                           .arg = arg,
                           .to = to,
                           .bytes = message->bytes,
                           .seed = *(const uint8_t *)message->data};
    if (fuzz_wire.hold) {
        pend(what);
    } else {
        end_pending(&what);
    }
    return true;
}

enum sl_status sl_ucx_map(struct sl_fabric *fabric, size_t bytes, struct sl_region *region, struct sl_error *err) {
    (void)fabric, (void)bytes, (void)region;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "regions are made by hand");
}

void sl_ucx_unmap(struct sl_fabric *fabric, struct sl_region *region) {
    (void)fabric, (void)region; // the caller's
}

// The key's first byte says what is there: nothing, an adapter's memory, or memory that is mapped here.
enum sl_status sl_ucx_attach(struct sl_peer *peer, const struct sl_place *place, struct sl_remote_region *region,
                             struct sl_error *err) {
    (void)peer;
    fuzz_touch(place->key, place->head.key_bytes);
    if (place->key[0] % 4 == 0) {
        return sl_fail(err, SL_ERR_PEER_CORRUPT, "a key of nothing");
    }
    region->one_sided = place->key[0] % 4 > 1;
    if (place->key[0] % 4 == 3) {
        region->begin = (uintptr_t)fuzz_wire.far;
        region->end = region->begin + FUZZ_FAR_BYTES;
        region->mapping = (intptr_t)region->begin - 0x10000; // it lies at 64 KiB there
    }
    return SL_OK;
}

void sl_ucx_detach(struct sl_remote_region *region) {
    (void)region;
}

static enum sl_status start_op(struct sl_peer_op *op) {
    if (!op->peer->ep) {
        return SL_ERR_PEER_LOST;
    }
    if (!fuzz_wire.hold) {
        return SL_OK;
    }
    op->peer->n_operations++;
    pend((struct pending){.peer = op->peer, .op = op});
    return SL_INPROGRESS;
}

// Does not check the remote key: a real adapter of the peer would.
enum sl_status sl_peer_put(struct sl_peer_op *op, const struct sl_remote_region *region, const void *data, size_t bytes,
                           uint64_t remote) {
    (void)region, (void)remote;
    fuzz_touch(data, bytes);
    return start_op(op);
}

enum sl_status sl_peer_get(struct sl_peer_op *op, const struct sl_remote_region *region, void *data, size_t bytes,
                           uint64_t remote) {
    (void)region;
    fuzz_fill(data, bytes, (uint8_t)remote);
    return start_op(op);
}

enum sl_status sl_peer_flush(struct sl_peer_op *op) {
    return start_op(op);
}

// ---- what comes ------------------------------------------------------------------------------------------------------------

static void deliver_by_ucx(struct sl_link *link, const struct fuzz_frame *frame, uint8_t *data) {
    struct sl_peer *peer = link->owner;
    struct sl_message message = {.header = frame->header,
                                 .header_bytes = frame->header_bytes,
                                 .data = data,
                                 .bytes = frame->bytes,
                                 .on_its_way = frame->on_its_way && frame->bytes > 0};
    ucx_events->on_message(fuzz_wire.fabric, peer->number, frame->id, &message);
}

void fuzz_deliver(struct sl_link *link, const struct fuzz_frame *frame) {
    end_receive(link, SL_OK); // in the order of the stream
    if (link->lost || link->ended) {
        return;
    }
    bool by_ucx = frame->by_ucx && ((struct sl_peer *)link->owner)->ep;
    bool whole = by_ucx ? !frame->on_its_way : frame->bytes <= SL_LINK_WHOLE_MAX;
    uint8_t *data = malloc(whole && frame->bytes > 0 ? frame->bytes : 1); // no byte more
    fuzz_require(data != NULL);
    data[0] = frame->seed;
    if (whole && frame->whole) {
        memcpy(data, frame->whole, frame->bytes);
    } else if (whole) {
        fuzz_fill(data, frame->bytes, frame->seed);
    }
    if (by_ucx) {
        deliver_by_ucx(link, frame, data);
    } else if (frame->header_bytes <= SL_LINK_HEADER_MAX && (link->met || frame->bytes == 0)) {
        struct sl_link_frame it = {frame->id, frame->header, frame->header_bytes, whole ? data : NULL, frame->bytes};
        link->bytes = frame->bytes;
        link->seed = frame->seed;
        events->on_frame(link->owner, link, &it);
    }
    free(data);
}
