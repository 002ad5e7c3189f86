// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: all links of a fabric: its listener, events from the kernel, and limits for unauthenticated peers.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/close.h"
#include "base/log.h"
#include "net/fabric/link/link_internal.h"

#define N_NEWS      64                   // events taken from the kernel at once
#define N_ACCEPTS   16                   // per turn
#define CONNECT_NS  (5 * SL_NS_PER_S)    // for a link to be met
#define PATIENCE_NS (250 * SL_NS_PER_MS) // a link may take this long to be met while others wait for its slot
#define BACKLOG     1024

// ---- making ----------------------------------------------------------------------------------------------------------

enum sl_status sl_links_create(const struct sl_tls_files *files, const struct sl_link_events *events, void *arg,
                               struct sl_links **links_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_links, links, err, "no memory for links");
    *links = (struct sl_links){.events = *events, .arg = arg, .epoll = epoll_create1(EPOLL_CLOEXEC), .listener = -1};
    SL_FAIL_OR(links->epoll < 0, free(links), err, SL_ERR_EXHAUSTED, "epoll: %s", strerror(errno));
    SL_TRY_OR(files ? sl_tls_create(files, &links->tls, err) : SL_OK, sl_links_destroy(&links));
    *links_out = links;
    return SL_OK;
}

const char *sl_links_name(const struct sl_links *links) {
    return links->tls ? sl_tls_name(links->tls) : "";
}

static enum sl_status listen_failed(int fd, struct sl_error *err) {
    int number = errno;
    sl_close(fd);
    switch (number) {
    case EADDRINUSE:
        return sl_fail(err, SL_ERR_EXISTS, "the port is in use");
    case EADDRNOTAVAIL:
        return sl_fail(err, SL_ERR_INVALID,
                       "no network interface here has this address; give the one that peers connect to");
    default:
        return sl_fail(err, SL_ERR_IO, "%s", strerror(number));
    }
}

static void watch_listener(struct sl_links *links, bool on) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = links};
    if (epoll_ctl(links->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, links->listener, &event) == 0) {
        links->resting = !on;
    }
}

enum sl_status sl_links_listen(struct sl_links *links, const struct sockaddr *address, socklen_t bytes,
                               unsigned *port_out, struct sl_error *err) {
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int yes = 1;
    struct sockaddr_storage taken = {0};
    socklen_t taken_bytes = sizeof taken;
    // Without it, a restart at the same port fails for a minute.
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 || bind(fd, address, bytes) != 0 ||
        listen(fd, BACKLOG) != 0 || getsockname(fd, (struct sockaddr *)&taken, &taken_bytes) != 0) {
        return listen_failed(fd, err);
    }
    links->listener = fd;
    links->resting = true;
    watch_listener(links, true);
    SL_FAIL_IF(links->resting, err, SL_ERR_EXHAUSTED, "epoll: %s", strerror(errno));
    *port_out = ntohs(taken.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&taken)->sin6_port
                                                  : ((struct sockaddr_in *)&taken)->sin_port);
    return SL_OK;
}

void sl_links_destroy(struct sl_links **links) {
    SL_TAKE_OR_RETURN(it, links);
    while (it->first) {
        struct sl_link *link = it->first;
        sl_link_close(&link);
    }
    sl_close(it->listener);
    close(it->epoll);
    sl_tls_destroy(&it->tls);
    free(it);
}

// ---- accepting -------------------------------------------------------------------------------------------------------

static void complain(struct sl_links *links, const char *what, const char *from) {
    int64_t now = sl_now_ns();
    if (now - links->complained_ns > SL_NS_PER_S) {
        links->complained_ns = now;
        sl_log_warn("fabric", "connection from=%s refused: %s", from, what);
    }
}

/*
 * Makes room for one more unmet link. A link that stays unmet for long loses its slot to the next one: a fabric
 * identifies itself within a round trip.
 */
static bool make_room(struct sl_links *links) {
    if (links->n_unmet < SL_LINKS_UNMET) {
        return true;
    }
    struct sl_link *oldest = NULL;
    for (struct sl_link *link = links->first; link; link = link->next) {
        if (link->accepted && !link->met && link->state < LINK_ENDING && (!oldest || link->born_ns < oldest->born_ns)) {
            oldest = link;
        }
    }
    if (!oldest || sl_now_ns() - oldest->born_ns < PATIENCE_NS) {
        return false;
    }
    sl_link_lose(oldest, SL_ERR_PEER_LOST, "it has not said who it is, and others wait");
    return true;
}

