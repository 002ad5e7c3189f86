// SPDX-License-Identifier: Apache-2.0
#include "net/offload/remote/connections.h"
#include "base/locked.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct connection_entry {
    struct connection_entry *next;
    char *address;
    uint64_t epoch;
    struct sl_connection *connection;
    int n_users;
    bool is_cut; // not given out any more
};

struct sl_connections {
    struct sl_fabric *fabric;
    pthread_mutex_t mutex;
    struct connection_entry *first;
};

enum sl_status sl_connections_create(struct sl_fabric *fabric, struct sl_connections **connections_out,
                                     struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_connections, connections, err, "connections: out of memory");
    connections->fabric = fabric;
    pthread_mutex_init(&connections->mutex, NULL);
    *connections_out = connections;
    return SL_OK;
}

static void free_entry(struct connection_entry *entry) {
    sl_connection_close(&entry->connection);
    free(entry->address);
    free(entry);
}

void sl_connections_destroy(struct sl_connections **connections_inout) {
    SL_TAKE_OR_RETURN(connections, connections_inout);
    for (struct connection_entry *entry = connections->first, *next; entry; entry = next) {
        next = entry->next;
        free_entry(entry);
    }
    pthread_mutex_destroy(&connections->mutex);
    free(connections);
}

// Call under the mutex.
static enum sl_status open_entry(struct sl_connections *connections, const char *address, uint64_t epoch,
                                 struct connection_entry **entry_out, struct sl_error *err) {
    struct connection_entry *entry = calloc(1, sizeof *entry);
    SL_FAIL_OR(!entry || !(entry->address = strdup(address)), free(entry), err, SL_ERR_EXHAUSTED,
               "connections: out of memory");
    entry->epoch = epoch;
    SL_TRY_OR(sl_connection_open(connections->fabric, address, epoch, &entry->connection, err), free_entry(entry));
    entry->next = connections->first;
    connections->first = entry;
    *entry_out = entry;
    return SL_OK;
}

enum sl_status sl_connections_take(struct sl_connections *connections, const char *address, uint64_t epoch,
                                   struct sl_connection **connection_out, struct sl_error *err) {
    SL_LOCKED(&connections->mutex);
    enum sl_status status = SL_OK;
    struct connection_entry *entry = connections->first;
    while (entry && (entry->is_cut || entry->epoch != epoch || strcmp(entry->address, address) != 0)) {
        entry = entry->next;
    }
    if (!entry) {
        status = open_entry(connections, address, epoch, &entry, err);
    }
    if (status == SL_OK) {
        entry->n_users++;
        *connection_out = entry->connection;
    }
    return status;
}

static void give(struct sl_connections *connections, struct sl_connection **connection, bool is_cut) {
    if (!*connection) {
        return;
    }
    pthread_mutex_lock(&connections->mutex);
    struct connection_entry **at = &connections->first;
    while ((*at)->connection != *connection) {
        at = &(*at)->next;
    }
    struct connection_entry *entry = *at, *unused = NULL;
    entry->is_cut |= is_cut;
    if (--entry->n_users == 0) {
        *at = entry->next;
        unused = entry;
    }
    pthread_mutex_unlock(&connections->mutex);
    if (unused) {
        free_entry(unused);
    }
    *connection = NULL;
}

void sl_connections_give(struct sl_connections *connections, struct sl_connection **connection) {
    give(connections, connection, false);
}

void sl_connections_give_lost(struct sl_connections *connections, struct sl_connection **connection) {
    give(connections, connection, true);
}
