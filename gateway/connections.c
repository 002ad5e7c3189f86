// SPDX-License-Identifier: Apache-2.0
#include "gateway/connections.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/thread.h"
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
    pthread_t thread;
    pthread_mutex_t mutex; // guards the fields below
    pthread_cond_t changed;
    struct place *list;
    int64_t n, n_closed;
    bool stopping;
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
    SL_LOCKED(&all->mutex);
    while (!all->stopping) {
        int64_t now_ns = sl_now_ns();
        for (struct place *place = all->list; place; place = place->next) {
            if (has_waited_too_long(all, place, now_ns)) {
                shutdown(place->fd, SHUT_RDWR); // the daemon handles this like any other end of a connection
                place->is_shut = true;
                all->n_closed++;
            }
        }
        if (all->list) {
            sl_cond_wait_until(&all->changed, &all->mutex, sl_deadline_in_ms(POLL_MS));
        } else {
            pthread_cond_wait(&all->changed, &all->mutex);
        }
    }
    return NULL;
}

enum sl_status sl_http_connections_open(const struct sl_http_connections_config *config,
                                        struct sl_http_connections **connections_out, struct sl_error *err) {
    struct sl_http_connections *all = calloc(1, sizeof *all);
    SL_FAIL_IF(!all, err, SL_ERR_EXHAUSTED, "no memory for connections");
    all->config = *config;
    pthread_mutex_init(&all->mutex, NULL);
    sl_cond_init(&all->changed);
    enum sl_status status = sl_thread_start("connections", close_idle, all, &all->thread, err);
    if (status != SL_OK) {
        pthread_cond_destroy(&all->changed);
        pthread_mutex_destroy(&all->mutex);
        free(all);
        return status;
    }
    *connections_out = all;
    return SL_OK;
}

void sl_http_connections_close(struct sl_http_connections **connections_ptr) {
    struct sl_http_connections *all = *connections_ptr;
    if (!all) {
        return;
    }
    pthread_mutex_lock(&all->mutex);
    all->stopping = true;
    pthread_cond_signal(&all->changed);
    pthread_mutex_unlock(&all->mutex);
    pthread_join(all->thread, NULL);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->mutex);
    free(all);
    *connections_ptr = NULL;
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
    SL_LOCKED(&all->mutex);
    place->next = all->list;
    if (place->next) {
        place->next->previous = place;
    }
    all->list = place;
    if (all->n++ == 0) {
        pthread_cond_signal(&all->changed);
    }
    return place;
}

static void take_out(struct place *place) {
    struct sl_http_connections *all = place->all;
    pthread_mutex_lock(&all->mutex);
    *(place->previous ? &place->previous->next : &all->list) = place->next;
    if (place->next) {
        place->next->previous = place->previous;
    }
    all->n--;
    pthread_mutex_unlock(&all->mutex);
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
    SL_LOCKED(&place->all->mutex);
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
    SL_LOCKED(&all->mutex);
    counts.open = all->n;
    counts.closed = all->n_closed;
    for (const struct place *place = all->list; place; place = place->next) {
        counts.waiting += place->waits;
    }
    return counts;
}
