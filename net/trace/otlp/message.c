// SPDX-License-Identifier: Apache-2.0
// Purpose: see message.h. The wall-clock time of a span is the wall clock at sending minus the span's age on the
//          monotonic clock. So spans of one process keep their distances even if the wall clock jumps.
#include "net/trace/otlp/message.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/version.h"
#include "proto/opentelemetry/collector/trace/v1/trace_service.pb-c.h"

typedef Opentelemetry__Proto__Collector__Trace__V1__Span otlp_span;
typedef Opentelemetry__Proto__Collector__Trace__V1__Status otlp_status;
typedef Opentelemetry__Proto__Collector__Trace__V1__KeyValue otlp_pair;
typedef Opentelemetry__Proto__Collector__Trace__V1__AnyValue otlp_value;

struct pair {
    otlp_pair pair;
    otlp_value value;
};

// Every pointer of the message points into this block.
struct told {
    struct sl_span span;
    otlp_span message;
    otlp_status status;
    otlp_pair *pairs[SL_SPAN_ATTRIBUTES];
    struct pair attributes[SL_SPAN_ATTRIBUTES];
};

struct sl_otlp_request {
    Opentelemetry__Proto__Collector__Trace__V1__ExportTraceServiceRequest message;
    Opentelemetry__Proto__Collector__Trace__V1__ResourceSpans process, *processes[1];
    Opentelemetry__Proto__Collector__Trace__V1__Resource resource;
    Opentelemetry__Proto__Collector__Trace__V1__ScopeSpans scope_spans, *all_scope_spans[1];
    Opentelemetry__Proto__Collector__Trace__V1__InstrumentationScope scope;
    struct pair about[3];
    otlp_pair *about_pairs[3];
    otlp_span **spans;
    struct told told[];
};

// Replaces bytes that are not ASCII with '?': protobuf-c does not check its strings, but collectors do.
static char *plain(char *text) {
    for (char *c = text; *c; c++) {
        *c = (unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e ? '?' : *c;
    }
    return text;
}

static otlp_pair *pair_init(struct pair *pair, const char *key) {
    opentelemetry__proto__collector__trace__v1__key_value__init(&pair->pair);
    opentelemetry__proto__collector__trace__v1__any_value__init(&pair->value);
    pair->pair.key = (char *)key;
    pair->pair.value = &pair->value;
    return &pair->pair;
}

static otlp_pair *text_pair(struct pair *pair, const char *key, const char *text) {
    otlp_pair *made = pair_init(pair, key);
    pair->value.value_case = OPENTELEMETRY__PROTO__COLLECTOR__TRACE__V1__ANY_VALUE__VALUE_STRING_VALUE;
    pair->value.string_value = (char *)text;
    return made;
}

static otlp_pair *attribute_pair(struct pair *pair, struct sl_span_attribute *attribute) {
    otlp_pair *made = pair_init(pair, attribute->key);
    switch (attribute->type) {
    case SL_SPAN_INT:
        pair->value.value_case = OPENTELEMETRY__PROTO__COLLECTOR__TRACE__V1__ANY_VALUE__VALUE_INT_VALUE;
        pair->value.int_value = attribute->integer;
        break;
    case SL_SPAN_REAL:
        pair->value.value_case = OPENTELEMETRY__PROTO__COLLECTOR__TRACE__V1__ANY_VALUE__VALUE_DOUBLE_VALUE;
        pair->value.double_value = attribute->real;
        break;
    case SL_SPAN_TEXT:
        return text_pair(pair, attribute->key, plain(attribute->text));
    }
    return made;
}

static void tell(struct told *told, int64_t unix_ns, int64_t now_ns) {
    struct sl_span *span = &told->span;
    otlp_span *message = &told->message;
    opentelemetry__proto__collector__trace__v1__span__init(message);
    message->trace_id = (ProtobufCBinaryData){sizeof span->trace.trace_id, span->trace.trace_id};
    message->span_id = (ProtobufCBinaryData){sizeof span->trace.span_id, span->trace.span_id};
    if (sl_trace_is_set(&span->parent)) {
        message->parent_span_id = (ProtobufCBinaryData){sizeof span->parent.span_id, span->parent.span_id};
    }
    message->name = (char *)span->name;
    message->kind = (Opentelemetry__Proto__Collector__Trace__V1__Span__SpanKind)span->kind;
    message->start_time_unix_nano = (uint64_t)(unix_ns - (now_ns - span->start_ns));
    message->end_time_unix_nano = (uint64_t)(unix_ns - (now_ns - span->end_ns));
    opentelemetry__proto__collector__trace__v1__status__init(&told->status);
    if (span->status != SL_OK) {
        told->status.code = OPENTELEMETRY__PROTO__COLLECTOR__TRACE__V1__STATUS__STATUS_CODE__STATUS_CODE_ERROR;
        told->status.message = plain(span->why);
        message->status = &told->status;
    }
    for (int i = 0; i < span->n_attributes; i++) {
        told->pairs[i] = attribute_pair(&told->attributes[i], &span->attributes[i]);
    }
    message->n_attributes = (size_t)span->n_attributes;
    message->attributes = told->pairs;
}

struct sl_otlp_request *sl_otlp_make(const struct sl_span *spans, size_t n, const char *service, const char *instance) {
    struct sl_otlp_request *request = calloc(1, sizeof *request + n * sizeof request->told[0]);
    otlp_span **pointers = calloc(n, sizeof(*pointers));
    if (!request || !pointers) {
        free(request);
        free(pointers);
        return NULL;
    }
    opentelemetry__proto__collector__trace__v1__export_trace_service_request__init(&request->message);
    opentelemetry__proto__collector__trace__v1__resource_spans__init(&request->process);
    opentelemetry__proto__collector__trace__v1__resource__init(&request->resource);
    opentelemetry__proto__collector__trace__v1__scope_spans__init(&request->scope_spans);
    opentelemetry__proto__collector__trace__v1__instrumentation_scope__init(&request->scope);
    request->spans = pointers;
    request->processes[0] = &request->process;
    request->message.resource_spans = request->processes;
    request->message.n_resource_spans = 1;
    request->process.resource = &request->resource;
    request->process.scope_spans = request->all_scope_spans;
    request->process.n_scope_spans = 1;
    request->all_scope_spans[0] = &request->scope_spans;
    request->scope_spans.scope = &request->scope;
    request->scope.name = "sluice";
    request->scope.version = SL_VERSION;
    request->about_pairs[0] = text_pair(&request->about[0], "service.name", service);
    request->about_pairs[1] = text_pair(&request->about[1], "service.version", SL_VERSION);
    request->about_pairs[2] = text_pair(&request->about[2], "service.instance.id", instance);
    request->resource.attributes = request->about_pairs;
    request->resource.n_attributes = instance[0] ? 3 : 2;

    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    int64_t unix_ns = wall.tv_sec * SL_NS_PER_S + wall.tv_nsec, now_ns = sl_now_ns();
    for (size_t i = 0; i < n; i++) {
        request->told[i].span = spans[i];
        tell(&request->told[i], unix_ns, now_ns);
        pointers[i] = &request->told[i].message;
    }
    request->scope_spans.spans = pointers;
    request->scope_spans.n_spans = n;
    return request;
}

const ProtobufCMessage *sl_otlp_message(const struct sl_otlp_request *request) {
    return &request->message.base;
}

void sl_otlp_free(struct sl_otlp_request *request) {
    if (request) {
        free(request->spans);
        free(request);
    }
}
