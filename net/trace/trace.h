// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: spans: what a process did for a request, when, for how long and with which outcome.
 *
 *     struct sl_span span;
 *     sl_span_begin(&span, "prefill", SL_SPAN_SERVER);   // the thread works for this span from here on
 *     sl_span_set_int(&span, "sluice.tokens", n);
 *     sl_span_end(&span, status, err.text);              // from here on it works for the span's parent
 *
 * Design: a span that ends goes into a bounded queue, which net/trace/otlp empties. Without an exporter, or for a request
 *         that is not sampled, contexts are passed on but no span is kept. net/rpc/ makes a span for every call that comes
 *         with a context; the handler's thread works for that span.
 * Threads: a span belongs to one thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/trace.h"

enum sl_span_kind { SL_SPAN_INTERNAL = 1, SL_SPAN_SERVER = 2, SL_SPAN_CLIENT = 3 }; // as OTLP numbers them

#define SL_SPAN_ATTRIBUTES 16 // further ones are left out
#define SL_SPAN_TEXT_BYTES 96 // longer ones are cut

struct sl_span {
    struct sl_trace trace, parent; // its own context; the thread's context before it. Unset: none
    bool kept;                     // it will be exported
    const char *name;              // a literal, or a string that lives as long
    enum sl_span_kind kind;
    int64_t start_ns, end_ns; // monotonic
    enum sl_status status;
    char why[SL_SPAN_TEXT_BYTES];
    int n_attributes;
    struct sl_span_attribute {
        const char *key; // a literal
        enum { SL_SPAN_INT, SL_SPAN_REAL, SL_SPAN_TEXT } type;
        union {
            int64_t integer;
            double real;
            char text[SL_SPAN_TEXT_BYTES];
        };
    } attributes[SL_SPAN_ATTRIBUTES];
};

// Returns whether spans are kept; if not, they change nothing, and a caller may do without.
bool sl_spans_are_on(void);
// Begins a span under the span that the thread works for; without one, the span begins a trace.
void sl_span_begin(struct sl_span *span, const char *name, enum sl_span_kind kind);
void sl_span_set_int(struct sl_span *span, const char *key, int64_t value);
void sl_span_set_real(struct sl_span *span, const char *key, double value);
void sl_span_set_text(struct sl_span *span, const char *key, const char *value);
// Ends the span. why: the reason of a failure; NULL or "": no reason is known.
void sl_span_end(struct sl_span *span, enum sl_status status, const char *why);

// Records a span that has already ended, under the span that the thread works for.
void sl_span_record(const char *name, int64_t start_ns, int64_t end_ns);

// --- the queue: process-wide, as the log is ------------------------------------------------------------------------

// Starts keeping spans, and traces this share (0 to 1) of the requests that come without a context.
// Call before other threads start.
enum sl_status sl_spans_open(double share, struct sl_error *err);
// Takes up to n of the oldest spans, as soon as there are n or after wait_ms. Returns how many. One thread may call it.
int sl_spans_take(struct sl_span *spans_out, int n, int64_t wait_ms);
void sl_spans_wake(void);  // makes sl_spans_take() return what is queued
void sl_spans_close(void); // stops keeping spans; drops the queued ones

// Returns how many spans were lost since the start: the queue was full, or the exporter gave them up.
int64_t sl_spans_dropped(void);
void sl_spans_add_dropped(int64_t n);
