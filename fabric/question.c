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
#include "fabric/line.h"

enum question_state { QUESTION_RECEIVING, QUESTION_OPEN, QUESTION_DELAYED, QUESTION_SENDING };

struct sl_question {
    struct sl_question *next, **link; // of fabric->questions
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

// ---- the owner's side ------------------------------------------------------------------------------------------------

void sl_fabric_on_question(struct sl_fabric *fabric, sl_question_fn fn, void *arg) {
    fabric->question_arg = arg;
    atomic_store(&fabric->question_fn, fn);
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

static void enlist(struct sl_fabric *fabric, struct sl_question *question) {
    question->next = fabric->questions;
    question->link = &fabric->questions;
    if (question->next) {
        question->next->link = &question->next;
    }
    fabric->questions = question;
    fabric->question_bytes += question->request_bytes;
    question->peer->n_questions++;
    atomic_fetch_add(&fabric->stats.questions_open, 1);
}

static void unlist(struct sl_fabric *fabric, struct sl_question *question) {
    *question->link = question->next;
    if (question->next) {
        question->next->link = question->link;
    }
    fabric->question_bytes -= question->request_bytes;
    if (question->peer) {
        question->peer->n_questions--;
    }
    atomic_fetch_sub(&fabric->stats.questions_open, 1);
}

static void finish(struct sl_fabric *fabric, struct sl_question *question) {
    unlist(fabric, question);
    release_and_free(question);
}

// ---- answering -------------------------------------------------------------------------------------------------------

static void reply_status(struct sl_peer *peer, uint64_t id, enum sl_status status) {
    struct sl_wire_reply reply = {id, status, 0};
    sl_peer_tell(peer, SL_WIRE_REPLY, &reply, sizeof reply);
}

static void on_replied(struct sl_peer_send *send, ucs_status_t status) {
    struct sl_fabric *fabric = send->peer->fabric;
    struct sl_question *question = send->arg;
    if (status == UCS_OK) {
        atomic_fetch_add(&fabric->stats.bytes_sent, question->answer_bytes);
    }
    finish(fabric, question);
}

static void reply(struct sl_fabric *fabric, struct sl_question *question) {
    if (!question->peer || atomic_load(&question->is_void)) {
        finish(fabric, question);
        return;
    }
    if (question->answer_bytes > question->capacity) {
        reply_status(question->peer, question->id, SL_ERR_RANGE);
        finish(fabric, question);
        return;
    }
    struct sl_wire_reply header = {question->id, SL_OK, 0};
    struct sl_peer_send *send = sl_peer_send_create(question->peer, &header, sizeof header);
    if (!send) { // the asker's deadline tells it
        finish(fabric, question);
        return;
    }
    send->arg = question;
    send->done = on_replied;
    question->state = QUESTION_SENDING;
    ucp_request_param_t with = {.flags = question->answer_bytes <= SL_EAGER_MAX_BYTES ? UCP_AM_SEND_FLAG_EAGER : 0};
    const struct sl_region *region = sl_fabric_region(fabric, question->answer, question->answer_bytes);
    if (region) {
        with.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH;
        with.memh = region->handle;
    }
    sl_peer_send_start(send, SL_WIRE_REPLY, sizeof header, question->answer, question->answer_bytes, &with);
}

static void run_answer(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_question *question =
        (struct sl_question *)((char *)command - offsetof(struct sl_question, answer_command));
    struct sl_inject *inject = &fabric->inject;
    if (inject->drop_reply > 0 && --inject->drop_reply == 0) {
        finish(fabric, question);
    } else if (inject->slow_reply > 0 && !atomic_load(&question->is_void)) {
        question->state = QUESTION_DELAYED;
        question->due_ns = sl_deadline_in_ms((int64_t)inject->slow_reply);
        if (question->due_ns < fabric->next_tick_ns) {
            fabric->next_tick_ns = question->due_ns;
        }
    } else {
        reply(fabric, question);
    }
}

// ---- ASK -------------------------------------------------------------------------------------------------------------

static void deliver(struct sl_fabric *fabric, struct sl_question *question) {
    if (!question->peer || atomic_load(&question->is_void) || atomic_load(&fabric->stopping)) {
        finish(fabric, question);
        return;
    }
    question->state = QUESTION_OPEN;
    atomic_load (&fabric->question_fn)(fabric->question_arg, question);
}

struct receive {
    struct sl_question *question;
    struct sl_peer *peer;
};

static void received(struct receive *receive, ucs_status_t status) {
    struct sl_question *question = receive->question;
    struct sl_fabric *fabric = receive->peer->fabric;
    receive->peer->n_requests--;
    free(receive);
    if (status == UCS_OK) {
        deliver(fabric, question);
    } else { // the error callback closes the peer
        finish(fabric, question);
    }
}

static void on_received(void *request, ucs_status_t status, size_t bytes, void *user_data) {
    (void)bytes;
    received(user_data, status);
    ucp_request_free(request);
}

static ucs_status_t receive_request(struct sl_fabric *fabric, struct sl_question *question, void *data) {
    struct receive *receive = malloc(sizeof *receive);
    if (!receive) {
        reply_status(question->peer, question->id, SL_ERR_EXHAUSTED);
        finish(fabric, question);
        return UCS_OK;
    }
    *receive = (struct receive){question, question->peer};
    ucp_request_param_t with = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                .cb.recv_am = on_received,
                                .user_data = receive};
    receive->peer->n_requests++;
    void *request = ucp_am_recv_data_nbx(fabric->worker, data, question->request, question->request_bytes, &with);
    if (!UCS_PTR_IS_PTR(request)) {
        received(receive, UCS_PTR_STATUS(request));
    }
    return UCS_INPROGRESS;
}

// SL_OK, or why a question is not taken.
static enum sl_status refusal(struct sl_fabric *fabric, const struct sl_peer *peer, size_t bytes) {
    if (!atomic_load(&fabric->question_fn)) {
        return SL_ERR_UNSUPPORTED;
    }
    if (atomic_load(&fabric->stopping)) {
        return SL_ERR_CANCELLED;
    }
    return peer->n_questions >= SL_ASK_MAX_QUESTIONS || fabric->question_bytes + bytes > SL_QUESTIONS_MAX_BYTES
               ? SL_ERR_EXHAUSTED
               : SL_OK;
}

ucs_status_t sl_question_on_ask(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                                const ucp_am_recv_param_t *param) {
    struct sl_fabric *fabric = arg;
    struct sl_wire_ask ask;
    struct sl_peer *peer = sl_peer_sender(fabric, "ASK", header_bytes, sizeof ask, param);
    if (!peer) {
        return UCS_OK;
    }
    memcpy(&ask, header, sizeof ask);
    if (bytes != ask.request_bytes || bytes > SL_ASK_REQUEST_MAX_BYTES) {
        sl_fabric_unexpected(fabric, "ASK with another length than announced", header_bytes + bytes);
        return UCS_OK;
    }
    enum sl_status status = refusal(fabric, peer, bytes);
    struct sl_question *question = status == SL_OK ? malloc(sizeof *question + bytes) : NULL;
    if (!question) {
        reply_status(peer, ask.id, status == SL_OK ? SL_ERR_EXHAUSTED : status);
        return UCS_OK;
    }
    memset(question, 0, sizeof *question);
    question->gate = sl_gate_ref(fabric->gate);
    question->answer_command.run = run_answer;
    question->peer = peer;
    question->id = ask.id;
    question->capacity = ask.answer_capacity;
    question->request_bytes = bytes;
    enlist(fabric, question);
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
        return receive_request(fabric, question, data);
    }
    if (bytes > 0) {
        memcpy(question->request, data, bytes);
    }
    deliver(fabric, question);
    return UCS_OK;
}

