// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: of several coordinators, one leads. Which, is agreed on elsewhere: in etcd.
 *
 * Design, in reading order:
 *     candidate.h    one that stands, leads and steps back: a state machine over a seat, with a clock that is passed in
 *     seat.h         what such a seat can: a lease, and a name that stays as long as the lease does. A backend fills its table
 *     etcd.h         the seat as a key of etcd, which knows several servers and has a deadline for every call
 *     etcd_reply.h   believes nothing of what they answer
 *
 * A leader has a term: a number that is higher than those of all before. It leads by its own clock: fence_ms after the last renewal of
 * which it knows it stops by itself, ahead of the lease's end, wherever its threads are. What it may have under way then reaches
 * workers with its term, and those that have heard of a higher one refuse it (net/node/fence.h).
 * Nobody ends because etcd is away: nobody leads then, and somebody does when it is back.
 * Threads: one of its own, which alone talks to etcd; every function from any thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "net/trust/tls_files.h"

#define SL_LEADER_BYTES 272

struct sl_election;

struct sl_election_config {
    const char *etcd;        // HOST:PORT,HOST:PORT,...: all of its servers
    const char *prefix;      // of the key, so that clusters can share an etcd
    struct sl_tls_files tls; // for etcd; none: in the clear
    int64_t ttl_ms, renew_ms, fence_ms;
};

// The times of production; the rest is to be set.
void sl_election_config_init(struct sl_election_config *config);

// etcd need not answer. Strings are copied. SL_ERR_INVALID names the option.
enum sl_status sl_election_create(const struct sl_election_config *config, struct sl_election **election_out,
                                  struct sl_error *err);
// Until then nobody stands. address: as clients reach us, which others say of who leads. Once.
enum sl_status sl_election_stand(struct sl_election *election, const char *address, struct sl_error *err);

// Whoever leads steps back first, if etcd answers: the next one need not wait for the lease. Accepts NULL.
void sl_election_destroy(struct sl_election **election);

// Our term if we lead, at this moment; else 0.
int64_t sl_election_term(struct sl_election *election);

// The last term that we had; 0: none. What runs since then goes on with it.
int64_t sl_election_last_term(struct sl_election *election);

// Who leads, as far as is known; "": nobody, or etcd does not answer.
void sl_election_leader(struct sl_election *election, char leader_out[SL_LEADER_BYTES]);

// Whether that is known to be another one. The seat of a process before ours, at our address, is nobody's that could take our jobs.
bool sl_election_another_leads(struct sl_election *election, char leader_out[SL_LEADER_BYTES]);

// A worker has heard of a higher term than ours: we do not lead any more, and stand again a little later. Does not block.
void sl_election_resign(struct sl_election *election, int64_t term, const char *why);

// We shall not lead again: another one can at once. Does not block.
void sl_election_withdraw(struct sl_election *election);
