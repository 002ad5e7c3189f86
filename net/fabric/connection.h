// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: connections, for the verbs that use them: requests and fetches join a connection, which calls them when it
 *          is up and when it has ended. A connection does not know what they are.
 */
#pragma once

#include "net/fabric/core/core.h"
#include "net/fabric/request.h"

struct sl_connection {
    struct sl_connection *next;
    atomic_int refs; // of the caller, the list, every user
    struct sl_gate *gate;
    struct sl_command open_command, close_command;
    char address[256];
    struct sockaddr_storage sockaddr;
    socklen_t sockaddr_bytes;
    uint64_t epoch;
    _Atomic(const char *) transport;
    // owned by the progress thread
    struct sl_peer *peer;
    bool up;               // the peer has the wanted epoch: messages may be sent
    bool over;             // lost or closed; final
    enum sl_status status; // why it has ended
    char text[SL_ANSWER_TEXT_BYTES];
    struct sl_connection_user *users, **last_user;
};
void sl_connection_ref(struct sl_connection *connection);
void sl_connection_unref(struct sl_connection *connection);

// The progress thread makes both calls, in the order of joining; both may free the user.
struct sl_connection_user {
    struct sl_connection_user *next, **link;     // link NULL: not on the list
    void (*up)(struct sl_connection_user *user); // may be NULL
    void (*over)(struct sl_connection_user *user, enum sl_status status,
                 const char *text); // the user is off the list by then
};
// Joins; if the connection is up or has ended, the call is made at once.
void sl_connection_join(struct sl_connection *connection, struct sl_connection_user *user);
void sl_connection_leave(struct sl_connection *connection, struct sl_connection_user *user); // idempotent
