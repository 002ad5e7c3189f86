// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the asker's side of questions.
 *
 *      (posted) --- the line is not up: run_open ------------------------------> WAITING
 *      (posted), WAITING --- the line is up: start ----------------------------> ASKED      ASK has been sent
 *      ASKED --- REPLY by rendezvous: on_reply --------------------------------> ASKED, receiving
 *      WAITING, ASKED --- answered, refused, late, lost, given up: let_go -----> NOWHERE
 *
 * Where an ask is concerns the progress thread; whether it is over is said by its outcome, which the caller may end too.
 *
 * Invariants: the caller's buffer is written only between the claim of the outcome and its end. A rendezvous therefore
 *             lands in a buffer of the fabric: it cannot be called back, and the caller may give up meanwhile.
 *             Nothing here waits for the other side: an ask that is given up is gone for its caller at once, and
 *             reference-counted for the rest.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fabric/line.h"

// ---- the caller's side -----------------------------------------------------------------------------------------------

static void run_open(struct sl_fabric *fabric, struct sl_command *command);
static void run_give_up(struct sl_fabric *fabric, struct sl_command *command);

static void unref(struct sl_ask *ask) {
    if (atomic_fetch_sub(&ask->refs, 1) == 1) {
        sl_outcome_cleanup(&ask->outcome);
        sl_line_unref(ask->line);
        free(ask);
    }
}

enum sl_status sl_ask_open(struct sl_line *line, const void *request, size_t request_bytes, void *answer_out,
                           size_t answer_capacity, int64_t deadline_ns, struct sl_ask **ask_out, struct sl_error *err) {
    if (request_bytes > SL_ASK_REQUEST_MAX_BYTES) {
        return sl_fail(err, SL_ERR_RANGE, "a request of %zu bytes; at most %u", request_bytes,
                       SL_ASK_REQUEST_MAX_BYTES);
    }
    struct sl_ask *ask = malloc(sizeof *ask + request_bytes);
    if (!ask) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for an ask of %zu bytes", request_bytes);
    }
    memset(ask, 0, offsetof(struct sl_ask, outcome));
    ask->line = line;
    atomic_fetch_add(&line->refs, 1);
    atomic_init(&ask->refs, 2);
    ask->open_command.run = run_open;
    ask->give_up_command.run = run_give_up;
    sl_outcome_init(&ask->outcome);
    ask->deadline_ns = deadline_ns;
    ask->answer = answer_out;
    ask->answer_capacity = answer_capacity;
    ask->answer_bytes = 0;
    ask->place = ASK_NOWHERE;
    ask->id = 0;
    ask->receiving = false;
    ask->request_bytes = request_bytes;
    if (request_bytes > 0) {
        memcpy(ask->request, request, request_bytes);
    }
    if (!sl_gate_post(line->gate, &ask->open_command)) {
        sl_outcome_end(&ask->outcome, SL_ERR_CANCELLED, "the fabric has stopped");
        unref(ask); // the command's
    }
    *ask_out = ask;
    return SL_OK;
}

// By the caller, who has just ended the ask: the progress thread forgets it, and the answerer is told.
static void give_up(struct sl_ask *ask) {
    atomic_fetch_add(&ask->refs, 1);
    if (!sl_gate_post(ask->line->gate, &ask->give_up_command)) {
        unref(ask);
    }
}

enum sl_status sl_ask_wait(struct sl_ask *ask, int64_t until_ns, size_t *bytes_out, struct sl_error *err) {
    struct sl_outcome *outcome = &ask->outcome;
    if (!sl_outcome_wait(outcome, until_ns < ask->deadline_ns ? until_ns : ask->deadline_ns)) {
        if (sl_now_ns() < ask->deadline_ns) {
            return SL_AGAIN;
        }
        if (sl_outcome_end(outcome, SL_ERR_DEADLINE, "no answer in time")) {
            give_up(ask);
        } else {
            sl_outcome_wait(outcome, SL_NO_DEADLINE); // it is just being written
        }
    }
    if (outcome->status != SL_OK) {
        return sl_fail(err, outcome->status, "ask of %s: %s", ask->line->address, outcome->text);
    }
    *bytes_out = ask->answer_bytes;
    return SL_OK;
}

