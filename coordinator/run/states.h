// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the states of a job run, and the only function that says which state follows an event.
 *
 *   Steps of an attempt (the names are without SL_RUN_ and SL_RUN_ON_):
 *
 *                   +------- NO_MEMORY ------+
 *                   v                        |
 *     start --> WAITING --- CLAIMED ---> RESERVING --- GRANTED -----------> PREFILLING
 *                 ^ |                        |                                  |
 *                 | |                        +-- GRANTED_FOR_COPY --> RESTORING |
 *                 | |                                                     |     |
 *                 | |                                             ARRIVED |     | ARRIVED
 *                 | |                                                     v     v
 *                 | +---------- CLAIMED_ALONE --------------------------> STARTING
 *                 |                                                       |     |
 *                 |                                                 HEARD |     | ENDED
 *                 |                                                       v     |
 *                 |                                      HEARD (loop) WRITING   |
 *                 |                                                       |     |
 *                 |                                                 ENDED |     |
 *                 |                                                       v     v
 *                 |                                                      ANSWERED --- COMPLETED ---> DONE
 *                 |
 *                 |      A failure ends the attempt in one of these states, from any step. The attempt then holds nothing:
 *                 |
 *                 +-- RETRY, FALL_BACK --- LOST         (after LOSE)        a worker was lost
 *                 +-- RETRY, FALL_BACK --- STORE_FULL   (after FILL_STORE)  a store refused, and other stores have room
 *                 +-- FALL_BACK ---------- NO_SESSION   (after MISS_SESSION, in RESTORING only)  no store has the session
 *                 +-- FALL_BACK ---------- HOPELESS     (after LOSE_HOPE)   no worker came, or a worker knows a newer term
 *                 +-- FALL_BACK ---------- UNFIT        (after REFUSE)      the cluster has no memory for it, or refuses it
 *                                          STOPPED      (after STOP)        cancelled, out of time, or an error that would recur
 *                                          DEPOSED      (after DEPOSE)      another coordinator leads
 *
 *     each failure --- GIVE_UP -----> FAILED; from DEPOSED: ELSEWHERE, where another coordinator runs the job
 *     each failure --- KEEP_ANSWER -> DONE: an earlier attempt had the answer, and only its session is lost
 *
 *   RETRY starts another attempt. FALL_BACK starts one that does without the session that this one needed (turn.h).
 *
 * Design: sl_run_move() (attempt.h) logs and counts an event that the table does not allow, and the state stays.
 */
#pragma once

#include <stdbool.h>

enum sl_run_state {
    SL_RUN_WAITING,    // in the line for workers
    SL_RUN_RESERVING,  // Decode.Reserve is running
    SL_RUN_PREFILLING, // Prefill.Run is running
    SL_RUN_RESTORING,  // Store.Fetch is running
    SL_RUN_STARTING,   // Decode.Run has sent nothing yet
    SL_RUN_WRITING,    // Decode.Run sends tokens
    SL_RUN_ANSWERED,   // Decode.Run has sent its last event: the worker has freed or retained the session

    SL_RUN_LOST,
    SL_RUN_STORE_FULL,
    SL_RUN_NO_SESSION,
    SL_RUN_HOPELESS,
    SL_RUN_UNFIT,
    SL_RUN_STOPPED,
    SL_RUN_DEPOSED,

    SL_RUN_DONE,
    SL_RUN_FAILED,
    SL_RUN_ELSEWHERE,
    SL_N_RUN_STATES
};

enum sl_run_event {
    SL_RUN_ON_CLAIMED,       // workers are claimed; the decode worker must reserve memory for a capsule
    SL_RUN_ON_CLAIMED_ALONE, // a decode worker is claimed, and no capsule will be sent to it
    SL_RUN_ON_NO_MEMORY,
    SL_RUN_ON_GRANTED,
    SL_RUN_ON_GRANTED_FOR_COPY,
    SL_RUN_ON_ARRIVED, // the capsule is at the decode worker
    SL_RUN_ON_HEARD,   // a token
    SL_RUN_ON_ENDED,
    SL_RUN_ON_COMPLETED, // the session is copied, or will not be

    SL_RUN_ON_LOSE,
    SL_RUN_ON_FILL_STORE,
    SL_RUN_ON_MISS_SESSION,
    SL_RUN_ON_LOSE_HOPE,
    SL_RUN_ON_REFUSE,
    SL_RUN_ON_STOP,
    SL_RUN_ON_DEPOSE,

    SL_RUN_ON_RETRY,
    SL_RUN_ON_FALL_BACK,
    SL_RUN_ON_GIVE_UP,
    SL_RUN_ON_KEEP_ANSWER,
    SL_N_RUN_EVENTS
};

// Returns the state after the event; SL_N_RUN_STATES: the event is not allowed in this state.
enum sl_run_state sl_run_next(enum sl_run_state state, enum sl_run_event event);

const char *sl_run_state_name(enum sl_run_state state);
const char *sl_run_event_name(enum sl_run_event event);

// Returns whether the state is a step of an attempt.
static inline bool sl_run_is_step(enum sl_run_state state) {
    return state <= SL_RUN_ANSWERED;
}
