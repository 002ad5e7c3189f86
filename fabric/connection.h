// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: connections, as what travels on them sees them: requests and fetches join a connection, and are told when it is up
 *          and when it is over. A connection does not know what they are.
 */
#pragma once

#include "fabric/core/core.h"
#include "fabric/request.h"

struct sl_connection {
    struct sl_connection *next;
    atomic_int refs; // the caller, the list, every user
    struct sl_gate *gate;
    struct sl_command open_command, close_command;
    char address[256];
    struct sockaddr_storage sockaddr;
    socklen_t sockaddr_bytes;
    uint64_t epoch;
    _Atomic(const char *) transport;
    // the progress thread's
    struct sl_peer *peer;
    bool up;               // the peer's epoch is the one that was wanted: messages may go
    bool over;             // lost or closed; for good
    enum sl_status status; // why it is over
    char text[SL_ANSWER_TEXT_BYTES];
    struct sl_connection_user *users, **last_user;
};
void sl_connection_ref(struct sl_connection *connection);
void sl_connection_unref(struct sl_connection *connection);

// Both calls are the progress thread's, made in the order of joining, and may free the user.
struct sl_connection_user {
    struct sl_connection_user *next, **link;     // link NULL: not on the list
    void (*up)(struct sl_connection_user *user); // may be NULL
    void (*over)(struct sl_connection_user *user, enum sl_status status, const char *text); // it has left
};
// Calls at once where the connection is up or over.
void sl_connection_join(struct sl_connection *connection, struct sl_connection_user *user);
void sl_connection_leave(struct sl_connection *connection, struct sl_connection_user *user); // also one that has left
