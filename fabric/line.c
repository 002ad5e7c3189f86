// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: lines: an asker's hold on a connection.
 *
 *      waiting --- peer up: pump ------------------------------------------------> up
 *      waiting, up --- peer lost, closed by its owner, fabric stops: end_line ---> over
 *
 * A line that is over stays over: its owner knows what was lost with it, and opens another.
 */
#include "fabric/line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fabric/core/core.h"

extern const struct sl_verb_ops sl_line_ops;

struct lines {
    struct sl_verb verb;
    struct sl_line *first;
    bool waiting; // one of them, for its peer to be up
    _Atomic uint64_t n_open;
};

// ---- the owner's side ------------------------------------------------------------------------------------------------

static void run_open(struct sl_fabric *fabric, struct sl_command *command);
static void run_close(struct sl_fabric *fabric, struct sl_command *command);

enum sl_status sl_line_open(struct sl_fabric *fabric, const char *address, uint64_t epoch, struct sl_line **line_out,
                            struct sl_error *err) {
    if (strlen(address) >= sizeof((struct sl_line *)NULL)->address || epoch == 0) {
        return sl_fail(err, SL_ERR_INVALID, "a line to \"%.64s\", epoch %llu: no such fabric", address,
                       (unsigned long long)epoch);
    }
    struct sl_line *line = calloc(1, sizeof *line);
    if (!line) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a line to %s", address);
    }
    enum sl_status status = sl_ucx_resolve(address, &line->sockaddr, &line->sockaddr_bytes, err);
    if (status != SL_OK) {
        free(line);
        return status;
    }
    snprintf(line->address, sizeof line->address, "%s", address);
    line->epoch = epoch;
    line->gate = sl_gate_ref(fabric->gate);
    line->open_command.run = run_open;
    line->close_command.run = run_close;
    line->last_user = &line->users;
    atomic_store(&line->transport, "");
    atomic_store(&line->refs, 2);
    sl_fabric_post(fabric, &line->open_command);
    *line_out = line;
    return SL_OK;
}

const char *sl_line_transport(const struct sl_line *line) {
    return atomic_load(&((struct sl_line *)(uintptr_t)line)->transport);
}

void sl_line_ref(struct sl_line *line) {
    atomic_fetch_add(&line->refs, 1);
}

void sl_line_unref(struct sl_line *line) {
    if (atomic_fetch_sub(&line->refs, 1) == 1) {
        sl_gate_unref(line->gate);
        free(line);
    }
}

void sl_line_close(struct sl_line **line) {
    if (!line || !*line) {
        return;
    }
    if (!sl_gate_post((*line)->gate, &(*line)->close_command)) {
        sl_line_unref(*line); // the command's
    }
    *line = NULL;
}

// ---- the users -------------------------------------------------------------------------------------------------------

void sl_line_join(struct sl_line *line, struct sl_line_user *user) {
    if (line->over) {
        user->over(user, line->status, line->text);
        return;
    }
    user->next = NULL;
    user->link = line->last_user;
    *line->last_user = user;
    line->last_user = &user->next;
    if (line->up && user->up) {
        user->up(user);
    }
}

void sl_line_leave(struct sl_line *line, struct sl_line_user *user) {
    if (!user->link) {
        return;
    }
    *user->link = user->next;
    if (user->next) {
        user->next->link = user->link;
    } else {
        line->last_user = user->link;
    }
    user->link = NULL;
}

// ---- the progress thread's side --------------------------------------------------------------------------------------

static void end_line(struct sl_line *line, enum sl_status status, const char *text) {
    if (line->over) {
        return;
    }
    line->over = true;
    line->up = false;
    line->peer = NULL;
    line->status = status;
    snprintf(line->text, sizeof line->text, "%s", text);
    while (line->users) {
        struct sl_line_user *user = line->users;
        sl_line_leave(line, user);
        user->over(user, status, text);
    }
}

static void run_open(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_line *line = SL_CONTAINER(command, struct sl_line, open_command);
    struct lines *lines = sl_verb_of_fabric(fabric, &sl_line_ops);
    struct sl_error err = {0};
    line->next = lines->first;
    lines->first = line;
    atomic_fetch_add(&lines->n_open, 1);
    if (atomic_load(&fabric->stopping)) { // no connection is made that nobody would close
        end_line(line, SL_ERR_CANCELLED, "this fabric stops");
        return;
    }
    line->peer = sl_peer_connect(fabric, line->address, &line->sockaddr, line->sockaddr_bytes, line->epoch, &err);
    if (!line->peer) {
        end_line(line, err.status, err.text);
    }
    lines->waiting = true;
}

static void unlink_line(struct lines *lines, struct sl_line *line) {
    struct sl_line **at = &lines->first;
    while (*at && *at != line) {
        at = &(*at)->next;
    }
    if (*at) { // else the fabric has let go of it already
        *at = line->next;
        atomic_fetch_sub(&lines->n_open, 1);
        sl_line_unref(line);
    }
}

static void run_close(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_line *line = SL_CONTAINER(command, struct sl_line, close_command);
    end_line(line, SL_ERR_CANCELLED, "the line was closed");
    unlink_line(sl_verb_of_fabric(fabric, &sl_line_ops), line);
    sl_line_unref(line); // the caller's
}

static void name_transport(struct sl_line *line) {
    static const struct {
        const char *prefix, *name;
    } names[] = {{"posix", "shm"}, {"rc_", "rdma"}, {"dc_", "rdma"}, {"tcp", "tcp"}, {"self", "self"}};
    char transport[32];
    sl_ucx_transport(line->peer->ep, transport, sizeof transport);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strncmp(transport, names[i].prefix, strlen(names[i].prefix)) == 0) {
            atomic_store(&line->transport, names[i].name);
        }
    }
}

static void come_up(struct sl_line *line) {
    line->up = true;
    name_transport(line);
    for (struct sl_line_user *user = line->users, *next; user; user = next) {
        next = user->next;
        if (user->up) {
            user->up(user);
        }
    }
}

static bool pump(void *state, int64_t now_ns) {
    struct lines *lines = state;
    (void)now_ns;
    if (!lines->waiting) {
        return false;
    }
    bool moved = false;
    lines->waiting = false;
    for (struct sl_line *line = lines->first; line; line = line->next) {
        if (line->up || line->over) {
            continue;
        }
        if (line->peer->state == PEER_UP) {
            come_up(line);
            moved = true;
        } else {
            lines->waiting = true;
        }
    }
    return moved;
}

static void peer_closing(void *state, struct sl_peer *peer, enum sl_status status, const char *text) {
    struct lines *lines = state;
    for (struct sl_line *line = lines->first; line; line = line->next) {
        if (line->peer == peer) {
            end_line(line, status, text);
        }
    }
}

static void stop(void *state) {
    struct lines *lines = state;
    while (lines->first) {
        struct sl_line *line = lines->first;
        end_line(line, SL_ERR_CANCELLED, "this fabric stops");
        unlink_line(lines, line);
    }
}

const struct sl_verb_ops sl_line_ops = {
    .state_bytes = sizeof(struct lines),
    .gauges = {SL_GAUGE(struct lines, n_open, lines_open)},
    .pump = pump,
    .peer_closing = peer_closing,
    .stop = stop,
};
