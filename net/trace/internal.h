// SPDX-License-Identifier: Apache-2.0
// Purpose: the functions of queue.c that span.c uses.
#pragma once

#include "net/trace/trace.h"

double sl_spans_share(void);                   // of the requests without a context that are kept
void sl_spans_put(const struct sl_span *span); // copies the span, or drops and counts it
