// SPDX-License-Identifier: Apache-2.0
// Purpose: shared by the files of this folder: links.c, all links and the listener; link.c, the life of one; frames.c,
//          its bytes.
#pragma once

#include "base/clock.h"
#include "net/fabric/link/tls.h"
#include "net/trust/identity.h"

#define SL_LINK_BUFFER_BYTES ((size_t)32 << 10)
#define SL_LINK_RECORD_BYTES ((size_t)16 << 10) // of TLS
#define SL_LINK_MAGIC        0x534cu            // "LS"

struct sl_link_prefix { // of a frame, on the wire
    uint16_t magic;
    uint16_t id;
    uint32_t header_bytes;
    uint64_t data_bytes;
};

enum sl_link_state { LINK_CONNECTING, LINK_SHAKING, LINK_OPEN, LINK_ENDING, LINK_LOST };

struct sl_link {
    struct sl_link *next, **at;
    struct sl_links *links;
    void *owner;
    int fd;
    enum sl_link_state state;
    bool met, accepted;
    bool told;    // the owner knows of its loss
    bool by_peer; // LOST: its other side ended it
    bool more;    // there is more to read than one turn allows
    bool wants_out;
    int64_t born_ns;
    enum sl_status status; // why it is LOST
    char text[160];
    char expected[SL_IDENTITY_BYTES]; // name of the other side in its certificate; "": any
    // sending
    struct sl_link_send *first, **last;
    bool writing;
    SSL *ssl;           // NULL: without TLS
    uint8_t *record;    // [SL_LINK_RECORD_BYTES]: small parts side by side, for TLS
    size_t n_sealed;    // queued bytes in records that the kernel has not all taken yet
    uint64_t n_records; // under the current sending key
    // receiving
    uint8_t *buffer; // [SL_LINK_BUFFER_BYTES]: [n_taken, n_buffered) is unread
    size_t n_taken, n_buffered;
    uint8_t *to; // destination of the data in transit; NULL: it is dropped
    uint64_t n_missing;
    size_t bytes;
    sl_link_received_fn received;
    void *received_arg;
};

struct sl_links {
    struct sl_link_events events;
    void *arg;
    struct sl_tls *tls; // NULL: without TLS
    int epoll, listener;
    bool resting; // the listener: no descriptors were left
    struct sl_link *first;
    size_t n_unmet; // accepted, and not met
    bool busy;      // a link is lost and its owner not told, or has more to read
    int64_t complained_ns;
};

// link.c
struct sl_link *sl_link_create(struct sl_links *links, int fd, struct sl_error *err);
void sl_link_connected(struct sl_link *link); // the kernel reports the result of the attempt
void sl_link_begin(struct sl_link *link);     // the stream is ready
void sl_link_shake_hands(struct sl_link *link);

// loss.c
void sl_link_lose(struct sl_link *link, enum sl_status status, const char *text);
void sl_link_lose_errno(struct sl_link *link, const char *doing, int number);
void sl_link_watch(struct sl_link *link, bool out); // sets the events that the kernel reports
void sl_link_count_out(struct sl_link *link);       // removes it from the count of unmet links

// frames.c
void sl_link_write(struct sl_link *link); // as much as the kernel takes
bool sl_link_read(struct sl_link *link);  // one turn's share: true if anything came
void sl_link_end_traffic(struct sl_link *link, enum sl_status status);
void sl_link_drop(struct sl_link *link); // drops arriving bytes, until the end
