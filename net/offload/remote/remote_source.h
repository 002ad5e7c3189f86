// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: engine/offload/remote_kv/source.h over the fabric: remote KVs in kvstores, queried over connections that all
 *          sessions of a worker share.
 *
 * With retrieve=pull, rows and channels are read one-sided where a connection supports it well (shared memory, RDMA):
 * the answer has the same bytes, and no thread of the store is involved. Otherwise, and if such a read fails, the store
 * is asked. It is always asked for int8 rows, which it decodes.
 */
#pragma once

#include "engine/compress/plan/plan.h"
#include "engine/offload/remote_kv/source.h"
#include "net/offload/remote/connections.h"
#include "proto/sluice/v1/worker.pb-c.h"

/*
 * Creates the source. plan: used at creation alone. SL_ERR_INVALID: the shares do not cover every offloaded head.
 * SL_ERR_UNSUPPORTED: more than SL_MAX_SHARES.
 */
enum sl_status sl_remote_source_create(struct sl_connections *connections, Sluice__V1__AnnexShare *const *shares,
                                       size_t n_shares, const struct sl_plan *plan, struct sl_source **source_out,
                                       struct sl_error *err);
