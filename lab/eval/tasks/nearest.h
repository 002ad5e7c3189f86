// SPDX-License-Identifier: Apache-2.0
// Purpose: of names that there are, the one that was probably meant: for messages about one that there is not.
#pragma once

#include <stddef.h>

#include "base/status.h"

struct sl_nearest {
    const char *wanted, *best;
    size_t alike; // letters in common, in their order, of both, in thousandths
};

// Begin with {.wanted = name}. `name` must stay valid; longer ones than 64 bytes are left out.
void sl_nearest_consider(struct sl_nearest *nearest, const char *name);

// SL_ERR_INVALID: there is no `what` of this name; with the best of those that were considered, if any is like it.
enum sl_status sl_nearest_fail(const struct sl_nearest *nearest, const char *what, struct sl_error *err);
