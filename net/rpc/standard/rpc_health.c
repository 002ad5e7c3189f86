// SPDX-License-Identifier: Apache-2.0
/*
 * Design: one row per service; "" is the server. A watcher is a handler that waits for its row to differ from what it
 *         sent last; cancellation and closing wake it. A client may watch an unknown service, as the protocol demands:
 *         it gets SERVICE_UNKNOWN and nothing more.
 * Threads: any.
 */
#include "net/rpc/standard/rpc_health.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber/bell.h"
#include "base/log.h"
#include "proto/grpc/health/v1/health.pb-c.h"
#include "proto/methods.h"

typedef Grpc__Health__V1__HealthCheckRequest Request;
typedef Grpc__Health__V1__HealthCheckResponse Response;
typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus Serving;

#define SERVING(name) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##name

struct row {
    const char *service;
    bool serving;
};

struct sl_rpc_health {
    pthread_mutex_t mutex;
    struct sl_bell changed;
    bool closed;
    size_t n_rows;
    struct row rows[]; // rows[0] is ""
};

enum sl_status sl_rpc_health_create(const struct sl_rpc_implementation *services, size_t n_services,
                                    struct sl_rpc_health **health_out, struct sl_error *err) {
    struct sl_rpc_health *health = calloc(1, sizeof *health + (n_services + 1) * sizeof health->rows[0]);
    SL_FAIL_IF(!health, err, SL_ERR_EXHAUSTED, "no memory for the health of %zu services", n_services);
    pthread_mutex_init(&health->mutex, NULL);
    health->n_rows = n_services + 1;
    health->rows[0] = (struct row){"", true};
    for (size_t i = 0; i < n_services; i++) {
        health->rows[i + 1] = (struct row){services[i].service->name, true};
    }
    *health_out = health;
    return SL_OK;
}

void sl_rpc_health_destroy(struct sl_rpc_health **health_inout) {
    SL_TAKE_OR_RETURN(health, health_inout);
    pthread_mutex_destroy(&health->mutex);
    free(health);
}

static struct row *find(struct sl_rpc_health *health, const char *service) {
    for (size_t i = 0; i < health->n_rows; i++) {
        if (strcmp(health->rows[i].service, service) == 0) {
            return &health->rows[i];
        }
    }
    return NULL;
}

void sl_rpc_health_set(struct sl_rpc_health *health, const char *service, bool serving) {
    struct row *row = find(health, service);
    if (!row) {
        sl_log_error("rpc", "health of '%s', which this server does not have", service);
        return;
    }
    pthread_mutex_lock(&health->mutex);
    row->serving = serving;
    sl_bell_ring(&health->changed, &health->mutex, INT_MAX);
}

// Sets every row to NOT_SERVING, and ends the watchers' calls.
static void close_health(void *context) {
    struct sl_rpc_health *health = context;
    pthread_mutex_lock(&health->mutex);
    health->closed = true;
    sl_bell_ring(&health->changed, &health->mutex, INT_MAX);
}

static Serving state_locked(const struct sl_rpc_health *health, const struct row *row) {
    if (!row) {
        return SERVING(SERVICE_UNKNOWN);
    }
    return row->serving && !health->closed ? SERVING(SERVING) : SERVING(NOT_SERVING);
}

static enum sl_status check(void *context, struct sl_rpc_call *call, const ProtobufCMessage *message,
                            struct sl_error *err) {
    struct sl_rpc_health *health = context;
    const Request *request = (const Request *)message;
    const struct row *row = find(health, request->service);
    SL_FAIL_IF(!row, err, SL_ERR_NOT_FOUND, "no service '%.200s'", request->service);
    Response response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    pthread_mutex_lock(&health->mutex);
    response.status = state_locked(health, row);
    pthread_mutex_unlock(&health->mutex);
    return sl_rpc_call_send(call, &response.base);
}

static void wake_watchers(void *arg) {
    struct sl_rpc_health *health = arg;
    pthread_mutex_lock(&health->mutex);
    sl_bell_ring(&health->changed, &health->mutex, INT_MAX);
}

static enum sl_status watch(void *context, struct sl_rpc_call *call, const ProtobufCMessage *message,
                            struct sl_error *err) {
    struct sl_rpc_health *health = context;
    const Request *request = (const Request *)message;
    const struct row *row = find(health, request->service);
    Serving sent = SERVING(UNKNOWN); // a state that state_locked() never returns
    sl_rpc_call_on_cancel(call, wake_watchers, health);
    for (;;) {
        pthread_mutex_lock(&health->mutex);
        while (state_locked(health, row) == sent && !health->closed && !sl_rpc_call_cancelled(call)) {
            sl_bell_wait(&health->changed, &health->mutex, SL_NO_DEADLINE);
        }
        Response response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
        response.status = state_locked(health, row);
        const bool closed = health->closed;
        pthread_mutex_unlock(&health->mutex);
        if (sl_rpc_call_cancelled(call)) {
            return SL_ERR_CANCELLED;
        }
        if (response.status != sent) {
            SL_TRY(sl_rpc_call_send(call, &response.base));
            sent = response.status;
        }
        SL_FAIL_IF(closed, err, SL_ERR_PEER_LOST, "the server is stopping");
    }
}

static const struct sl_rpc_handler handlers[] = {
    {&sl_method_grpc_health_v1_health_check, check, SL_ROLE_ANY},
    {&sl_method_grpc_health_v1_health_watch, watch, SL_ROLE_ANY},
};

struct sl_rpc_implementation sl_rpc_health_service(struct sl_rpc_health *health) {
    return (struct sl_rpc_implementation){.service = &sl_service_grpc_health_v1_health,
                                          .handlers = handlers,
                                          .n_handlers = sizeof handlers / sizeof *handlers,
                                          .context = health,
                                          .stopping_fn = close_health};
}
