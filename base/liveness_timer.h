// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a liveness timer: measures for how long a peer has been silent while this process was able to listen.
 *
 * Design: the listener polls the timer regularly. A late poll means that the listener itself was suspended: its process
 *         was stopped, its machine was, or other processes had the processors. Messages that arrived meanwhile may be
 *         unread, and a peer on the same machine was suspended as well. So a poll adds at most `usual_ns` to the
 *         silence and ignores the rest. A peer that is really gone is still detected, only that much later.
 * Threads: one thread, or under the owner's lock.
 */
#pragma once

#include <stdint.h>

struct sl_liveness_timer {
    int64_t heard_ns;  // when the peer was last heard; moved forward by the time in which this process did not listen
    int64_t looked_ns; // time of the last poll or message
};

// Starts the silence anew: call it for each message, and first
void sl_liveness_timer_reset(struct sl_liveness_timer *timer, int64_t now_ns);
// Returns the silence in nanoseconds. usual_ns: the normal time between two polls.
int64_t sl_liveness_timer_poll(struct sl_liveness_timer *timer, int64_t now_ns, int64_t usual_ns);
