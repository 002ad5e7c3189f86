// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: places a piece of work among those of all processes: W3C's trace context, and its text, `traceparent`.
 *
 * Design: a thread works for one request at a time, so it carries that request's context. net/rpc/ sends it with every
 *         call and takes it from every call; the functions in between need no parameter for it. net/trace/ makes spans
 *         of it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sl_trace {
    uint8_t trace_id[16]; // all zeros: unset
    uint8_t span_id[8];   // span of the work that this is a part of
    bool sampled;         // true if a collector wants this trace
};

static inline bool sl_trace_is_set(const struct sl_trace *trace) {
    for (size_t i = 0; i < sizeof trace->trace_id; i++) {
        if (trace->trace_id[i]) {
            return true;
        }
    }
    return false;
}

#define SL_TRACEPARENT_BYTES 56 // with the terminating zero

// Parses "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01". False, and an unset context, for other text. For
// later versions it reads the part that version 00 has, as the recommendation asks.
bool sl_trace_parse(const char *text, size_t n_bytes, struct sl_trace *trace_out);
// Writes the text of a context that is set.
void sl_trace_format(const struct sl_trace *trace, char text_out[SL_TRACEPARENT_BYTES]);

// Sets the context that this thread works for from now on, also for the lines of its log; NULL: none. Copied.
void sl_trace_set(const struct sl_trace *trace);
struct sl_trace sl_trace_current(void);
