// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the life of one link.
 *
 *      CONNECTING --- the kernel reports the result: sl_link_connected --------> SHAKING, OPEN or LOST
 *      SHAKING ------ both sides are authenticated: sl_link_shake_hands -----> OPEN
 *      OPEN --------- error, end of the stream, a bad frame: sl_link_lose ----> LOST    its owner is told next turn
 *      OPEN --------- we send no more: sl_link_finish -----------------------> ENDING  arriving bytes are dropped
 *      ENDING ------- the other side has ended, too --------------------------> LOST
 *      any ---------- sl_link_close -------------------------------------------> freed
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "net/fabric/link/link_internal.h"

// Takes ownership of the descriptor, even if it fails.
struct sl_link *sl_link_create(struct sl_links *links, int fd, struct sl_error *err) {
    struct sl_link *link = calloc(1, sizeof *link);
    uint8_t *buffer = malloc(SL_LINK_BUFFER_BYTES);
    struct epoll_event event = {.data.ptr = link};
    int yes = 1;
    if (!link || !buffer || epoll_ctl(links->epoll, EPOLL_CTL_ADD, fd, &event) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0) {
        sl_fail(err, SL_ERR_EXHAUSTED, "no resources for a link: %s", strerror(errno));
        free(link);
        free(buffer);
        close(fd);
        return NULL;
    }
    *link = (struct sl_link){
        .links = links, .fd = fd, .born_ns = sl_now_ns(), .buffer = buffer, .next = links->first, .at = &links->first};
    link->last = &link->first;
    if (link->next) {
        link->next->at = &link->next;
    }
    links->first = link;
    return link;
}

enum sl_status sl_link_connect(struct sl_links *links, const struct sockaddr *address, socklen_t bytes, void *owner,
                               struct sl_link **link_out, struct sl_error *err) {
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    SL_FAIL_IF(fd < 0, err, SL_ERR_EXHAUSTED, "cannot connect: %s", strerror(errno));
    struct sl_link *link = sl_link_create(links, fd, err);
    if (!link) {
        return SL_ERR_EXHAUSTED;
    }
    link->owner = owner;
    if (connect(fd, address, bytes) != 0 && errno != EINPROGRESS) {
        sl_link_lose_errno(link, "cannot connect", errno);
    } else {
        sl_link_watch(link, true);
    }
    *link_out = link;
    return SL_OK;
}

void sl_link_expect(struct sl_link *link, const char *address) {
    if (!sl_identity_split_address(address, link->expected)) {
        snprintf(link->expected, sizeof link->expected, "%s", address); // no certificate has such a long name
    }
}

void sl_link_connected(struct sl_link *link) {
    int number = 0;
    socklen_t bytes = sizeof number;
    if (getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &number, &bytes) != 0) {
        number = errno;
    }
    if (number != 0) {
        sl_link_lose_errno(link, "cannot connect", number);
        return;
    }
    sl_link_begin(link);
}

void sl_link_begin(struct sl_link *link) {
    if (link->links->tls) {
        link->ssl = sl_tls_open(link->links->tls, link->fd, !link->accepted);
        link->record = malloc(SL_LINK_RECORD_BYTES);
        if (!link->ssl || !link->record) {
            sl_link_lose(link, SL_ERR_EXHAUSTED, "no memory for TLS");
            return;
        }
        link->state = LINK_SHAKING;
        sl_link_shake_hands(link);
        return;
    }
    link->state = LINK_OPEN;
    sl_link_watch(link, false);
    sl_link_write(link);
}

void sl_link_shake_hands(struct sl_link *link) {
    bool wants_write = false;
    struct sl_error err = {0};
    enum sl_status status = sl_tls_shake_hands(link->links->tls, link->ssl, link->expected, &wants_write, &err);
    if (status == SL_AGAIN) {
        sl_link_watch(link, wants_write);
    } else if (status != SL_OK) {
        sl_link_lose(link, status, err.text);
    } else {
        link->state = LINK_OPEN;
        link->more = link->links->busy = true; // TLS may have read more than the handshake
        sl_link_watch(link, false);
        sl_link_write(link);
    }
}

void sl_link_end_sends(struct sl_link *link) {
    link->told = true; // the caller asked for the end
    sl_link_end_traffic(link, SL_ERR_CANCELLED);
}

void sl_link_finish(struct sl_link *link) {
    sl_link_end_sends(link);
    if (link->state == LINK_OPEN) {
        if (link->ssl) { // tells the peer that this is not a truncation
            SSL_shutdown(link->ssl);
        }
        link->state = LINK_ENDING;
        link->more = false;
        sl_link_watch(link, false);
        if (link->state == LINK_ENDING && shutdown(link->fd, SHUT_WR) != 0) {
            sl_link_lose_errno(link, "shutdown", errno);
        }
    } else if (link->state != LINK_LOST) {
        sl_link_lose(link, SL_ERR_CANCELLED, "closed");
    }
}

bool sl_link_is_over(const struct sl_link *link) {
    return link->state == LINK_LOST;
}

bool sl_link_ended_by_peer(const struct sl_link *link) {
    return link->by_peer;
}

const char *sl_link_name(const struct sl_link *link) {
    return link->ssl ? "tls" : "tcp";
}

void sl_link_set_met(struct sl_link *link) {
    sl_link_count_out(link);
    link->met = true;
}

void sl_link_close(struct sl_link **link) {
    SL_TAKE_OR_RETURN(it, link);
    it->told = true; // the owner gets no more callbacks
    sl_link_lose(it, SL_ERR_CANCELLED, "closed");
    sl_link_end_traffic(it, it->status);
    *it->at = it->next;
    if (it->next) {
        it->next->at = it->at;
    }
    SSL_free(it->ssl);
    free(it->record);
    free(it->buffer);
    free(it);
}
