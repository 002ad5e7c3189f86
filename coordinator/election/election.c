// SPDX-License-Identifier: Apache-2.0
// Purpose: see election.h. A candidate, its leader key, and the thread that uses both.
#include "coordinator/election/election.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber/bell.h"
#include "base/locked.h"
#include "base/loop.h"
#include "coordinator/election/candidate.h"
#include "coordinator/election/etcd.h"

struct sl_election {
    struct sl_etcd *etcd;
    char address[SL_LEADER_BYTES];
    struct sl_candidate candidate;
    struct sl_loop loop;
    struct sl_bell stepped;
    bool hurried, doubted;
    uint64_t n_begun, n_ended; // steps of the candidate
};

enum {
    DOUBT_MS = 250, // shortest time between two steps that a doubt causes
    TTL_MS = 5000,  // of the lease
    RENEW_MS = 1500,
    FENCE_MS = 3500,
};
_Static_assert(RENEW_MS < FENCE_MS && FENCE_MS < TTL_MS, "renewed before it is fenced, and fenced before it ends");

static void *stand_always(void *arg) {
    struct sl_election *election = arg;
    pthread_mutex_lock(&election->loop.mutex);
    do {
        const int64_t doubt_ns = sl_deadline_in_ms(DOUBT_MS);
        election->hurried = election->doubted = false;
        election->n_begun++;
        pthread_mutex_unlock(&election->loop.mutex);
        const int64_t next_ns = sl_candidate_step(&election->candidate);
        pthread_mutex_lock(&election->loop.mutex);
        election->n_ended = election->n_begun;
        sl_bell_ring_held(&election->stepped, INT_MAX);
        while (!election->loop.stopping && !election->hurried &&
               sl_loop_wait(&election->loop, election->doubted && doubt_ns < next_ns ? doubt_ns : next_ns) == SL_OK) {
        }
    } while (!election->loop.stopping);
    pthread_mutex_unlock(&election->loop.mutex);
    sl_candidate_leave(&election->candidate);
    return NULL;
}

enum sl_status sl_election_create(const char *etcd, const char *prefix, const struct sl_tls_files *tls,
                                  struct sl_election **election_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_election, election, err, "no memory for an election");
    SL_TRY_OR(sl_etcd_create(etcd, prefix, tls, false, &election->etcd, err), free(election));
    struct sl_candidate_config candidate = {.ops = &sl_etcd_ops,
                                            .arg = election->etcd,
                                            .now_fn = sl_now_ns,
                                            .address = election->address,
                                            .ttl_ms = TTL_MS,
                                            .renew_ms = RENEW_MS,
                                            .fence_ms = FENCE_MS};
    sl_candidate_init(&election->candidate, &candidate);
    sl_loop_init(&election->loop);
    *election_out = election;
    return SL_OK;
}

enum sl_status sl_election_stand(struct sl_election *election, const char *address, struct sl_error *err) {
    SL_FAIL_IF(strlen(address) >= sizeof election->address, err, SL_ERR_INVALID,
               "the coordinator's address is too long");
    strcpy(election->address, address);
    return sl_loop_start(&election->loop, "election", stand_always, election, err);
}

void sl_election_destroy(struct sl_election **election_in) {
    SL_TAKE_OR_RETURN(election, election_in);
    sl_loop_cleanup(&election->loop);
    sl_candidate_cleanup(&election->candidate);
    sl_etcd_destroy(&election->etcd);
    free(election);
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
    SL_LOCKED(&election->loop.mutex);
    election->doubted = true;
    pthread_cond_signal(&election->loop.changed);
}

int64_t sl_election_confirm(struct sl_election *election, int64_t deadline_ns) {
    pthread_mutex_lock(&election->loop.mutex);
    const uint64_t n_before = election->n_begun; // a step under way may be older than the caller's reason
    election->doubted = true;
    pthread_cond_signal(&election->loop.changed);
    while (election->n_ended <= n_before && !election->loop.stopping &&
           sl_bell_wait(&election->stepped, &election->loop.mutex, deadline_ns) == SL_OK) {
    }
    pthread_mutex_unlock(&election->loop.mutex);
    return sl_election_term(election);
}

void sl_election_withdraw(struct sl_election *election) {
    sl_candidate_withdraw(&election->candidate);
    SL_LOCKED(&election->loop.mutex);
    election->hurried = true;
    pthread_cond_signal(&election->loop.changed);
}
