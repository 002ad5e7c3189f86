// SPDX-License-Identifier: Apache-2.0
#include "gateway/metrics.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/locked.h"
#include "base/metrics.h"
#include "gateway/exchange.h"

static void write_metrics(void *arg, FILE *page) {
    struct sl_gateway *gateway = arg;
    static const char requests[] = "sluice_gateway_requests_total";
    int n_answers;
    SL_WITH_LOCK(&gateway->mutex, n_answers = gateway->n_answers);
    sl_metrics_declare(page, SL_COUNTER, requests,
                       "Requests, by the class of their status; 499: the client left before the answer.");
    for (int i = 2; i < SL_N_OUTCOMES; i++) {
        char code[8];
        snprintf(code, sizeof code, "%dxx", i);
        sl_metrics_sample(page, requests, (double)atomic_load(&gateway->n_requests[i]), "code", code, NULL);
    }
    sl_metrics_sample(page, requests, (double)atomic_load(&gateway->n_requests[SL_OUTCOME_LEFT]), "code", "499", NULL);
    static const char limited[] = "sluice_gateway_limited_total";
    static const char *const limits[SL_N_LIMITS] = {"requests", "tokens", "answers"};
    sl_metrics_declare(page, SL_COUNTER, limited, "Requests that were refused for a limit of their key or tenant.");
    for (int i = 0; i < SL_N_LIMITS; i++) {
        sl_metrics_sample(page, limited, (double)sl_limits_n_refused(gateway->limits, (enum sl_limit)i), "limit",
                          limits[i], NULL);
    }
    sl_metrics_write(page, SL_GAUGE, "sluice_gateway_answers", "Answers under way.", n_answers);
    sl_metrics_write(page, SL_GAUGE, "sluice_gateway_body_bytes", "Memory of requests that are coming in.",
                     (double)atomic_load(&gateway->body_bytes));
    struct sl_http_connections_counts connections = sl_http_connections_counts(gateway->connections);
    static const char open[] = "sluice_gateway_connections", closed[] = "sluice_gateway_connections_closed_total";
    sl_metrics_declare(page, SL_GAUGE, open, "Connections, by whether a request of theirs is answered or waited for.");
    sl_metrics_sample(page, open, (double)(connections.open - connections.waiting), "state", "answered", NULL);
    sl_metrics_sample(page, open, (double)connections.waiting, "state", "waiting", NULL);
    sl_metrics_write(page, SL_COUNTER, closed, "Connections that were closed because no request came in time.",
                     (double)connections.closed);
    sl_metrics_write(page, SL_GAUGE, "sluice_gateway_ready", "Whether the coordinator answers and has workers.",
                     sl_served_model(gateway->served).ready);
}

char *sl_gateway_metrics(struct sl_gateway *gateway) {
    char *text = NULL;
    size_t n = 0;
    FILE *page = open_memstream(&text, &n);
    if (!page) {
        return NULL;
    }
    write_metrics(gateway, page);
    if (fclose(page) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

// Returns false if a thread that asks the coordinator is stuck: normally it waits for each reply for a limited time,
// and then asks again.
static bool asks_on(void *arg, char why[SL_WHY_BYTES]) {
    struct sl_gateway *gateway = arg;
    int64_t still_ms = (sl_now_ns() - sl_served_model(gateway->served).asked_ns) / SL_NS_PER_MS;
    snprintf(why, SL_WHY_BYTES, "the coordinator has not been asked for %lld ms", (long long)still_ms);
    return still_ms < SL_SERVED_STALL_MS;
}

static bool tells(void *arg, char why[SL_WHY_BYTES]) {
    struct sl_gateway *gateway = arg;
    int64_t still_ms = sl_board_still_ms(gateway->board);
    snprintf(why, SL_WHY_BYTES, "no request for the cluster's state has been answered for %lld ms",
             (long long)still_ms);
    return still_ms < SL_SERVED_STALL_MS;
}

static bool is_served(void *arg, char why[SL_WHY_BYTES]) {
    struct sl_gateway *gateway = arg;
    struct sl_served_model model = sl_served_model(gateway->served);
    snprintf(why, SL_WHY_BYTES, "%s", model.why[0] ? model.why : "no coordinator has answered yet");
    return model.ready;
}

static bool goes_on(void *arg, char why[SL_WHY_BYTES]) {
    struct sl_gateway *gateway = arg;
    bool stopping;
    SL_WITH_LOCK(&gateway->mutex, stopping = gateway->stopping);
    snprintf(why, SL_WHY_BYTES, "stopping: answers under way finish");
    return !stopping;
}

void sl_gateway_add_probes(struct sl_gateway *gateway) {
    const struct sl_admin_check checks[] = {{SL_PROBE_LIVE, "asking", asks_on, gateway},
                                            {SL_PROBE_LIVE, "status", tells, gateway},
                                            {SL_PROBE_READY, "coordinator", is_served, gateway},
                                            {SL_PROBE_READY, "stopping", goes_on, gateway}};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        sl_admin_add_check(gateway->admin, &checks[i]);
    }
    sl_admin_add_metrics(gateway->admin, write_metrics, gateway);
    sl_admin_started(gateway->admin);
}
