// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the messages between two fabrics, and the ticket that goes through the control plane.
 *
 * Design: fixed structs in little endian, copied in and out with memcpy because headers may be unaligned. Sizes are
 *         pinned. A message that is shorter than its struct is dropped before any field is used.
 *
 *      HELLO    both ways, first on a link: my epoch, the epoch that I want, my other addresses
 *      BEAT     both ways, over the link: heartbeat
 *      BYE      both ways: this fabric stops on purpose
 *      CLAIM    sender -> owner: this ship is the one that writes into the grant, and whether it could put
 *      PLACE    owner -> sender, if both could: where to put. A ticket does not say: it travels through third parties
 *      SEGMENT  sender -> owner: bytes (active message), or the notice that they have been put, and their digest
 *      FINAL    sender -> owner: the total size, and the header
 *      QUERY    sender -> owner: asks for the result of my ship (an answer may have been lost)
 *      ABORT    sender -> owner: the ship has ended and none of its puts is pending
 *      ANSWER   owner -> sender: go on, done, or refused with the reason
 *
 *      REQUEST     requester -> responder: a body
 *      REPLY       responder -> requester: the reply, or why there is none
 *      CANCEL      requester -> responder: the reply is not wanted any more
 *      LOOK        reader -> owner: asks for the window's address, for reads without a message
 *      LOOK_REPLY  owner -> reader: the address, or that you cannot reach it, or a refusal
 *      READ        reader -> owner: ranges of a window
 *      READ_REPLY  owner -> reader: their bytes in order, or a refusal
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
#define SL_PART_MAX_BYTES    (32u << 10)  // hashed, and then sent while still in the cache
#define SL_HEADER_MAX_BYTES  (16u << 20)
#define SL_ANSWER_TEXT_BYTES 200

struct sl_wire_hello {
    uint32_t magic;
    uint32_t version;
    uint64_t epoch;  // of the sender
    uint64_t wanted; // the epoch that the connector expects to meet; the acceptor repeats it
    int64_t heartbeat_ms;
    uint64_t host_id; // hash of the kernel's boot id: equal on one host
    uint64_t number;  // must start every message over UCX
    uint32_t address_bytes;
    uint32_t zero;
};
static_assert(sizeof(struct sl_wire_hello) == 56, "wire");
#define SL_HELLO_ADDRESS_MAX_BYTES 1024
#define SL_EPOCH_OF_ANOTHER        ((uint64_t)2) // sent to a peer that wants another epoch: real epochs are odd

// 128 random bits of a grant or a window: a peer that has them, from a ticket, may claim it or read from it.
struct sl_wire_secret {
    uint64_t bits[2];
};
static_assert(sizeof(struct sl_wire_secret) == 16, "wire");

// Identifies a ship into a grant. In every message below.
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
    uint32_t one_sided; // 1: the sender could put. 0: messages, also from a sender that was told where to put but
                        // cannot
    uint32_t zero;
};
static_assert(sizeof(struct sl_wire_claim) == 48, "wire");

#define SL_PLACE_KEY_MAX_BYTES 384
// Address of the sender's memory. Followed by key[key_bytes], of UCX.
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
    int32_t status; // SL_INPROGRESS: the claim stands; SL_OK: complete; else why it is refused
    uint32_t flags;
    char text[SL_ANSWER_TEXT_BYTES];
};
static_assert(sizeof(struct sl_wire_answer) == 232, "wire");

#define SL_EAGER_MAX_BYTES ((size_t)256 << 10) // requests, replies: sent without a rendezvous, which costs a round trip
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
    uint32_t slot; // of the reader; successive users of the slot have different serial numbers
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
    int32_t status; // SL_OK, or the reason of the refusal
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
    int32_t status; // SL_OK; SL_ERR_UNSUPPORTED: by messages; else the reason of the refusal
    struct sl_wire_place place;
};
static_assert(sizeof(struct sl_wire_look_reply) == 40, "wire");

#define SL_WIRE_TICKET_MAX_BYTES 512
/*
 * The name of a grant or a window: owner, number, size. No address and no key: whatever is wrong in it leads only to a
 * refusal by its owner. Followed by address[address_bytes] (no terminator) of the owner's fabric.
 */
struct sl_wire_ticket {
    uint64_t digest; // of all bytes after it: a damaged ticket is refused
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
