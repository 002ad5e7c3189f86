// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the asker's side of questions.
 *
 *      (posted) --- run_open --------------------------------------------------> WAITING    in the table
 *      WAITING --- the line is up: line_up ------------------------------------> ASKED      ASK has been sent
 *      ASKED --- REPLY by rendezvous: on_reply --------------------------------> ASKED, receiving
 *      WAITING, ASKED --- answered, refused, late, lost, given up: let_go -----> GONE
 *
 * The state is the progress thread's; whether an ask is over is said by its outcome, which the caller may end too.
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
#include "fabric/outcome.h"

extern const struct sl_verb_ops sl_ask_ops;

enum ask_state { ASK_GONE, ASK_WAITING, ASK_ASKED };

struct sl_ask {
    struct sl_line *line;
    struct sl_line_user user; // of the line
    atomic_int refs; // the caller, the command on its way or the table, the send, the receive, a give-up on its way
    struct sl_command open_command, give_up_command;
    struct sl_outcome outcome;
    int64_t deadline_ns;
    uint8_t *answer; // the caller's; written only by whoever has claimed the outcome
    size_t answer_capacity, answer_bytes;
    // the progress thread's
    struct asks *asks;
    enum ask_state state;
    uint64_t id;     // the low half is the slot, the high half tells successive users of the slot apart
    uint8_t *buffer; // of an answer that is being received
    size_t buffer_bytes;
    size_t request_bytes;
    uint8_t request[];
};

struct asks {
    struct sl_verb verb;
    struct sl_slots slots;
    uint32_t serial;
    _Atomic uint64_t n_open;
};

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
    memset(ask, 0, sizeof *ask);
    ask->line = line;
    sl_line_ref(line);
    atomic_init(&ask->refs, 2);
    ask->open_command.run = run_open;
    ask->give_up_command.run = run_give_up;
    sl_outcome_init(&ask->outcome);
    ask->deadline_ns = deadline_ns;
    ask->answer = answer_out;
    ask->answer_capacity = answer_capacity;
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

// ---- the progress thread's side --------------------------------------------------------------------------------------

// The end for the progress thread; except that a receive which is under way ends first. May free the ask.
static void let_go(struct sl_ask *ask) {
    if (ask->buffer || ask->state == ASK_GONE) {
        return;
    }
    sl_slots_give(&ask->asks->slots, (uint32_t)ask->id);
    sl_line_leave(ask->line, &ask->user);
    ask->state = ASK_GONE;
    atomic_fetch_sub(&ask->asks->n_open, 1);
    unref(ask);
}

static void end(struct sl_ask *ask, enum sl_status status, const char *text) {
    sl_outcome_end(&ask->outcome, status, text);
    let_go(ask);
}

static void on_asked(struct sl_peer_send *send, ucs_status_t status) {
    struct sl_ask *ask = send->arg;
    if (status != UCS_OK) {
        end(ask, sl_ucx_status(status), ucs_status_string(status));
    }
    unref(ask);
}

static void line_up(struct sl_line_user *user) {
    struct sl_ask *ask = SL_CONTAINER(user, struct sl_ask, user);
    struct sl_wire_ask header = {ask->id, ask->answer_capacity, (uint32_t)ask->request_bytes, 0};
    struct sl_peer_send *send = sl_peer_send_create(ask->line->peer, &header, sizeof header);
    ask->state = ASK_ASKED;
    if (!send) {
        end(ask, SL_ERR_EXHAUSTED, "the asker has no memory for it");
        return;
    }
    send->arg = ask;
    send->done = on_asked;
    atomic_fetch_add(&ask->refs, 1);
    const ucp_request_param_t with = {.flags = ask->request_bytes <= SL_EAGER_MAX_BYTES ? UCP_AM_SEND_FLAG_EAGER : 0};
    sl_peer_send_start(send, SL_WIRE_ASK, sizeof header, ask->request, ask->request_bytes, &with);
}

static void line_over(struct sl_line_user *user, enum sl_status status, const char *text) {
    end(SL_CONTAINER(user, struct sl_ask, user), status, text);
}

static void run_open(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_ask *ask = SL_CONTAINER(command, struct sl_ask, open_command);
    struct asks *asks = ask->asks = sl_verb_of_fabric(fabric, &sl_ask_ops);
    uint32_t slot = 0;
    if (!sl_outcome_is_open(&ask->outcome)) { // given up before it began
        unref(ask);
        return;
    }
    if (!sl_slots_take(&asks->slots, ask, &slot)) {
        sl_outcome_end(&ask->outcome, SL_ERR_EXHAUSTED, "the asker has no memory for it");
        unref(ask);
        return;
    }
    ask->id = (uint64_t)++asks->serial << 32 | slot;
    ask->state = ASK_WAITING;
    atomic_fetch_add(&asks->n_open, 1);
    ask->user.up = line_up;
    ask->user.over = line_over;
    sl_line_join(ask->line, &ask->user);
}

