// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: GET /status.json: asks the coordinator on behalf of a client, with the certificate that the client would
 *          have for a job.
 *
 * Design: one thread asks, one query at a time, so that any number of clients loads the coordinator like one. A waiting
 *         client's connection is suspended; queries of the same client and rights get the same answer. A coordinator
 *         that is known to be away is not asked, so that no client waits for another's deadline.
 * Threads: the HTTP daemon calls the functions below; our thread resumes connections.
 */
#pragma once

#include <microhttpd.h>

#include "gateway/openai/refusal.h"
#include "gateway/served.h"
#include "client/libsluice/sluice.h"

struct sl_board;
struct sl_snapshot; // one query

enum sl_status sl_board_create(struct sl_served *served, struct sl_board **board_out, struct sl_error *err);
// Refuses all waiting and later queries, because the gateway stops; call it before the HTTP daemon ends.
void sl_board_stop(struct sl_board *board);     // accepts NULL; idempotent
void sl_board_destroy(struct sl_board **board); // after the HTTP daemon has ended; accepts NULL, nulls *board

/*
 * Starts a query. The connection is suspended; its handler is called again when there is an answer. shows_workers: the
 * client may see workers. SL_ERR_EXHAUSTED, SL_ERR_CANCELLED: *refusal has the reason, and nothing has begun.
 */
enum sl_status sl_board_ask(struct sl_board *board, struct sl_client *client, bool shows_workers,
                            struct MHD_Connection *connection, struct sl_snapshot **snapshot_out,
                            struct sl_refusal *refusal);

// Returns how long queries have waited without any answer. More than SL_SERVED_STALL_MS means that the thread is stuck.
int64_t sl_board_still_ms(struct sl_board *board);

// Returns the text when the handler is called again, malloc'd and owned by the caller; NULL: refused, and *refusal_out
// has the reason.
char *sl_snapshot_take(struct sl_snapshot *snapshot, struct sl_refusal *refusal_out);
void sl_snapshot_end(struct sl_snapshot **snapshot); // call it when the connection is closed; nulls *snapshot
