// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: GET /status: a page for people, gateway/status.html, whose script requests /status.json.
 * Design: the page is embedded in the program. Its Content-Security-Policy allows its own style and script, by their
 *         hashes, and nothing else. So no browser runs a script in a label or a worker's name.
 */
#pragma once

#include <stddef.h>

#include "base/status.h"

struct sl_status_page {
    const char *text; // static
    size_t n_bytes;
    char policy[512];
};

// Makes the page and its headers. SL_ERR_INTERNAL: the page has no style or no script, or there is no SHA-256.
enum sl_status sl_status_page_make(struct sl_status_page *page_out, struct sl_error *err);
