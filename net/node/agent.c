// SPDX-License-Identifier: Apache-2.0
#include "net/node/agent.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/admin/admin.h"
#include "net/rpc/rpc.h"
#include "proto/methods.h"

#define RETRY_MS         500
#define REFUSED_RETRY_MS 3000
#define CALL_MS          2000
// The shortest interval that a coordinator can ask for (its --heartbeat); it counts a worker that beats more slowly as
// lost.
#define HEARTBEAT_MIN_MS 10
#define HEARTBEAT_MAX_MS 60000

static const char draining[] = "draining: the coordinator was asked to give it nothing new";

struct tie {
    struct sl_agent *agent;
    const char *coordinator;
    struct sl_rpc_channel *channel;
    pthread_t thread;
    // Used by the thread alone.
    bool registered, complained;
    int64_t heartbeat_ms;
    // Guarded by the mutex.
    bool refused;
    char why_not[SL_WHY_BYTES]; // why it gives us no jobs; "": it gives us jobs
    uint64_t n_seen, n_heard;   // announcements that woke this thread; that the coordinator has answered
};

struct sl_agent {
    struct sl_agent_config config;
    struct sl_rpc_addresses addresses;
    struct tie ties[SL_RPC_MAX_ADDRESSES];
    int n_ties; // with a running thread
    atomic_bool drains;
    pthread_mutex_t mutex;
    pthread_cond_t wake; // signals a stop, an announcement, and an answer to one
    bool stopping, given_up;
    uint64_t n_announced;
};

// Waits `ms`, or until the agent is stopped or has something to announce. Returns false when it is to stop.
static bool pause_for(struct tie *tie, int64_t ms) {
    struct sl_agent *agent = tie->agent;
    int64_t deadline = sl_deadline_in_ms(ms);
    SL_LOCKED(&agent->mutex);
    while (!agent->stopping && tie->n_seen == agent->n_announced &&
           sl_cond_wait_until(&agent->wake, &agent->mutex, deadline) == SL_OK) {
    }
    tie->n_seen = agent->n_announced;
    return !agent->stopping;
}

static enum sl_status register_worker(struct tie *tie, struct sl_error *err) {
    struct sl_agent *agent = tie->agent;
    Sluice__V1__RegisterRequest request = SLUICE__V1__REGISTER_REQUEST__INIT;
    request.worker = (Sluice__V1__WorkerInfo *)agent->config.info;
    request.drains = atomic_load(&agent->drains);
    ProtobufCMessage *message;
    SL_TRY(sl_rpc_unary(tie->channel, &sl_method_cluster_register_worker, &request.base, sl_deadline_in_ms(CALL_MS),
                        NULL, &message, err));
    const Sluice__V1__RegisterReply *reply = (const Sluice__V1__RegisterReply *)message;
    int64_t ms = reply->heartbeat_ms;
    tie->heartbeat_ms = ms < HEARTBEAT_MIN_MS ? HEARTBEAT_MIN_MS : ms > HEARTBEAT_MAX_MS ? HEARTBEAT_MAX_MS : ms;
    sl_term_guard_hear(agent->config.term_guard, reply->term);
    protobuf_c_message_free_unpacked(message, NULL);
    return SL_OK;
}

static void set_why_not(struct tie *tie, const char *words) {
    SL_LOCKED(&tie->agent->mutex);
    snprintf(tie->why_not, sizeof tie->why_not, "%s", words);
}

// Returns true if one coordinator accepts us, as that may be the leader; but false once one of them drains us, as the
// others will soon know it.
bool sl_agent_takes_jobs(struct sl_agent *agent, char *why, size_t why_bytes) {
    bool takes = false;
    SL_LOCKED(&agent->mutex);
    for (int i = 0; i < agent->addresses.n; i++) {
        takes |= agent->ties[i].why_not[0] == '\0';
    }
    for (int i = 0; i < agent->addresses.n; i++) {
        takes &= strcmp(agent->ties[i].why_not, draining) != 0;
    }
    if (!takes) {
        const char *words = "";
        for (int i = 0; i < agent->addresses.n; i++) {
            words = words[0] == '\0' || strcmp(agent->ties[i].why_not, draining) == 0 ? agent->ties[i].why_not : words;
        }
        snprintf(why, why_bytes, "%s", words);
    }
    return takes;
}

static enum sl_status beat(struct tie *tie, bool *drains_out, struct sl_error *err) {
    struct sl_agent *agent = tie->agent;
    pthread_mutex_lock(&agent->mutex);
    uint64_t n_announced = agent->n_announced;
    pthread_mutex_unlock(&agent->mutex);
    Sluice__V1__WorkerLoad load = SLUICE__V1__WORKER_LOAD__INIT;
    agent->config.load_fn(agent->config.arg, &load);
    load.drains = atomic_load(&agent->drains);
    Sluice__V1__HeartbeatRequest request = SLUICE__V1__HEARTBEAT_REQUEST__INIT;
    request.name = agent->config.info->name;
    request.epoch = agent->config.info->epoch;
    request.load = &load;
    request.term = atomic_load(&agent->config.term_guard->term);
    ProtobufCMessage *message;
    SL_TRY(sl_rpc_unary(tie->channel, &sl_method_cluster_heartbeat, &request.base, sl_deadline_in_ms(CALL_MS), NULL,
                        &message, err));
    const Sluice__V1__HeartbeatReply *reply = (const Sluice__V1__HeartbeatReply *)message;
    *drains_out = reply->drain;
    sl_term_guard_hear(agent->config.term_guard, reply->term);
    if (reply->term > 0 && reply->term == atomic_load(&agent->config.term_guard->term)) { // it is the leader
        atomic_store(&agent->drains, reply->drain);
    }
    protobuf_c_message_free_unpacked(message, NULL);
    SL_LOCKED(&agent->mutex);
    tie->n_heard = n_announced;
    pthread_cond_broadcast(&agent->wake);
    return SL_OK;
}

