// SPDX-License-Identifier: Apache-2.0
// Purpose: SHA-256 as a text, for policies that name what they allow.
#pragma once

#include <stddef.h>

#include "base/status.h"

#define SL_SHA256_TEXT_BYTES 48 // with the terminating zero

// In base 64. SL_ERR_INTERNAL: OpenSSL does not want to.
enum sl_status sl_sha256_base64(const void *bytes, size_t n_bytes, char text_out[SL_SHA256_TEXT_BYTES],
                                struct sl_error *err);
