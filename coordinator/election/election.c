// SPDX-License-Identifier: Apache-2.0
// Purpose: see election.h. A candidate, its leader key, and the thread that uses both.
#include "coordinator/election/election.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber/bell.h"
#include "base/locked.h"
#include "base/thread.h"
#include "coordinator/election/candidate.h"
#include "coordinator/election/etcd.h"

struct sl_election {
    struct sl_etcd *etcd;
    char address[SL_LEADER_BYTES];
    struct sl_candidate candidate;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    struct sl_bell stepped;
    bool standing, stopping, hurried, doubted;
    uint64_t n_begun, n_ended; // steps of the candidate
};

enum { DOUBT_MS = 250 }; // shortest time between two steps that a doubt causes

void sl_election_config_init(struct sl_election_config *config) {
    *config = (struct sl_election_config){.prefix = "/sluice", .ttl_ms = 5000, .renew_ms = 1500, .fence_ms = 3500};
}

static void *stand_always(void *arg) {
    struct sl_election *election = arg;
    pthread_mutex_lock(&election->mutex);
    do {
        const int64_t doubt_ns = sl_deadline_in_ms(DOUBT_MS);
        election->hurried = election->doubted = false;
        election->n_begun++;
        pthread_mutex_unlock(&election->mutex);
        const int64_t next_ns = sl_candidate_step(&election->candidate);
        pthread_mutex_lock(&election->mutex);
        election->n_ended = election->n_begun;
        sl_bell_ring_held(&election->stepped, INT_MAX);
        while (!election->stopping && !election->hurried &&
               sl_cond_wait_until(&election->wake, &election->mutex,
                                  election->doubted && doubt_ns < next_ns ? doubt_ns : next_ns) == SL_OK) {
        }
    } while (!election->stopping);
    pthread_mutex_unlock(&election->mutex);
    sl_candidate_leave(&election->candidate);
    return NULL;
}

enum sl_status sl_election_create(const struct sl_election_config *config, struct sl_election **election_out,
                                  struct sl_error *err) {
    SL_FAIL_IF(config->renew_ms < 1 || config->fence_ms <= config->renew_ms || config->ttl_ms <= config->fence_ms, err,
               SL_ERR_INVALID, "a lease is renewed before it is fenced, and fenced before it ends");
    struct sl_election *election = calloc(1, sizeof *election);
    SL_FAIL_IF(!election, err, SL_ERR_EXHAUSTED, "no memory for an election");
    SL_TRY_OR(sl_etcd_create(config->etcd, config->prefix, &config->tls, false, &election->etcd, err), free(election));
    struct sl_candidate_config candidate = {.ops = &sl_etcd_ops,
                                            .arg = election->etcd,
                                            .now_fn = sl_now_ns,
                                            .address = election->address,
                                            .ttl_ms = config->ttl_ms,
                                            .renew_ms = config->renew_ms,
                                            .fence_ms = config->fence_ms};
    sl_candidate_init(&election->candidate, &candidate);
    pthread_mutex_init(&election->mutex, NULL);
    sl_cond_init(&election->wake);
    *election_out = election;
    return SL_OK;
}

enum sl_status sl_election_stand(struct sl_election *election, const char *address, struct sl_error *err) {
    SL_FAIL_IF(strlen(address) >= sizeof election->address, err, SL_ERR_INVALID,
               "the coordinator's address is too long");
    strcpy(election->address, address);
    enum sl_status status = sl_thread_start("election", stand_always, election, &election->thread, err);
    election->standing = status == SL_OK;
    return status;
}

static void hurry(struct sl_election *election) {
    SL_LOCKED(&election->mutex);
    election->hurried = true;
    pthread_cond_signal(&election->wake);
}

void sl_election_destroy(struct sl_election **election_in) {
    struct sl_election *election = *election_in;
    if (!election) {
        return;
    }
    pthread_mutex_lock(&election->mutex);
    election->stopping = true;
    pthread_cond_signal(&election->wake);
    pthread_mutex_unlock(&election->mutex);
    if (election->standing) {
        pthread_join(election->thread, NULL);
    }
    sl_candidate_cleanup(&election->candidate);
    sl_etcd_destroy(&election->etcd);
    pthread_cond_destroy(&election->wake);
    pthread_mutex_destroy(&election->mutex);
    free(election);
    *election_in = NULL;
}

int64_t sl_election_term(struct sl_election *election) {
    return sl_candidate_term(&election->candidate);
}

int64_t sl_election_last_term(struct sl_election *election) {
    return sl_candidate_last_term(&election->candidate);
}

void sl_election_leader(struct sl_election *election, char leader_out[SL_LEADER_BYTES]) {
    sl_candidate_leader(&election->candidate, leader_out);
}

bool sl_election_another_leads(struct sl_election *election, char leader_out[SL_LEADER_BYTES]) {
    sl_candidate_leader(&election->candidate, leader_out);
    return leader_out[0] != '\0' && strcmp(leader_out, election->address) != 0;
}

void sl_election_doubt(struct sl_election *election) {
    SL_LOCKED(&election->mutex);
    election->doubted = true;
    pthread_cond_signal(&election->wake);
}

int64_t sl_election_confirm(struct sl_election *election, int64_t deadline_ns) {
    pthread_mutex_lock(&election->mutex);
    const uint64_t n_before = election->n_begun; // a step under way may be older than the caller's reason
    election->doubted = true;
    pthread_cond_signal(&election->wake);
    while (election->n_ended <= n_before && !election->stopping &&
           sl_bell_wait(&election->stepped, &election->mutex, deadline_ns) == SL_OK) {
    }
    pthread_mutex_unlock(&election->mutex);
    return sl_election_term(election);
}

void sl_election_withdraw(struct sl_election *election) {
    sl_candidate_withdraw(&election->candidate);
    hurry(election);
}
