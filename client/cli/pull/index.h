// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the Python package index: which one, and where on it a file is.
 * Design: pip's own settings count, so that who reaches packages reaches models: PIP_INDEX_URL and PIP_CERT, then PIP_CONFIG_FILE, the user's
 *         and the system's pip.conf. A project's page is read as the index gives it, JSON (PEP 691) or HTML (PEP 503).
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "net/trust/sha256.h"

#define SL_URL_BYTES 2048

struct sl_index {
    char url[SL_URL_BYTES]; // without a slash at its end
    char cert[PATH_MAX];    // certificates to believe; "": the system's
};

// given: what the user says, or "". SL_ERR_INVALID: it, or what pip's settings say, is too long, or is neither http:// nor https://.
enum sl_status sl_index_choose(const char *given, struct sl_index *index_out, struct sl_error *err);

/*
 * An address for people: scheme, host and path, without user, password and query. Where a password may be that has a slash in it, the scheme
 * alone.
 */
void sl_url_show(const char *url, char *buf, size_t buf_bytes);

struct sl_index_file {
    char url[SL_URL_BYTES];           // as the page has it: may be relative to the page
    char sha256[SL_SHA256_HEX_BYTES]; // small letters; "": the page does not say
};

// Find a file on a project's page. SL_ERR_NOT_FOUND: it is not there. SL_ERR_INVALID: the page is none.
enum sl_status sl_index_find(const char *page, size_t page_bytes, bool is_json, const char *filename,
                             struct sl_index_file *file_out, struct sl_error *err);
