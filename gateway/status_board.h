// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: GET /status.json: asks the coordinator on behalf of whoever looks, with the certificate that they would have for a job.
 *
 * Design: one thread asks, one question at a time, so that however many look, the coordinator has one more client. Who looks waits with
 *         the connection suspended; those who wait for the same are told the same. A coordinator that is known to be away is not asked:
 *         nobody waits for another's deadline.
 * Threads: the HTTP daemon's calls what is below; ours resumes connections.
 */
#pragma once

#include <microhttpd.h>

#include "gateway/openai/refusal.h"
#include "gateway/served.h"
#include "client/libsluice/sluice.h"

struct sl_board;
struct sl_look; // one request

enum sl_status sl_board_create(struct sl_served *served, struct sl_board **board_out, struct sl_error *err);
// Everybody who waits is told that we stop, and so is who comes later: before the HTTP daemon ends.
void sl_board_stop(struct sl_board *board);     // accepts NULL; idempotent
void sl_board_destroy(struct sl_board **board); // behind it; accepts NULL, nulls *board

/*
 * Ask. The connection is suspended; its handler is called again when there is an answer. shows_workers: to whom the coordinator tells of
 * them. SL_ERR_EXHAUSTED, SL_ERR_CANCELLED: *refusal says why, and nothing has begun.
 */
enum sl_status sl_board_ask(struct sl_board *board, struct sl_client *client, bool shows_workers,
                            struct MHD_Connection *connection, struct sl_look **look_out, struct sl_refusal *refusal);

// How long somebody has waited while nobody was answered: more than SL_SERVED_STALL_MS, and the thread stands still.
int64_t sl_board_still_ms(struct sl_board *board);

// The handler was called again: the text, malloc'd and the caller's from now on; NULL: refused, as *refusal_out says.
char *sl_look_take(struct sl_look *look, struct sl_refusal *refusal_out);
void sl_look_end(struct sl_look **look); // the connection is over; nulls *look
