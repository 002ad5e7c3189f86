// SPDX-License-Identifier: Apache-2.0
// Purpose: see fake_lies.h.
#include "fake_lies.h"

#include <string.h>

#define LYING_TOKEN 2 // the third one

bool fake_lies(struct fake_worker *worker, enum fake_lie lie) {
    return atomic_load(&worker->lie) == (int)lie;
}

void fake_lie_about_grant(struct fake_worker *worker, Sluice__V1__Grant *grant) {
    static _Thread_local char long_id[300]; // calls of several workers lie at once
    memset(long_id, 'x', sizeof long_id - 1);
    switch (atomic_load(&worker->lie)) {
    case FAKE_GRANT_TOO_SMALL:
        grant->capacity_bytes--;
        break;
    case FAKE_GRANT_OF_NEGATIVE_SIZE:
        grant->capacity_bytes = INT64_MIN;
        break;
    case FAKE_GRANT_WITHOUT_LEASE:
        grant->lease_id = "";
        break;
    case FAKE_GRANT_OF_A_LONG_LEASE_ID:
        grant->lease_id = long_id;
        break;
    case FAKE_GRANT_FOR_NO_TIME:
        grant->lease_ms = 0;
        break;
    case FAKE_GRANT_FOR_EVER:
        grant->lease_ms = INT64_MAX;
        break;
    default:
        break;
    }
}

void fake_lie_about_token(struct fake_worker *worker, Sluice__V1__Token *token) {
    static _Thread_local Sluice__V1__Alternative strange = SLUICE__V1__ALTERNATIVE__INIT, *strangers[100];
    strange.id = INT32_MAX;
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        strangers[i] = &strange;
    }
    switch (token->index == LYING_TOKEN ? atomic_load(&worker->lie) : FAKE_NO_LIE) {
    case FAKE_TOKEN_LEFT_OUT:
        token->index++;
        break;
    case FAKE_TOKEN_BEFORE_THE_FIRST:
        token->index = INT64_MIN;
        break;
    case FAKE_TOKEN_OUT_OF_VOCABULARY:
        token->id = INT32_MAX;
        break;
    case FAKE_TOKEN_NEGATIVE:
        token->id = -1;
        break;
    case FAKE_ALTERNATIVE_OUT_OF_VOCABULARY:
        token->alternatives = strangers;
        token->n_alternatives = 1;
        break;
    case FAKE_ALTERNATIVES_TOO_MANY:
        token->alternatives = strangers;
        token->n_alternatives = sizeof strangers / sizeof *strangers;
        break;
    default:
        break;
    }
}