// ---- endings ---------------------------------------------------------------------------------------------------------

ucs_status_t sl_question_on_give_up(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                                    const ucp_am_recv_param_t *param) {
    struct sl_fabric *fabric = arg;
    struct sl_wire_give_up give_up;
    (void)data, (void)bytes;
    struct sl_peer *peer = sl_peer_sender(fabric, "ASK_GIVE_UP", header_bytes, sizeof give_up, param);
    if (!peer) {
        return UCS_OK;
    }
    memcpy(&give_up, header, sizeof give_up);
    for (struct sl_question *question = fabric->questions; question; question = question->next) {
        if (question->peer == peer && question->id == give_up.id) {
            atomic_store(&question->is_void, true);
        }
    }
    return UCS_OK;
}

void sl_questions_peer_closing(struct sl_fabric *fabric, const struct sl_peer *peer) {
    for (struct sl_question *question = fabric->questions; question; question = question->next) {
        if (question->peer == peer) {
            question->peer->n_questions--;
            question->peer = NULL;
            atomic_store(&question->is_void, true);
        }
    }
}

void sl_questions_tick(struct sl_fabric *fabric, int64_t now_ns) {
    for (struct sl_question *question = fabric->questions, *next; question; question = next) {
        next = question->next;
        if (question->state == QUESTION_DELAYED && now_ns >= question->due_ns) {
            reply(fabric, question);
        } else if (question->state == QUESTION_DELAYED && question->due_ns < fabric->next_tick_ns) {
            fabric->next_tick_ns = question->due_ns;
        }
    }
}

// With the lock of the gate, which is being shut.
void sl_questions_leave_all(struct sl_fabric *fabric) {
    for (struct sl_question *question = fabric->questions, *next; question; question = next) {
        next = question->next;
        atomic_store(&question->is_void, true);
        if (question->state == QUESTION_OPEN && !question->answered) {
            unlist(fabric, question);
        } else if (question->state == QUESTION_DELAYED) {
            question->due_ns = 0;
        }
    }
}
