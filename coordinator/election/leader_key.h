// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the leader key: one candidate at a time can hold it, as long as its lease lives.
 *
 * To add a backend: fill this table, and choose it in election.c. It must keep three promises: only one candidate holds the key; the term
 * rises each time the key is taken; a lease lives at least for its whole time after it was granted or last renewed.
 */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "coordinator/election/election.h"

struct sl_leader_key {
    int64_t term;                 // above 0
    int64_t lease;                // the holder's
    char holder[SL_LEADER_BYTES]; // the holder's address
};

// Every function has a deadline of its own. After any failure but those named, the outcome is unknown.
struct sl_leader_key_ops {
    enum sl_status (*grant)(void *arg, int64_t ttl_ms, int64_t *lease_out, struct sl_error *err);
    enum sl_status (*renew)(void *arg, int64_t lease, struct sl_error *err); // SL_ERR_NOT_FOUND: it has ended
    enum sl_status (*revoke)(void *arg, int64_t lease, struct sl_error *err);
    // SL_ERR_NOT_FOUND: the key is free.
    enum sl_status (*look)(void *arg, struct sl_leader_key *key_out, struct sl_error *err);
    // Takes the key if it is free; *key_out then describes its holder. SL_ERR_NOT_FOUND: the lease has ended.
    enum sl_status (*take)(void *arg, int64_t lease, const char *holder, struct sl_leader_key *key_out,
                           struct sl_error *err);
};
