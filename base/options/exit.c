// SPDX-License-Identifier: Apache-2.0
#include "base/options/exit.h"

enum sl_exit sl_exit_of(enum sl_status status) {
    switch (status) {
    case SL_OK:
        return SL_EXIT_OK;
    case SL_ERR_INVALID:
    case SL_ERR_RANGE:
    case SL_ERR_UNSUPPORTED:
        return SL_EXIT_USAGE;
    case SL_ERR_PEER_LOST:
    case SL_ERR_EXHAUSTED:
        return SL_EXIT_UNAVAILABLE;
    case SL_ERR_CANCELLED:
        return SL_EXIT_CANCELLED;
    case SL_ERR_DEADLINE:
        return SL_EXIT_DEADLINE;
    default:
        return SL_EXIT_FAILED;
    }
}
