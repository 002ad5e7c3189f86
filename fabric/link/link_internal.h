// SPDX-License-Identifier: Apache-2.0
// Purpose: what the files of this folder share: links.c, all links and the listener; link.c, the life of one; frames.c, its bytes.
#pragma once

#include "base/clock.h"
#include "fabric/link/tls.h"

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
    bool told;    // of its loss
    bool by_peer; // LOST: its other side ended it
    bool more;    // there is more to read than one turn takes
    bool wants_out;
    int64_t born_ns;
    enum sl_status status; // LOST: why
    char text[160];
    // sending
    struct sl_link_send *first, **last;
    bool writing;
    SSL *ssl;           // NULL: in the clear
    uint8_t *record;    // [SL_LINK_RECORD_BYTES]: small parts side by side, for TLS
    size_t n_sealed;    // of what is queued, in records that the kernel has not all taken yet
    uint64_t n_records; // under the key that we send with
    // receiving
    uint8_t *buffer; // [SL_LINK_BUFFER_BYTES]: [n_taken, n_buffered) is not yet looked at
    size_t n_taken, n_buffered;
    uint8_t *to; // of the data on its way; NULL: it is dropped
    uint64_t n_missing;
    size_t bytes;
    sl_link_received_fn received;
    void *received_arg;
};

struct sl_links {
    struct sl_link_events events;
    void *arg;
    struct sl_tls *tls; // NULL: in the clear
    int epoll, listener;
    bool resting; // the listener: no descriptors were left
    struct sl_link *first;
    size_t n_unmet; // accepted, and not met
    bool busy;      // a link is lost and its owner not told, or has more to read
    int64_t complained_ns;
};

// link.c
struct sl_link *sl_link_create(struct sl_links *links, int fd, struct sl_error *err);
void sl_link_connected(struct sl_link *link); // the kernel says that the attempt is over
void sl_link_begin(struct sl_link *link);     // the stream is there
void sl_link_shake_hands(struct sl_link *link);

// loss.c
void sl_link_lose(struct sl_link *link, enum sl_status status, const char *text);
void sl_link_lose_errno(struct sl_link *link, const char *doing, int number);
void sl_link_watch(struct sl_link *link, bool out); // what the kernel is asked to tell
void sl_link_count_out(struct sl_link *link);       // of those that nobody has met

// frames.c
void sl_link_write(struct sl_link *link); // as much as goes
bool sl_link_read(struct sl_link *link);  // one turn's share: whether anything came
void sl_link_end_traffic(struct sl_link *link, enum sl_status status);
void sl_link_drop(struct sl_link *link); // what still comes, until the end
