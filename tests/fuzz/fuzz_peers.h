// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the environment of workers whose handlers are fuzzed: the input, the data plane, kvstores and the calls themselves.
 *
 * Design: ships go into the grants of this process: what one worker ships the other receives. A store keeps what is shipped to it, finds it
 *         again, and answers what the input says: the truth, or anything else. The data plane keeps its promises: it writes nothing outside
 *         of a grant, and reports nothing about a grant or ship that has ended.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/salted_hash.h"
#include "net/rpc/rpc.h"

// ---- the input -------------------------------------------------------------------------------------------------------

// From its beginning what is asked, from its end what peers do: so the one can change without the other. Behind both they are right.

void fuzz_input(const uint8_t *data, size_t size);
size_t fuzz_left(void);
uint8_t fuzz_draw(void);        // 0 after the end
int64_t fuzz_draw_number(void); // small, or at a bound
int32_t fuzz_draw_int(void);
uint8_t fuzz_peer_draw(void);
int64_t fuzz_peer_number(void);
char *fuzz_draw_text(void); // at most 47 bytes; lives until the next call but seven

// ---- calls -----------------------------------------------------------------------------------------------------------

struct sl_rpc_call {
    int64_t deadline_ns;
    bool cancelled;
    void (*on_cancel)(void *arg);
    void *arg;
    void (*look)(struct sl_rpc_call *call, const ProtobufCMessage *message); // at what the handler sends
};
void fuzz_call_cancel(struct sl_rpc_call *call);
// A message as it comes over the wire: all of it on the heap, the caller's.
ProtobufCMessage *fuzz_as_received(const ProtobufCMessage *message);

// ---- the data plane, and stores --------------------------------------------------------------------------------------

#define FUZZ_TICKET_BYTES 8
#define FUZZ_FABRIC       "127.0.0.1:1" // where a fabric listens
#define FUZZ_N_STORED     4
#define FUZZ_N_HASHES     12 // that a capsule is found by

// A capsule at a store, found by its key's hash and by those of its beginnings.
struct fuzz_stored {
    struct sl_hash128 hashes[FUZZ_N_HASHES];
    int64_t n_tokens[FUZZ_N_HASHES];
    size_t n_hashes;
    uint8_t *header, *body;
    size_t header_bytes, body_bytes, room_bytes;
    bool whole;
};
extern struct fuzz_stored fuzz_stored[FUZZ_N_STORED];
extern int fuzz_n_open; // of everything that is opened and closed

uint8_t *fuzz_new_ticket(char kind, uint16_t number); // kind: 'g' to a grant, 's' to a store; others lead nowhere

void fuzz_peers_open(void);
void fuzz_grant_fail(uint8_t which); // of those that are open
// All grants are gone; ships, requests, fetches, connections, channels and streams that were opened are closed.
void fuzz_peers_close(void);