bool sl_ask_is_done(const struct sl_ask *ask) {
    return sl_outcome_is_done(&ask->outcome);
}

void sl_ask_close(struct sl_ask **ask) {
    if (!ask || !*ask) {
        return;
    }
    struct sl_ask *it = *ask;
    if (sl_outcome_end(&it->outcome, SL_ERR_CANCELLED, "given up")) {
        give_up(it);
    } else {
        sl_outcome_wait(&it->outcome, SL_NO_DEADLINE); // it may just be being written
    }
    unref(it);
    *ask = NULL;
}

// ---- the table -------------------------------------------------------------------------------------------------------

static bool enter(struct sl_fabric *fabric, struct sl_ask *ask) {
    struct sl_asks *asks = &fabric->asks;
    uint32_t place = asks->first_free;
    while (place < asks->n && asks->at[place]) {
        place++;
    }
    if (place == asks->n) {
        uint32_t n = asks->n ? 2 * asks->n : 64;
        struct sl_ask **at = realloc(asks->at, n * sizeof *at);
        asks->at = at ? at : asks->at;
        uint32_t *n_uses = at ? realloc(asks->n_uses, n * sizeof *n_uses) : NULL;
        asks->n_uses = n_uses ? n_uses : asks->n_uses;
        if (!n_uses) {
            return false;
        }
        memset(at + asks->n, 0, (n - asks->n) * sizeof *at);
        memset(n_uses + asks->n, 0, (n - asks->n) * sizeof *n_uses);
        asks->n = n;
    }
    asks->at[place] = ask;
    asks->first_free = place + 1;
    ask->id = (uint64_t)++asks->n_uses[place] << 32 | place;
    ask->place = ASK_ASKED;
    return true;
}

static struct sl_ask *find(const struct sl_fabric *fabric, uint64_t id) {
    uint32_t place = (uint32_t)id;
    struct sl_ask *ask = place < fabric->asks.n ? fabric->asks.at[place] : NULL;
    return ask && ask->id == id ? ask : NULL;
}

// The end for the progress thread; except that a receive which is under way ends first. May free the ask.
static void let_go(struct sl_fabric *fabric, struct sl_ask *ask) {
    if (ask->receiving || ask->place == ASK_NOWHERE) {
        return;
    }
    if (ask->place == ASK_ASKED) {
        uint32_t place = (uint32_t)ask->id;
        fabric->asks.at[place] = NULL;
        fabric->asks.first_free = place < fabric->asks.first_free ? place : fabric->asks.first_free;
    } else {
        struct sl_ask **at = &ask->line->waiting;
        while (*at != ask) {
            at = &(*at)->next;
        }
        *at = ask->next;
        if (!*at) {
            ask->line->last_waiting = at;
        }
    }
    ask->place = ASK_NOWHERE;
    atomic_fetch_sub(&fabric->stats.asks_open, 1);
    unref(ask);
}

// ---- the progress thread's side --------------------------------------------------------------------------------------

static void end(struct sl_fabric *fabric, struct sl_ask *ask, enum sl_status status, const char *text) {
    sl_outcome_end(&ask->outcome, status, text);
    let_go(fabric, ask);
}

static void on_asked(struct sl_peer_send *send, ucs_status_t status) {
    struct sl_ask *ask = send->arg;
    if (status != UCS_OK) {
        end(send->peer->fabric, ask, sl_fabric_from_ucs(status), ucs_status_string(status));
    }
    unref(ask);
}