static void tell_given_up(struct sl_ask *ask) {
    if (ask->state == ASK_ASKED && ask->line->peer) {
        struct sl_wire_give_up header = {ask->id};
        sl_peer_tell(ask->line->peer, SL_WIRE_ASK_GIVE_UP, &header, sizeof header);
    }
}

static void run_give_up(struct sl_fabric *fabric, struct sl_command *command) {
    (void)fabric;
    struct sl_ask *ask = SL_CONTAINER(command, struct sl_ask, give_up_command);
    tell_given_up(ask);
    let_go(ask);
    unref(ask);
}

static void tick(void *state, int64_t now_ns) {
    struct asks *asks = state;
    uint32_t id = 0;
    for (struct sl_ask *ask; (ask = sl_slots_next(&asks->slots, &id)) != NULL;) {
        if (now_ns <= ask->deadline_ns) {
            continue;
        }
        if (ask->state == ASK_WAITING) {
            end(ask, SL_ERR_DEADLINE, "no connection in time");
        } else if (sl_outcome_end(&ask->outcome, SL_ERR_DEADLINE, "no answer in time")) {
            tell_given_up(ask);
            let_go(ask);
        }
    }
}

// ---- REPLY -----------------------------------------------------------------------------------------------------------

static void deliver(struct sl_ask *ask, const void *data, size_t bytes) {
    if (sl_outcome_claim(&ask->outcome)) {
        if (bytes > 0) {
            memcpy(ask->answer, data, bytes);
        }
        ask->answer_bytes = bytes;
        sl_outcome_done(&ask->outcome, SL_OK, "");
    }
    let_go(ask);
}

static void free_buffer(struct sl_fabric *fabric, uint8_t *buffer, size_t bytes) {
    if (bytes <= SL_SEGMENT_MAX_BYTES) {
        sl_fabric_give_buffer(fabric, buffer);
    } else {
        free(buffer);
    }
}

static void on_received(void *arg, struct sl_peer *peer, ucs_status_t status, size_t bytes) {
    struct sl_ask *ask = arg;
    uint8_t *buffer = ask->buffer;
    bytes = ask->buffer_bytes; // 0 where it failed
    ask->buffer = NULL;
    if (status == UCS_OK) {
        deliver(ask, buffer, bytes);
    } else {
        end(ask, SL_ERR_PEER_LOST, ucs_status_string(status));
    }
    free_buffer(peer->fabric, buffer, bytes);
}

static void receive_answer(struct sl_peer *peer, struct sl_ask *ask, struct sl_message *message) {
    size_t bytes = message->bytes;
    ask->buffer = bytes <= SL_SEGMENT_MAX_BYTES ? sl_fabric_take_buffer(peer->fabric) : malloc(bytes);
    ask->buffer_bytes = bytes;
    if (!ask->buffer || !sl_peer_receive(peer, message, ask->buffer, on_received, ask)) {
        free_buffer(peer->fabric, ask->buffer, bytes);
        ask->buffer = NULL;
        end(ask, SL_ERR_EXHAUSTED, "the asker has no memory for the answer");
    }
}

static void refuse(struct sl_ask *ask, enum sl_status status) {
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
    end(ask, status, text);
}

static void on_reply(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct asks *asks = state;
    struct sl_wire_reply reply;
    memcpy(&reply, message->header, sizeof reply);
    struct sl_ask *ask = sl_slots_find(&asks->slots, (uint32_t)reply.id);
    if (!ask || ask->id != reply.id || ask->line->peer != peer || ask->state != ASK_ASKED || ask->buffer) {
        return; // it was given up meanwhile
    }
    if (reply.status < 0) {
        refuse(ask, (enum sl_status)reply.status);
    } else if (message->bytes > ask->answer_capacity) {
        refuse(ask, SL_ERR_RANGE);
    } else if (message->by_rendezvous) {
        receive_answer(peer, ask, message);
    } else {
        deliver(ask, message->data, message->bytes);
    }
}

// ---- the verb --------------------------------------------------------------------------------------------------------

static void init(void *state) {
    sl_slots_init(&((struct asks *)state)->slots);
}

static void cleanup(void *state) {
    sl_slots_cleanup(&((struct asks *)state)->slots);
}

const struct sl_verb_ops sl_ask_ops = {
    .state_bytes = sizeof(struct asks),
    .handlers = {{SL_WIRE_REPLY, "REPLY", sizeof(struct sl_wire_reply), false, on_reply}},
    .init = init,
    .cleanup = cleanup,
    .gauges = {SL_GAUGE(struct asks, n_open, asks_open)},
    .tick = tick,
};
