// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/thread.h"
#include "proto/methods.h"
#include "proto/opentelemetry/collector/trace/v1/trace_service.pb-c.h"
#include "net/rpc/rpc.h"
#include "net/trace/otlp/message.h"
#include "net/trace/otlp/otlp.h"

#define BATCH     256 // spans of one message: half a megabyte at most
#define EVERY_MS  1000
#define EXPORT_MS 5000 // a slower collector counts as unreachable
#define LAST_MS   1000 // to send the rest when the process ends

struct sl_otlp {
    char *service, *instance, *collector;
    struct sl_rpc_channel *channel;
    pthread_t thread;
    atomic_bool stopping;
    struct sl_span batch[BATCH];
};

static enum sl_status send_batch(struct sl_otlp *otlp, size_t n, int64_t deadline_ns, struct sl_error *err) {
    struct sl_otlp_request *request = sl_otlp_make(otlp->batch, n, otlp->service, otlp->instance);
    SL_FAIL_IF(!request, err, SL_ERR_EXHAUSTED, "no memory for %zu spans", n);
    ProtobufCMessage *reply = NULL;
    enum sl_status status =
        sl_rpc_unary(otlp->channel, &sl_method_opentelemetry_proto_collector_trace_v1_trace_service_export,
                     sl_otlp_message(request), deadline_ns, NULL, &reply, err);
    sl_otlp_free(request);
    if (status == SL_OK) {
        const Opentelemetry__Proto__Collector__Trace__V1__ExportTraceServiceResponse *response =
            (const Opentelemetry__Proto__Collector__Trace__V1__ExportTraceServiceResponse *)reply;
        if (response->partial_success && response->partial_success->rejected_spans > 0) {
            status = sl_fail(err, SL_ERR_INVALID, "of %zu spans some were rejected: %s", n,
                             response->partial_success->error_message);
        }
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return status;
}

static void *run(void *arg) {
    struct sl_otlp *otlp = arg;
    bool complained = false;
    int64_t end_ns = SL_NO_DEADLINE;
    for (;;) {
        bool stopping = atomic_load(&otlp->stopping);
        end_ns = stopping && end_ns == SL_NO_DEADLINE ? sl_deadline_in_ms(LAST_MS) : end_ns;
        int n = sl_spans_take(otlp->batch, BATCH, EVERY_MS);
        if (n == 0 && stopping) {
            return NULL;
        }
        if (n == 0) {
            continue;
        }
        int64_t deadline_ns = sl_deadline_in_ms(EXPORT_MS);
        struct sl_error err = {0};
        enum sl_status status = send_batch(otlp, (size_t)n, deadline_ns < end_ns ? deadline_ns : end_ns, &err);
        if (status != SL_OK) {
            sl_spans_add_dropped(n);
        }
        if (status != SL_OK && !complained) {
            sl_log_warn("otlp", "collector=%s takes no spans, which are lost until it does: %s", otlp->collector,
                        err.text);
        } else if (status == SL_OK && complained) {
            sl_log_info("otlp", "collector=%s takes spans again", otlp->collector);
        }
        complained = status != SL_OK;
    }
}

static void destroy(struct sl_otlp *otlp) {
    sl_rpc_channel_destroy(&otlp->channel);
    free(otlp->service);
    free(otlp->instance);
    free(otlp->collector);
    free(otlp);
}

enum sl_status sl_otlp_start(const struct sl_otlp_config *config, struct sl_otlp **otlp_out, struct sl_error *err) {
    *otlp_out = NULL;
    if (!config->collector || !config->collector[0]) {
        return SL_OK;
    }
    SL_NEW_OR_FAIL(struct sl_otlp, otlp, err, "no memory for spans");
    otlp->service = strdup(config->service);
    otlp->instance = strdup(config->instance ? config->instance : "");
    otlp->collector = strdup(config->collector);
    SL_FAIL_OR(!otlp->service || !otlp->instance || !otlp->collector, destroy(otlp), err, SL_ERR_EXHAUSTED,
               "no memory for spans");
    // The collector is not part of the cluster and has no role: the spans go to it unencrypted.
    enum sl_status status = sl_rpc_channel_create(otlp->collector, NULL, 0, &otlp->channel, err);
    if (status != SL_OK) {
        sl_error_prefix(err, "--otlp");
        destroy(otlp);
        return status;
    }
    status = sl_spans_open(config->share, err);
    if (status == SL_OK) {
        status = sl_thread_start("otlp", run, otlp, &otlp->thread, err);
        if (status != SL_OK) {
            sl_spans_close();
        }
    }
    SL_TRY_OR(status, destroy(otlp));
    *otlp_out = otlp;
    return SL_OK;
}

void sl_otlp_stop(struct sl_otlp **otlp) {
    if (!*otlp) {
        return;
    }
    atomic_store(&(*otlp)->stopping, true);
    sl_spans_wake();
    pthread_join((*otlp)->thread, NULL);
    sl_spans_close();
    destroy(*otlp);
    *otlp = NULL;
}

void sl_otlp_write_metrics(void *unused, FILE *page) {
    (void)unused;
    sl_metrics_write(page, SL_COUNTER, "sluice_spans_dropped_total", "Spans that no collector took.",
                     (double)sl_spans_dropped());
}
