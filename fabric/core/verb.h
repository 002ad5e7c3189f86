// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what a verb is: one end of one kind of exchange between two fabrics (a ship, the grant that it goes into, an
 *          request, ...), as the core sees it.
 *
 * Design: a verb registers everything that the core calls in one struct sl_verb_ops, beside its code. Its state is a
 *         struct of its own that begins with struct sl_verb; what it knows of a peer is one too. The core (progress.c,
 *         peer.c) walks the table of verbs that the fabric was made with, in its order, and knows none of them by name:
 *         calls go down only, from fabric.c, which has the list, to the verbs, and from those to the core.
 * Threads: hooks run on the progress thread where nothing else is said. One that is NULL is not called.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "fabric/core/wire.h"

#define SL_MAX_VERBS    15
#define SL_MAX_HANDLERS 5 // of one verb

struct sl_peer;

struct sl_message {
    const void *header;
    size_t header_bytes;
    const void *data; // where it is on its way: UCX's, or NULL
    size_t bytes;
    bool on_its_way; // data is for sl_peer_receive(); a handler that does not call it refuses the bytes
    bool taken;      // it was called
};

struct sl_handler {
    enum sl_wire_id id; // of no other handler
    const char *name;   // for the log, where one is dropped; NULL: not worth a word
    size_t least;       // bytes of header: what is shorter is dropped
    bool early;         // also from a peer that is not up yet
    void (*run)(void *state, struct sl_peer *peer, struct sl_message *message);
};

// Fault injection for tests: a uint64_t of the verb's state, set when the fabric is made.
struct sl_fault {
    const char *name;
    size_t offset;
};

// An _Atomic uint64_t of the verb's state, and the member of sl_fabric_stats that it is added to.
struct sl_gauge {
    size_t offset, of_stats;
};
#define SL_GAUGE(type, member, field)                                                                                  \
    { offsetof(type, member), offsetof(struct sl_fabric_stats, field) }

struct sl_verb_ops {
    size_t state_bytes;                              // begins with struct sl_verb; zeroed before init()
    size_t peer_bytes;                               // what the verb knows of each peer: sl_verb_of_peer(); zeroed
    struct sl_handler handlers[SL_MAX_HANDLERS + 1]; // up to the first without run()
    struct sl_fault faults[4];                       // up to the first without a name
    struct sl_gauge gauges[6];                       // up to the first without an offset

    void (*init)(void *state);    // on the creator's thread
    void (*cleanup)(void *state); // on the last thread that has the fabric

    bool (*pump)(void *state, int64_t now_ns); // every turn: whether anything moved
    void (*tick)(void *state, int64_t now_ns); // several times between two heartbeats: deadlines
    bool (*has_work)(void *state);             // whether a pump would find something new: no sleep then

    // The peer is lost or closed: nothing can be sent to it any more, and what was sent ends with errors.
    void (*peer_closing)(void *state, struct sl_peer *peer, enum sl_status status, const char *text);
    // Everything that was sent to it has ended; it is freed next.
    void (*peer_gone)(void *state, struct sl_peer *peer);

    // The fabric stops. In this order:
    void (*leave)(void *state);   // with the gate's lock, before it is shut: let go of what belongs to the callers
    void (*stop)(void *state);    // end what is under way
    bool (*is_over)(void *state); // asked for some time: whether everything that was under way has ended
    void (*release)(void *state); // every peer is gone: let go of the rest, whatever it waits for
};

struct sl_verb {
    const struct sl_verb_ops *ops;
    struct sl_fabric *fabric;
    size_t peer_offset;
};

/*
 * verb.c: the table. inject: "NAME:N,..." of faults, or NULL. SL_ERR_INVALID: there is no such fault.
 * Creation that fails leaves what sl_verbs_destroy() copes with.
 */
enum sl_status sl_verbs_create(struct sl_fabric *fabric, const struct sl_verb_ops *const *list, size_t n,
                               const char *inject, struct sl_error *err);
void sl_verbs_destroy(struct sl_fabric *fabric);
// The state of a verb of this fabric. For calls from outside: what runs on the progress thread gets it, or keeps it.
void *sl_verb_of_fabric(const struct sl_fabric *fabric, const struct sl_verb_ops *ops);
static inline void *sl_verb_of_peer(const void *state, struct sl_peer *peer) {
    return (char *)peer + ((const struct sl_verb *)state)->peer_offset;
}

// For every verb that has `hook`:  SL_VERBS_WITH(tick, fabric, verb) { verb->ops->tick(verb, now_ns); }
#define SL_VERBS_WITH(hook, fabric, verb)                                                                              \
    for (struct sl_verb *const *verb##_at = (fabric)->verbs, *verb; (verb = *verb##_at) != NULL; verb##_at++)          \
        if (verb->ops->hook != NULL)
