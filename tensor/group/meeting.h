// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: ranks that wait for each other, in memory that all of them map. What every filling of group.h is made of.
 *
 * Design: a hall has a seat a rank. To come to a meeting is to raise the number in one's seat; everybody looks at the seats until all have that number, so
 *         it shows who is missing. What a rank says at a meeting stands in its seat twice, by turns: who comes to meeting k + 1 has read what
 *         was said at k, so what is said at k + 2 may overwrite it.
 *         Who has looked for a moment in vain (base/patience.h) sleeps on one word of the hall, `changed` (a futex, because it works between processes).
 * Threads: one at a time, but sl_meeting_abandon() and sl_meeting_lost().
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/patience.h"
#include "base/status.h"

// What for. Names are in meeting.c.
enum sl_purpose {
    SL_PURPOSE_JOIN,
    SL_PURPOSE_SUM,
    SL_PURPOSE_GATHER,
    SL_PURPOSE_MEETING,
};

// What a rank comes with. `what` and `amount` must be those of all others.
struct sl_errand {
    enum sl_purpose what;
    uint64_t amount; // bytes, or how many ranks
    void *at;        // for the others to see, where they are threads of one process
};

struct sl_hall;

struct sl_meeting { // a rank's end
    struct sl_hall *hall;
    int rank, size;
    int64_t deadline_ms;
    uint32_t number; // of the last meeting that this rank came to
    struct sl_patience patience;
};

// Of the hall; what a filling adds lies behind it.
size_t sl_meeting_hall_bytes(void);

struct sl_meeting_config { // as struct sl_group_config
    void *hall;
    int rank, size;
    int64_t deadline_ms;
    void *at; // for the others to see
};

// SL_ERR_INVALID: there is no such place.
enum sl_status sl_meeting_check(const struct sl_meeting_config *config, struct sl_error *err);

// Statuses as sl_group_join(). After SL_OK the rank has a seat, until it leaves.
enum sl_status sl_meeting_join(struct sl_meeting *meeting, const struct sl_meeting_config *config,
                               struct sl_error *err);
void sl_meeting_leave(struct sl_meeting *meeting);

// Comes, and waits until all have. SL_ERR_PEER_LOST, SL_ERR_INTERNAL: as group.h says.
enum sl_status sl_meeting_come(struct sl_meeting *meeting, const struct sl_errand *errand, struct sl_error *err);

// Where `rank` said that its thing is, at the meeting that was come to last.
void *sl_meeting_at(const struct sl_meeting *meeting, int rank);

/*
 * Of threads of one process, behind a meeting: from `touch` to `release` a rank uses memory of the others. False: the group has ended,
 * and it must not. Whoever has been told so frees nothing before it has settled: waited until nobody uses anything any more.
 */
bool sl_meeting_touch(struct sl_meeting *meeting);
void sl_meeting_release(struct sl_meeting *meeting);
void sl_meeting_settle(struct sl_meeting *meeting);

// As sl_group_meet().
enum sl_status sl_meeting_meet(struct sl_meeting *meeting, enum sl_status mine, int *whose_out,
                               struct sl_error *err_inout);

// Any thread. For one's own sake, and for that of a rank that stands still elsewhere: in the middle of a sum.
void sl_meeting_abandon(struct sl_meeting *meeting);
void sl_meeting_give_up(struct sl_meeting *meeting, int rank);
int sl_meeting_lost(const struct sl_meeting *meeting);

// The failure of a group that has ended.
enum sl_status sl_meeting_say_lost(const struct sl_meeting *meeting, struct sl_error *err);
