// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: HTTP, by libcurl: a page into memory, a large file into a file, going on where an earlier attempt has ended.
 * Design: whoever sends nothing for half a minute is taken for gone. Addresses are shown without what may be a password in them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "client/cli/pull/index.h"

// Once a process.
enum sl_status sl_fetch_init(struct sl_error *err);
void sl_fetch_cleanup(void);

struct sl_page {
    char *text; // malloc'd, [bytes], and a zero behind it
    size_t bytes;
    bool is_json;
    char url[SL_URL_BYTES]; // where it came from, behind all redirections
};

/*
 * SL_ERR_NOT_FOUND: the server has no such page. SL_ERR_PEER_LOST: it cannot be reached, or its certificate is not believed.
 * SL_ERR_PEER_CORRUPT: what it sends is too large, or no answer. SL_ERR_CANCELLED: stopped(arg), which may be NULL, was true.
 */
enum sl_status sl_fetch_page(const struct sl_index *index, const char *url, bool (*stopped)(void *arg), void *arg,
                             struct sl_page *page_out, struct sl_error *err);
void sl_page_cleanup(struct sl_page *page);

struct sl_download {
    const char *url;
    int64_t max_bytes; // more is not taken
    // What ends it, with SL_ERR_CANCELLED; and what is told how far it is, total 0 as long as nobody knows. Either may be NULL.
    bool (*stopped)(void *arg);
    void (*progress)(void *arg, int64_t done_bytes, int64_t total_bytes);
    void *arg;
    int64_t began_bytes; // out: how much was there before
    int64_t done_bytes;  // out: how much is there now
};

/*
 * Append to fd what it lacks of the file; where the server sends all of it again, fd is emptied first. Attempts are repeated as long as
 * each brings something. On failure fd keeps what came: SL_ERR_PEER_LOST, SL_ERR_NOT_FOUND, SL_ERR_IO: it cannot be written.
 * SL_ERR_PEER_CORRUPT: it is longer than max_bytes, and fd is emptied.
 */
enum sl_status sl_fetch_file(const struct sl_index *index, struct sl_download *download, int fd, struct sl_error *err);

// `relative` as seen from a page. SL_ERR_INVALID: it is no address.
enum sl_status sl_url_resolve(const char *page_url, const char *relative, char url_out[SL_URL_BYTES],
                              struct sl_error *err);
