// SPDX-License-Identifier: Apache-2.0
// Purpose: tells when certificates end, and which OpenSSL reads them, for `sluice doctor`.
#pragma once

#include <stdint.h>

#include "base/status.h"

// Writes the end of the certificate in a PEM file that ends first (a file may have a chain), in Unix time. SL_ERR_NOT_FOUND: the
// file has no certificate, such as a key's. SL_ERR_IO: it cannot be read.
enum sl_status sl_certificate_file_end(const char *path, int64_t *end_s_out, struct sl_error *err);

// Returns the version of OpenSSL. A static text.
const char *sl_trust_library_version(void);
