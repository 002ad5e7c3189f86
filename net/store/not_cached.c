// SPDX-License-Identifier: Apache-2.0
// Purpose: why a stored prefix is not used, as answers name it. See store.h.
#include "net/store/store.h"

Sluice__V1__NotCached sl_store_not_cached(enum sl_status status) {
    switch (status) {
    case SL_ERR_CANCELLED: // the job is
        return SLUICE__V1__NOT_CACHED__NOT_CACHED_NOT_SAID;
    case SL_ERR_NOT_FOUND:
        return SLUICE__V1__NOT_CACHED__NOT_CACHED_DROPPED;
    case SL_ERR_EXHAUSTED:
        return SLUICE__V1__NOT_CACHED__NOT_CACHED_NO_MEMORY;
    case SL_ERR_PEER_LOST:
    case SL_ERR_PEER_STALE:
    case SL_ERR_DEADLINE:
        return SLUICE__V1__NOT_CACHED__NOT_CACHED_UNREACHABLE;
    default:
        return SLUICE__V1__NOT_CACHED__NOT_CACHED_FAILED;
    }
}
