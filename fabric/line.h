// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: lines, as what travels on them sees them: asks and fetches join a line, and are told when it is up and when it
 *          is over. A line does not know what they are.
 */
#ifndef SL_FABRIC_LINE_H
#define SL_FABRIC_LINE_H

#include "fabric/ask.h"
#include "fabric/core/core.h"

struct sl_line {
    struct sl_line *next;
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
    struct sl_line_user *users, **last_user;
};
void sl_line_ref(struct sl_line *line);
void sl_line_unref(struct sl_line *line);

// Both calls are the progress thread's, made in the order of joining, and may free the user.
struct sl_line_user {
    struct sl_line_user *next, **link;                                                // link NULL: not on the list
    void (*up)(struct sl_line_user *user);                                            // may be NULL
    void (*over)(struct sl_line_user *user, enum sl_status status, const char *text); // it has left
};
void sl_line_join(struct sl_line *line, struct sl_line_user *user);  // calls at once where the line is up or over
void sl_line_leave(struct sl_line *line, struct sl_line_user *user); // also one that has left

#endif
