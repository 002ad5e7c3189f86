// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: lines: an asker's hold on a connection; with them the gate and the outcomes that everything on a line needs.
 *
 *      waiting --- peer up: lines_pump ------------------------------------------> up
 *      waiting, up --- peer lost, closed by its owner, fabric stops: end_line ---> over
 *
 * A line that is over stays over: its owner knows what was lost with it, and opens another.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "fabric/line.h"

// ---- the gate --------------------------------------------------------------------------------------------------------

struct sl_gate *sl_gate_create(struct sl_fabric *fabric) {
    struct sl_gate *gate = calloc(1, sizeof *gate);
    if (gate) {
        atomic_store(&gate->refs, 1);
        pthread_mutex_init(&gate->lock, NULL);
        gate->fabric = fabric;
    }
    return gate;
}

struct sl_gate *sl_gate_ref(struct sl_gate *gate) {
    atomic_fetch_add(&gate->refs, 1);
    return gate;
}

void sl_gate_unref(struct sl_gate *gate) {
    if (gate && atomic_fetch_sub(&gate->refs, 1) == 1) {
        pthread_mutex_destroy(&gate->lock);
        free(gate);
    }
}

bool sl_gate_post(struct sl_gate *gate, struct sl_command *command) {
    pthread_mutex_lock(&gate->lock);
    bool open = gate->fabric != NULL;
    if (open) {
        sl_fabric_post(gate->fabric, command);
    }
    pthread_mutex_unlock(&gate->lock);
    return open;
}

void sl_gate_wake(struct sl_gate *gate) {
    pthread_mutex_lock(&gate->lock);
    if (gate->fabric) {
        atomic_store(&gate->fabric->posted, true);
        sl_fabric_wake(gate->fabric);
    }
    pthread_mutex_unlock(&gate->lock);
}

void sl_gate_shut(struct sl_gate *gate) {
    pthread_mutex_lock(&gate->lock);
    sl_questions_leave_all(gate->fabric);
    gate->fabric = NULL;
    pthread_mutex_unlock(&gate->lock);
}

// ---- outcomes --------------------------------------------------------------------------------------------------------

void sl_outcome_init(struct sl_outcome *outcome) {
    atomic_init(&outcome->state, OUTCOME_OPEN);
    atomic_init(&outcome->awaited, false);
    pthread_mutex_init(&outcome->lock, NULL);
    sl_cond_init(&outcome->changed);
    outcome->status = SL_OK;
    outcome->text[0] = '\0';
}

void sl_outcome_cleanup(struct sl_outcome *outcome) {
    pthread_mutex_destroy(&outcome->lock);
    pthread_cond_destroy(&outcome->changed);
}

bool sl_outcome_claim(struct sl_outcome *outcome) {
    enum sl_outcome_state open = OUTCOME_OPEN;
    return atomic_compare_exchange_strong(&outcome->state, &open, OUTCOME_ENDING);
}

void sl_outcome_done(struct sl_outcome *outcome, enum sl_status status, const char *text) {
    outcome->status = status;
    snprintf(outcome->text, sizeof outcome->text, "%s", text);
    atomic_store(&outcome->state, OUTCOME_DONE);
    if (atomic_load(&outcome->awaited)) { // set before the waiter looks at the state for the last time
        pthread_mutex_lock(&outcome->lock);
        pthread_cond_broadcast(&outcome->changed);
        pthread_mutex_unlock(&outcome->lock);
    }
}

bool sl_outcome_end(struct sl_outcome *outcome, enum sl_status status, const char *text) {
    bool first = sl_outcome_claim(outcome);
    if (first) {
        sl_outcome_done(outcome, status, text);
    }
    return first;
}