// Returns false for a stalled worker: it would be given jobs until its first beat.
static bool may_join(struct sl_agent *agent) {
    Sluice__V1__WorkerLoad load = SLUICE__V1__WORKER_LOAD__INIT;
    agent->config.load_fn(agent->config.arg, &load);
    return !load.stalled;
}

// Returns true when all coordinators refuse us: the agent gives up.
static bool note_refusal(struct tie *tie, bool refused, const char *why) {
    struct sl_agent *agent = tie->agent;
    bool all = true;
    pthread_mutex_lock(&agent->mutex);
    bool news = refused && !tie->refused;
    tie->refused = refused;
    for (int i = 0; i < agent->addresses.n; i++) {
        all &= agent->ties[i].refused;
    }
    bool first = all && !agent->given_up;
    agent->given_up |= all;
    pthread_mutex_unlock(&agent->mutex);
    if (first) {
        agent->config.refused_fn(agent->config.arg, why);
    } else if (news && !all) {
        sl_log_error("agent", "coordinator=%s refuses this worker: %s", tie->coordinator, why);
    }
    return all;
}

static bool is_refusal(enum sl_status status) {
    return status == SL_ERR_PRECONDITION || status == SL_ERR_INVALID || status == SL_ERR_EXISTS ||
           status == SL_ERR_DENIED;
}

static void *tie_main(void *arg) {
    struct tie *tie = arg;
    struct sl_agent *agent = tie->agent;
    for (int64_t wait_ms = 0; pause_for(tie, wait_ms);) {
        if (!tie->registered && !may_join(agent)) {
            set_why_not(tie, "a thread stands still");
            wait_ms = RETRY_MS;
            continue;
        }
        struct sl_error err = {0};
        bool drains = false;
        enum sl_status status = tie->registered ? beat(tie, &drains, &err) : register_worker(tie, &err);
        if (status == SL_OK) {
            if (!tie->registered) {
                sl_log_info("agent", "registered name=%s coordinator=%s", agent->config.info->name, tie->coordinator);
                note_refusal(tie, false, "");
            }
            tie->registered = true;
            tie->complained = false;
            set_why_not(tie, drains ? draining : "");
            wait_ms = tie->heartbeat_ms;
        } else if (status == SL_ERR_NOT_FOUND && tie->registered) {
            sl_log_warn("agent", "coordinator=%s has forgotten this worker: registering again", tie->coordinator);
            set_why_not(tie, "not registered: the coordinator has forgotten this worker");
            tie->registered = false;
            wait_ms = 0;
        } else if (is_refusal(status)) {
            tie->registered = false;
            set_why_not(tie, err.text);
            if (note_refusal(tie, true, err.text)) {
                return NULL;
            }
            wait_ms = REFUSED_RETRY_MS;
        } else {
            if (!tie->complained) {
                sl_log_warn("agent", "coordinator=%s cannot be reached, trying on: %s", tie->coordinator, err.text);
            }
            tie->complained = true;
            char why[SL_WHY_BYTES];
            snprintf(why, sizeof why, "the coordinator cannot be reached: %.400s", err.text);
            set_why_not(tie, why);
            wait_ms = RETRY_MS;
        }
    }
    return NULL;
}

static enum sl_status start_tie(struct sl_agent *agent, struct tie *tie, struct sl_error *err) {
    SL_TRY(sl_rpc_channel_create(tie->coordinator, agent->config.credentials, SL_ROLE_COORDINATOR, &tie->channel, err));
    SL_TRY_OR(sl_thread_start("agent", tie_main, tie, &tie->thread, err), sl_rpc_channel_destroy(&tie->channel));
    agent->n_ties++;
    return SL_OK;
}

enum sl_status sl_agent_create(const struct sl_agent_config *config, struct sl_agent **agent_out,
                               struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_agent, agent, err, "agent: out of memory");
    agent->config = *config;
    pthread_mutex_init(&agent->mutex, NULL);
    sl_cond_init(&agent->wake);
    enum sl_status status = sl_rpc_addresses_parse(config->coordinators, &agent->addresses, err);
    for (int i = 0; i < agent->addresses.n; i++) {
        agent->ties[i] = (struct tie){.agent = agent,
                                      .coordinator = agent->addresses.text[i],
                                      .heartbeat_ms = 1000,
                                      .why_not = "not registered yet"};
    }
    for (int i = 0; i < agent->addresses.n && status == SL_OK; i++) {
        status = start_tie(agent, &agent->ties[i], err);
    }
    SL_TRY_OR(status, sl_agent_destroy(&agent));
    *agent_out = agent;
    return SL_OK;
}

bool sl_agent_announce(struct sl_agent *agent, int64_t deadline_ns) {
    bool heard = false;
    SL_LOCKED(&agent->mutex);
    uint64_t number = ++agent->n_announced;
    pthread_cond_broadcast(&agent->wake);
    for (;;) {
        heard = true;
        for (int i = 0; i < agent->n_ties; i++) {
            heard &= agent->ties[i].n_heard >= number;
        }
        if (heard || sl_cond_wait_until(&agent->wake, &agent->mutex, deadline_ns) != SL_OK) {
            break;
        }
    }
    return heard;
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
    for (int i = 0; i < agent->n_ties; i++) {
        pthread_join(agent->ties[i].thread, NULL);
        sl_rpc_channel_destroy(&agent->ties[i].channel);
    }
    pthread_cond_destroy(&agent->wake);
    pthread_mutex_destroy(&agent->mutex);
    free(agent);
    *agent_inout = NULL;
}
