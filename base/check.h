// SPDX-License-Identifier: Apache-2.0
// Purpose: ends a function that returns enum sl_status where a step or a check fails. Only for functions that have
//          nothing to release at that point.
#pragma once

#include "base/status.h"

// Returns the status of a call that did not return SL_OK.
#define SL_TRY(call)                                                                                                   \
    do {                                                                                                               \
        enum sl_status tried_ = (call);                                                                                \
        if (tried_ != SL_OK) {                                                                                         \
            return tried_;                                                                                             \
        }                                                                                                              \
    } while (0)

// Returns sl_fail(err, status, format, ...) if the condition holds.
#define SL_FAIL_IF(condition, ...)                                                                                     \
    do {                                                                                                               \
        if (condition) {                                                                                               \
            return sl_fail(__VA_ARGS__);                                                                               \
        }                                                                                                              \
    } while (0)
