// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: offload/annex/source.h over the fabric: annexes in kvstores, asked by connections that all sessions of a worker share.
 *
 * With retrieve=pull rows and channels are read one-sided where a connection can do that well (shared memory, RDMA): the answer
 * has the same bytes, and no thread of the store has put them together. Else, and where such a read fails, they are asked
 * for. int8 rows always are: the store decodes them.
 */
#pragma once

#include "compress/plan/plan.h"
#include "offload/annex/source.h"
#include "offload/remote/connections.h"
#include "proto/sluice/v1/worker.pb-c.h"

/*
 * plan: needed at creation alone. SL_ERR_INVALID: the shares do not cover every lane. SL_ERR_UNSUPPORTED: more than
 * SL_MAX_SHARES.
 */
enum sl_status sl_remote_source_create(struct sl_connections *connections, Sluice__V1__AnnexShare *const *shares,
                                       size_t n_shares, const struct sl_plan *plan, struct sl_source **source_out,
                                       struct sl_error *err);
