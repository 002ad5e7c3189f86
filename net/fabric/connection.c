// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: connections: references to a peer, each bound to one epoch of it.
 *
 *      waiting --- peer up: pump ------------------------------------------------> up
 *      waiting, up --- peer lost, closed by its owner, fabric stops: end_one ----> over
 *
 * A lost or closed connection stays so: its owner knows what was lost with it, and opens another.
 */
#include "net/fabric/connection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/fabric/core/core.h"

extern const struct sl_verb_ops sl_connection_ops;

struct connections {
    struct sl_verb verb;
    struct sl_connection *first;
    bool waiting; // at least one waits for its peer to be up
    _Atomic uint64_t n_open;
};

// ---- the owner's side ------------------------------------------------------------------------------------------------

static void run_open(struct sl_fabric *fabric, struct sl_command *command);
static void run_close(struct sl_fabric *fabric, struct sl_command *command);

enum sl_status sl_connection_open(struct sl_fabric *fabric, const char *address, uint64_t epoch,
                                  struct sl_connection **connection_out, struct sl_error *err) {
    SL_FAIL_IF(strlen(address) >= sizeof((struct sl_connection *)NULL)->address || epoch == 0, err, SL_ERR_INVALID,
               "a connection to \"%.64s\", epoch %llu: no such fabric", address, (unsigned long long)epoch);
    SL_NEW_OR_FAIL(struct sl_connection, connection, err, "no memory for a connection to %s", address);
    SL_TRY_OR(sl_address_resolve(address, &connection->sockaddr, &connection->sockaddr_bytes, err), free(connection));
    snprintf(connection->address, sizeof connection->address, "%s", address);
    connection->epoch = epoch;
    connection->gate = sl_gate_ref(fabric->gate);
    connection->open_command.run = run_open;
    connection->close_command.run = run_close;
    connection->last_user = &connection->users;
    atomic_store(&connection->transport, "");
    atomic_store(&connection->refs, 2);
    sl_fabric_post(fabric, &connection->open_command);
    *connection_out = connection;
    return SL_OK;
}

const char *sl_connection_transport(const struct sl_connection *connection) {
    return atomic_load(&((struct sl_connection *)(uintptr_t)connection)->transport);
}

void sl_connection_ref(struct sl_connection *connection) {
    atomic_fetch_add(&connection->refs, 1);
}

void sl_connection_unref(struct sl_connection *connection) {
    if (atomic_fetch_sub(&connection->refs, 1) == 1) {
        sl_gate_unref(connection->gate);
        free(connection);
    }
}

void sl_connection_close(struct sl_connection **connection_inout) {
    SL_TAKE_OR_RETURN(connection, connection_inout);
    if (!sl_gate_post(connection->gate, &connection->close_command)) {
        sl_connection_unref(connection); // the command's
    }
}

// ---- the users -------------------------------------------------------------------------------------------------------

void sl_connection_join(struct sl_connection *connection, struct sl_connection_user *user) {
    if (connection->over) {
        user->over(user, connection->status, connection->text);
        return;
    }
    user->next = NULL;
    user->link = connection->last_user;
    *connection->last_user = user;
    connection->last_user = &user->next;
    if (connection->up && user->up) {
        user->up(user);
    }
}

void sl_connection_leave(struct sl_connection *connection, struct sl_connection_user *user) {
    if (!user->link) {
        return;
    }
    *user->link = user->next;
    if (user->next) {
        user->next->link = user->link;
    } else {
        connection->last_user = user->link;
    }
    user->link = NULL;
}

// ---- the progress thread's side --------------------------------------------------------------------------------------

static void end_one(struct sl_connection *connection, enum sl_status status, const char *text) {
    if (connection->over) {
        return;
    }
    connection->over = true;
    connection->up = false;
    connection->peer = NULL;
    connection->status = status;
    snprintf(connection->text, sizeof connection->text, "%s", text);
    while (connection->users) {
        struct sl_connection_user *user = connection->users;
        sl_connection_leave(connection, user);
        user->over(user, status, text);
    }
}

static void run_open(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_connection *connection = SL_CONTAINER(command, struct sl_connection, open_command);
    struct connections *connections = sl_verb_of_fabric(fabric, &sl_connection_ops);
    struct sl_error err = {0};
    connection->next = connections->first;
    connections->first = connection;
    atomic_fetch_add(&connections->n_open, 1);
    if (atomic_load(&fabric->stopping)) { // do not make a peer that would never be closed
        end_one(connection, SL_ERR_CANCELLED, "this fabric stops");
        return;
    }
    connection->peer = sl_peer_connect(fabric, connection->address, &connection->sockaddr, connection->sockaddr_bytes,
                                       connection->epoch, &err);
    if (!connection->peer) {
        end_one(connection, err.status, err.text);
    }
    connections->waiting = true;
}

static void unlink_one(struct connections *connections, struct sl_connection *connection) {
    struct sl_connection **at = &connections->first;
    while (*at && *at != connection) {
        at = &(*at)->next;
    }
    if (*at) { // else the fabric has released it already
        *at = connection->next;
        atomic_fetch_sub(&connections->n_open, 1);
        sl_connection_unref(connection);
    }
}

static void run_close(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_connection *connection = SL_CONTAINER(command, struct sl_connection, close_command);
    end_one(connection, SL_ERR_CANCELLED, "the connection was closed");
    unlink_one(sl_verb_of_fabric(fabric, &sl_connection_ops), connection);
    sl_connection_unref(connection); // the caller's
}

static void name_transport(struct sl_connection *connection) {
    static const struct {
        const char *prefix, *name;
    } names[] = {{"posix", "shm"}, {"rc_", "rdma"}, {"dc_", "rdma"}, {"tcp", "tcp"}, {"tls", "tls"}, {"self", "self"}};
    char transport[32];
    sl_peer_transport(connection->peer, transport, sizeof transport);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strncmp(transport, names[i].prefix, strlen(names[i].prefix)) == 0) {
            atomic_store(&connection->transport, names[i].name);
        }
    }
}

static void come_up(struct sl_connection *connection) {
    connection->up = true;
    name_transport(connection);
    for (struct sl_connection_user *user = connection->users, *next; user; user = next) {
        next = user->next;
        if (user->up) {
            user->up(user);
        }
    }
}

static bool pump(void *state, int64_t) {
    struct connections *connections = state;
    if (!connections->waiting) {
        return false;
    }
    bool moved = false;
    connections->waiting = false;
    for (struct sl_connection *connection = connections->first; connection; connection = connection->next) {
        if (connection->up || connection->over) {
            continue;
        }
        if (connection->peer->state == PEER_UP) {
            come_up(connection);
            moved = true;
        } else {
            connections->waiting = true;
        }
    }
    return moved;
}

static void peer_closing(void *state, struct sl_peer *peer, enum sl_status status, const char *text) {
    struct connections *connections = state;
    for (struct sl_connection *connection = connections->first; connection; connection = connection->next) {
        if (connection->peer == peer) {
            end_one(connection, status, text);
        }
    }
}

static void stop(void *state) {
    struct connections *connections = state;
    while (connections->first) {
        struct sl_connection *connection = connections->first;
        end_one(connection, SL_ERR_CANCELLED, "this fabric stops");
        unlink_one(connections, connection);
    }
}

const struct sl_verb_ops sl_connection_ops = {
    .state_bytes = sizeof(struct connections),
    .gauges = {SL_GAUGE(struct connections, n_open, connections_open)},
    .pump = pump,
    .peer_closing = peer_closing,
    .stop = stop,
};
