// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: converts the body of an HTTP request into the coordinator's request, on the thread that answers it.
 *
 * Design: JSON is parsed here and not on the thread that serves all connections, because a long list of token ids takes
 *         a second. The parsed form may be four times larger than its text, so long bodies are parsed one at a time.
 *         Only the cluster knows how many tokens a text has: the limits charge one token per four bytes until the job
 *         has reported the number.
 * Threads: one at a time for each intake; any for the shared state.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "gateway/access/limits.h"
#include "gateway/openai/refusal.h"
#include "gateway/openai/request.h"
#include "gateway/served.h"

// Lets long bodies be parsed one at a time.
struct sl_intake_turn {
    pthread_mutex_t mutex; // guards the fields below
    pthread_cond_t over;
    bool taken;
};

void sl_intake_turn_init(struct sl_intake_turn *turn);
void sl_intake_turn_cleanup(struct sl_intake_turn *turn);

struct sl_intake {
    bool is_chat;
    char *body;                 // malloc'd; NULL: none
    size_t n_body, body_bytes;  // without a body, body_bytes are the buffers of a transfer
    atomic_llong *held_bytes;   // counter of all bodies that includes body_bytes until this body is freed
    struct sl_json_memory json; // of the parsed body
    struct sl_intake_turn *turn;
    struct sl_served_model model; // the model that answers
    struct sl_limits *limits;
    struct sl_api_key who;
    struct sl_rate_limits rate_limits; // its rate limits, when they were last checked
    int64_t n_charged_tokens;
};

/*
 * Parses the body into a request, which the caller destroys. Frees the body in any case. stopped(arg): true if the
 * client has left; called about ten times a second while this waits for its turn. On failure *refusal has the reason,
 * and there is no request.
 */
enum sl_status sl_intake_read(struct sl_intake *intake, bool (*stopped)(void *arg), void *arg,
                              struct sl_openai_request **request_out, struct sl_refusal *refusal);

/*
 * Waits until the body may be parsed: long ones are parsed one at a time. stopped(arg) as above. On SL_OK the caller
 * parses it, and then calls sl_intake_end(), which also frees the body. A failure frees the body; *refusal has the reason.
 */
enum sl_status sl_intake_begin(struct sl_intake *intake, bool (*stopped)(void *arg), void *arg,
                               struct sl_refusal *refusal);
void sl_intake_end(struct sl_intake *intake);

// Charges a prompt of about n_tokens. SL_ERR_EXHAUSTED: the caller's limit is used up, as *refusal says; the request is
// not charged either.
enum sl_status sl_intake_charge(struct sl_intake *intake, int64_t n_tokens, struct sl_refusal *refusal);
// Corrects the charge of a prompt when its number of tokens is known. 0: it was never read.
void sl_intake_reconcile(struct sl_intake *intake, int64_t n_tokens);

// Frees the body and gives the memory of its JSON back, which the caller has released.
void sl_intake_cleanup(struct sl_intake *intake);

// Frees the body, if there is one, and gives its memory back.
void sl_intake_drop(struct sl_intake *intake);
