// SPDX-License-Identifier: Apache-2.0
// Purpose: SHA-256, for content policies, fetched files, which are named by it, and documents in files.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define SL_SHA256_BYTES 32
enum sl_status sl_sha256(const void *bytes, size_t n_bytes, uint8_t hash_out[SL_SHA256_BYTES], struct sl_error *err);

#define SL_SHA256_TEXT_BYTES 48 // with the terminating zero

// Writes the hash in base 64. SL_ERR_INTERNAL: OpenSSL fails.
enum sl_status sl_sha256_base64(const void *bytes, size_t n_bytes, char text_out[SL_SHA256_TEXT_BYTES],
                                struct sl_error *err);

#define SL_SHA256_HEX_BYTES 65 // with the terminating zero

// Writes the hash as lower-case hexadecimal digits. SL_ERR_INTERNAL: OpenSSL fails.
enum sl_status sl_sha256_hex(const void *bytes, size_t n_bytes, char hex_out[SL_SHA256_HEX_BYTES],
                             struct sl_error *err);
void sl_sha256_write_hex(const uint8_t hash[SL_SHA256_BYTES], char hex_out[SL_SHA256_HEX_BYTES]);

// The hash of bytes that come one after the other. One thread at a time.
struct sl_sha256;
enum sl_status sl_sha256_create(struct sl_sha256 **sha_out, struct sl_error *err); // SL_ERR_EXHAUSTED
void sl_sha256_destroy(struct sl_sha256 **sha);                                    // accepts NULL, nulls
void sl_sha256_add(struct sl_sha256 *sha, const void *bytes, size_t n_bytes);      // an error shows in sl_sha256_get()
// Writes the hash of all bytes so far; more can be added. SL_ERR_INTERNAL: OpenSSL fails.
enum sl_status sl_sha256_get(struct sl_sha256 *sha, uint8_t hash_out[SL_SHA256_BYTES], struct sl_error *err);

// Hashes a file from its beginning to its end; writes lower-case hexadecimal digits. SL_ERR_IO: it cannot be read.
enum sl_status sl_sha256_file(int fd, char hex_out[SL_SHA256_HEX_BYTES], struct sl_error *err);
