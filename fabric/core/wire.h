// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: every byte that two fabrics say to each other, and the ticket that goes through the control plane.
 *
 * Design: fixed structs in little endian, copied in and out with memcpy because headers may come unaligned.
 *         Sizes are pinned. A message that is shorter than its struct is dropped before any field is believed.
 *
 *      HELLO    both ways, first on a link: who am I, whom did I want, how else can I be reached
 *      BEAT     both ways, over the link: still there
 *      BYE      both ways: this fabric stops on purpose
 *      CLAIM    sender -> owner: this ship is the one that writes into the grant, and whether it could put
 *      PLACE    owner -> sender, where both could: where to put. A ticket does not say: it travels through others
 *      SEGMENT  sender -> owner: bytes (active message), or the notice that they have been put, and their digest
 *      FINAL    sender -> owner: how much that was, and the header
 *      QUERY    sender -> owner: what became of my ship? (an answer may have been lost)
 *      ABORT    sender -> owner: the ship is over and no put of it is under way any more
 *      ANSWER   owner -> sender: go on, done, or refused and why
 *
 *      REQUEST     requester -> responder: a body
 *      REPLY       responder -> requester: the reply, or why there is none
 *      CANCEL      requester -> responder: nobody waits for the reply any more
 *      LOOK        reader -> owner: where does the window lie? For reads without a message
 *      LOOK_REPLY  owner -> reader: there, or nowhere that you could reach, or why not
 *      READ        reader -> owner: ranges of a window
 *      READ_REPLY  owner -> reader: their bytes, one behind the other, or why not
 */
#pragma once

#include <assert.h>
#include <stdint.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is the memory format of little endian");

#define SL_WIRE_MAGIC        0x53464231u // "SFB1", and of a grant's ticket
#define SL_WIRE_WINDOW_MAGIC 0x53465731u // "SFW1": of a window's ticket
#define SL_WIRE_VERSION      3

enum sl_wire_id {
    SL_WIRE_HELLO = 1,
    SL_WIRE_BEAT,
    SL_WIRE_BYE,
    SL_WIRE_CLAIM,
    SL_WIRE_SEGMENT,
    SL_WIRE_FINAL,
    SL_WIRE_QUERY,
    SL_WIRE_ABORT,
    SL_WIRE_ANSWER,
    SL_WIRE_REQUEST,
    SL_WIRE_REPLY,
    SL_WIRE_CANCEL,
    SL_WIRE_READ,
    SL_WIRE_READ_REPLY,
    SL_WIRE_PLACE,
    SL_WIRE_LOOK,
    SL_WIRE_LOOK_REPLY,
    SL_WIRE_END
};

#define SL_SEGMENT_MAX_BYTES (512u << 10) // destination bytes under one digest, and of one active message
#define SL_SEGMENT_MAX_PARTS 256          // source ranges gathered into one segment
#define SL_PART_MAX_BYTES    (32u << 10)  // digested, and then sent while it is still in the cache
#define SL_HEADER_MAX_BYTES  (16u << 20)
#define SL_ANSWER_TEXT_BYTES 200

struct sl_wire_hello {
    uint32_t magic;
    uint32_t version;
    uint64_t epoch;  // of the one who speaks
    uint64_t wanted; // the epoch that the connector expects to meet; the acceptor repeats it
    int64_t heartbeat_ms;
    uint64_t host_id; // hash of the kernel's boot id: equal on one host
    uint64_t number;  // that is to stand in front of every message over UCX
    uint32_t address_bytes;
    uint32_t zero;
};
static_assert(sizeof(struct sl_wire_hello) == 56, "wire");
#define SL_HELLO_ADDRESS_MAX_BYTES 1024
#define SL_EPOCH_OF_ANOTHER        ((uint64_t)2) // what a stranger who wants another epoch is told: epochs are odd

// 128 random bits, of a grant or a window: who has been given them, in a ticket, may claim it or read from it.
struct sl_wire_secret {
    uint64_t bits[2];
};
static_assert(sizeof(struct sl_wire_secret) == 16, "wire");

// Which ship into which grant. In every message below.
struct sl_wire_key {
    uint64_t generation;
    uint64_t ship_id;
    uint32_t grant_id;
    uint32_t zero;
};
static_assert(sizeof(struct sl_wire_key) == 24, "wire");

struct sl_wire_claim {
    struct sl_wire_key key;
    struct sl_wire_secret secret;
    uint32_t one_sided; // 1: the sender could put. 0: messages, also from one that was told where to put, and cannot
    uint32_t zero;
};
static_assert(sizeof(struct sl_wire_claim) == 48, "wire");

#define SL_PLACE_KEY_MAX_BYTES 384
// Where memory of the one who speaks lies. Followed by key[key_bytes], of UCX.
struct sl_wire_place {
    uint64_t address;
    uint64_t bytes;
    uint32_t key_bytes;
    uint32_t zero;
};
static_assert(sizeof(struct sl_wire_place) == 24, "wire");

