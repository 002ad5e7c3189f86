// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the buffer between TLS and its socket, for several records at once each way.
 *
 * Design: OpenSSL's own buffer, and before it a filter by which we decide when it goes to the kernel. OpenSSL flushes before it changes the
 *         key that it sends with; where the kernel has no room it would do nothing else before it has, not even read: two peers
 *         that both do that wait for each other.
 */
#pragma once

#include <openssl/types.h>
#include <stdbool.h>
#include <stddef.h>

struct sl_tls_buffers; // how they are made

struct sl_tls_buffers *sl_tls_buffers_create(void);           // NULL: no memory
void sl_tls_buffers_destroy(struct sl_tls_buffers **buffers); // after the last connection; accepts NULL, nulls

// Between an SSL and its socket, of `bytes` each way. False: no memory.
bool sl_tls_buffer_add(struct sl_tls_buffers *buffers, SSL *ssl, size_t bytes);
// While it is on, OpenSSL's flushes do nothing; what it writes has to fit.
void sl_tls_buffer_hold(SSL *ssl, bool on);
// To the kernel. 1: all of it; 0: it has no room; -1: errno says why.
int sl_tls_buffer_flush(SSL *ssl);
