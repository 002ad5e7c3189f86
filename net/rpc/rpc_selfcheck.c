// SPDX-License-Identifier: Apache-2.0
#include "net/rpc/rpc_selfcheck.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/heap.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/loop.h"
#include "proto/grpc/health/v1/health.pb-c.h"
#include "proto/methods.h"
#include "net/rpc/rpc_internal.h"

enum { PERIOD_MS = 2000, CALL_MS = 4000 };

struct sl_rpc_selfcheck {
    char address[300];
    int port;
    const struct sl_rpc_credentials *credentials;
    struct sl_loop loop; // its mutex guards the fields below
    int64_t answered_ns;
    uint64_t n_refused; // connections refused in the last round
    struct sl_error last;
};

// Makes one call over a new connection.
static enum sl_status call_once(const struct sl_rpc_selfcheck *selfcheck, struct sl_error *err) {
    struct sl_rpc_channel *channel;
    enum sl_status status =
        sl_rpc_channel_create_alone(selfcheck->address, selfcheck->credentials, SL_ROLE_ANY, &channel, err);
    if (status == SL_OK) {
        const Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
        status = sl_rpc_unary(channel, &sl_method_grpc_health_v1_health_check, &request.base,
                              sl_deadline_in_ms(CALL_MS), NULL, NULL, err);
        sl_rpc_channel_destroy(&channel);
    }
    return status;
}

static void check(struct sl_rpc_selfcheck *selfcheck) {
    uint64_t accepted_before, refused_before, accepted, refused;
    struct sl_error err = {0};
    sl_rpc_accept_counts(selfcheck->port, &accepted_before, &refused_before);
    const enum sl_status status = call_once(selfcheck, &err);
    sl_rpc_accept_counts(selfcheck->port, &accepted, &refused);
    const bool accepts = accepted != accepted_before || refused != refused_before;
    const bool answered =
        status == SL_ERR_PEER_LOST ? accepts : status != SL_ERR_DEADLINE && status != SL_ERR_CANCELLED;
    pthread_mutex_lock(&selfcheck->loop.mutex);
    if (answered) {
        selfcheck->answered_ns = sl_now_ns();
    }
    selfcheck->n_refused = refused - refused_before;
    selfcheck->last = err;
    pthread_mutex_unlock(&selfcheck->loop.mutex);
    if (!answered) {
        sl_log_warn("rpc", "%s: this process's own port does not answer: %s", selfcheck->address, err.text);
    } else if (status != SL_OK) {
        sl_log_debug("rpc", "%s: this process's own port refuses its call: %s", selfcheck->address, err.text);
    }
}

static void *check_now_and_then(void *arg) {
    struct sl_rpc_selfcheck *selfcheck = arg;
    pthread_mutex_lock(&selfcheck->loop.mutex);
    while (!selfcheck->loop.stopping) {
        pthread_mutex_unlock(&selfcheck->loop.mutex);
        check(selfcheck);
        sl_heap_give_back();
        const int64_t next_ns = sl_deadline_in_ms(PERIOD_MS);
        pthread_mutex_lock(&selfcheck->loop.mutex);
        sl_loop_sleep(&selfcheck->loop, next_ns);
    }
    pthread_mutex_unlock(&selfcheck->loop.mutex);
    return NULL;
}

enum sl_status sl_rpc_selfcheck_start(const char *address, const struct sl_rpc_credentials *credentials,
                                      struct sl_rpc_selfcheck **selfcheck_out, struct sl_error *err) {
    struct sl_rpc_address parsed, near;
    SL_TRY(sl_rpc_address_parse(address, &parsed, err));
    SL_TRY(sl_rpc_address_near(&parsed, &near, err));
    SL_NEW_OR_FAIL(struct sl_rpc_selfcheck, selfcheck, err, "no memory for a check of %s", address);
    sl_rpc_address_format(&near, selfcheck->address, sizeof selfcheck->address);
    selfcheck->port = near.port;
    selfcheck->credentials = credentials;
    selfcheck->answered_ns = sl_now_ns();
    sl_loop_init(&selfcheck->loop);
    SL_TRY_OR(sl_loop_start(&selfcheck->loop, "rpc-selfcheck", check_now_and_then, selfcheck, err),
              sl_rpc_selfcheck_destroy(&selfcheck));
    *selfcheck_out = selfcheck;
    return SL_OK;
}

void sl_rpc_selfcheck_stop(struct sl_rpc_selfcheck *selfcheck) {
    if (selfcheck) {
        sl_loop_stop(&selfcheck->loop);
    }
}

void sl_rpc_selfcheck_destroy(struct sl_rpc_selfcheck **selfcheck_inout) {
    SL_TAKE_OR_RETURN(selfcheck, selfcheck_inout);
    sl_loop_cleanup(&selfcheck->loop);
    free(selfcheck);
}

bool sl_rpc_selfcheck_answers(struct sl_rpc_selfcheck *selfcheck, char *why, size_t why_bytes) {
    if (!selfcheck) {
        return true;
    }
    SL_LOCKED(&selfcheck->loop.mutex);
    const int64_t silent_ms = (sl_now_ns() - selfcheck->answered_ns) / SL_NS_PER_MS;
    const bool answers = selfcheck->loop.stopping || silent_ms < SL_RPC_DEAF_MS;
    if (!answers) {
        snprintf(why, why_bytes, "the gRPC port %s has not answered for %" PRId64 " ms%s%.200s", selfcheck->address,
                 silent_ms, selfcheck->last.text[0] ? ": " : "", selfcheck->last.text);
    }
    return answers;
}

bool sl_rpc_selfcheck_has_room(struct sl_rpc_selfcheck *selfcheck, char *why, size_t why_bytes) {
    if (!selfcheck) {
        return true;
    }
    SL_LOCKED(&selfcheck->loop.mutex);
    const bool has_room = selfcheck->loop.stopping || selfcheck->n_refused == 0;
    if (!has_room) {
        snprintf(why, why_bytes, "the gRPC port %s refuses connections: too many are open", selfcheck->address);
    }
    return has_room;
}
