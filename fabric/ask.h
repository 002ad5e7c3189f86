// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: short questions between fabrics: one request, one answer, both a contiguous message. For what is too hot for
 *          gRPC: a decode worker asks a kvstore in every layer of every step.
 *
 * Vocabulary: line      a connection of the asker to one fabric, by address and epoch
 *             question  a request that has arrived, until it is answered
 *
 * Failure: a lost peer ends every ask under way (SL_ERR_PEER_LOST) and makes answers to it void. An ask whose deadline
 *          has passed, or that was given up, never touches the caller's buffer again. Requests longer than
 *          SL_ASK_REQUEST_MAX_BYTES, answers longer than what the asker has room for, and more than
 *          SL_ASK_MAX_QUESTIONS unanswered questions of one peer are refused.
 */
#ifndef SL_FABRIC_ASK_H
#define SL_FABRIC_ASK_H

#include <stdbool.h>

#include "fabric/fabric.h"

#define SL_ASK_REQUEST_MAX_BYTES (1u << 20)
#define SL_ASK_MAX_QUESTIONS     1024

// --- answering -------------------------------------------------------------------------------------------------------

struct sl_question;

/*
 * Runs on the progress thread and must not block: hand the question over to a thread of your own. `request` belongs to
 * the question. Set once, before peers know the address.
 */
typedef void (*sl_question_fn)(void *arg, struct sl_question *question);
void sl_fabric_on_question(struct sl_fabric *fabric, sl_question_fn fn, void *arg);

const void *sl_question_request(const struct sl_question *question, size_t *bytes_out);
bool sl_question_is_void(const struct sl_question *question); // the asker has gone or given up: no need to work for it
/*
 * From any thread, exactly once a question; the question is gone then. `answer` stays untouched until release(arg) is
 * called: on the progress thread, also where the asker is gone; before this returns where the fabric has been destroyed
 * meanwhile. release may be NULL. An answer in a region of this fabric spares the transport a copy.
 */
void sl_question_answer(struct sl_question **question, const void *answer, size_t bytes, void (*release)(void *arg),
                        void *arg);

// --- asking ----------------------------------------------------------------------------------------------------------

struct sl_line;

/*
 * Returns at once; a failure to connect shows in the asks. address: "HOST:PORT"; epoch: sl_fabric_epoch() of the peer.
 * Lines to one fabric share a connection. A line whose peer was lost stays lost: open another.
 */
enum sl_status sl_line_open(struct sl_fabric *fabric, const char *address, uint64_t epoch, struct sl_line **line_out,
                            struct sl_error *err);
void sl_line_close(struct sl_line **line);                 // ends its asks; accepts NULL, nulls
const char *sl_line_transport(const struct sl_line *line); // "shm", "tcp", ...; "" before it is known

struct sl_ask;

// request is copied; answer_out must stay until the ask is closed. Returns at once.
enum sl_status sl_ask_open(struct sl_line *line, const void *request, size_t request_bytes, void *answer_out,
                           size_t answer_capacity, int64_t deadline_ns, struct sl_ask **ask_out, struct sl_error *err);
/*
 * Wait for the answer until until_ns. SL_AGAIN: not yet. SL_ERR_DEADLINE: the ask's own deadline. SL_ERR_PEER_LOST.
 * SL_ERR_PEER_STALE: another epoch answers at the address. SL_ERR_RANGE: the answer is longer than the capacity.
 * SL_ERR_EXHAUSTED: too many unanswered questions there. SL_ERR_UNSUPPORTED: nobody answers there. SL_ERR_CANCELLED: the
 * line was closed or the fabric destroyed. May spin for some microseconds first.
 */
enum sl_status sl_ask_wait(struct sl_ask *ask, int64_t until_ns, size_t *bytes_out, struct sl_error *err);
bool sl_ask_is_done(const struct sl_ask *ask);
void sl_ask_close(struct sl_ask **ask); // accepts NULL, nulls; gives up what is not done; never waits

#endif