// It is in the table.
static void start(struct sl_fabric *fabric, struct sl_ask *ask) {
    struct sl_wire_ask header = {ask->id, ask->answer_capacity, (uint32_t)ask->request_bytes, 0};
    struct sl_peer_send *send = sl_peer_send_create(ask->line->peer, &header, sizeof header);
    if (!send) {
        end(fabric, ask, SL_ERR_EXHAUSTED, "the asker has no memory for it");
        return;
    }
    send->arg = ask;
    send->done = on_asked;
    atomic_fetch_add(&ask->refs, 1);
    const ucp_request_param_t with = {.flags = ask->request_bytes <= SL_EAGER_MAX_BYTES ? UCP_AM_SEND_FLAG_EAGER : 0};
    sl_peer_send_start(send, SL_WIRE_ASK, sizeof(struct sl_wire_ask), ask->request, ask->request_bytes, &with);
}

static void run_open(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_ask *ask = (struct sl_ask *)((char *)command - offsetof(struct sl_ask, open_command));
    struct sl_line *line = ask->line;
    if (!sl_outcome_is_open(&ask->outcome)) { // given up before it began
        unref(ask);
        return;
    }
    if (line->over) {
        sl_outcome_end(&ask->outcome, line->status, line->text);
        unref(ask);
        return;
    }
    atomic_fetch_add(&fabric->stats.asks_open, 1);
    ask->place = ASK_WAITING;
    ask->next = NULL;
    *line->last_waiting = ask;
    line->last_waiting = &ask->next;
    if (line->up) {
        sl_asks_start(line);
    }
}

void sl_asks_start(struct sl_line *line) {
    struct sl_fabric *fabric = line->peer->fabric;
    while (line->waiting) {
        struct sl_ask *ask = line->waiting, *next = ask->next;
        if (!enter(fabric, ask)) { // still waiting, which is where let_go() looks for it
            end(fabric, ask, SL_ERR_EXHAUSTED, "the asker has no memory for it");
            continue;
        }
        line->waiting = next;
        if (!next) {
            line->last_waiting = &line->waiting;
        }
        start(fabric, ask);
    }
}

static void tell_given_up(struct sl_ask *ask) {
    if (ask->place == ASK_ASKED && ask->line->peer) {
        struct sl_wire_give_up header = {ask->id};
        sl_peer_tell(ask->line->peer, SL_WIRE_ASK_GIVE_UP, &header, sizeof header);
    }
}

static void run_give_up(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_ask *ask = (struct sl_ask *)((char *)command - offsetof(struct sl_ask, give_up_command));
    tell_given_up(ask);
    let_go(fabric, ask);
    unref(ask);
}

void sl_asks_end(struct sl_fabric *fabric, const struct sl_line *line, enum sl_status status, const char *text) {
    for (uint32_t i = 0; i < fabric->asks.n; i++) {
        struct sl_ask *ask = fabric->asks.at[i];
        if (ask && ask->line == line) {
            end(fabric, ask, status, text);
        }
    }
    while (line->waiting) {
        end(fabric, line->waiting, status, text);
    }
}

void sl_asks_tick(struct sl_fabric *fabric, int64_t now_ns) {
    for (uint32_t i = 0; i < fabric->asks.n; i++) {
        struct sl_ask *ask = fabric->asks.at[i];
        if (ask && now_ns > ask->deadline_ns && sl_outcome_end(&ask->outcome, SL_ERR_DEADLINE, "no answer in time")) {
            tell_given_up(ask);
            let_go(fabric, ask);
        }
    }
    for (struct sl_line *line = fabric->lines; line; line = line->next) {
        for (struct sl_ask *ask = line->waiting, *next; ask; ask = next) {
            next = ask->next;
            if (now_ns > ask->deadline_ns) {
                end(fabric, ask, SL_ERR_DEADLINE, "no connection in time");
            }
        }
    }
}

// ---- REPLY -----------------------------------------------------------------------------------------------------------

struct receive {
    struct sl_fabric *fabric;
    struct sl_peer *peer;
    struct sl_ask *ask; // in the table until this is over
    size_t bytes;
    uint8_t *buffer;
};

