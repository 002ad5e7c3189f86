// SPDX-License-Identifier: Apache-2.0
// Purpose: the requests /status and /status.json. Threads: all on the HTTP daemon's thread.
#pragma once

#include "gateway/reply.h"
#include "gateway/status_board.h"

// To whoever asks: the page has nothing to tell.
enum MHD_Result sl_status_send_page(const struct sl_http_reply *reply);

/*
 * Ask the coordinator as this client. *look_out: the connection is suspended, and when its handler is called again sl_status_send() has
 * what was told; NULL: it was refused.
 */
enum MHD_Result sl_status_begin(const struct sl_http_reply *reply, struct sl_client *client, struct sl_look **look_out);
enum MHD_Result sl_status_send(const struct sl_http_reply *reply, struct sl_look *look);
