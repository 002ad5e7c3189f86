// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: links: connections of our own between two fabrics, over TCP, with TLS or in the clear, each a stream of frames.
 *
 * Vocabulary: link   one connection, made by either side; both sides may send
 *             frame  an id, a short header, and data of any length
 *             met    a link whose other side has said who it is: fabric/core/peer.c decides that
 *
 * Design: the socket never blocks. What is sent is queued and written from where it lies, scattered parts by one system
 *         call; what arrives is read into a small buffer up to the end of a frame's header, and from there straight to
 *         where whoever is told of the frame wants its data. Nothing here knows what a frame means.
 *
 *         Strangers cost little: before a link is met its frames are short and without data, it has CONNECT_NS to be
 *         met in, and only SL_LINKS_UNMET of them are kept, the oldest of which makes room for the next. A frame whose
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
#include "trust/tls_files.h"

#define SL_LINK_HEADER_MAX ((size_t)2048)
#define SL_LINK_DATA_MAX   ((uint64_t)64 << 20)
#define SL_LINK_WHOLE_MAX  ((size_t)16 << 10) // data up to here is handed over whole
#define SL_LINKS_UNMET     64

struct sl_links; // those of one fabric, and its listener
struct sl_link;

// What has arrived: the header whole, the data whole or still on its way.
struct sl_link_frame {
    unsigned id;
    const void *header; // valid during the call
    size_t header_bytes;
    const void *data; // NULL: on its way, for sl_link_receive(); what nobody receives is read and dropped
    size_t bytes;
};

// None of these may close a link.
struct sl_link_events {
    // Somebody has connected. Returns who its frames are for; NULL: it is closed. from: its host, for people.
    void *(*on_accepted)(void *arg, struct sl_link *link, const char *from);
    void (*on_frame)(void *owner, struct sl_link *link, const struct sl_link_frame *frame);
    // Once; nothing more comes from this link. It is still closed by its owner.
    void (*on_lost)(void *owner, enum sl_status status, const char *text);
};

// ---- all of them -----------------------------------------------------------------------------------------------------

// files: NULL for links in the clear. SL_ERR_INVALID names the file that is not what it should be.
enum sl_status sl_links_create(const struct sl_tls_files *files, const struct sl_link_events *events, void *arg,
                               struct sl_links **links_out, struct sl_error *err);
// address: of this host; *port_out: where port 0 was asked for, the one that was taken. SL_ERR_EXISTS: it is in use.
enum sl_status sl_links_listen(struct sl_links *links, const struct sockaddr *address, socklen_t bytes,
                               unsigned *port_out, struct sl_error *err);
void sl_links_destroy(struct sl_links **links); // closes what is left; accepts NULL, nulls

bool sl_links_progress(struct sl_links *links);             // whether anything moved
bool sl_links_busy(const struct sl_links *links);           // there is work without news from the kernel: do not sleep
int sl_links_fd(const struct sl_links *links);              // readable when there is news from the kernel
void sl_links_tick(struct sl_links *links, int64_t now_ns); // several times a second

// ---- one -------------------------------------------------------------------------------------------------------------

// Returns at once; that nobody answers shows as a loss.
enum sl_status sl_link_connect(struct sl_links *links, const struct sockaddr *address, socklen_t bytes, void *owner,
                               struct sl_link **link_out, struct sl_error *err);
void sl_link_set_met(struct sl_link *link);           // its frames may have data from now on
const char *sl_link_name(const struct sl_link *link); // "tcp" or "tls"
void sl_link_end_sends(struct sl_link *link); // every send and receive ends (SL_ERR_CANCELLED); no more may follow
/*
 * The orderly end: every send and receive ends (SL_ERR_CANCELLED) before this returns, the other side is told that no more
 * comes, and what it still sends is dropped until it ends, too: then sl_link_is_over(). on_lost() is not called.
 */
void sl_link_finish(struct sl_link *link);
bool sl_link_is_over(const struct sl_link *link);
// It ended because its other side did, or the other side's process: nothing of that is under way any more.
bool sl_link_ended_by_peer(const struct sl_link *link);
// Every send and receive of it ends (SL_ERR_CANCELLED) before this returns, and no byte is read or written any more.
void sl_link_close(struct sl_link **link); // accepts NULL, nulls

// A frame on its way. The sender's, with everything that it names, until done.
struct sl_link_send {
    struct sl_link_send *next;
    unsigned id;
    const void *header;
    size_t header_bytes;
    const struct iovec *parts; // the data
    size_t n_parts;
    void (*done)(struct sl_link_send *send, enum sl_status status); // once, perhaps before sl_link_send() returns
    // the link's
    uint8_t prefix[16];
    size_t bytes, n_written, part, part_at;
};
void sl_link_send(struct sl_link *link, struct sl_link_send *send);

// During on_frame(), of a frame whose data is on its way: all of it to `to`. done runs once, before or after this returns.
typedef void (*sl_link_received_fn)(void *arg, enum sl_status status, size_t bytes);
void sl_link_receive(struct sl_link *link, void *to, sl_link_received_fn done, void *arg);
