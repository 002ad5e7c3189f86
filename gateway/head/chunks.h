// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the form of bodies that come in chunks, which libmicrohttpd hides: it skips the extensions of a chunk, whatever
 *          they contain. Two readers could disagree about where such a line ends.
 *
 * Design: chunks.c defines recv(), which libmicrohttpd.so then calls instead of the C library's; with HTTPS, https.c does the
 *         same with gnutls_record_recv(). Both follow the requests in the bytes that pass: heads, bodies of a known length, and
 *         the lines before chunks. A malformed line is remembered for the request's answer. The rest of a connection with
 *         a line that is too long becomes line ends, which the daemon refuses: it would wait for the line's end otherwise.
 *         A connection ends after a body in chunks, so nothing is followed after one.
 * Threads: the HTTP daemon's. Calls of recv() for other descriptors: any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct sl_chunks;

// Follows a connection from its beginning. in_clear: recv() gives its bytes, not GnuTLS. NULL: no memory, or no such
// descriptor. The caller calls sl_chunks_forget() before the descriptor is closed.
struct sl_chunks *sl_chunks_watch(int fd, bool in_clear);
void sl_chunks_forget(struct sl_chunks **chunks); // accepts NULL, nulls

// Returns those of a connection; NULL: it is not followed.
struct sl_chunks *sl_chunks_of(int fd);
// Follows the next n bytes.
void sl_chunks_follow(struct sl_chunks *chunks, char *bytes, size_t n);
// Returns true if the line of a chunk was malformed; false for NULL.
bool sl_chunks_are_malformed(const struct sl_chunks *chunks);
