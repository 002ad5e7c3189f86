// SPDX-License-Identifier: Apache-2.0
#include "gateway/connections.h"

#include <stdlib.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/loop.h"
#include "gateway/head/chunks.h"

enum { POLL_MS = 250, CROWDED_MS = 1000 };

struct place {
    struct sl_http_connections *all;
    struct place *previous, *next;
    int fd; // open as long as this entry is listed: the daemon closes it after it has notified us
    bool waits, has_asked, is_shut;
    int64_t since_ns;         // start of its waiting time
    struct sl_chunks *chunks; // NULL: no memory
};

struct sl_http_connections {
    struct sl_http_connections_config config;
    struct sl_loop loop; // its mutex guards the fields below
    struct place *list;
    int64_t n, n_closed;
};

// ---- the thread -----------------------------------------------------------------------------------------------------

static bool has_waited_too_long(const struct sl_http_connections *all, const struct place *place, int64_t now_ns) {
    if (!place->waits || place->is_shut) {
        return false;
    }
    int64_t longest_ms = place->has_asked ? all->config.idle_ms : all->config.first_ms;
    if (all->n * 4 >= all->config.max * 3 && longest_ms > CROWDED_MS) {
        longest_ms = CROWDED_MS;
    }
    return now_ns - place->since_ns > longest_ms * SL_NS_PER_MS;
}

static void *close_idle(void *arg) {
    struct sl_http_connections *all = arg;
    SL_LOCKED(&all->loop.mutex);
    while (!all->loop.stopping) {
        int64_t now_ns = sl_now_ns();
        for (struct place *place = all->list; place; place = place->next) {
            if (has_waited_too_long(all, place, now_ns)) {
                shutdown(place->fd, SHUT_RDWR); // the daemon handles this like any other end of a connection
                place->is_shut = true;
                all->n_closed++;
            }
        }
        sl_loop_wait(&all->loop, all->list ? sl_deadline_in_ms(POLL_MS) : SL_NO_DEADLINE);
    }
    return NULL;
}

enum sl_status sl_http_connections_open(const struct sl_http_connections_config *config,
                                        struct sl_http_connections **connections_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_http_connections, all, err, "no memory for connections");
    all->config = *config;
    sl_loop_init(&all->loop);
    SL_TRY_OR(sl_loop_start(&all->loop, "connections", close_idle, all, err), sl_http_connections_close(&all));
    *connections_out = all;
    return SL_OK;
}

void sl_http_connections_close(struct sl_http_connections **connections_ptr) {
    SL_TAKE_OR_RETURN(all, connections_ptr);
    sl_loop_cleanup(&all->loop);
    free(all);
}

// ---- called by the daemon -------------------------------------------------------------------------------------------

static struct place *place_of(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

// Adds a connection. NULL: no memory; then only the daemon's own timeout applies.
static struct place *add(struct sl_http_connections *all, struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct place *place = info ? calloc(1, sizeof *place) : NULL;
    if (!place) {
        return NULL;
    }
    *place = (struct place){.all = all, .fd = info->connect_fd, .waits = true, .since_ns = sl_now_ns()};
    place->chunks = sl_chunks_watch(place->fd, !all->config.is_https);
    SL_LOCKED(&all->loop.mutex);
    place->next = all->list;
    if (place->next) {
        place->next->previous = place;
    }
    all->list = place;
    if (all->n++ == 0) {
        pthread_cond_signal(&all->loop.changed);
    }
    return place;
}

static void take_out(struct place *place) {
    struct sl_http_connections *all = place->all;
    pthread_mutex_lock(&all->loop.mutex);
    *(place->previous ? &place->previous->next : &all->list) = place->next;
    if (place->next) {
        place->next->previous = place->previous;
    }
    all->n--;
    pthread_mutex_unlock(&all->loop.mutex);
    sl_chunks_forget(&place->chunks);
    free(place);
}

void sl_http_connections_see(void *connections, struct MHD_Connection *connection, void **context,
                             enum MHD_ConnectionNotificationCode code) {
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *context = add(connections, connection);
    } else if (*context) {
        take_out(*context);
        *context = NULL;
    }
}

void *sl_http_connections_context(struct MHD_Connection *connection) {
    struct place *place = place_of(connection);
    return place ? place->all->config.context : NULL;
}

bool sl_connection_is_malformed(struct MHD_Connection *connection) {
    const struct place *place = place_of(connection);
    return place && sl_chunks_are_malformed(place->chunks);
}

static void tell(struct MHD_Connection *connection, bool waits) {
    struct place *place = place_of(connection);
    if (!place) {
        return;
    }
    SL_LOCKED(&place->all->loop.mutex);
    place->waits = waits;
    place->since_ns = sl_now_ns();
    place->has_asked = true;
}

void sl_connection_waits(struct MHD_Connection *connection) {
    tell(connection, true);
}

void sl_connection_asked(struct MHD_Connection *connection) {
    tell(connection, false);
}

struct sl_http_connections_counts sl_http_connections_counts(struct sl_http_connections *all) {
    struct sl_http_connections_counts counts = {0};
    SL_LOCKED(&all->loop.mutex);
    counts.open = all->n;
    counts.closed = all->n_closed;
    for (const struct place *place = all->list; place; place = place->next) {
        counts.waiting += place->waits;
    }
    return counts;
}
