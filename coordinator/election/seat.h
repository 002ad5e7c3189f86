// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what an election is held over: a seat that one candidate at a time can have, as long as its lease lives.
 *
 * To add a backend: fill this table, and choose it in election.c. It must keep three promises: a seat is taken by one alone; terms rise
 * from one taking to the next; a lease lives for its whole time from when it was granted, or last renewed, at least.
 */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "coordinator/election/election.h"

struct sl_seat {
    int64_t term;                 // of this sitting, above 0
    int64_t lease;                // whose it is
    char holder[SL_LEADER_BYTES]; // its address
};

// Every function has a deadline of its own, and any failure but those named means: it is not known what has happened.
struct sl_seat_ops {
    enum sl_status (*grant)(void *arg, int64_t ttl_ms, int64_t *lease_out, struct sl_error *err);
    enum sl_status (*renew)(void *arg, int64_t lease, struct sl_error *err); // SL_ERR_NOT_FOUND: it has ended
    enum sl_status (*revoke)(void *arg, int64_t lease, struct sl_error *err);
    // SL_ERR_NOT_FOUND: the seat is free.
    enum sl_status (*look)(void *arg, struct sl_seat *seat_out, struct sl_error *err);
    // Sit down if it is free; *seat_out is whose it is then. SL_ERR_NOT_FOUND: the lease has ended.
    enum sl_status (*take)(void *arg, int64_t lease, const char *holder, struct sl_seat *seat_out,
                           struct sl_error *err);
};
