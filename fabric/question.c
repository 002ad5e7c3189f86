// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the answerer's side of questions.
 *
 *      RECEIVING --- the request is here: deliver ----------------------------> OPEN       the owner's
 *      OPEN -------- sl_question_answer(): run_answer ------------------------> SENDING    (DELAYED by fault injection)
 *      SENDING ----- sent, or the asker has gone: finish ---------------------> freed
 *
 * A question whose asker has gone, or has given up, is void: its answer is not sent. When the fabric stops, questions that
 * are open are left to their owners, who free them by answering.
 *
 * Threads: the owner's calls are for any thread; everything else is the progress thread's. `answered` is under the lock of
 *          the gate, so that an answer either reaches the fabric or finds the question left to it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fabric/ask.h"
#include "fabric/core/core.h"

#define REQUESTS_MAX_BYTES ((size_t)256 << 20) // that are here, from all peers

extern const struct sl_verb_ops sl_question_ops;

enum question_state { QUESTION_RECEIVING, QUESTION_OPEN, QUESTION_DELAYED, QUESTION_SENDING };

struct sl_question {
    struct sl_question *next, **link; // of the list
    struct questions *questions;
    struct sl_gate *gate;
    struct sl_command answer_command;
    enum question_state state;
    struct sl_peer *peer; // NULL: it has gone
    uint64_t id;          // the asker's
    uint64_t capacity;
    atomic_bool is_void;
    bool answered;
    int64_t due_ns; // DELAYED
    // the answer
    const void *answer;
    size_t answer_bytes;
    void (*release)(void *arg);
    void *arg;
    size_t request_bytes;
    uint8_t request[];
};

struct questions {
    struct sl_verb verb;
    _Atomic(sl_question_fn) fn;
    void *arg;
    struct sl_question *first;
    size_t request_bytes; // of all of them
    _Atomic uint64_t n_open;
    uint64_t drop_reply, slow_reply; // fault injection: the Nth, counted down, 0: none; ms
};

struct peer_questions {
    size_t n; // of it, that are here and not yet answered
};

// ---- the owner's side ------------------------------------------------------------------------------------------------

void sl_fabric_on_question(struct sl_fabric *fabric, sl_question_fn fn, void *arg) {
    struct questions *questions = sl_verb_of_fabric(fabric, &sl_question_ops);
    questions->arg = arg;
    atomic_store(&questions->fn, fn);
}

const void *sl_question_request(const struct sl_question *question, size_t *bytes_out) {
    *bytes_out = question->request_bytes;
    return question->request;
}

bool sl_question_is_void(const struct sl_question *question) {
    return atomic_load(&((struct sl_question *)(uintptr_t)question)->is_void);
}

static void release_and_free(struct sl_question *question) {
    if (question->release) {
        question->release(question->arg);
    }
    sl_gate_unref(question->gate);
    free(question);
}

void sl_question_answer(struct sl_question **question, const void *answer, size_t bytes, void (*release)(void *arg),
                        void *arg) {
    struct sl_question *it = *question;
    *question = NULL;
    it->answer = answer;
    it->answer_bytes = bytes;
    it->release = release;
    it->arg = arg;
    struct sl_gate *gate = sl_gate_ref(it->gate); // the question may be gone before the lock is
    pthread_mutex_lock(&gate->lock);
    bool open = gate->fabric != NULL;
    if (open) {
        it->answered = true;
        sl_fabric_post(gate->fabric, &it->answer_command);
    }
    pthread_mutex_unlock(&gate->lock);
    sl_gate_unref(gate);
    if (!open) { // the fabric has stopped, and left the question to us
        release_and_free(it);
    }
}

// ---- the list --------------------------------------------------------------------------------------------------------

static size_t *count_of(const struct questions *questions, struct sl_peer *peer) {
    return &((struct peer_questions *)sl_verb_of_peer(questions, peer))->n;
}

