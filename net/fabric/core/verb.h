// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the interface of a verb to the core: one end of one kind of exchange between two fabrics (a ship, the grant
 *          that it goes into, a request, ...).
 *
 * Design: a verb registers all hooks that the core calls in one struct sl_verb_ops, beside its code. Its state is a
 *         struct that begins with struct sl_verb; its per-peer state is another struct. The core (progress.c, peer.c)
 *         walks the fabric's table of verbs in order and knows none of them by name: calls go only downwards, from
 *         fabric.c, which has the list, to the verbs, and from those to the core.
 * Threads: hooks run on the progress thread unless stated otherwise. A NULL hook is not called.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "net/fabric/core/wire.h"

#define SL_MAX_VERBS    15
#define SL_MAX_HANDLERS 5 // of one verb

struct sl_peer;

struct sl_message {
    const void *header;
    size_t header_bytes;
    const void *data; // the data, or UCX's handle of data in transit, or NULL
    size_t bytes;
    bool on_its_way; // the data is in transit, for sl_peer_receive(); a handler that does not call it refuses the bytes
    bool taken;      // sl_peer_receive() was called
};

struct sl_handler {
    enum sl_wire_id id; // handled by no other handler
    const char *name;   // for the log when one is dropped; NULL: not logged
    size_t least;       // bytes of header: a shorter message is dropped
    bool early;         // also accepted from a peer that is not up yet
    void (*run)(void *state, struct sl_peer *peer, struct sl_message *message);
};

// Fault injection for tests: a uint64_t of the verb's state, set when the fabric is created.
struct sl_fault {
    const char *name;
    size_t offset;
};

// An _Atomic uint64_t of the verb's state, and the member of sl_fabric_stats to which it is added.
struct sl_gauge {
    size_t offset, of_stats;
};
#define SL_GAUGE(type, member, field)                                                                                  \
    { offsetof(type, member), offsetof(struct sl_fabric_stats, field) }

struct sl_verb_ops {
    size_t state_bytes;                              // begins with struct sl_verb; zeroed before init()
    size_t peer_bytes;                               // per-peer state: sl_verb_of_peer(); zeroed
    struct sl_handler handlers[SL_MAX_HANDLERS + 1]; // up to the first without run()
    struct sl_fault faults[6];                       // up to the first without a name
    struct sl_gauge gauges[6];                       // up to the first without an offset

    void (*init)(void *state);    // on the creator's thread
    void (*cleanup)(void *state); // on the last thread that has the fabric

    bool (*pump)(void *state, int64_t now_ns); // every turn: returns true if anything moved
    void (*tick)(void *state, int64_t now_ns); // several times between two heartbeats: checks deadlines
    bool (*has_work)(void *state);             // true if pump would find new work: prevents sleep

    // The peer is lost or closed: nothing can be sent to it any more, and pending sends end with errors.
    void (*peer_closing)(void *state, struct sl_peer *peer, enum sl_status status, const char *text);
    // All sends to it have ended; it is freed next.
    void (*peer_gone)(void *state, struct sl_peer *peer);

    // The fabric stops. In this order:
    void (*leave)(void *state);   // under the gate's lock, before it is shut: release what belongs to the callers
    void (*stop)(void *state);    // end all pending work
    bool (*is_over)(void *state); // called for a while: returns true if all pending work has ended
    void (*release)(void *state); // every peer is gone: release the rest, whatever it waits for
};

struct sl_verb {
    const struct sl_verb_ops *ops;
    struct sl_fabric *fabric;
    size_t peer_offset;
};

/*
 * Creates the table (verb.c). inject: "NAME:N,..." of faults, or NULL. SL_ERR_INVALID: unknown fault. A partly created
 * table must be passed to sl_verbs_destroy().
 */
enum sl_status sl_verbs_create(struct sl_fabric *fabric, const struct sl_verb_ops *const *list, size_t n,
                               const char *inject, struct sl_error *err);
void sl_verbs_destroy(struct sl_fabric *fabric);
// Returns the state of a verb of this fabric. For calls from outside; code on the progress thread has it already.
void *sl_verb_of_fabric(const struct sl_fabric *fabric, const struct sl_verb_ops *ops);
static inline void *sl_verb_of_peer(const void *state, struct sl_peer *peer) {
    return (char *)peer + ((const struct sl_verb *)state)->peer_offset;
}

// Loops over every verb that has `hook`:  SL_VERBS_WITH(tick, fabric, verb) { verb->ops->tick(verb, now_ns); }
#define SL_VERBS_WITH(hook, fabric, verb)                                                                              \
    for (struct sl_verb *const *verb##_at = (fabric)->verbs, *verb; (verb = *verb##_at) != NULL; verb##_at++)          \
        if (verb->ops->hook != NULL)
