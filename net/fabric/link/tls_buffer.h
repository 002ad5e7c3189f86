// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the buffer between TLS and its socket, for several records at once in each direction.
 *
 * Design: OpenSSL's own buffer, and in front of it a filter with which we decide when it is flushed to the kernel.
 *         OpenSSL flushes before it changes its sending key. Without room in the kernel it would then do nothing else,
 *         not even read: two peers that both do that would deadlock.
 */
#pragma once

#include <openssl/types.h>
#include <stdbool.h>
#include <stddef.h>

struct sl_tls_buffers; // their BIO methods

struct sl_tls_buffers *sl_tls_buffers_create(void);           // NULL: no memory
void sl_tls_buffers_destroy(struct sl_tls_buffers **buffers); // after the last connection; accepts NULL, nulls

// Adds a buffer between an SSL and its socket, of `bytes` in each direction. False: no memory.
bool sl_tls_buffer_add(struct sl_tls_buffers *buffers, SSL *ssl, size_t bytes);
// Holds the output: while it is on, OpenSSL's flushes do nothing; the caller must ensure that its writes fit.
void sl_tls_buffer_hold(SSL *ssl, bool on);
// Flushes to the kernel. Returns 1: all of it; 0: the kernel has no room; -1: errno says why.
int sl_tls_buffer_flush(SSL *ssl);
