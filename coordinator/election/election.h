// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: elects one leader among several coordinators, by a key in etcd.
 *
 * Design, in reading order:
 *     candidate.h    one candidate: a state machine over the leader key, with a clock that is passed in
 *     leader_key.h   the operations on the leader key: a lease, and a name that lasts as long as the lease. A table of functions
 *     etcd.h         the leader key in etcd: several servers, and a deadline for every call
 *     etcd_reply.h   checks every reply of these servers
 *
 * A leader has a term: a number higher than all terms before it. A leader relies on its own clock only: it stops leading fence_ms after the
 * start of the last renewal that succeeded. This is before the lease ends, and needs no thread to run. Requests that it has under way carry
 * its term, and workers that have seen a higher one refuse them (net/node/term_guard.h).
 * No coordinator exits because etcd is unreachable: none leads until etcd is back, and then one does.
 * Threads: one of its own, which alone uses the leader key; every function from any thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "net/trust/tls_files.h"

#define SL_LEADER_BYTES 272

struct sl_election;

/*
 * etcd: HOST:PORT,HOST:PORT,...: all of its servers. prefix: of the key, so that clusters can share an etcd. tls: for etcd;
 * none: in the clear. Works while etcd does not answer. Copies the strings. SL_ERR_INVALID names the option.
 */
enum sl_status sl_election_create(const char *etcd, const char *prefix, const struct sl_tls_files *tls,
                                  struct sl_election **election_out, struct sl_error *err);
// Starts the candidacy; call once. address: where clients reach us; other coordinators report it while we lead.
enum sl_status sl_election_stand(struct sl_election *election, const char *address, struct sl_error *err);

// Resigns first if we lead and etcd answers, so that the next leader need not wait for the lease to end. Accepts NULL.
void sl_election_destroy(struct sl_election **election);

// Returns our term if we lead at this moment; else 0.
int64_t sl_election_term(struct sl_election *election);

// Returns the last term that we had; 0: none. Jobs that run since then continue with it.
int64_t sl_election_last_term(struct sl_election *election);

// Writes the leader's address as far as it is known; "": none leads, or etcd does not answer.
void sl_election_leader(struct sl_election *election, char leader_out[SL_LEADER_BYTES]);

// Returns whether another coordinator is known to lead. A key that an earlier process left at our own address does not count: that process
// cannot take over our jobs.
bool sl_election_another_leads(struct sl_election *election, char leader_out[SL_LEADER_BYTES]);

// Asks etcd soon whether we still lead, because a worker reports a higher term than ours. etcd alone decides: a worker may
// be wrong, or lie. Does not block, and causes at most four questions a second.
void sl_election_doubt(struct sl_election *election);
// Does the same, and waits for the answer. Returns our term if we lead; else 0. Until etcd answers, we lead as long as our
// clock allows.
int64_t sl_election_confirm(struct sl_election *election, int64_t deadline_ns);

// Withdraws for good: another candidate can lead at once. Does not block.
void sl_election_withdraw(struct sl_election *election);