struct sl_wire_grant_place {
    struct sl_wire_key key;
    struct sl_wire_place place;
};
static_assert(sizeof(struct sl_wire_grant_place) == 48, "wire");

// Followed by uint32_t part_bytes[n_parts]: the digest is chained over the parts, each seeding the next.
struct sl_wire_segment {
    struct sl_wire_key key;
    uint64_t offset;
    uint64_t digest;
    uint32_t bytes;
    uint32_t n_parts;
};
static_assert(sizeof(struct sl_wire_segment) == 48, "wire");
#define SL_SEGMENT_HEADER_BYTES(n_parts) (sizeof(struct sl_wire_segment) + (size_t)(n_parts) * sizeof(uint32_t))

// Its payload is the header of the ship.
struct sl_wire_final {
    struct sl_wire_key key;
    uint64_t n_segments;
    uint64_t body_bytes;
    uint64_t header_digest;
    uint64_t header_bytes;
};
static_assert(sizeof(struct sl_wire_final) == 56, "wire");

struct sl_wire_query {
    struct sl_wire_key key;
};

struct sl_wire_abort {
    struct sl_wire_key key;
    int32_t status;
    uint32_t zero;
};
static_assert(sizeof(struct sl_wire_abort) == 32, "wire");

#define SL_ANSWER_FINAL_SEEN 1u
#define SL_ANSWER_TO_QUERY   2u
struct sl_wire_answer {
    struct sl_wire_key key;
    int32_t status; // SL_INPROGRESS: the claim stands; SL_OK: complete; else the reason why not
    uint32_t flags;
    char text[SL_ANSWER_TEXT_BYTES];
};
static_assert(sizeof(struct sl_wire_answer) == 232, "wire");

#define SL_EAGER_MAX_BYTES ((size_t)256 << 10) // requests, replies: sent without asking, for a rendezvous costs a round
// Its payload is the body.
struct sl_wire_request {
    uint64_t id;
    uint64_t reply_capacity;
    uint32_t body_bytes;
    uint32_t zero;
};
static_assert(sizeof(struct sl_wire_request) == 24, "wire");

// Its payload is the reply.
struct sl_wire_reply {
    uint64_t id;
    int32_t status; // SL_OK, or why there is none
    uint32_t zero;
};
static_assert(sizeof(struct sl_wire_reply) == 16, "wire");

struct sl_wire_cancel {
    uint64_t id;
};

#define SL_READ_MAX_RANGES 512
#define SL_READS_PER_PEER  8 // unanswered
// Its payload is struct sl_wire_range[n_ranges], together at most SL_SEGMENT_MAX_BYTES.
struct sl_wire_read {
    uint64_t generation;
    struct sl_wire_secret secret;
    uint32_t window_id;
    uint32_t slot; // of the reader, who tells successive users of it apart by the serial number
    uint32_t serial;
    uint32_t n_ranges;
};
static_assert(sizeof(struct sl_wire_read) == 40, "wire");

struct sl_wire_range {
    uint64_t offset; // in the window
    uint64_t bytes;
};
static_assert(sizeof(struct sl_wire_range) == 16, "wire");

struct sl_wire_read_reply {
    uint32_t slot;
    uint32_t serial;
    int32_t status; // SL_OK, or why not
    uint32_t zero;
};
static_assert(sizeof(struct sl_wire_read_reply) == 16, "wire");

struct sl_wire_look {
    uint64_t generation;
    struct sl_wire_secret secret;
    uint32_t window_id;
    uint32_t zero;
};
static_assert(sizeof(struct sl_wire_look) == 32, "wire");

struct sl_wire_look_reply {
    uint64_t generation;
    uint32_t window_id;
    int32_t status; // SL_OK; SL_ERR_UNSUPPORTED: by messages; else why not
    struct sl_wire_place place;
};
static_assert(sizeof(struct sl_wire_look_reply) == 40, "wire");

#define SL_WIRE_TICKET_MAX_BYTES 512
/*
 * The name of a grant or a window: whose, which, how large. No address and no key: nothing that is wrong in it leads anywhere but to
 * a refusal by its owner. Followed by address[address_bytes] (no terminator), of the owner's fabric.
 */
struct sl_wire_ticket {
    uint64_t digest; // of everything behind it: a ticket mangled on its way is refused, not unpacked
    uint32_t magic;
    uint32_t version;
    uint64_t epoch;
    uint64_t generation;
    struct sl_wire_secret secret;
    uint64_t bytes;
    uint32_t id; // of the grant or the window
    uint32_t address_bytes;
};
static_assert(sizeof(struct sl_wire_ticket) == 64, "wire");
