// SPDX-License-Identifier: Apache-2.0
// Purpose: whether this coordinator leads, and what it says when it does not. One that is alone always does, without a term.
#pragma once

#include "coordinator/coordinator_internal.h"

int64_t sl_coordinator_term(struct sl_coordinator *coordinator); // 0: it does not lead, or is alone

// SL_ERR_PEER_LOST: another one leads, or nobody; err says who.
enum sl_status sl_coordinator_check_leads(struct sl_coordinator *coordinator, struct sl_error *err);

// For Model: the strings of the reply are leader_bytes.
void sl_coordinator_tell_leader(struct sl_coordinator *coordinator, char leader_bytes[SL_LEADER_BYTES],
                                Sluice__V1__ModelReply *reply);

// A worker has heard of this term, from somebody.
void sl_coordinator_hear_term(struct sl_coordinator *coordinator, int64_t term, const char *worker);
