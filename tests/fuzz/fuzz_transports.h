// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: replaces links, UCX, clock, thread and addresses under a fabric that is fuzzed. Frames come from the caller of fuzz_deliver(),
 *          what the fabric sends is checked and forgotten, and its progress thread is the caller's.
 *
 * Design: the real progress loop runs inside of sl_fabric_create(), with `step` called once a turn until it says that there is no
 *         more. Time passes with every look at the clock. What is sent, and what is received beyond the first bytes, is held back
 *         while `hold` is set.
 */
#pragma once

#include "net/fabric/core/core.h"

#define FUZZ_FAR_BYTES 16384 // of the others' memory that is mapped here
#define FUZZ_KEY_BYTES 8

struct sl_link {
    struct sl_link *next;
    void *owner;
    bool connected; // by us
    bool met, ended, lost, theirs_ended;
    struct sl_link_send *first_send;
    // a receive under way
    sl_link_received_fn received;
    void *arg;
    uint8_t *to;
    size_t bytes;
    uint8_t seed;
};

struct fuzz_wire {
    struct sl_fabric *fabric;
    struct sl_link *links;
    bool with_ucx, hold;
    int64_t now_ns;
    uint8_t *far;
    volatile uint8_t touched;
    bool (*step)(void);            // false: it is over
    uint8_t last[SL_WIRE_END][64]; // the header last sent of each kind, as much of it as there is room for
};
extern struct fuzz_wire fuzz_wire;

struct fuzz_frame {
    unsigned id;
    const void *header; // exactly as long as it says
    size_t header_bytes, bytes;
    uint8_t seed;      // of its data
    const void *whole; // its data where it comes whole; NULL: of the seed
    bool by_ucx, on_its_way;
};

void fuzz_require(bool holds);
void fuzz_touch(const void *data, size_t bytes); // reads all of it
void fuzz_fill(uint8_t *to, size_t bytes, uint8_t seed);
struct sl_link *fuzz_connect(void); // a stranger; NULL: there are enough
void fuzz_deliver(struct sl_link *link, const struct fuzz_frame *frame);
void fuzz_complete(void); // what is held back
void fuzz_lose(struct sl_link *link, bool by_peer);