static void deliver(struct sl_fabric *fabric, struct sl_ask *ask, const void *data, size_t bytes) {
    if (sl_outcome_claim(&ask->outcome)) {
        if (bytes > 0) {
            memcpy(ask->answer, data, bytes);
        }
        ask->answer_bytes = bytes;
        sl_outcome_done(&ask->outcome, SL_OK, "");
    }
    atomic_fetch_add(&fabric->stats.bytes_received, bytes);
    let_go(fabric, ask);
}

static void received(struct receive *receive, ucs_status_t status) {
    struct sl_ask *ask = receive->ask;
    ask->receiving = false;
    receive->peer->n_requests--;
    if (status == UCS_OK) {
        deliver(receive->fabric, ask, receive->buffer, receive->bytes);
    } else {
        end(receive->fabric, ask, SL_ERR_PEER_LOST, ucs_status_string(status));
    }
    if (receive->bytes <= SL_SEGMENT_MAX_BYTES) {
        sl_fabric_give_buffer(receive->fabric, receive->buffer);
    } else {
        free(receive->buffer);
    }
    free(receive);
}

static void on_received(void *request, ucs_status_t status, size_t bytes, void *user_data) {
    (void)bytes;
    received(user_data, status);
    ucp_request_free(request);
}

static ucs_status_t receive_answer(struct sl_fabric *fabric, struct sl_peer *peer, struct sl_ask *ask, void *data,
                                   size_t bytes) {
    struct receive *receive = malloc(sizeof *receive);
    uint8_t *buffer = bytes <= SL_SEGMENT_MAX_BYTES ? sl_fabric_take_buffer(fabric) : malloc(bytes);
    if (!receive || !buffer) {
        free(receive);
        free(buffer);
        end(fabric, ask, SL_ERR_EXHAUSTED, "the asker has no memory for the answer");
        return UCS_OK;
    }
    *receive = (struct receive){fabric, peer, ask, bytes, buffer};
    ucp_request_param_t with = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                .cb.recv_am = on_received,
                                .user_data = receive};
    ask->receiving = true;
    peer->n_requests++;
    void *request = ucp_am_recv_data_nbx(fabric->worker, data, buffer, bytes, &with);
    if (!UCS_PTR_IS_PTR(request)) {
        received(receive, UCS_PTR_STATUS(request));
    }
    return UCS_INPROGRESS;
}

static void refuse(struct sl_fabric *fabric, struct sl_ask *ask, enum sl_status status) {
    char text[SL_ANSWER_TEXT_BYTES];
    switch (status) {
    case SL_ERR_RANGE:
        snprintf(text, sizeof text, "the answer is longer than the %zu bytes there is room for", ask->answer_capacity);
        break;
    case SL_ERR_EXHAUSTED:
        snprintf(text, sizeof text, "too many unanswered questions there");
        break;
    case SL_ERR_UNSUPPORTED:
        snprintf(text, sizeof text, "nobody answers questions there");
        break;
    default:
        snprintf(text, sizeof text, "refused: %s", sl_status_text(status));
        break;
    }
    end(fabric, ask, status, text);
}

ucs_status_t sl_ask_on_reply(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                             const ucp_am_recv_param_t *param) {
    struct sl_fabric *fabric = arg;
    struct sl_wire_reply reply;
    struct sl_peer *peer = sl_peer_sender(fabric, "REPLY", header_bytes, sizeof reply, param);
    if (!peer) {
        return UCS_OK;
    }
    memcpy(&reply, header, sizeof reply);
    struct sl_ask *ask = find(fabric, reply.id);
    if (!ask || ask->line->peer != peer || ask->receiving) { // it was given up meanwhile
        return UCS_OK;
    }
    if (reply.status < 0) {
        refuse(fabric, ask, (enum sl_status)reply.status);
    } else if (bytes > ask->answer_capacity) {
        refuse(fabric, ask, SL_ERR_RANGE);
    } else if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
        return receive_answer(fabric, peer, ask, data, bytes);
    } else {
        deliver(fabric, ask, data, bytes);
    }
    return UCS_OK;
}
