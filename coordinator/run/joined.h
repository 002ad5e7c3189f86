// SPDX-License-Identifier: Apache-2.0
// Purpose: names the parts of a prompt that other documents' capsules hold, in a request to a decode worker.
#pragma once

#include "coordinator/run/attempt.h"

// The parts, and what they point to, besides the job's tokens.
struct sl_joined_parts {
    Sluice__V1__JoinedPart parts[SL_MAX_JOINS_OF_JOB], *pointers[SL_MAX_JOINS_OF_JOB];
    Sluice__V1__TokenIds tokens[SL_MAX_JOINS_OF_JOB];
    char stores[SL_MAX_JOINS_OF_JOB][SL_ADDRESS_BYTES];
};

/*
 * Writes the parts of an attempt in mode PREFIX into the request, each with a store that has its capsule; other modes have
 * none. SL_ERR_PRECONDITION: no store is ready now, and the next attempt reads the whole prompt.
 */
enum sl_status sl_joined_parts_fill(const struct sl_run *run, struct sl_joined_parts *joined,
                                    Sluice__V1__DecodeRequest *request, struct sl_error *err);
