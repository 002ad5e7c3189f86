// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a worker's refusal of an old coordinator.
 * Design: the status alone is ambiguous: it may also mean a stale lease. The reason decides, so both ends of the call must
 *         send and read reasons (net/rpc/rpc_reason.c): the refusal of an older worker looks like a stale lease.
 */
#pragma once

#include <inttypes.h>
#include <stdbool.h>

#include "base/status.h"

static inline enum sl_status sl_term_refuse(int64_t term, int64_t highest, struct sl_error *err) {
    sl_fail(err, SL_ERR_PEER_STALE,
            "the order's term is over: %" PRId64 ", and this worker has heard of %" PRId64
            ". Another coordinator leads; or, if etcd was made anew, restart the workers",
            term, highest);
    sl_error_blame(err, SL_REASON_OLD_TERM, "");
    return SL_ERR_PEER_STALE;
}

static inline bool sl_term_is_refusal(enum sl_status status, const struct sl_error *err) {
    return status == SL_ERR_PEER_STALE && err->reason == SL_REASON_OLD_TERM;
}
