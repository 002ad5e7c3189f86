// SPDX-License-Identifier: Apache-2.0
// Purpose: SHA-256 as text, for content policies and fetched files, which are named by it.
#pragma once

#include <stddef.h>

#include "base/status.h"

#define SL_SHA256_TEXT_BYTES 48 // with the terminating zero

// Writes the hash in base 64. SL_ERR_INTERNAL: OpenSSL fails.
enum sl_status sl_sha256_base64(const void *bytes, size_t n_bytes, char text_out[SL_SHA256_TEXT_BYTES],
                                struct sl_error *err);

#define SL_SHA256_HEX_BYTES 65 // with the terminating zero

// Writes the hash as lower-case hexadecimal digits. SL_ERR_INTERNAL: OpenSSL fails.
enum sl_status sl_sha256_hex(const void *bytes, size_t n_bytes, char hex_out[SL_SHA256_HEX_BYTES],
                             struct sl_error *err);
// Hashes a file from its beginning to its end; writes lower-case hexadecimal digits. SL_ERR_IO: it cannot be read.
enum sl_status sl_sha256_file(int fd, char hex_out[SL_SHA256_HEX_BYTES], struct sl_error *err);
