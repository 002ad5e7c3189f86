// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: HTTP downloads by libcurl: a page into memory, or a large file into a file, continued where an earlier
 *          attempt has ended.
 * Design: a server that sends nothing for half a minute counts as lost. Messages show addresses without parts that may
 *         be a password.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "client/cli/pull/index.h"

// Initializes libcurl; call it once per process.
enum sl_status sl_fetch_init(struct sl_error *err);
void sl_fetch_cleanup(void);

struct sl_page {
    char *text; // malloc'd, [bytes], and a terminating zero
    size_t bytes;
    bool is_json;
    char url[SL_URL_BYTES]; // its address after all redirections
};

/*
 * Fetches a page. SL_ERR_NOT_FOUND: the server has no such page. SL_ERR_PEER_LOST: it cannot be reached, or its
 * certificate is not trusted. SL_ERR_PEER_CORRUPT: the reply is too large, or invalid. SL_ERR_CANCELLED: stopped(arg),
 * which may be NULL, returned true.
 */
enum sl_status sl_fetch_page(const struct sl_index *index, const char *url, bool (*stopped)(void *arg), void *arg,
                             struct sl_page *page_out, struct sl_error *err);
void sl_page_cleanup(struct sl_page *page);

struct sl_download {
    const char *url;
    int64_t max_bytes; // a longer file is refused
    // stopped: true ends the download with SL_ERR_CANCELLED. progress: gets the bytes so far; total is 0 while it is
    // unknown. Either may be NULL.
    bool (*stopped)(void *arg);
    void (*progress)(void *arg, int64_t done_bytes, int64_t total_bytes);
    void *arg;
    int64_t began_bytes; // out: bytes at the start
    int64_t done_bytes;  // out: bytes now
};

/*
 * Downloads the missing rest of a file and appends it to fd. If the server sends the whole file, empties fd first.
 * Retries as long as each attempt receives bytes. On failure fd keeps the received bytes: SL_ERR_PEER_LOST,
 * SL_ERR_NOT_FOUND, SL_ERR_IO: fd cannot be written. SL_ERR_PEER_CORRUPT: the file is longer than max_bytes, and fd is
 * emptied.
 */
enum sl_status sl_fetch_file(const struct sl_index *index, struct sl_download *download, int fd, struct sl_error *err);

// Resolves a relative address of a page. SL_ERR_INVALID: not an address.
enum sl_status sl_url_resolve(const char *page_url, const char *relative, char url_out[SL_URL_BYTES],
                              struct sl_error *err);
