// SPDX-License-Identifier: Apache-2.0
// Purpose: the requests /status and /status.json. Threads: all on the HTTP daemon's thread.
#pragma once

#include "gateway/reply.h"
#include "gateway/status_board.h"

// Sends the page to any client: it contains no data of the cluster.
enum MHD_Result sl_status_send_page(const struct sl_http_reply *reply);

/*
 * Asks the coordinator as this client. *snapshot_out: the connection is suspended; when its handler is called again,
 * sl_status_send() sends the result. NULL: the request was refused.
 */
enum MHD_Result sl_status_begin(const struct sl_http_reply *reply, struct sl_client *client,
                                struct sl_snapshot **snapshot_out);
enum MHD_Result sl_status_send(const struct sl_http_reply *reply, struct sl_snapshot *snapshot);
