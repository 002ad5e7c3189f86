// SPDX-License-Identifier: Apache-2.0
// Purpose: what span.c wants of queue.c.
#pragma once

#include "trace/trace.h"

// Whether there is a queue; and which share of requests without a context are for it.
bool sl_spans_are_kept(double *share_out);
void sl_spans_put(const struct sl_span *span); // copied, or dropped and counted
