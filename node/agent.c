// SPDX-License-Identifier: Apache-2.0
// Register, then beat. See agent.h.
#include "node/agent.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "admin/admin.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "proto/methods.h"
#include "rpc/rpc.h"

#define RETRY_MS 500
#define CALL_MS  2000
// What a coordinator can ask for (its --heartbeat): whoever beats more slowly than asked is lost.
#define HEARTBEAT_MIN_MS 10
#define HEARTBEAT_MAX_MS 60000

struct sl_agent {
    struct sl_agent_config config;
    struct sl_rpc_channel *channel;
    pthread_t thread;
    pthread_mutex_t mutex; // over what follows
    pthread_cond_t wake;
    bool stopping;
    char why_not[SL_WHY_BYTES]; // it takes no jobs; "": it does
};

// True while the agent shall go on; waits `ms` or until it is stopped.
static bool pause_for(struct sl_agent *agent, int64_t ms) {
    int64_t deadline = sl_deadline_in_ms(ms);
    pthread_mutex_lock(&agent->mutex);
    while (!agent->stopping && sl_cond_wait_until(&agent->wake, &agent->mutex, deadline) == SL_OK) {
    }
    bool go_on = !agent->stopping;
    pthread_mutex_unlock(&agent->mutex);
    return go_on;
}

static enum sl_status register_worker(struct sl_agent *agent, int64_t *heartbeat_ms_out, struct sl_error *err) {
    Sluice__V1__RegisterRequest request = SLUICE__V1__REGISTER_REQUEST__INIT;
    request.worker = (Sluice__V1__WorkerInfo *)agent->config.info;
    ProtobufCMessage *reply;
    enum sl_status status = sl_rpc_unary(agent->channel, &sl_method_cluster_register_worker, &request.base,
                                         sl_deadline_in_ms(CALL_MS), NULL, &reply, err);
    if (status == SL_OK) {
        int64_t ms = ((Sluice__V1__RegisterReply *)reply)->heartbeat_ms;
        *heartbeat_ms_out = ms < HEARTBEAT_MIN_MS ? HEARTBEAT_MIN_MS : ms > HEARTBEAT_MAX_MS ? HEARTBEAT_MAX_MS : ms;
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return status;
}

static void set_why_not(struct sl_agent *agent, const char *words) {
    pthread_mutex_lock(&agent->mutex);
    snprintf(agent->why_not, sizeof agent->why_not, "%s", words);
    pthread_mutex_unlock(&agent->mutex);
}

bool sl_agent_takes_jobs(struct sl_agent *agent, char *why, size_t why_bytes) {
    pthread_mutex_lock(&agent->mutex);
    bool takes = agent->why_not[0] == '\0';
    if (!takes) {
        snprintf(why, why_bytes, "%s", agent->why_not);
    }
    pthread_mutex_unlock(&agent->mutex);
    return takes;
}

static enum sl_status beat(struct sl_agent *agent, bool *drains_out, struct sl_error *err) {
    Sluice__V1__WorkerLoad load = SLUICE__V1__WORKER_LOAD__INIT;
    agent->config.load_fn(agent->config.arg, &load);
    Sluice__V1__HeartbeatRequest request = SLUICE__V1__HEARTBEAT_REQUEST__INIT;
    request.name = agent->config.info->name;
    request.epoch = agent->config.info->epoch;
    request.load = &load;
    ProtobufCMessage *reply;
    enum sl_status status = sl_rpc_unary(agent->channel, &sl_method_cluster_heartbeat, &request.base,
                                         sl_deadline_in_ms(CALL_MS), NULL, &reply, err);
    if (status == SL_OK) {
        *drains_out = ((Sluice__V1__HeartbeatReply *)reply)->drain;
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return status;
}

// A worker that stands still does not join: it would be given jobs until its first beat.
static bool may_join(struct sl_agent *agent) {
    Sluice__V1__WorkerLoad load = SLUICE__V1__WORKER_LOAD__INIT;
    agent->config.load_fn(agent->config.arg, &load);
    return !load.stalled;
}

static void *agent_main(void *arg) {
    struct sl_agent *agent = arg;
    const char *coordinator = agent->config.coordinator;
    bool registered = false, complained = false;
    int64_t heartbeat_ms = 1000;
    for (int64_t wait_ms = 0; pause_for(agent, wait_ms);) {
        if (!registered && !may_join(agent)) {
            set_why_not(agent, "a thread stands still");
            wait_ms = RETRY_MS;
            continue;
        }
        struct sl_error err = {0};
        bool drains = false;
        enum sl_status status = registered ? beat(agent, &drains, &err) : register_worker(agent, &heartbeat_ms, &err);
        if (status == SL_OK) {
            if (!registered) {
                sl_log_info("agent", "registered name=%s coordinator=%s", agent->config.info->name, coordinator);
            }
            registered = true;
            complained = false;
            set_why_not(agent, drains ? "draining: the coordinator was asked to give it nothing new" : "");
            wait_ms = heartbeat_ms;
        } else if (status == SL_ERR_NOT_FOUND && registered) {
            sl_log_warn("agent", "coordinator=%s has forgotten this worker: registering again", coordinator);
            set_why_not(agent, "not registered: the coordinator has forgotten this worker");
            registered = false;
            wait_ms = 0;
        } else if (status == SL_ERR_PRECONDITION || status == SL_ERR_INVALID || status == SL_ERR_EXISTS ||
                   status == SL_ERR_DENIED) {
            agent->config.refused_fn(agent->config.arg, err.text);
            return NULL;
        } else {
            if (!complained) {
                sl_log_warn("agent", "coordinator=%s cannot be reached, trying on: %s", coordinator, err.text);
            }
            char why[SL_WHY_BYTES];
            snprintf(why, sizeof why, "the coordinator cannot be reached: %.400s", err.text);
            set_why_not(agent, why);
            complained = true;
            wait_ms = RETRY_MS;
        }
    }
    return NULL;
}

enum sl_status sl_agent_create(const struct sl_agent_config *config, struct sl_agent **agent_out,
                               struct sl_error *err) {
    struct sl_agent *agent = calloc(1, sizeof *agent);
    if (!agent) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "agent: out of memory");
    }
    agent->config = *config;
    snprintf(agent->why_not, sizeof agent->why_not, "not registered yet");
    enum sl_status status =
        sl_rpc_channel_create(config->coordinator, config->credentials, SL_ROLE_COORDINATOR, &agent->channel, err);
    if (status != SL_OK) {
        goto err_free;
    }
    pthread_mutex_init(&agent->mutex, NULL);
    sl_cond_init(&agent->wake);
    status = sl_thread_start("agent", agent_main, agent, &agent->thread, err);
    if (status != SL_OK) {
        goto err_channel;
    }
    *agent_out = agent;
    return SL_OK;

err_channel:
    pthread_cond_destroy(&agent->wake);
    pthread_mutex_destroy(&agent->mutex);
    sl_rpc_channel_destroy(&agent->channel);
err_free:
    free(agent);
    return status;
}

void sl_agent_destroy(struct sl_agent **agent_inout) {
    struct sl_agent *agent = *agent_inout;
    if (!agent) {
        return;
    }
    pthread_mutex_lock(&agent->mutex);
    agent->stopping = true;
    pthread_cond_broadcast(&agent->wake);
    pthread_mutex_unlock(&agent->mutex);
    pthread_join(agent->thread, NULL);
    sl_rpc_channel_destroy(&agent->channel);
    pthread_cond_destroy(&agent->wake);
    pthread_mutex_destroy(&agent->mutex);
    free(agent);
    *agent_inout = NULL;
}
