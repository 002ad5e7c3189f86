// SPDX-License-Identifier: Apache-2.0
// Purpose: the functions of queue.c that span.c uses.
#pragma once

#include "net/trace/trace.h"

// Returns true when a queue exists; *share_out is the share of requests without a context that go into it.
bool sl_spans_are_kept(double *share_out);
void sl_spans_put(const struct sl_span *span); // copies the span, or drops and counts it