static void enlist(struct questions *questions, struct sl_question *question) {
    question->next = questions->first;
    question->link = &questions->first;
    if (question->next) {
        question->next->link = &question->next;
    }
    questions->first = question;
    questions->request_bytes += question->request_bytes;
    ++*count_of(questions, question->peer);
    atomic_fetch_add(&questions->n_open, 1);
}

static void unlist(struct sl_question *question) {
    struct questions *questions = question->questions;
    *question->link = question->next;
    if (question->next) {
        question->next->link = question->link;
    }
    questions->request_bytes -= question->request_bytes;
    if (question->peer) {
        --*count_of(questions, question->peer);
    }
    atomic_fetch_sub(&questions->n_open, 1);
}

static void finish(struct sl_question *question) {
    unlist(question);
    release_and_free(question);
}

// ---- answering -------------------------------------------------------------------------------------------------------

static void reply_status(struct sl_peer *peer, uint64_t id, enum sl_status status) {
    struct sl_wire_reply reply = {id, status, 0};
    sl_peer_tell(peer, SL_WIRE_REPLY, &reply, sizeof reply);
}

static void on_replied(struct sl_peer_send *send, ucs_status_t status) {
    (void)status;
    finish(send->arg);
}

static void reply(struct sl_question *question) {
    if (!question->peer || atomic_load(&question->is_void)) {
        finish(question);
        return;
    }
    if (question->answer_bytes > question->capacity) {
        reply_status(question->peer, question->id, SL_ERR_RANGE);
        finish(question);
        return;
    }
    struct sl_wire_reply header = {question->id, SL_OK, 0};
    struct sl_peer_send *send = sl_peer_send_create(question->peer, &header, sizeof header);
    if (!send) { // the asker's deadline tells it
        finish(question);
        return;
    }
    send->arg = question;
    send->done = on_replied;
    question->state = QUESTION_SENDING;
    ucp_request_param_t with = {.flags = question->answer_bytes <= SL_EAGER_MAX_BYTES ? UCP_AM_SEND_FLAG_EAGER : 0};
    sl_fabric_use_region(question->peer->fabric, question->answer, question->answer_bytes, &with);
    sl_peer_send_start(send, SL_WIRE_REPLY, sizeof header, question->answer, question->answer_bytes, &with);
}

static void run_answer(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_question *question = SL_CONTAINER(command, struct sl_question, answer_command);
    struct questions *questions = question->questions;
    if (questions->drop_reply > 0 && --questions->drop_reply == 0) {
        finish(question);
    } else if (questions->slow_reply > 0 && !atomic_load(&question->is_void)) {
        question->state = QUESTION_DELAYED;
        question->due_ns = sl_deadline_in_ms((int64_t)questions->slow_reply);
        if (question->due_ns < fabric->next_tick_ns) {
            fabric->next_tick_ns = question->due_ns;
        }
    } else {
        reply(question);
    }
}

// ---- ASK -------------------------------------------------------------------------------------------------------------

static void deliver(struct sl_question *question) {
    struct questions *questions = question->questions;
    if (!question->peer || atomic_load(&question->is_void) || atomic_load(&questions->verb.fabric->stopping)) {
        finish(question);
        return;
    }
    question->state = QUESTION_OPEN;
    atomic_load (&questions->fn)(questions->arg, question);
}

static void on_received(void *arg, struct sl_peer *peer, ucs_status_t status, size_t bytes) {
    (void)peer, (void)bytes;
    if (status == UCS_OK) {
        deliver(arg);
    } else { // the error callback closes the peer
        finish(arg);
    }
}

// SL_OK, or why a question is not taken.
static enum sl_status refusal(struct questions *questions, struct sl_peer *peer, size_t bytes) {
    if (!atomic_load(&questions->fn)) {
        return SL_ERR_UNSUPPORTED;
    }
    if (atomic_load(&peer->fabric->stopping)) {
        return SL_ERR_CANCELLED;
    }
    return *count_of(questions, peer) >= SL_ASK_MAX_QUESTIONS || questions->request_bytes + bytes > REQUESTS_MAX_BYTES
               ? SL_ERR_EXHAUSTED
               : SL_OK;
}

