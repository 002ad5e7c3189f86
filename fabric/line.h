// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what lines, asks, questions, fetches and windows share.
 *
 * Threads: the progress thread completes what callers wait for, and callers give up: whoever moves an outcome from OPEN
 *          to ENDING alone may write it, and the caller's buffer with it. Objects that outlive the fabric reach it through
 *          its gate, which is shut before the fabric goes.
 */
#ifndef SL_FABRIC_LINE_H
#define SL_FABRIC_LINE_H

#include "fabric/core.h"
#include "fabric/fetch.h"

#define SL_WAIT_SPIN_NS        30000               // of a caller, before it sleeps
#define SL_QUESTIONS_MAX_BYTES ((size_t)256 << 20) // of requests that are here, from all peers
#define SL_READ_WINDOW_BYTES   ((size_t)4 << 20)   // of one fetch by ucp_get_nbx, unacknowledged
#define SL_COPY_SLICE_BYTES    ((size_t)128 << 10) // of a mapped window, in one turn of the progress thread

// ---- the gate (line.c) ----------------------------------------------------------------------------------------

/*
 * The way to a fabric from objects that may outlive it. Reference-counted: one of the fabric, one of every line and
 * question. Commands that passed before it was shut are run; behind a shut gate nothing reaches the fabric any more.
 */
struct sl_gate {
    atomic_int refs;
    pthread_mutex_t lock;
    struct sl_fabric *fabric; // NULL: shut
};
struct sl_gate *sl_gate_create(struct sl_fabric *fabric);
struct sl_gate *sl_gate_ref(struct sl_gate *gate);
void sl_gate_unref(struct sl_gate *gate);
bool sl_gate_post(struct sl_gate *gate, struct sl_command *command); // false: shut, the command will not run
void sl_gate_wake(struct sl_gate *gate);                             // have the progress thread look around
void sl_gate_shut(struct sl_gate *gate);

// ---- outcomes (line.c) ----------------------------------------------------------------------------------------

enum sl_outcome_state { OUTCOME_OPEN, OUTCOME_ENDING, OUTCOME_DONE };

struct sl_outcome {
    _Atomic(enum sl_outcome_state) state;
    atomic_bool awaited;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // written between ENDING and DONE
    enum sl_status status;
    char text[SL_ANSWER_TEXT_BYTES];
};
void sl_outcome_init(struct sl_outcome *outcome);
void sl_outcome_cleanup(struct sl_outcome *outcome);
bool sl_outcome_claim(struct sl_outcome *outcome); // OPEN -> ENDING; false: somebody else was first
void sl_outcome_done(struct sl_outcome *outcome, enum sl_status status, const char *text); // ENDING -> DONE
bool sl_outcome_end(struct sl_outcome *outcome, enum sl_status status, const char *text);  // both
bool sl_outcome_wait(struct sl_outcome *outcome, int64_t until_ns);                        // whether it is DONE

static inline bool sl_outcome_is_open(const struct sl_outcome *outcome) {
    return atomic_load(&((struct sl_outcome *)(uintptr_t)outcome)->state) == OUTCOME_OPEN;
}
static inline bool sl_outcome_is_done(const struct sl_outcome *outcome) {
    return atomic_load(&((struct sl_outcome *)(uintptr_t)outcome)->state) == OUTCOME_DONE;
}

// ---- lines (line.c) -------------------------------------------------------------------------------------------

struct sl_line {
    struct sl_line *next;
    atomic_int refs; // the caller, the fabric's list, every ask and fetch
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
    struct sl_ask *waiting, **last_waiting; // for the connection
};
void sl_line_unref(struct sl_line *line);
bool sl_lines_pump(struct sl_fabric *fabric); // whether anything was done
void sl_lines_peer_closing(struct sl_fabric *fabric, struct sl_peer *peer, enum sl_status status, const char *text);
void sl_lines_end_all(struct sl_fabric *fabric, const char *text);

// ---- asks (ask.c) ---------------------------------------------------------------------------------------------

enum sl_ask_place { ASK_NOWHERE, ASK_WAITING, ASK_ASKED };

struct sl_ask {
    struct sl_ask *next; // on line->waiting
    struct sl_line *line;
    atomic_int refs; // the caller, the command on its way or the table, the send, the receive, a give-up on its way
    struct sl_command open_command, give_up_command;
    struct sl_outcome outcome;
    int64_t deadline_ns;
    uint8_t *answer; // the caller's; written only by whoever has claimed the outcome
    size_t answer_capacity, answer_bytes;
    // the progress thread's
    enum sl_ask_place place;
    uint64_t id;
    bool receiving;
    size_t request_bytes;
    uint8_t request[];
};

void sl_asks_start(struct sl_line *line); // the connection is up
void sl_asks_end(struct sl_fabric *fabric, const struct sl_line *line, enum sl_status status, const char *text);
void sl_asks_tick(struct sl_fabric *fabric, int64_t now_ns);
ucs_status_t sl_ask_on_reply(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                             const ucp_am_recv_param_t *param);

// ---- questions (question.c) -----------------------------------------------------------------------------------

void sl_questions_peer_closing(struct sl_fabric *fabric, const struct sl_peer *peer);
void sl_questions_tick(struct sl_fabric *fabric, int64_t now_ns);
void sl_questions_leave_all(struct sl_fabric *fabric); // those that are open to their owners
ucs_status_t sl_question_on_ask(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                                const ucp_am_recv_param_t *param);
ucs_status_t sl_question_on_give_up(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                                    const ucp_am_recv_param_t *param);

// ---- fetches (fetch.c) and windows (window.c) ----------------------------------------------------------

bool sl_fetches_pump(struct sl_fabric *fabric, int64_t now_ns); // whether anything was done
void sl_fetches_tick(struct sl_fabric *fabric, int64_t now_ns);
void sl_fetches_end(struct sl_fabric *fabric, const struct sl_line *line, enum sl_status status, const char *text);
void sl_fetches_peer_closing(struct sl_fabric *fabric, const struct sl_peer *peer);
void sl_fetches_release_all(struct sl_fabric *fabric); // everything is closed: whatever they wait for
ucs_status_t sl_fetch_on_read_reply(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                                    const ucp_am_recv_param_t *param);
ucs_status_t sl_window_on_read(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param);

#endif
