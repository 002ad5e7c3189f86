// SPDX-License-Identifier: Apache-2.0
#include "coordinator/lead.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/log.h"

#define COMPLAIN_MS 10000 // a worker that reports a wrong term does so with each heartbeat

int64_t sl_coordinator_term(struct sl_coordinator *coordinator) {
    return coordinator->election != NULL ? sl_election_term(coordinator->election) : 0;
}

enum sl_status sl_coordinator_check_leads(struct sl_coordinator *coordinator, struct sl_error *err) {
    if (coordinator->election == NULL || sl_election_term(coordinator->election) != 0) {
        return SL_OK;
    }
    char leader[SL_LEADER_BYTES];
    sl_election_leader(coordinator->election, leader);
    return leader[0] != '\0' ? sl_fail(err, SL_ERR_PEER_LOST, "this coordinator does not lead: %s does", leader)
                             : sl_fail(err, SL_ERR_PEER_LOST,
                                       "this coordinator does not lead, nor is it known who "
                                       "does; retry in 500 ms");
}

void sl_coordinator_tell_leader(struct sl_coordinator *coordinator, char leader_bytes[SL_LEADER_BYTES],
                                Sluice__V1__ModelReply *reply) {
    if (coordinator->election == NULL) {
        return;
    }
    sl_election_leader(coordinator->election, leader_bytes);
    reply->leader = leader_bytes;
    reply->term = sl_election_term(coordinator->election);
    reply->standby = reply->term == 0;
    reply->ready = reply->ready && (reply->term != 0 || leader_bytes[0] != '\0');
}

void sl_coordinator_hear_term(struct sl_coordinator *coordinator, int64_t term, const char *worker) {
    int64_t own = sl_coordinator_term(coordinator);
    if (own == 0 || term <= own) {
        return;
    }
    const int64_t now_ns = sl_now_ns();
    long long before_ns = atomic_load(&coordinator->complained_ns);
    if (now_ns - before_ns > COMPLAIN_MS * SL_NS_PER_MS &&
        atomic_compare_exchange_strong(&coordinator->complained_ns, &before_ns, now_ns)) {
        sl_log_warn("election", "%.60s reports term %" PRId64 ", ours is %" PRId64 ": asking etcd", worker, term, own);
    }
    sl_election_doubt(coordinator->election);
}

static bool has_documents(struct sl_coordinator *coordinator) {
    int64_t term = sl_coordinator_term(coordinator);
    return coordinator->election == NULL || (term != 0 && sl_documents_term(coordinator->documents) == term);
}

enum sl_status sl_coordinator_check_documents(struct sl_coordinator *coordinator, struct sl_error *err) {
    enum sl_status status = sl_coordinator_check_leads(coordinator, err);
    if (status != SL_OK || has_documents(coordinator)) {
        return status;
    }
    sl_document_keeper_tell(coordinator->keeper);
    status = sl_coordinator_check_leads(coordinator, err);
    return status != SL_OK || has_documents(coordinator)
               ? status
               : sl_fail(err, SL_ERR_PEER_LOST,
                         "this coordinator leads, but etcd has not sent the documents yet; retry in 500 ms");
}

bool sl_coordinator_lead_documents(void *arg) {
    struct sl_coordinator *coordinator = arg;
    int64_t term = sl_coordinator_term(coordinator);
    struct sl_error err = {0};
    enum sl_status status = sl_documents_lead(coordinator->documents, term, &err);
    if (status != SL_OK) {
        sl_log_warn("documents", "they are not known yet: %s", err.text);
    }
    return status == SL_OK && (term != 0 || coordinator->election == NULL);
}

enum sl_status sl_coordinator_find_document(struct sl_coordinator *coordinator, const char *tenant, const char *name,
                                            struct sl_document **document_out, struct sl_error *err) {
    enum sl_status status = sl_coordinator_check_documents(coordinator, err);
    SL_THEN(status, sl_documents_find(coordinator->documents, tenant, name, document_out, err));
    if (status == SL_ERR_NOT_FOUND) { // the term may have ended meanwhile, and the documents with it
        struct sl_error why = {0};
        enum sl_status leads = sl_coordinator_check_documents(coordinator, &why);
        status = leads == SL_OK ? status : sl_fail(err, leads, "%s", why.text);
    }
    return status;
}
