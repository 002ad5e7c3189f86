// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the Python package index: its address, and the address of a file on it.
 * Design: pip's own settings apply, so that users who can install packages can pull models: PIP_INDEX_URL and PIP_CERT,
 *         then PIP_CONFIG_FILE, the user's and the system's pip.conf. A project's page is read in the index's format,
 *         JSON (PEP 691) or HTML (PEP 503).
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "net/trust/sha256.h"

#define SL_URL_BYTES 2048

struct sl_index {
    char url[SL_URL_BYTES]; // without a slash at its end
    char cert[PATH_MAX];    // trusted certificates; "": the system's
};

// Chooses the index. given: the user's option, or "". SL_ERR_INVALID: the address, from the option or pip's settings,
// is too long, or is neither http:// nor https://.
enum sl_status sl_index_choose(const char *given, struct sl_index *index_out, struct sl_error *err);

/*
 * Writes an address for messages: scheme, host and path, without user, password and query. If it may contain a password
 * with a slash, writes only the scheme.
 */
void sl_url_show(const char *url, char *buf, size_t buf_bytes);

struct sl_index_file {
    char url[SL_URL_BYTES];           // as on the page: may be relative to the page
    char sha256[SL_SHA256_HEX_BYTES]; // lower case; "": the page has none
};

// Finds a file on a project's page. SL_ERR_NOT_FOUND: it is not there. SL_ERR_INVALID: not a project's page.
enum sl_status sl_index_find(const char *page, size_t page_bytes, bool is_json, const char *filename,
                             struct sl_index_file *file_out, struct sl_error *err);
