// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how a link is lost: its socket is closed at once; pending operations end in the next turn, in which its
 *          owner is told.
 */
#include <errno.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "net/fabric/link/link_internal.h"

void sl_link_count_out(struct sl_link *link) {
    if (link->accepted && !link->met) {
        link->links->n_unmet--;
        link->accepted = false;
    }
}

void sl_link_lose(struct sl_link *link, enum sl_status status, const char *text) {
    if (link->state == LINK_LOST) {
        return;
    }
    link->state = LINK_LOST;
    link->more = false;
    link->status = status;
    snprintf(link->text, sizeof link->text, "%s", text);
    link->links->busy = true; // the owner must be told
    sl_link_count_out(link);
    // Now, and not when the owner closes it: an unauthenticated peer must not hold a descriptor.
    epoll_ctl(link->links->epoll, EPOLL_CTL_DEL, link->fd, NULL);
    if (link->ssl && status == SL_ERR_CANCELLED) { // an orderly end: tell the peer that we send no more, if there is
                                                   // room
        SSL_shutdown(link->ssl);
    }
    close(link->fd);
    link->fd = -1;
}

void sl_link_lose_errno(struct sl_link *link, const char *doing, int number) {
    char text[160];
    snprintf(text, sizeof text, "%s: %s", doing, strerror(number));
    sl_link_lose(link, SL_ERR_PEER_LOST, text);
}

void sl_link_watch(struct sl_link *link, bool out) {
    struct epoll_event event = {.events = EPOLLIN | (out ? EPOLLOUT : 0u), .data.ptr = link};
    link->wants_out = out;
    if (epoll_ctl(link->links->epoll, EPOLL_CTL_MOD, link->fd, &event) != 0) {
        sl_link_lose_errno(link, "epoll", errno);
    }
}
