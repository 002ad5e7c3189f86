// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "net/trace/internal.h"
#include "net/trace/trace.h"

// Draws a random id. All zeros is not a valid id; it is as likely as a collision.
static bool draw(uint8_t *bytes, size_t n) {
    return getrandom(bytes, n, 0) == (ssize_t)n;
}

// Begins a trace. Keeps `share` of the traces, chosen by the id itself, so that every process that sees the id decides
// alike.
static struct sl_trace begin_trace(double share) {
    struct sl_trace trace = {0};
    uint32_t random;
    if (!draw(trace.trace_id, sizeof trace.trace_id)) {
        return (struct sl_trace){0};
    }
    memcpy(&random, trace.trace_id + 12, sizeof random);
    trace.sampled = random < share * 4294967296.0;
    return trace;
}

void sl_span_begin(struct sl_span *span, const char *name, enum sl_span_kind kind) {
    struct sl_trace parent = sl_trace_current();
    *span = (struct sl_span){.trace = parent, .parent = parent, .name = name, .kind = kind, .start_ns = sl_now_ns()};
    if (!sl_spans_are_on()) {
        return; // a context that came with the request goes on unchanged
    }
    if (!sl_trace_is_set(&span->trace)) {
        span->trace = begin_trace(sl_spans_share());
    }
    uint8_t id[sizeof span->trace.span_id];
    if (!sl_trace_is_set(&span->trace) || !draw(id, sizeof id)) {
        return;
    }
    memcpy(span->trace.span_id, id, sizeof id);
    span->kept = span->trace.sampled;
    sl_trace_set(&span->trace);
}

static struct sl_span_attribute *add(struct sl_span *span, const char *key) {
    static _Thread_local struct sl_span_attribute nowhere;
    struct sl_span_attribute *attribute =
        span->kept && span->n_attributes < SL_SPAN_ATTRIBUTES ? &span->attributes[span->n_attributes++] : &nowhere;
    attribute->key = key;
    return attribute;
}

void sl_span_set_int(struct sl_span *span, const char *key, int64_t value) {
    struct sl_span_attribute *attribute = add(span, key);
    attribute->type = SL_SPAN_INT;
    attribute->integer = value;
}

void sl_span_set_real(struct sl_span *span, const char *key, double value) {
    struct sl_span_attribute *attribute = add(span, key);
    attribute->type = SL_SPAN_REAL;
    attribute->real = value;
}

void sl_span_set_text(struct sl_span *span, const char *key, const char *value) {
    struct sl_span_attribute *attribute = add(span, key);
    attribute->type = SL_SPAN_TEXT;
    snprintf(attribute->text, sizeof attribute->text, "%s", value);
}

void sl_span_end(struct sl_span *span, enum sl_status status, const char *why) {
    span->end_ns = sl_now_ns();
    span->status = status;
    snprintf(span->why, sizeof span->why, "%s", why ? why : "");
    if (memcmp(&span->trace, &span->parent, sizeof span->trace) != 0) {
        sl_trace_set(&span->parent);
    }
    if (span->kept) {
        sl_spans_put(span);
    }
}

void sl_span_record(const char *name, int64_t start_ns, int64_t end_ns) {
    struct sl_span span;
    sl_span_begin(&span, name, SL_SPAN_INTERNAL);
    span.start_ns = start_ns;
    sl_trace_set(&span.parent);
    span.end_ns = end_ns;
    if (span.kept) {
        sl_spans_put(&span);
    }
}
