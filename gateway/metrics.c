// SPDX-License-Identifier: Apache-2.0
// Purpose: see metrics.h.
#include "gateway/metrics.h"

#include <stdio.h>
#include <stdlib.h>

#include "gateway/exchange.h"

char *sl_gateway_metrics(struct sl_gateway *gateway) {
    char *text = NULL;
    size_t n = 0;
    FILE *file = open_memstream(&text, &n);
    if (!file) {
        return NULL;
    }
    pthread_mutex_lock(&gateway->mutex);
    int n_answers = gateway->n_answers;
    pthread_mutex_unlock(&gateway->mutex);
    fprintf(file, "# HELP sluice_gateway_requests_total Requests that were answered, by the class of their status.\n"
                  "# TYPE sluice_gateway_requests_total counter\n");
    for (int i = 2; i < SL_N_OUTCOMES; i++) {
        fprintf(file, "sluice_gateway_requests_total{code=\"%dxx\"} %lld\n", i, atomic_load(&gateway->n_requests[i]));
    }
    fprintf(file,
            "# HELP sluice_gateway_answers Answers under way.\n"
            "# TYPE sluice_gateway_answers gauge\n"
            "sluice_gateway_answers %d\n"
            "# HELP sluice_gateway_body_bytes Memory of requests that are coming in.\n"
            "# TYPE sluice_gateway_body_bytes gauge\n"
            "sluice_gateway_body_bytes %lld\n"
            "# HELP sluice_gateway_ready Whether the coordinator answers and has workers.\n"
            "# TYPE sluice_gateway_ready gauge\n"
            "sluice_gateway_ready %d\n",
            n_answers, atomic_load(&gateway->body_bytes), sl_served_model(gateway->served).ready);
    if (fclose(file) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
