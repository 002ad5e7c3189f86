// SPDX-License-Identifier: Apache-2.0
// Purpose: finds the existing name most similar to an unknown one, for messages.
#pragma once

#include <stddef.h>

#include "base/status.h"

struct sl_nearest {
    const char *wanted, *best;
    size_t alike; // common letters, in order, as thousandths of both names' letters
};

// Considers a name. Begin with {.wanted = name}. `name` must stay valid; names longer than 64 bytes are ignored.
void sl_nearest_consider(struct sl_nearest *nearest, const char *name);

// Returns SL_ERR_INVALID: there is no `what` of this name; the message suggests the best considered name, if any is
// similar.
enum sl_status sl_nearest_fail(const struct sl_nearest *nearest, const char *what, struct sl_error *err);
