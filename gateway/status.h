// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the requests /status, a page for people, gateway/status.html, and /status.json, which its script requests.
 * Design: the page is embedded in the program. Its Content-Security-Policy allows its own style and script, by their
 *         hashes, and nothing else. So no browser runs a script in a label or a worker's name.
 * Threads: all on the HTTP daemon's thread.
 */
#pragma once

#include "gateway/routes.h"
#include "gateway/status_board.h"

struct sl_status_page {
    const char *text; // static
    size_t n_bytes;
    char policy[512];
};

// Makes the page and its headers. SL_ERR_INTERNAL: the page has no style or no script, or there is no SHA-256.
enum sl_status sl_status_page_make(struct sl_status_page *page_out, struct sl_error *err);
// Sends the page to any client: it contains no data of the cluster.
enum MHD_Result sl_status_send_page(const struct sl_http_request *request);

/*
 * Asks the coordinator as this client. *snapshot_out: the connection is suspended; when its handler is called again,
 * sl_status_send() sends the result. NULL: the request was refused.
 */
enum MHD_Result sl_status_begin(const struct sl_http_reply *reply, struct sl_client *client,
                                struct sl_snapshot **snapshot_out);
enum MHD_Result sl_status_send(const struct sl_http_reply *reply, struct sl_snapshot *snapshot);
