// SPDX-License-Identifier: Apache-2.0
// Purpose: words for the state of a prompt's copies, which later jobs can resume from (Statistics.kept).
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
