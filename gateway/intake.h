// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what a request of HTTP has brought, for the thread that answers it: from the bytes of its body to what the coordinator is asked.
 *
 * Design: JSON is parsed here and not where all connections are served, because a long list of token ids takes a second. What is parsed is
 *         many times larger than its text, so long bodies are parsed by turns.
 *         How many tokens a text has only the cluster knows: it is charged for as one in four bytes until the job has told.
 * Threads: one at a time for each; what they share is any thread's.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "gateway/limits.h"
#include "gateway/openai/refusal.h"
#include "gateway/openai/request.h"
#include "gateway/served.h"

// Whose turn it is to parse a long body.
struct sl_intake_turn {
    pthread_mutex_t mutex; // guards what follows
    pthread_cond_t over;
    bool taken;
};

void sl_intake_turn_init(struct sl_intake_turn *turn);
void sl_intake_turn_cleanup(struct sl_intake_turn *turn);

struct sl_intake {
    bool is_chat;
    char *body; // malloc'd; NULL: none
    size_t n_body, body_bytes;
    atomic_llong *held_bytes; // has body_bytes of all bodies, until this one is freed
    struct sl_intake_turn *turn;
    struct sl_served_model model; // that answers
    struct sl_limits *limits;
    struct sl_api_key who;
    struct sl_limits_told told; // of its limits, when they were last asked
    int64_t n_charged_tokens;
};

/*
 * What is asked; the caller's to destroy. The body is freed in any case. stopped(arg): nobody waits for the answer any more; asked about ten
 * times a second while it waits for its turn. Otherwise: *refusal says why, and there is none.
 */
enum sl_status sl_intake_read(struct sl_intake *intake, bool (*stopped)(void *arg), void *arg,
                              struct sl_openai_request **request_out, struct sl_refusal *refusal);

// How many tokens the prompt has had that was charged for, when that is known. 0: it was never read.
void sl_intake_settle(struct sl_intake *intake, int64_t n_tokens);

// Frees the body, if it is there.
void sl_intake_drop(struct sl_intake *intake);