static void on_ask(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct questions *questions = state;
    struct sl_wire_ask ask;
    size_t bytes = message->bytes;
    memcpy(&ask, message->header, sizeof ask);
    if (bytes != ask.request_bytes || bytes > SL_ASK_REQUEST_MAX_BYTES) {
        sl_fabric_unexpected(peer->fabric, "ASK with another length than announced", message->header_bytes + bytes);
        return;
    }
    enum sl_status status = refusal(questions, peer, bytes);
    struct sl_question *question = status == SL_OK ? malloc(sizeof *question + bytes) : NULL;
    if (!question) {
        reply_status(peer, ask.id, status == SL_OK ? SL_ERR_EXHAUSTED : status);
        return;
    }
    memset(question, 0, sizeof *question);
    question->questions = questions;
    question->gate = sl_gate_ref(peer->fabric->gate);
    question->answer_command.run = run_answer;
    question->peer = peer;
    question->id = ask.id;
    question->capacity = ask.answer_capacity;
    question->request_bytes = bytes;
    enlist(questions, question);
    if (!message->by_rendezvous) {
        if (bytes > 0) {
            memcpy(question->request, message->data, bytes);
        }
        deliver(question);
    } else if (!sl_peer_receive(peer, message, question->request, on_received, question)) {
        reply_status(peer, ask.id, SL_ERR_EXHAUSTED);
        finish(question);
    }
}

// ---- endings ---------------------------------------------------------------------------------------------------------

static void on_give_up(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct questions *questions = state;
    struct sl_wire_give_up give_up;
    memcpy(&give_up, message->header, sizeof give_up);
    for (struct sl_question *question = questions->first; question; question = question->next) {
        if (question->peer == peer && question->id == give_up.id) {
            atomic_store(&question->is_void, true);
        }
    }
}

static void peer_closing(void *state, struct sl_peer *peer, enum sl_status status, const char *text) {
    struct questions *questions = state;
    (void)status, (void)text;
    for (struct sl_question *question = questions->first; question; question = question->next) {
        if (question->peer == peer) {
            question->peer = NULL;
            atomic_store(&question->is_void, true);
        }
    }
}

static void tick(void *state, int64_t now_ns) {
    struct questions *questions = state;
    struct sl_fabric *fabric = questions->verb.fabric;
    for (struct sl_question *question = questions->first, *next; question; question = next) {
        next = question->next;
        if (question->state == QUESTION_DELAYED && now_ns >= question->due_ns) {
            reply(question);
        } else if (question->state == QUESTION_DELAYED && question->due_ns < fabric->next_tick_ns) {
            fabric->next_tick_ns = question->due_ns;
        }
    }
}

// Those that are open are left to their owners.
static void leave(void *state) {
    struct questions *questions = state;
    for (struct sl_question *question = questions->first, *next; question; question = next) {
        next = question->next;
        atomic_store(&question->is_void, true);
        if (question->state == QUESTION_OPEN && !question->answered) {
            unlist(question);
        } else if (question->state == QUESTION_DELAYED) {
            question->due_ns = 0;
        }
    }
}

static void stop(void *state) {
    tick(state, sl_now_ns()); // those that are delayed: they are due
}

const struct sl_verb_ops sl_question_ops = {
    .state_bytes = sizeof(struct questions),
    .peer_bytes = sizeof(struct peer_questions),
    .handlers = {{SL_WIRE_ASK, "ASK", sizeof(struct sl_wire_ask), false, on_ask},
                 {SL_WIRE_ASK_GIVE_UP, "ASK_GIVE_UP", sizeof(struct sl_wire_give_up), false, on_give_up}},
    .faults = {{"drop_reply", offsetof(struct questions, drop_reply)},
               {"slow_reply", offsetof(struct questions, slow_reply)}},
    .gauges = {SL_GAUGE(struct questions, n_open, questions_open)},
    .tick = tick,
    .peer_closing = peer_closing,
    .leave = leave,
    .stop = stop,
};
