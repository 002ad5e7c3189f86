// SPDX-License-Identifier: Apache-2.0
#include "coordinator/run/states.h"

// Entries hold the next state plus one, so that absent entries are 0: not allowed.
#define TO(state) ((unsigned char)((state) + 1))

#define ANY_STEP_FAILS                                                                                                 \
    [SL_RUN_ON_LOSE] = TO(SL_RUN_LOST), [SL_RUN_ON_FILL_STORE] = TO(SL_RUN_STORE_FULL),                                \
    [SL_RUN_ON_LOSE_HOPE] = TO(SL_RUN_HOPELESS), [SL_RUN_ON_REFUSE] = TO(SL_RUN_UNFIT),                                \
    [SL_RUN_ON_STOP] = TO(SL_RUN_STOPPED), [SL_RUN_ON_DEPOSE] = TO(SL_RUN_DEPOSED)
#define ENDS [SL_RUN_ON_GIVE_UP] = TO(SL_RUN_FAILED), [SL_RUN_ON_KEEP_ANSWER] = TO(SL_RUN_DONE)

static const unsigned char table[SL_N_RUN_STATES][SL_N_RUN_EVENTS] = {
    [SL_RUN_WAITING] =
        {ANY_STEP_FAILS, [SL_RUN_ON_CLAIMED] = TO(SL_RUN_RESERVING), [SL_RUN_ON_CLAIMED_ALONE] = TO(SL_RUN_STARTING)},
    [SL_RUN_RESERVING] =
        {ANY_STEP_FAILS, [SL_RUN_ON_NO_MEMORY] = TO(SL_RUN_WAITING), [SL_RUN_ON_GRANTED] = TO(SL_RUN_PREFILLING),
         [SL_RUN_ON_GRANTED_FOR_COPY] = TO(SL_RUN_RESTORING)},
    [SL_RUN_PREFILLING] = {ANY_STEP_FAILS, [SL_RUN_ON_ARRIVED] = TO(SL_RUN_STARTING)},
    [SL_RUN_RESTORING] =
        {ANY_STEP_FAILS, [SL_RUN_ON_MISS_SESSION] = TO(SL_RUN_NO_SESSION), [SL_RUN_ON_ARRIVED] = TO(SL_RUN_STARTING)},
    [SL_RUN_STARTING] =
        {ANY_STEP_FAILS, [SL_RUN_ON_HEARD] = TO(SL_RUN_WRITING), [SL_RUN_ON_ENDED] = TO(SL_RUN_ANSWERED)},
    [SL_RUN_WRITING] =
        {ANY_STEP_FAILS, [SL_RUN_ON_HEARD] = TO(SL_RUN_WRITING), [SL_RUN_ON_ENDED] = TO(SL_RUN_ANSWERED)},
    [SL_RUN_ANSWERED] = {ANY_STEP_FAILS, [SL_RUN_ON_COMPLETED] = TO(SL_RUN_DONE)},

    [SL_RUN_LOST] = {ENDS, [SL_RUN_ON_RETRY] = TO(SL_RUN_WAITING), [SL_RUN_ON_FALL_BACK] = TO(SL_RUN_WAITING)},
    [SL_RUN_STORE_FULL] = {ENDS, [SL_RUN_ON_RETRY] = TO(SL_RUN_WAITING), [SL_RUN_ON_FALL_BACK] = TO(SL_RUN_WAITING)},
    [SL_RUN_NO_SESSION] = {ENDS, [SL_RUN_ON_FALL_BACK] = TO(SL_RUN_WAITING)},
    [SL_RUN_HOPELESS] = {ENDS, [SL_RUN_ON_FALL_BACK] = TO(SL_RUN_WAITING)},
    [SL_RUN_UNFIT] = {ENDS, [SL_RUN_ON_FALL_BACK] = TO(SL_RUN_WAITING)},
    [SL_RUN_STOPPED] = {ENDS},
    [SL_RUN_DEPOSED] = {[SL_RUN_ON_GIVE_UP] = TO(SL_RUN_ELSEWHERE), [SL_RUN_ON_KEEP_ANSWER] = TO(SL_RUN_DONE)},
};

enum sl_run_state sl_run_next(enum sl_run_state state, enum sl_run_event event) {
    unsigned char next =
        state >= 0 && state < SL_N_RUN_STATES && event >= 0 && event < SL_N_RUN_EVENTS ? table[state][event] : 0;
    return next == 0 ? SL_N_RUN_STATES : (enum sl_run_state)(next - 1);
}

const char *sl_run_state_name(enum sl_run_state state) {
    static const char *const names[] = {"waiting",  "reserving", "prefilling", "restoring",  "starting", "writing",
                                        "answered", "lost",      "store full", "no session", "hopeless", "unfit",
                                        "stopped",  "deposed",   "done",       "failed",     "elsewhere"};
    _Static_assert(sizeof names / sizeof *names == SL_N_RUN_STATES, "in the order of enum sl_run_state");
    return names[state];
}

const char *sl_run_event_name(enum sl_run_event event) {
    static const char *const names[] = {"claimed",    "claimed alone", "no memory", "granted",   "granted for copy",
                                        "arrived",    "heard",         "ended",     "completed", "lose",
                                        "fill store", "miss session",  "lose hope", "refuse",    "stop",
                                        "depose",     "retry",         "fall back", "give up",   "keep answer"};
    _Static_assert(sizeof names / sizeof *names == SL_N_RUN_EVENTS, "in the order of enum sl_run_event");
    return names[event];
}
