// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: links: our own connections between two fabrics, over TCP, with or without TLS, each a stream of frames.
 *
 * Vocabulary: link   one connection, made by either side; both sides may send
 *             frame  an id, a short header, and data of any length
 *             met    a link whose other side has identified itself: net/fabric/core/peer.c decides that
 *
 * Design: the socket never blocks. Frames are queued and written from the caller's memory, scattered parts by one
 *         system call. Arriving bytes are read into a small buffer up to the end of a frame's header, and the data
 *         straight to the address that the frame's receiver gives. Links do not know what a frame means.
 *
 *         Unauthenticated peers are limited: before a link is met its frames are short and without data, it must be met
 *         within CONNECT_NS, and only SL_LINKS_UNMET of them are kept; the next one replaces the oldest. A frame whose
 *         magic or lengths are wrong ends its link, and nothing else.
 *
 * Threads: one, the progress thread of the fabric.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/status.h"
#include "net/trust/tls_files.h"

#define SL_LINK_HEADER_MAX ((size_t)2048)
#define SL_LINK_DATA_MAX   ((uint64_t)64 << 20)
#define SL_LINK_WHOLE_MAX  ((size_t)16 << 10) // data up to this size is passed on whole
#define SL_LINKS_UNMET     64

struct sl_links; // all links of one fabric, and its listener
struct sl_link;

// A frame that has arrived: the header whole, the data whole or still in transit.
struct sl_link_frame {
    unsigned id;
    const void *header; // valid during the call
    size_t header_bytes;
    const void *data; // NULL: in transit, for sl_link_receive(); if that is not called, the data is read and dropped
    size_t bytes;
};

// None of these may close a link.
struct sl_link_events {
    // A peer has connected. Returns the owner of its frames; NULL: close it. from: its host, for messages.
    void *(*on_accepted)(void *arg, struct sl_link *link, const char *from);
    void (*on_frame)(void *owner, struct sl_link *link, const struct sl_link_frame *frame);
    // Called once; nothing more comes from this link. Its owner must still close it.
    void (*on_lost)(void *owner, enum sl_status status, const char *text);
};

// ---- all of them -----------------------------------------------------------------------------------------------------

// Creates the links of a fabric. files: NULL for links without TLS. SL_ERR_INVALID names the invalid file.
enum sl_status sl_links_create(const struct sl_tls_files *files, const struct sl_link_events *events, void *arg,
                               struct sl_links **links_out, struct sl_error *err);
// Listens at an address of this host; *port_out: the port, also if port 0 was requested. SL_ERR_EXISTS: it is in use.
enum sl_status sl_links_listen(struct sl_links *links, const struct sockaddr *address, socklen_t bytes,
                               unsigned *port_out, struct sl_error *err);
void sl_links_destroy(struct sl_links **links); // closes the remaining links; accepts NULL, nulls

bool sl_links_progress(struct sl_links *links);             // true if anything moved
bool sl_links_busy(const struct sl_links *links);           // true: there is work already, do not sleep
int sl_links_fd(const struct sl_links *links);              // readable when the kernel has events
void sl_links_tick(struct sl_links *links, int64_t now_ns); // call several times a second

// ---- one -------------------------------------------------------------------------------------------------------------

// Connects and returns at once; a failure is reported as a loss.
enum sl_status sl_link_connect(struct sl_links *links, const struct sockaddr *address, socklen_t bytes, void *owner,
                               struct sl_link **link_out, struct sl_error *err);
// Expects the name of "NAME@HOST:PORT" in the certificate of the other side. Call it right after sl_link_connect(); without
// TLS it has no effect.
void sl_link_expect(struct sl_link *link, const char *address);
const char *sl_links_name(const struct sl_links *links); // our name in our certificate; "": no TLS
void sl_link_set_met(struct sl_link *link);              // from now on its frames may have data
const char *sl_link_name(const struct sl_link *link);    // "tcp" or "tls"
void sl_link_end_sends(struct sl_link *link); // ends every send and receive (SL_ERR_CANCELLED); no more may follow
/*
 * Ends the link in order: every send and receive ends (SL_ERR_CANCELLED) before this returns, the other side is told
 * that no more comes, and arriving bytes are dropped until it ends, too: then sl_link_is_over(). on_lost() is not
 * called.
 */
void sl_link_finish(struct sl_link *link);
bool sl_link_is_over(const struct sl_link *link);
// Returns true if it ended because its other side did, or that side's process: none of its operations is pending any
// more.
bool sl_link_ended_by_peer(const struct sl_link *link);
// Closes it: every send and receive ends (SL_ERR_CANCELLED) before this returns, and no byte is read or written any
// more.
void sl_link_close(struct sl_link **link); // accepts NULL, nulls

// A frame to send. The sender owns it and everything that it points to; both must stay until done.
struct sl_link_send {
    struct sl_link_send *next;
    unsigned id;
    const void *header;
    size_t header_bytes;
    const struct iovec *parts; // the data
    size_t n_parts;
    void (*done)(struct sl_link_send *send, enum sl_status status); // once, perhaps before sl_link_send() returns
    // used by the link
    uint8_t prefix[16];
    size_t bytes, n_written, part, part_at;
};
void sl_link_send(struct sl_link *link, struct sl_link_send *send);

// Call during on_frame() if the frame's data is in transit: reads all of it to `to`. done runs once, before or after
// this returns.
typedef void (*sl_link_received_fn)(void *arg, enum sl_status status, size_t bytes);
void sl_link_receive(struct sl_link *link, void *to, sl_link_received_fn done, void *arg);
