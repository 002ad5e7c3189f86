// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: words a worker's refusal of an old coordinator, and recognizes that refusal.
 * Design: the status alone is ambiguous: it may also mean a stale lease.
 */
#pragma once

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/status.h"

#define SL_TERM_REFUSAL "the order's term is over: "

static inline enum sl_status sl_term_refuse(int64_t term, int64_t highest, struct sl_error *err) {
    return sl_fail(err, SL_ERR_PEER_STALE,
                   SL_TERM_REFUSAL "%" PRId64 ", and this worker has heard of %" PRId64
                                   ". Another coordinator leads; or, if etcd was made anew, restart the workers",
                   term, highest);
}

static inline bool sl_term_is_refusal(enum sl_status status, const struct sl_error *err) {
    return status == SL_ERR_PEER_STALE && strstr(err->text, SL_TERM_REFUSAL) != NULL;
}
