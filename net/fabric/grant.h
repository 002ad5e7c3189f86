// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shared by the three files of grants: grant.c, their life; receive.c, the messages that reach their owner;
 *          grant_end.c, how they end and what is kept of it.
 */
#pragma once

#include "net/fabric/core/core.h"
#include "net/fabric/fabric.h"

#define SL_N_PAST 1024 // ended grants whose result is kept

struct sl_past {
    uint64_t generation, ship_id;
    uint32_t grant_id;
    enum sl_status status;
};

struct sl_grants {
    struct sl_verb verb;
    struct sl_slots slots; // only the progress thread returns grants
    _Atomic uint64_t n_open, n_quarantined, n_wrong, n_stale;
    // owned by the progress thread
    struct sl_past past[SL_N_PAST];
    size_t next_past;
};

enum sl_grant_state { GRANT_OPEN, GRANT_CLAIMED, GRANT_COMPLETE, GRANT_FAILED };

struct sl_grant {
    struct sl_grants *grants;
    struct sl_fabric *fabric;
    struct sl_command close_command;
    uint32_t id;
    uint64_t generation;
    struct sl_wire_secret secret;
    struct {
        const struct sl_region *region;
        uint8_t *block;
    } host, device; // device.region NULL: there is none
    sl_arrived_fn on_arrived;
    size_t bytes;
    _Atomic int64_t deadline_ns;
    struct sl_grant_events events;
    void *arg;
    // owned by the progress thread
    enum sl_grant_state state;
    enum sl_status status;
    char text[SL_ANSWER_TEXT_BYTES];
    bool closed;      // by its owner
    bool quarantined; // counted in the gauge
    int64_t ended_ns;
    struct sl_peer *writer;
    uint64_t ship_id;
    bool one_sided;
    bool in_device;                     // the writer puts there
    struct sl_receive *arrived, **last; // announced, not yet given to the verifier
    uint64_t n_arrived, arrived_bytes;  // since the start
    size_t n_unverified;
    bool verifying;    // a batch is being verified
    bool writer_quiet; // no put of the writer can be pending
    size_t n_receives;
    uint64_t n_segments;
    uint64_t body_bytes; // verified
    uint64_t highest;
    bool final_seen, header_ready;
    struct sl_wire_final final;
    uint8_t *header;
};

// A segment, from its announcement until it is verified.
struct sl_receive {
    struct sl_receive *next;
    struct sl_grant *grant;
    struct sl_wire_segment segment;
    uint32_t part_bytes[]; // [segment.n_parts]
};

// A batch of segments that the owner verifies.
struct sl_grant_arrival {
    struct sl_arrival shown;
    struct sl_command end_command; // on_verified(), from sl_arrival_end()
    struct sl_grant *grant;
    enum sl_status status;
    uint32_t which;
    struct sl_receive *first; // in the order of shown.at
    struct sl_arrived at[];
};

// arrival.c: segments announced in device memory. Returns why a segment is refused; NULL: it is accepted.
const char *sl_grant_refuse_arrived(const struct sl_grant *grant, const struct sl_receive *receive);
void sl_grant_note_arrived(struct sl_grant *grant, struct sl_receive *receive); // takes ownership
bool sl_grant_hand_out(
    struct sl_grant *grant,
    void (*on_verified)(struct sl_fabric *,
                        struct sl_command *));      // the waiting ones, if no batch is out. False: no memory
void sl_grant_drop_arrived(struct sl_grant *grant); // the waiting ones
void sl_grant_free_arrival(struct sl_grant_arrival *arrival);

// grant_end.c
void sl_grant_answer(struct sl_peer *peer, const struct sl_wire_key *key, enum sl_status status, uint32_t flags,
                     const char *text);
// Tells a sender whose grant has ended the result.
void sl_grant_answer_past(struct sl_grants *grants, struct sl_peer *peer, const struct sl_wire_key *key);
// Each may free the grant.
void sl_grant_fail(struct sl_grant *grant, enum sl_status status, const char *text);
void sl_grant_check_complete(struct sl_grant *grant);
void sl_grant_try_release(struct sl_grant *grant);
void sl_grant_release(struct sl_grant *grant);

// receive.c: handlers
void sl_grant_on_claim(void *state, struct sl_peer *peer, struct sl_message *message);
void sl_grant_on_segment(void *state, struct sl_peer *peer, struct sl_message *message);
void sl_grant_on_final(void *state, struct sl_peer *peer, struct sl_message *message);
void sl_grant_on_query(void *state, struct sl_peer *peer, struct sl_message *message);
void sl_grant_on_abort(void *state, struct sl_peer *peer, struct sl_message *message);
