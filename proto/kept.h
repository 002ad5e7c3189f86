// SPDX-License-Identifier: Apache-2.0
// Purpose: words for what a job took from stores (Statistics.not_cached, not_joined) and what later jobs can take
// (Statistics.kept).
#pragma once

#include <stddef.h>

#include "proto/sluice/v1/inference.pb-c.h"

// Returns "stored", "pending", or the reason why there is no copy, as sluice_capsules_not_kept_total names it. NULL:
// the worker does not report it.
static inline const char *sl_kept_word(Sluice__V1__Kept kept) {
    switch (kept) {
    case SLUICE__V1__KEPT__KEPT_STORED:
        return "stored";
    case SLUICE__V1__KEPT__KEPT_PENDING:
        return "pending";
    case SLUICE__V1__KEPT__KEPT_NOT_BUSY:
        return "busy";
    case SLUICE__V1__KEPT__KEPT_NOT_MEMORY:
        return "memory";
    case SLUICE__V1__KEPT__KEPT_NOT_TOO_LARGE:
        return "too_large";
    case SLUICE__V1__KEPT__KEPT_NOT_REFUSED:
        return "refused";
    case SLUICE__V1__KEPT__KEPT_NOT_UNREACHABLE:
        return "unreachable";
    case SLUICE__V1__KEPT__KEPT_NOT_LATE:
        return "late";
    case SLUICE__V1__KEPT__KEPT_NOT_PRESSURE:
        return "pressure";
    case SLUICE__V1__KEPT__KEPT_NOT_STOPPING:
        return "stopping";
    default: // e.g. a value of a newer worker
        return NULL;
    }
}

#define SL_N_NOT_CACHED (SLUICE__V1__NOT_CACHED__NOT_CACHED_FAILED + 1)

// Returns why nothing of the prompt was reused, as sluice_prompts_not_cached_total names it. NULL: the worker does not
// report it.
static inline const char *sl_not_cached_word(Sluice__V1__NotCached why) {
    static const char *const words[SL_N_NOT_CACHED] = {
        [SLUICE__V1__NOT_CACHED__NOT_CACHED_OFF] = "off",
        [SLUICE__V1__NOT_CACHED__NOT_CACHED_NO_STORE] = "no_store",
        [SLUICE__V1__NOT_CACHED__NOT_CACHED_UNREACHABLE] = "unreachable",
        [SLUICE__V1__NOT_CACHED__NOT_CACHED_NOT_STORED] = "not_stored",
        [SLUICE__V1__NOT_CACHED__NOT_CACHED_OTHER_LENGTH] = "other_length",
        [SLUICE__V1__NOT_CACHED__NOT_CACHED_ONLY_WHOLE] = "only_whole",
        [SLUICE__V1__NOT_CACHED__NOT_CACHED_TOO_LITTLE] = "too_little",
        [SLUICE__V1__NOT_CACHED__NOT_CACHED_NO_MEMORY] = "no_memory",
        [SLUICE__V1__NOT_CACHED__NOT_CACHED_DROPPED] = "dropped",
        [SLUICE__V1__NOT_CACHED__NOT_CACHED_FAILED] = "failed",
    };
    return why > 0 && why < SL_N_NOT_CACHED ? words[why] : NULL; // a newer worker may send more
}

// Returns why several documents were read as one text. NULL: they were joined, or there are not several.
static inline const char *sl_not_joined_word(Sluice__V1__NotJoined why) {
    static const char *const words[SLUICE__V1__NOT_JOINED__NOT_JOINED_UNAVAILABLE + 1] = {
        [SLUICE__V1__NOT_JOINED__NOT_JOINED_OFF] = "off",
        [SLUICE__V1__NOT_JOINED__NOT_JOINED_OFFLOADED] = "offloaded",
        [SLUICE__V1__NOT_JOINED__NOT_JOINED_NOTHING] = "nothing",
        [SLUICE__V1__NOT_JOINED__NOT_JOINED_UNAVAILABLE] = "unavailable",
    };
    return why > 0 && (size_t)why < sizeof words / sizeof *words ? words[why] : NULL;
}
