// SPDX-License-Identifier: Apache-2.0
// Purpose: decides whether this coordinator leads, and answers for one that does not. A coordinator that is alone always leads, without a term.
#pragma once

#include "coordinator/coordinator_internal.h"

int64_t sl_coordinator_term(struct sl_coordinator *coordinator); // 0: it does not lead, or is alone

// Returns SL_ERR_PEER_LOST if this coordinator does not lead; err names the leader if it is known.
enum sl_status sl_coordinator_check_leads(struct sl_coordinator *coordinator, struct sl_error *err);

// Fills in the leader and its term for Model; the reply points to leader_bytes.
void sl_coordinator_tell_leader(struct sl_coordinator *coordinator, char leader_bytes[SL_LEADER_BYTES],
                                Sluice__V1__ModelReply *reply);

// Handles a term that a worker reports: one that is newer than this coordinator's is a reason to ask etcd.
void sl_coordinator_hear_term(struct sl_coordinator *coordinator, int64_t term, const char *worker);

/*
 * Returns SL_OK if this coordinator leads and has the documents: a new leader reads them from etcd first, and this waits for
 * that. SL_ERR_PEER_LOST: it does not lead, or etcd does not answer.
 */
enum sl_status sl_coordinator_check_documents(struct sl_coordinator *coordinator, struct sl_error *err);
// Takes the documents from etcd where a term begins, and lets them go where it ends. Returns whether this coordinator has
// them. Called by the keeper's thread.
bool sl_coordinator_lead_documents(void *coordinator);