static void host_of(const struct sockaddr_storage *address, char *out, size_t bytes) {
    const void *host = address->ss_family == AF_INET6 ? (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr
                                                      : (const void *)&((const struct sockaddr_in *)address)->sin_addr;
    if (!inet_ntop(address->ss_family, host, out, (socklen_t)bytes)) {
        snprintf(out, bytes, "?");
    }
}

static void take(struct sl_links *links, int fd, const char *from) {
    struct sl_error err = {0};
    if (!make_room(links)) {
        close(fd);
        complain(links, "too many connections that do not say who they are", from);
        return;
    }
    struct sl_link *link = sl_link_create(links, fd, &err);
    if (!link) {
        complain(links, err.text, from);
        return;
    }
    link->accepted = true;
    links->n_unmet++;
    link->owner = links->events.on_accepted(links->arg, link, from);
    if (!link->owner) {
        complain(links, "this fabric stops, or has no memory for it", from);
        sl_link_close(&link);
        return;
    }
    sl_link_begin(link);
}

static void accept_some(struct sl_links *links) {
    for (int i = 0; i < N_ACCEPTS; i++) {
        struct sockaddr_storage address = {0};
        socklen_t bytes = sizeof address;
        int fd = accept4(links->listener, (struct sockaddr *)&address, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            char from[INET6_ADDRSTRLEN];
            host_of(&address, from, sizeof from);
            take(links, fd, from);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            complain(links, strerror(errno), "?");
            watch_listener(links, false); // the next tick tries again
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

// ---- turning ---------------------------------------------------------------------------------------------------------

static bool serve(struct sl_link *link, uint32_t events) {
    if (link->state == LINK_LOST) {
        return false;
    }
    if (link->state == LINK_CONNECTING) {
        sl_link_connected(link);
        return true;
    }
    if (link->state == LINK_SHAKING) {
        sl_link_shake_hands(link);
        return true;
    }
    if (link->state == LINK_ENDING) {
        sl_link_drop(link);
        return true;
    }
    if (events & EPOLLOUT) {
        sl_link_write(link);
    }
    return events & (EPOLLIN | EPOLLHUP | EPOLLERR) ? sl_link_read(link) : true;
}

// Tells owners of losses here, and not inside of one of their calls.
static void tell_losses(struct sl_links *links) {
    for (struct sl_link *link = links->first; link; link = link->next) {
        if (link->state == LINK_LOST && !link->told) {
            link->told = true;
            sl_link_end_traffic(link, link->status);
            links->events.on_lost(link->owner, link->status, link->text);
        }
    }
}

bool sl_links_progress(struct sl_links *links) {
    bool moved = false;
    if (links->busy) {
        links->busy = false;
        for (struct sl_link *link = links->first; link; link = link->next) {
            if (link->more) {
                moved |= serve(link, EPOLLIN);
            }
        }
        tell_losses(links);
    }
    struct epoll_event news[N_NEWS];
    int n = epoll_wait(links->epoll, news, N_NEWS, 0);
    for (int i = 0; i < n; i++) {
        if (news[i].data.ptr == links) {
            accept_some(links);
            moved = true;
        } else {
            moved |= serve(news[i].data.ptr, news[i].events);
        }
    }
    if (links->busy) {
        tell_losses(links);
        moved = true;
    }
    return moved;
}

bool sl_links_busy(const struct sl_links *links) {
    return links->busy;
}

int sl_links_fd(const struct sl_links *links) {
    return links->epoll;
}

// Closes open links whose other side was revoked since they were authenticated.
static void lose_revoked(struct sl_links *links) {
    struct sl_error err;
    for (struct sl_link *link = links->first; link; link = link->next) {
        if (link->state == LINK_OPEN && sl_tls_check_revoked(links->tls, link->ssl, &err) != SL_OK) {
            sl_link_lose(link, SL_ERR_PEER_CORRUPT, err.text);
        }
    }
}

void sl_links_tick(struct sl_links *links, int64_t now_ns) {
    if (links->listener >= 0 && links->resting) {
        watch_listener(links, true);
    }
    if (links->tls && sl_tls_has_new_lists(links->tls)) {
        lose_revoked(links);
    }
    for (struct sl_link *link = links->first; link; link = link->next) {
        if (link->state < LINK_ENDING && !link->met && now_ns - link->born_ns > CONNECT_NS) {
            sl_link_lose(link, SL_ERR_PEER_LOST, "no answer to the connection");
        }
    }
}
