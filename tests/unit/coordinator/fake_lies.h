// SPDX-License-Identifier: Apache-2.0
// Purpose: the false statements that a fake worker can make to the coordinator.
#pragma once

#include "fake_worker.h"

/*
 * False statements of a worker. To add one: its name here, its code in fake_worker.c or fake_lies.c, and a row of test_lies.c.
 */
enum fake_lie {
    FAKE_NO_LIE,
    // of Reserve and Renew
    FAKE_GRANT_TOO_SMALL,
    FAKE_GRANT_OF_NEGATIVE_SIZE,
    FAKE_GRANT_WITHOUT_LEASE,
    FAKE_GRANT_OF_A_LONG_LEASE_ID,
    FAKE_GRANT_FOR_NO_TIME,
    FAKE_GRANT_FOR_EVER, // longer than time has nanoseconds
    FAKE_RENEWED_FOR_EVER,
    FAKE_RENEWED_FOR_LESS_THAN_NO_TIME,
    // of prefill
    FAKE_PROGRESS_BACKWARDS,
    FAKE_PROGRESS_OUT_OF_RANGE,
    FAKE_PREFILL_EVENT_OF_NO_KIND,
    FAKE_PREFILL_DONE_TWICE,
    FAKE_REMOTE_KV_NOBODY_ASKED_FOR,
    // of decode
    FAKE_TOKEN_TOO_MANY,
    FAKE_TOKEN_LEFT_OUT,
    FAKE_TOKEN_BEFORE_THE_FIRST,
    FAKE_TOKEN_OUT_OF_VOCABULARY,
    FAKE_TOKEN_NEGATIVE,
    FAKE_ALTERNATIVE_OUT_OF_VOCABULARY,
    FAKE_ALTERNATIVES_TOO_MANY,
    FAKE_DECODE_EVENT_OF_NO_KIND,
    FAKE_DONE_TWICE,
    FAKE_DONE_FOR_NO_REASON,
};

bool fake_lies(struct fake_worker *worker, enum fake_lie lie);
void fake_lie_about_grant(struct fake_worker *worker, Sluice__V1__Grant *grant);
void fake_lie_about_token(struct fake_worker *worker, Sluice__V1__Token *token); // about the third one