bool sl_outcome_wait(struct sl_outcome *outcome, int64_t until_ns) {
    // An answer that is near is not worth two switches of context; yielding leaves the processor to who prepares it.
    int64_t start = sl_now_ns();
    for (int64_t now = start; !sl_outcome_is_done(outcome); now = sl_now_ns()) {
        if (now - start > SL_WAIT_SPIN_NS || now >= until_ns) {
            break;
        }
        sched_yield();
    }
    if (!sl_outcome_is_done(outcome) && sl_now_ns() < until_ns) {
        pthread_mutex_lock(&outcome->lock);
        atomic_store(&outcome->awaited, true);
        while (!sl_outcome_is_done(outcome) &&
               sl_cond_wait_until(&outcome->changed, &outcome->lock, until_ns) == SL_OK) {
        }
        pthread_mutex_unlock(&outcome->lock);
    }
    return sl_outcome_is_done(outcome);
}

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
    enum sl_status status = sl_fabric_resolve(address, &line->sockaddr, &line->sockaddr_bytes, err);
    if (status != SL_OK) {
        free(line);
        return status;
    }
    snprintf(line->address, sizeof line->address, "%s", address);
    line->epoch = epoch;
    line->gate = sl_gate_ref(fabric->gate);
    line->open_command.run = run_open;
    line->close_command.run = run_close;
    line->last_waiting = &line->waiting;
    atomic_store(&line->transport, "");
    atomic_store(&line->refs, 2);
    sl_fabric_post(fabric, &line->open_command);
    *line_out = line;
    return SL_OK;
}

const char *sl_line_transport(const struct sl_line *line) {
    return atomic_load(&((struct sl_line *)(uintptr_t)line)->transport);
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

// ---- the progress thread's side --------------------------------------------------------------------------------------

static void end_line(struct sl_fabric *fabric, struct sl_line *line, enum sl_status status, const char *text) {
    if (line->over) {
        return;
    }
    line->over = true;
    line->up = false;
    line->peer = NULL;
    line->status = status;
    snprintf(line->text, sizeof line->text, "%s", text);
    sl_asks_end(fabric, line, status, text);
    sl_fetches_end(fabric, line, status, text);
}

static void run_open(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_line *line = (struct sl_line *)((char *)command - offsetof(struct sl_line, open_command));
    struct sl_error err = {0};
    line->next = fabric->lines;
    fabric->lines = line;
    atomic_fetch_add(&fabric->stats.lines_open, 1);
    if (atomic_load(&fabric->stopping)) { // no connection is made that nobody would close
        end_line(fabric, line, SL_ERR_CANCELLED, "this fabric stops");
        return;
    }
    line->peer = sl_peer_connect(fabric, line->address, &line->sockaddr, line->sockaddr_bytes, line->epoch, &err);
    if (!line->peer) {
        end_line(fabric, line, err.status, err.text);
    }
    fabric->lines_waiting = true;
}

static void unlink_line(struct sl_fabric *fabric, struct sl_line *line) {
    struct sl_line **at = &fabric->lines;
    while (*at && *at != line) {
        at = &(*at)->next;
    }
    if (*at) { // else the fabric has let go of it already
        *at = line->next;
        atomic_fetch_sub(&fabric->stats.lines_open, 1);
        sl_line_unref(line);
    }
}

static void run_close(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_line *line = (struct sl_line *)((char *)command - offsetof(struct sl_line, close_command));
    end_line(fabric, line, SL_ERR_CANCELLED, "the line was closed");
    unlink_line(fabric, line);
    sl_line_unref(line); // the caller's
}

static void name_transport(struct sl_line *line) {
    static const struct {
        const char *prefix, *name;
    } names[] = {{"posix", "shm"}, {"rc_", "rdma"}, {"dc_", "rdma"}, {"tcp", "tcp"}, {"self", "self"}};
    char transport[32];
    sl_fabric_transport(line->peer->ep, transport, sizeof transport);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strncmp(transport, names[i].prefix, strlen(names[i].prefix)) == 0) {
            atomic_store(&line->transport, names[i].name);
        }
    }
}

bool sl_lines_pump(struct sl_fabric *fabric) {
    if (!fabric->lines_waiting) {
        return false;
    }
    bool moved = false;
    fabric->lines_waiting = false;
    for (struct sl_line *line = fabric->lines; line; line = line->next) {
        if (line->up || line->over) {
            continue;
        }
        if (line->peer->state == PEER_UP) {
            line->up = true;
            moved = true;
            name_transport(line);
            sl_asks_start(line);
        } else {
            fabric->lines_waiting = true;
        }
    }
    return moved;
}

void sl_lines_peer_closing(struct sl_fabric *fabric, struct sl_peer *peer, enum sl_status status, const char *text) {
    for (struct sl_line *line = fabric->lines; line; line = line->next) {
        if (line->peer == peer) {
            end_line(fabric, line, status, text);
        }
    }
}

void sl_lines_end_all(struct sl_fabric *fabric, const char *text) {
    while (fabric->lines) {
        struct sl_line *line = fabric->lines;
        end_line(fabric, line, SL_ERR_CANCELLED, text);
        unlink_line(fabric, line);
    }
}
